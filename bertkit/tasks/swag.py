"""`swag`: which of several endings follows a context."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bertkit.config import DATA, RunConfig, fill_unset, setting
from bertkit.errors import UserError, format_list
from bertkit.tasks.base import InputSchema, Pipeline, Scores, Task, TaskSpec
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows, Splits
    from bertkit.data.split import SplitKeys
    from bertkit.metrics.significance import Scorer
    from bertkit.modeling.loading import ModelSource
    from bertkit.modeling.losses import Loss

LABEL_OFFSET_KEY = "first_ending"  # in the model's config


@dataclass(frozen=True, kw_only=True)
class SwagConfig(RunConfig):
    """The settings of `swag` beside the shared ones."""

    context_column: str | None = setting(None, "Column of the context.", DATA, default_text="guessed")
    start_column: str | None = setting(
        None, "Column of the beginning that all endings of a row share (sent2 in SWAG).", DATA,
        default_text="none",
    )  # fmt: skip
    ending_columns: list[str] | None = setting(
        None,
        "Columns of the endings, repeatable or separated by commas; or one column that holds lists.",
        DATA,
        default_text="guessed",
    )
    label_column: str | None = setting(None, "Column of the right ending.", DATA, default_text="guessed")


@dataclass(frozen=True, kw_only=True)
class ChoiceSchema(InputSchema):
    """The columns of a context and its endings.

    Attributes:
        context_columns: the context, and the beginning of the endings if it has a column.
        ending_columns: one column per ending, or a single column of lists.
    """

    context_columns: tuple[str, ...]
    ending_columns: tuple[str, ...]

    def rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return one row with one context and all endings.

        Raises:
            UserError: there are several contexts, or more endings than columns.
        """
        contexts, endings = texts_by_flag["context"], texts_by_flag["ending"]
        columns = self.ending_columns
        if len(contexts) != 1:
            raise UserError(
                f"--context: {len(contexts)} contexts; pass one, with an --ending for each choice, "
                "or many rows with --data"
            )
        if len(endings) < 2 or len(endings) > len(columns) > 1:
            limit = f" to {len(columns)}, as in training" if len(columns) > 1 else " or more"
            raise UserError(f"--ending: {len(endings)} endings; pass 2{limit}")
        row = dict.fromkeys(self.context_columns, "") | {self.context_columns[0]: contexts[0]}
        if len(columns) == 1:
            return [{**row, columns[0]: endings}]
        return [row | dict(zip(columns, endings, strict=False))]

    def example_row(self) -> dict[str, Any]:
        """Return a row of texts, with a list where one column holds the endings."""
        row = super().example_row()
        if len(self.ending_columns) == 1:
            row[self.ending_columns[0]] = ["...", "..."]
        return row


