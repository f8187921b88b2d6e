"""`classify`: single texts or pairs; binary, multi-class, multi-label and regression."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, fill, setting
from bertkit.errors import UserError, listed
from bertkit.tasks.problems import LabelSet, Number, Problem, SingleLabel
from bertkit.tasks.sequence import SequenceConfig, SequenceTask

if TYPE_CHECKING:
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.sources import Found
    from bertkit.modeling.loading import ModelSource

SEPARATOR = "label_separator"  # in the model's config


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(SequenceConfig):
    """The settings of `classify` beside the shared ones."""

    text_column: str | None = setting(None, "The text.", DATA, default_text="guessed")
    text_pair_column: str | None = setting(
        None, "The second text, where rows are pairs.", DATA, default_text="guessed"
    )
    problem: Literal["binary", "multi-class", "multi-label", "regression"] | None = setting(
        None, "What kind of labels they are.", DATA, default_text="seen from the labels"
    )
    positive_label: str | None = setting(
        None, "Of two labels, the one positive_f1 is about.", DATA, default_text="the second"
    )


class Classify(SequenceTask):
    """The kind of labels is seen from the labels."""

    name = "classify"
    help = "Fine-tune a classifier or a regressor on single texts or pairs."
    Config = ClassifyConfig
    roles = ("text_column", "text_pair_column")

    def columns(self, found: "Found") -> "Found":
        """Text, pair and label columns, the kind of labels and their names."""
        from bertkit.data.labels import infer_problem

        train = found.splits["train"]
        self._name_columns(train)
        if found.labels:  # a known set, where "-" and -1 are no labels
            found = self._decided(found)
            train = found.splits["train"]
        values = train[self.config.label_column]
        self.config = fill(self.config, {"problem": infer_problem(values)})
        self.problem = self._named_problem(train, found.labels)
        self.best = (found.best or self.problem.best, 1)
        return found

    def _guess_texts(self, train: "Rows") -> None:
        from bertkit.data.columns import guess_texts

        if self.config.text_column is None:
            self.config = fill(self.config, dict(zip(self.roles, guess_texts(train), strict=True)))

    def _named_problem(self, train: "Rows", known: list[str]) -> Problem:
        from bertkit.data.labels import label_set, label_text, separator_of, sorted_names

        values, kind = train[self.config.label_column], self.config.problem
        if kind == "regression":
            return Number([])
        separator = separator_of(values) if kind == "multi-label" else None
        if kind == "multi-label":
            found = {name for value in values for name in label_set(value, separator) or []}
        else:
            found = {text for text in map(label_text, values) if text is not None}
        names = known if known and found <= set(known) else sorted_names(list(found))
        self.problem = LabelSet(names) if kind == "multi-label" else SingleLabel(names)
        self._check_labels(train, len(found))
        if isinstance(self.problem, LabelSet):
            self.problem.separator = separator
        else:
            self.config = fill(self.config, {"positive_label": names[1] if kind == "binary" else None})
            self.problem.positive = self.config.positive_label  # type: ignore[attr-defined]
        return self.problem

    def _check_labels(self, train: "Rows", found: int) -> None:
        column, kind = f"{train.files[0]}: column {self.config.label_column!r}", self.config.problem
        self._require_classes(train, found)
        if kind == "binary" and len(self.labels) != 2:
            raise UserError(f"{column} has {len(self.labels)} classes; --problem binary needs two")
        positive = self.config.positive_label
        if positive is not None and positive not in self.labels:
            raise UserError(f"--positive-label {positive}: the labels are {listed(self.labels)}")

    def check(self, splits: "Splits") -> None:
        """Flags fit the kind of labels; values as in every sequence task."""
        config = self.config
        if config.problem == "regression" and (config.class_weights or config.label_smoothing):
            flag = "--class-weights" if config.class_weights else "--label-smoothing"
            raise UserError(f"{flag}: regression has no classes")
        super().check(splits)

    def adopt(self, model_config: Any, source: "ModelSource") -> Any:
        """As in every sequence task; how labels are parted in one text goes along."""
        vars(model_config).pop(SEPARATOR, None)  # another run's
        if isinstance(self.problem, LabelSet):
            setattr(model_config, SEPARATOR, self.problem.separator)
        return super().adopt(model_config, source)

    def summary(self) -> str:
        """The kind of problem, its texts and classes."""
        return f"{self.config.problem} of {super().summary()}"

    def _problem_of(self, model_config: Any) -> Problem:
        if self.config.problem == "regression":
            return Number([])
        names = [model_config.id2label[number] for number in range(model_config.num_labels)]
        if self.config.problem == "multi-label":
            sets = LabelSet(names)
            sets.separator = getattr(model_config, SEPARATOR, None)
            return sets
        problem = SingleLabel(names)
        problem.positive = self.config.positive_label
        return problem
