"""`swag`: which of several endings follows a context?"""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, RunConfig, fill_unset, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.base import Outputs, Scores, Task

if TYPE_CHECKING:
    import numpy as np

    from bertkit.checks.findings import Finding
    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.data.token_counts import TokenCounts
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

LABEL_OFFSET_KEY = "first_ending"  # in the model's config


@dataclass(frozen=True, kw_only=True)
class SwagConfig(RunConfig):
    """The settings of `swag` beside the shared ones."""

    context_column: str | None = setting(None, "The context.", DATA, default_text="guessed")
    start_column: str | None = setting(
        None, "What every ending of a row begins with, as SWAG's sent2.", DATA, default_text="none"
    )
    ending_columns: list[str] | None = setting(
        None,
        "The endings: a column each (repeatable, or parted by commas), or one that holds lists.",
        DATA,
        default_text="guessed",
    )
    label_column: str | None = setting(None, "The right ending.", DATA, default_text="guessed")


class Swag(Task):
    """A pair, context and ending, for each ending; a softmax over the endings of a row.

    Devlin et al. 2018, 4.4. A label is a number, a letter or the ending itself.
    """

    name = "swag"
    help = "Fine-tune on multiple choice: a context and any number of endings."
    Config = SwagConfig
    hub_task = "multiple-choice"
    sequence_grouping = "choice"
    best_metric = ("accuracy", 1)
    label_offset: int = 0  # the number of the first ending in the labels

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Context, endings and label, and from which number labels are counted."""
        from bertkit.data import choices
        from bertkit.data.columns import guess_label_column, require_column

        train, config = dataset.splits["train"], self.config
        for name in ("context_column", "start_column", "label_column"):
            if column := getattr(config, name):
                require_column(train, column, "--" + name.replace("_", "-"))
        if config.context_column is None:
            config = fill_unset(config, choices.guess_context_columns(train))
        if config.label_column is None:
            config = fill_unset(config, {"label_column": guess_label_column(train)})
        endings = config.ending_columns
        endings = (
            choices.parse_column_names(train, endings) if endings else choices.guess_ending_columns(train)
        )
        self.config = dataclasses.replace(config, ending_columns=endings)
        self._set_text_columns()
        self.label_offset = choices.infer_first_label(train[self.config.label_column], self._endings(train))
        notes = [*dataset.notes, "labels are counted from 1"] if self.label_offset else dataset.notes
        splits = {name: self._unmarked(rows) for name, rows in dataset.splits.items()}
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def _unmarked(self, rows: "Rows") -> "Rows":
        """-1 is the Hub's "no label"."""
        column = self.config.label_column
        if column not in rows.columns:
            return rows
        return rows.with_column(column, [None if str(v) == "-1" else v for v in rows[column]])

    def _set_text_columns(self) -> None:
        self.context_columns = [c for c in (self.config.context_column, self.config.start_column) if c]
        self.text_columns = [*self.context_columns, *self.config.ending_columns]

    def _endings(self, rows: "Rows") -> list[list[str]]:
        from bertkit.data.choices import parse_endings

        return parse_endings(
            rows, [column for column in self.config.ending_columns if column in rows.columns]
        )

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """The order of the endings makes no other example; what shares a context stays together."""
        from bertkit.data.split import SplitKeys

        contexts = rows.zip_columns(self.context_columns)
        identity = [(*c, *sorted(e)) for c, e in zip(contexts, self._endings(rows), strict=True)]
        return SplitKeys(identity, [context[0] for context in contexts], [0] * len(rows))

    def validate_splits(self, splits: "Splits") -> None:
        """Texts are texts, endings are two or more, labels name one of them, in every split."""
        from bertkit.data.columns import require_column

        for name, rows in splits.items():
            self._require_all(rows)
            self.normalize_rows(rows)
            if name in ("train", "validation"):
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            self._targets(rows, required=name in ("train", "validation"))

    def map_columns(self, rows: "Rows") -> None:
        """Context, endings and label, each as training called it or else as it is usually called."""
        from bertkit.data import choices
        from bertkit.data.columns import guess_label_column

        with suppress(UserError):  # then what training called them is what is missed
            if self.config.context_column not in rows.columns:
                found = {"start_column": None} | choices.guess_context_columns(rows)
                self.config = dataclasses.replace(self.config, **found)
        with suppress(UserError):
            if self.config.ending_columns[0] not in rows.columns:
                self.config = dataclasses.replace(
                    self.config, ending_columns=choices.guess_ending_columns(rows)
                )
        with suppress(UserError):
            if self.config.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess_label_column(rows))
        self._set_text_columns()

    def normalize_labeled_rows(self, rows: "Rows", split: str) -> tuple["Rows", list[str]]:
        """Choices with a label that names one of them."""
        from bertkit.data.columns import require_column

        require_column(rows, self.config.label_column, "the label")
        self._require_all(rows)
        self._targets(rows := self.normalize_rows(self._unmarked(rows)), required=True)
        return rows, []

    def _require_all(self, rows: "Rows") -> None:
        """Raise where a column of endings is not there: of labelled rows it may hold the right one."""
        from bertkit.data.columns import require_column

        for column in self.config.ending_columns:
            require_column(rows, column, "an ending")

    def normalize_rows(self, rows: "Rows") -> "Rows":
        """Every row has a context and at least two endings; of more there may be no columns."""
        from bertkit.data.columns import require_column, require_texts

        for column in [*self.context_columns, *self.config.ending_columns[:2]]:
            require_column(rows, column, "the context" if column in self.context_columns else "an ending")
        require_texts(rows, self.context_columns)
        self._endings(rows)
        return rows

    @property
    def input_flags(self) -> dict[str, str]:
        """A context and several endings."""
        return {"context": self.config.context_column, "ending": self.config.ending_columns[0]}

    def rows_from_flags(self, values: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """One row of all endings.

        Raises:
            UserError: several contexts, or more endings than there are columns of them.
        """
        columns, endings = self.config.ending_columns, values["ending"]
        if len(values["context"]) != 1:
            raise UserError("--context: one, with an --ending for each choice; --data takes many")
        if len(endings) < 2 or len(endings) > len(columns) > 1:
            most = f" to {len(columns)}, as in training" if len(columns) > 1 else " or more"
            raise UserError(f"--ending: {len(endings)} of them, where a choice has 2{most}")
        row = dict.fromkeys(self.context_columns, "") | {self.config.context_column: values["context"][0]}
        filled = {columns[0]: endings} if len(columns) == 1 else zip(columns, endings, strict=False)
        return [row | dict(filled)]

    def example_row(self) -> dict[str, Any]:
        """A row with texts, and a list of them where the endings are in one column."""
        row: dict[str, Any] = super().example_row()
        endings = self.config.ending_columns
        return row | {endings[0]: ["...", "..."]} if len(endings) == 1 else row

    @property
    def gold_columns(self) -> set[str]:
        """The label."""
        return {self.config.label_column}

    def describe(self) -> str:
        """The columns of context, endings and label."""
        endings = format_list(self.config.ending_columns)
        return f"{' + '.join(self.context_columns)} with one of {endings} by {self.config.label_column}"

    def _targets(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """[n] int, the right endings; None where the split has no labels."""
        from bertkit.data.choices import encode_ending_labels
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return encode_ending_labels(rows, column, self._endings(rows), self.label_offset)

    # ---- looked at before training

    def extract_texts(self, rows: "Rows") -> list[Sequence[str]]:
        """The contexts, and each row's endings as one text."""
        return [
            *(rows[column] for column in self.context_columns),
            [" ".join(some) for some in self._endings(rows)],
        ]

    def extract_gold(self, rows: "Rows") -> list[Hashable] | None:
        """The right endings, whose number says nothing where the order is another."""
        targets = self._targets(rows)
        if targets is None:
            return None
        return [some[number] for some, number in zip(self._endings(rows), targets, strict=True)]

    def count_labels(self, rows: "Rows") -> dict[str, int]:
        """At which place the right ending stands, counted as the labels are."""
        targets = self._targets(rows)
        counts = Counter([] if targets is None else (targets + self.label_offset).tolist())
        return {f"ending {place}": count for place, count in counts.most_common()}

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """How many endings rows have, and endings that are equal."""
        from bertkit.checks import choice

        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            endings, right = self._endings(rows), self.extract_gold(rows)
            yield from choice.check_ending_counts(split, rows, endings)
            yield from choice.find_duplicate_endings(split, rows, endings, right)  # type: ignore[arg-type]

    def count_tokens(self, rows: "Rows", tokenizer: Any) -> "TokenCounts":
        """Of the context with its longest ending."""
        from bertkit.data.token_counts import TokenCounts

        return TokenCounts.from_choices(
            rows[self.config.context_column], self._whole_endings(rows), tokenizer
        )

    def _whole_endings(self, rows: "Rows") -> list[list[str]]:
        """With what they begin with."""
        endings = self._endings(rows)
        if not self.config.start_column:
            return endings
        starts = rows[self.config.start_column]
        return [[f"{s} {e}".strip() for e in some] for s, some in zip(starts, endings, strict=True)]

    # ---- model

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """A model that has a head for choices keeps it: going on from one data set to the next."""
        from bertkit.modeling.heads import CHOICE_HEAD, has_head, has_head_type

        fits = has_head(model_config, CHOICE_HEAD) and has_head_type(model_config, self.config.head)
        self.has_new_head = self.config.new_head or not fits
        setattr(model_config, LABEL_OFFSET_KEY, self.label_offset)
        return model_config

    def load_state(self, model_config: Any) -> None:
        """The columns, and from where labels are counted, as trained."""
        self._set_text_columns()
        self.label_offset = getattr(model_config, LABEL_OFFSET_KEY, 0)
        self.has_new_head = False

    def featurize(self, rows: "Rows", tokenizer: Any) -> "Features":
        """A pair for each ending: the context, and what the ending begins with and the ending."""
        from bertkit.data.features import build_choice_features

        contexts, endings = rows[self.config.context_column], self._whole_endings(rows)
        return build_choice_features(
            contexts, endings, self._targets(rows), tokenizer, self.config.max_length,
            cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """`AutoModelForMultipleChoice`."""
        from transformers import AutoModelForMultipleChoice

        from bertkit.modeling.pooling import load_with_pooling

        return load_with_pooling(
            AutoModelForMultipleChoice, source, model_config, self.has_new_head, self.config.head
        )

    def loss(self, train: "Features") -> "Loss":
        """Cross-entropy over the endings that are there."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def compute_metrics(self, outputs: Outputs) -> Scores:
        """`accuracy`."""
        assert outputs.features.labels is not None
        return _accuracy(outputs.features.labels, outputs.logits.argmax(-1))

    def scorer(self, outputs: Outputs) -> "Scorer":
        """Which are right."""
        from bertkit.metrics.significance import Scorer

        gold, predicted = outputs.features.labels, outputs.logits.argmax(-1)
        assert gold is not None
        return Scorer(lambda rows: _accuracy(gold[rows], predicted[rows]), len(gold), gold == predicted)

    def iter_predictions(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """`gold` and `predicted`, numbers of endings counted from 0; `scores` and `probabilities` of each."""
        import numpy as np

        from bertkit.metrics.classification import softmax

        gold, logits = outputs.features.labels, outputs.logits
        probabilities, counts = softmax(logits), np.diff(outputs.features.sequence_offsets)
        for index, (predicted, count) in enumerate(zip(logits.argmax(-1), counts, strict=True)):
            yield {
                "gold": None if gold is None else int(gold[index]),
                "predicted": int(predicted),
                "scores": logits[index, :count].tolist(),
                "probabilities": probabilities[index, :count].tolist(),
            }

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """`majority`, and `ending_only`: a bag of words that never sees the context."""
        from bertkit.metrics.baselines import predict_ending_only, predict_majority

        labels, gold = self._targets(train), self._targets(rows)
        assert labels is not None
        assert gold is not None
        words = predict_ending_only(self._endings(train), labels, self._endings(rows), self.config.seed)
        return {
            "majority": _accuracy(gold, predict_majority(labels, len(gold))),
            "ending_only": _accuracy(gold, words),
        }


def _accuracy(gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
    return {"accuracy": float((gold == predicted).mean())}