class Swag(Task):
    """Multiple choice: a softmax over the pairs of a context and each of its endings.

    See Devlin et al. 2018, 4.4. A label is a number, a letter or the ending itself.

    Attributes:
        label_offset: the number of the first ending in the labels.
    """

    spec = TaskSpec(
        name="swag",
        help="Fine-tune on multiple choice: a context and any number of endings.",
        config=SwagConfig,
        pipeline=Pipeline(task="multiple-choice", caveat="has no equivalent"),
        sequence_grouping="choice",
    )
    label_offset: int = 0

    @property
    def inputs(self) -> ChoiceSchema:
        """Context, endings and label."""
        config = self.config
        contexts = tuple(column for column in (config.context_column, config.start_column) if column)
        endings = tuple(config.ending_columns or ())
        return ChoiceSchema(
            text_columns=(*contexts, *endings),
            gold_columns=frozenset([config.label_column]),
            flags={"context": config.context_column, "ending": endings[0]} if endings else {},
            context_columns=contexts,
            ending_columns=endings,
        )

    # ---- rows

    def parse_dataset(self, dataset: "LoadedDataset") -> "LoadedDataset":
        """Find context, endings and label, and from which number the labels count."""
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
        if config.ending_columns:
            endings = choices.parse_column_names(train, config.ending_columns)
        else:
            endings = choices.guess_ending_columns(train)
        self.config = dataclasses.replace(config, ending_columns=endings)
        self.label_offset = choices.infer_first_label(
            train[self.config.label_column], self.parse_endings(train)
        )
        notes = [*dataset.notes, "labels are counted from 1"] if self.label_offset else dataset.notes
        splits = {name: self._clear_missing_labels(rows) for name, rows in dataset.splits.items()}
        return dataclasses.replace(dataset, splits=splits, notes=notes)

    def _clear_missing_labels(self, rows: "Rows") -> "Rows":
        """Replace the label -1, by which the Hub marks a missing label, by None."""
        column = self.config.label_column
        if column not in rows.columns:
            return rows
        return rows.with_column(column, [None if str(label) == "-1" else label for label in rows[column]])

    def parse_endings(self, rows: "Rows") -> list[list[str]]:
        """Return the endings of each row, without the beginning that they share."""
        from bertkit.data.choices import parse_endings

        columns = [column for column in self.inputs.ending_columns if column in rows.columns]
        return parse_endings(rows, columns)

    def parse_full_endings(self, rows: "Rows") -> list[list[str]]:
        """Return the endings of each row, with the beginning that they share."""
        endings = self.parse_endings(rows)
        if not self.config.start_column:
            return endings
        starts = rows[self.config.start_column]
        return [
            [f"{start} {ending}".strip() for ending in row_endings]
            for start, row_endings in zip(starts, endings, strict=True)
        ]

    def split_keys(self, rows: "Rows") -> "SplitKeys":
        """Identify an example regardless of the order of its endings, and group rows by context."""
        from bertkit.data.split import SplitKeys

        contexts = rows.zip_columns(list(self.inputs.context_columns))
        endings = self.parse_endings(rows)
        identity = [(*context, *sorted(e)) for context, e in zip(contexts, endings, strict=True)]
        return SplitKeys(identity, [context[0] for context in contexts], [0] * len(rows))

    def validate_splits(self, splits: "Splits") -> None:
        """Check that there are two or more endings and that labels name one of them, in every split."""
        from bertkit.data.columns import require_column

        for name, rows in splits.items():
            self._require_endings(rows)
            self._check_texts(rows)
            is_required = name in ("train", "validation")
            if is_required:
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            self.encode_labels(rows, required=is_required)

    def parse_rows(
        self, rows: "Rows", split: str = "", require_labels: bool = False
    ) -> tuple["Rows", list[str]]:
        """Check the texts; if labels are required, check that they name an ending."""
        from bertkit.data.columns import require_column

        if not require_labels:
            self._check_texts(rows)
            return rows, []
        require_column(rows, self.config.label_column, "the label")
        self._require_endings(rows)
        rows = self._clear_missing_labels(rows)
        self._check_texts(rows)
        self.encode_labels(rows, required=True)
        return rows, []

    def _require_endings(self, rows: "Rows") -> None:
        """Require all columns of endings, since any of them may hold the right one."""
        from bertkit.data.columns import require_column

        for column in self.inputs.ending_columns:
            require_column(rows, column, "an ending")

    def _check_texts(self, rows: "Rows") -> None:
        """Require a context and at least two endings in every row; further columns are optional."""
        from bertkit.data.columns import require_column, require_texts

        inputs = self.inputs
        for column in inputs.context_columns:
            require_column(rows, column, "the context")
        for column in inputs.ending_columns[:2]:
            require_column(rows, column, "an ending")
        require_texts(rows, list(inputs.context_columns))
        self.parse_endings(rows)

    def map_columns(self, rows: "Rows") -> None:
        """Look up context, endings and label by the training names, else by their usual names."""
        from bertkit.data import choices
        from bertkit.data.columns import guess_label_column

        config = self.config
        with suppress(UserError):  # the error should then name the training columns
            if config.context_column not in rows.columns:
                columns = {"start_column": None} | choices.guess_context_columns(rows)
                self.config = dataclasses.replace(self.config, **columns)
        with suppress(UserError):
            if config.ending_columns[0] not in rows.columns:
                endings = choices.guess_ending_columns(rows)
                self.config = dataclasses.replace(self.config, ending_columns=endings)
        with suppress(UserError):
            if config.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess_label_column(rows))

    def encode_labels(self, rows: "Rows", required: bool = False) -> "np.ndarray | None":
        """Return the index of each row's right ending, [rows]; None where the rows have no labels."""
        from bertkit.data.choices import encode_ending_labels
        from bertkit.data.labels import has_labels

        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return encode_ending_labels(rows, column, self.parse_endings(rows), self.label_offset)

    # ---- model

    def describe(self) -> str:
        """Name the columns of context, endings and label."""
        inputs = self.inputs
        endings = format_list(inputs.ending_columns)
        return f"{' + '.join(inputs.context_columns)} with one of {endings} by {self.config.label_column}"

    def configure_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Keep the model's own multiple choice head, for training on one dataset after another."""
        from bertkit.modeling.heads import CHOICE_HEAD, has_head, has_head_type

        keeps_head = has_head(model_config, CHOICE_HEAD) and has_head_type(model_config, self.config.head)
        self.has_new_head = self.config.new_head or not keeps_head
        setattr(model_config, LABEL_OFFSET_KEY, self.label_offset)
        return model_config

    def load_state(self, model_config: Any) -> None:
        """Restore from which number the labels count."""
        self.label_offset = getattr(model_config, LABEL_OFFSET_KEY, 0)
        self.has_new_head = False

    def featurize(self, rows: "Rows", tokenizer: Any, training: bool = False) -> "Features":
        """Make a pair of the context and each ending."""
        from bertkit.data.features import build_choice_features

        return build_choice_features(
            rows[self.config.context_column], self.parse_full_endings(rows), self.encode_labels(rows),
            tokenizer, self.config.max_length, cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: "ModelSource") -> Any:
        """Load `AutoModelForMultipleChoice`."""
        from transformers import AutoModelForMultipleChoice

        from bertkit.modeling.pooling import load_with_pooling

        return load_with_pooling(
            AutoModelForMultipleChoice, source, model_config, self.has_new_head, self.config.head
        )

    def loss(self, features: "Features") -> "Loss":
        """Return cross-entropy over the endings of each row."""
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> "ChoiceEvaluation":
        """Choose the ending with the highest score."""
        return ChoiceEvaluation(outputs)

    def baselines(self, train: "Rows", rows: "Rows") -> dict[str, Scores]:
        """Score `majority`, and `ending_only`: a bag of words that never sees the context."""
        from bertkit.metrics.baselines import predict_ending_only, predict_majority

        labels, gold = self.encode_labels(train), self.encode_labels(rows)
        assert labels is not None
        assert gold is not None
        predicted = predict_ending_only(
            self.parse_endings(train), labels, self.parse_endings(rows), self.config.seed
        )
        return {
            "majority": _compute_accuracy(gold, predict_majority(labels, len(gold))),
            "ending_only": _compute_accuracy(gold, predicted),
        }


