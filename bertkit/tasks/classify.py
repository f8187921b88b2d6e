"""`classify`: single texts or pairs; binary, multi-class, multi-label and regression."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.config import DATA, fill_unset, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.label_types import LabelType, MultiLabel, Regression, SingleLabel
from bertkit.tasks.sequence import SequenceConfig, SequenceTask

if TYPE_CHECKING:
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.modeling.loading import ModelSource

SEPARATOR_KEY = "label_separator"  # in the model's config


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
    text_settings = ("text_column", "text_pair_column")

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Text, pair and label columns, the kind of labels and their names."""
        from bertkit.data.labels import infer_label_type

        train = dataset.splits["train"]
        self._name_columns(train)
        if dataset.labels:  # a known set, where "-" and -1 are no labels
            dataset = self._decided(dataset)
            train = dataset.splits["train"]
        values = train[self.config.label_column]
        self.config = fill_unset(self.config, {"problem": infer_label_type(values)})
        self.label_type = self._named_problem(train, dataset.labels)
        self.best_metric = (dataset.best_metric or self.label_type.default_metric, 1)
        return dataset

    def _guess_texts(self, train: "Rows") -> None:
        from bertkit.data.columns import guess_text_columns

        if self.config.text_column is None:
            self.config = fill_unset(
                self.config, dict(zip(self.text_settings, guess_text_columns(train), strict=True))
            )

    def _named_problem(self, train: "Rows", known: list[str]) -> LabelType:
        from bertkit.data.labels import detect_separator, normalize_label, parse_label_set, sort_labels

        values, kind = train[self.config.label_column], self.config.problem
        if kind == "regression":
            return Regression([])
        separator = detect_separator(values) if kind == "multi-label" else None
        if kind == "multi-label":
            found = {name for value in values for name in parse_label_set(value, separator) or []}
        else:
            found = {text for text in map(normalize_label, values) if text is not None}
        names = known if known and found <= set(known) else sort_labels(list(found))
        self.label_type = MultiLabel(names) if kind == "multi-label" else SingleLabel(names)
        self._check_labels(train, len(found))
        if isinstance(self.label_type, MultiLabel):
            self.label_type.separator = separator
        else:
            self.config = fill_unset(self.config, {"positive_label": names[1] if kind == "binary" else None})
            self.label_type.positive_label = self.config.positive_label  # type: ignore[attr-defined]
        return self.label_type

    def _check_labels(self, train: "Rows", found: int) -> None:
        column, kind = f"{train.files[0]}: column {self.config.label_column!r}", self.config.problem
        self._require_classes(train, found)
        if kind == "binary" and len(self.labels) != 2:
            raise UserError(f"{column} has {len(self.labels)} classes; --problem binary needs two")
        positive = self.config.positive_label
        if positive is not None and positive not in self.labels:
            raise UserError(f"--positive-label {positive}: the labels are {format_list(self.labels)}")

    def validate_splits(self, splits: "Splits") -> None:
        """Flags fit the kind of labels; values as in every sequence task."""
        config = self.config
        if config.problem == "regression" and (config.class_weights or config.label_smoothing):
            flag = "--class-weights" if config.class_weights else "--label-smoothing"
            raise UserError(f"{flag}: regression has no classes")
        super().validate_splits(splits)

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """As in every sequence task; how labels are parted in one text goes along."""
        vars(model_config).pop(SEPARATOR_KEY, None)  # another run's
        if isinstance(self.label_type, MultiLabel):
            setattr(model_config, SEPARATOR_KEY, self.label_type.separator)
        return super().configure_model(model_config, source)

    def describe(self) -> str:
        """The kind of problem, its texts and classes."""
        return f"{self.config.problem} of {super().describe()}"

    def _problem_of(self, model_config: Any) -> LabelType:
        if self.config.problem == "regression":
            return Regression([])
        names = [model_config.id2label[number] for number in range(model_config.num_labels)]
        if self.config.problem == "multi-label":
            sets = MultiLabel(names)
            sets.separator = getattr(model_config, SEPARATOR_KEY, None)
            return sets
        problem = SingleLabel(names)
        problem.positive_label = self.config.positive_label
        return problem