class ChoiceEvaluation(Evaluation):
    """The ending with the highest score for each row."""

    @property
    def gold(self) -> "np.ndarray":
        """The right endings, counted from 0, [rows]."""
        labels = self.outputs.features.labels
        assert labels is not None
        return labels

    @cached_property
    def predicted(self) -> "np.ndarray":
        """The predicted endings, counted from 0, [rows]."""
        return self.outputs.logits.argmax(-1)

    def compute_scores(self) -> Scores:
        """Return `accuracy`."""
        return _compute_accuracy(self.gold, self.predicted)

    def scorer(self) -> "Scorer":
        """Return a scorer of rows that knows which are correct."""
        from bertkit.metrics.significance import Scorer

        gold, predicted = self.gold, self.predicted
        return Scorer(
            lambda rows: _compute_accuracy(gold[rows], predicted[rows]), len(gold), gold == predicted
        )

    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield `gold` and `predicted`, counted from 0, with `scores` and `probabilities` of all endings."""
        import numpy as np

        from bertkit.metrics.classification import softmax

        features, logits = self.outputs.features, self.outputs.logits
        probabilities, counts = softmax(logits), np.diff(features.sequence_offsets)
        for index, (predicted, count) in enumerate(zip(self.predicted, counts, strict=True)):
            yield {
                "gold": None if features.labels is None else int(features.labels[index]),
                "predicted": int(predicted),
                "scores": logits[index, :count].tolist(),
                "probabilities": probabilities[index, :count].tolist(),
            }


def _compute_accuracy(gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
    return {"accuracy": float((gold == predicted).mean())}
