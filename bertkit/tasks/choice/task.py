"""`swag`: choose the ending that follows a context."""

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.columns import (
    guess_label_column,
    has_labels,
    require_column,
    require_named_columns,
    require_texts,
)
from bertkit.data.features import Features, build_choice_features
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import Column, Rows, Splits, combine_hashes, hash_values, replace_values
from bertkit.errors import UserError, format_list
from bertkit.models.heads import CHOICE_HEAD, has_head, has_head_type, load_with_pooling
from bertkit.models.loading import ModelSource
from bertkit.models.losses import CrossEntropy, Loss
from bertkit.settings.setting import fill_unset, get_column_settings
from bertkit.stats.baselines import predict_ending_only, predict_majority
from bertkit.tasks.base import (
    ColumnKind,
    FittedConfidence,
    InputSchema,
    Scores,
    Task,
    remove_fitted_confidence,
)
from bertkit.tasks.choice import rows as rows_module
from bertkit.tasks.choice.config import SWAG
from bertkit.tasks.choice.predictions import ChoiceEvaluation, compute_accuracy
from bertkit.tasks.choice.rows import (
    add_common_beginning,
    encode_ending_labels,
    format_ending_labels,
    parse_endings,
)
from bertkit.tasks.evaluation import Outputs

FIRST_LABEL_KEY = "first_ending"  # attribute of the model's config


@dataclass(frozen=True, kw_only=True)
class ChoiceSchema(InputSchema):
    """The columns of a context and its endings.

    Attributes:
        context_columns: Column of the context and, if there is one, of the common beginning of the endings.
        ending_columns: One column per ending, or a single column of lists.
    """

    context_columns: tuple[str, ...]
    ending_columns: tuple[str, ...]

    def build_rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return a single row with the context and all endings.

        Args:
            texts_by_flag: The contexts and the endings that the user passed.

        Raises:
            UserError: There are several contexts, fewer than two endings, or more endings than columns.
        """
        contexts, endings = texts_by_flag["context"], texts_by_flag["ending"]
        columns = self.ending_columns
        if len(contexts) != 1:
            raise UserError(
                f"--context: {len(contexts)} contexts; pass one, with an --ending for each choice, "
                "or many rows with --data"
            )
        has_list_column = len(columns) == 1
        has_too_many = not has_list_column and len(endings) > len(columns)
        if len(endings) < 2 or has_too_many:
            limit = " or more" if has_list_column else f" to {len(columns)}, as in training"
            raise UserError(f"--ending: {len(endings)} endings; pass 2{limit}")
        row = dict.fromkeys(self.context_columns, "") | {self.context_columns[0]: contexts[0]}
        if has_list_column:
            return [{**row, columns[0]: endings}]
        return [row | dict(zip(columns, endings, strict=False))]

    def make_example_row(self) -> dict[str, Any]:
        """Return a row with placeholder texts; a single column of endings holds a list."""
        row = super().make_example_row()
        if len(self.ending_columns) == 1:
            row[self.ending_columns[0]] = ["...", "..."]
        return row


def _get_ending_kinds(columns: tuple[str, ...]) -> dict[str, ColumnKind]:
    """Return what the columns of endings hold: all endings, or one ending each, of which two are required."""
    if len(columns) == 1:
        return {columns[0]: "texts"}
    return dict.fromkeys(columns[2:], "optional text")


class Swag(Task):
    """Multiple choice (Devlin et al. 2018, 4.4).

    The model scores the pairs of the context with each ending, and a softmax over the scores of a row
    gives the probabilities. A label is the number, the letter or the text of the correct ending.

    Attributes:
        first_label: The label of the first ending if labels are numbers; 0 or 1.
    """

    spec = SWAG
    first_label: int = 0

    @property
    def input_schema(self) -> ChoiceSchema:
        """The columns of context, endings and label."""
        config = self.config
        contexts = tuple(column for column in (config.context_column, config.start_column) if column)
        endings = tuple(config.ending_columns or ())
        return ChoiceSchema(
            text_columns=(*contexts, *endings),
            gold_columns=frozenset([config.label_column]),
            hidden_columns=frozenset([config.label_column]),
            columns_by_flag={"context": config.context_column, "ending": endings[0]} if endings else {},
            column_kinds=_get_ending_kinds(endings),
            context_columns=contexts,
            ending_columns=endings,
        )

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        """Find the columns, and infer whether numeric labels are counted from 0 or 1."""
        train = dataset.splits["train"]
        columns = get_column_settings(self.config)
        named = {name: column for name, column in columns.items() if column}
        self.config = dataclasses.replace(self.config, **require_named_columns(train, named))
        if self.config.context_column is None:
            self.config = fill_unset(self.config, rows_module.guess_context_columns(train))
        if self.config.label_column is None:
            self.config = fill_unset(self.config, {"label_column": guess_label_column(train)})
        if not self.config.ending_columns:
            endings = rows_module.guess_ending_columns(train)
            self.config = dataclasses.replace(self.config, ending_columns=endings)
        labels, all_endings = train[self.config.label_column], self.parse_endings(train)
        self.first_label = rows_module.infer_first_label(labels, all_endings)
        notes = rows_module.describe_labels(labels, all_endings, self.first_label)
        splits = {name: self._clear_missing_labels(rows) for name, rows in dataset.splits.items()}
        return dataclasses.replace(dataset, splits=splits, notes=[*dataset.notes, *notes])

    def _clear_missing_labels(self, rows: Rows) -> Rows:
        """Replace the label -1 by None. Datasets on the Hub mark missing labels by -1."""
        column = self.config.label_column
        if column not in rows.columns:
            return rows
        return rows.map_column(
            column, lambda labels: [None if str(label) == "-1" else label for label in labels]
        )

    def parse_endings(self, rows: Rows) -> Column:
        """Return a column with the list of endings of each row, without their common beginning."""
        columns = [column for column in self.input_schema.ending_columns if column in rows.columns]
        return parse_endings(rows, columns)

    def parse_full_endings(self, rows: Rows) -> Column:
        """Return a column with the list of endings of each row, with their common beginning."""
        endings, start_column = self.parse_endings(rows), self.config.start_column
        return add_common_beginning(endings, rows[start_column]) if start_column else endings

    def split_keys(self, rows: Rows) -> SplitKeys:
        """Return keys that ignore the order of the endings, and keep rows with the same context together."""
        contexts = self.input_schema.context_columns
        endings = hash_values(tuple(sorted(row_endings)) for row_endings in self.parse_endings(rows))
        return SplitKeys(
            identity=combine_hashes([rows.hash_columns(contexts), endings]),
            group=rows.hash_columns(contexts[:1]),
            stratum=np.zeros(len(rows), int),
        )

    def validate_splits(self, splits: Splits) -> None:
        """Check that rows have two or more endings, and that each label names an ending of its row."""
        for name, rows in splits.items():
            self._require_endings(rows)
            self._check_texts(rows)
            is_required = name in ("train", "validation")
            if is_required:
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            self.encode_labels(rows, required=is_required)

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        """Check the texts and, if labels are required, the labels."""
        if not require_labels:
            self._check_texts(rows)
            return rows, []
        require_column(rows, self.config.label_column, "the label")
        self._require_endings(rows)
        rows = self._clear_missing_labels(rows)
        self._check_texts(rows)
        self.encode_labels(rows, required=True)
        return rows, []

    def _require_endings(self, rows: Rows) -> None:
        """Require all columns of endings, since each may hold the correct ending."""
        for column in self.input_schema.ending_columns:
            require_column(rows, column, "an ending")

    def _check_texts(self, rows: Rows) -> None:
        """Require a context and at least two endings in every row; other ending columns may be missing."""
        inputs = self.input_schema
        for column in inputs.context_columns:
            require_column(rows, column, "the context")
        for column in inputs.ending_columns[:2]:
            require_column(rows, column, "an ending")
        require_texts(rows, list(inputs.context_columns))
        self.parse_endings(rows)  # raises an error if a row lacks endings

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        """Guess the columns that have other names than in training.

        A column that cannot be guessed keeps its name. A later error then names that column.
        """
        training_config = self.config
        with suppress(UserError):
            if training_config.context_column not in rows.columns:
                columns = {"start_column": None} | rows_module.guess_context_columns(rows)
                self.config = dataclasses.replace(self.config, **columns)
        with suppress(UserError):
            if training_config.ending_columns[0] not in rows.columns:
                endings = rows_module.guess_ending_columns(rows)
                self.config = dataclasses.replace(self.config, ending_columns=endings)
        with suppress(UserError):
            if training_config.label_column not in rows.columns:
                self.config = dataclasses.replace(self.config, label_column=guess_label_column(rows))
        super().map_columns(rows, named)

    def encode_labels(self, rows: Rows, required: bool = False) -> np.ndarray | None:
        """Return the index of the correct ending of each row, [rows]; None if the rows have no labels.

        Args:
            rows: The rows.
            required: Whether rows without labels are an error.

        Raises:
            UserError: A label is missing or names no ending of its row.
        """
        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return encode_ending_labels(rows, column, self.parse_endings(rows), self.first_label)

    def get_labels(self, rows: Rows) -> list[Any]:
        """Return the index of the correct ending of each row."""
        labels = self.encode_labels(rows, required=True)
        assert labels is not None
        return list(labels.tolist())

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        """Return the rows with other correct endings, written in the way that the row names its ending."""
        column, changed = self.config.label_column, rows.select(list(labels))
        cells = format_ending_labels(
            changed, column, self.parse_endings(changed), self.first_label, list(labels.values())
        )
        return rows.with_column(column, replace_values(rows[column], dict(zip(labels, cells, strict=True))))

    # ---- model

    def describe(self) -> str:
        """Describe the columns."""
        inputs = self.input_schema
        endings = format_list(inputs.ending_columns)
        return f"{' + '.join(inputs.context_columns)} with one of {endings} by {self.config.label_column}"

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        """Keep the head of a model that was trained on another multiple choice dataset."""
        keeps_head = has_head(model_config, CHOICE_HEAD) and has_head_type(
            model_config, self.config.head, self.config.pooling
        )
        self.has_new_head = self.config.new_head or not keeps_head
        setattr(model_config, FIRST_LABEL_KEY, self.first_label)
        remove_fitted_confidence(model_config)
        return model_config

    def load_state(self, model_config: Any) -> None:
        """Restore whether labels are counted from 0 or 1."""
        self.first_label = getattr(model_config, FIRST_LABEL_KEY, 0)
        self.has_new_head = False
        self.fitted_confidence = FittedConfidence.load(model_config)

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        """Tokenize the pairs of the context with each ending."""
        return build_choice_features(
            rows[self.config.context_column], self.parse_full_endings(rows), self.encode_labels(rows),
            tokenizer, self.config.max_length, cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        """Return an `AutoModelForMultipleChoice`, possibly with another pooling or a BiLSTM."""
        from transformers import AutoModelForMultipleChoice

        return load_with_pooling(
            AutoModelForMultipleChoice, source, model_config, self.has_new_head, self.config.head,
            self.config.pooling,
        )  # fmt: skip

    def make_loss(self, features: Features) -> Loss:
        """Return cross-entropy over the endings of each row."""
        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> ChoiceEvaluation:
        """Return the evaluation of these outputs."""
        return ChoiceEvaluation(outputs, self.fitted_confidence)

    def score_baselines(self, train: Rows, rows: Rows) -> dict[str, Scores]:
        """Score two baselines: `majority`, and `ending_only`, a linear model that does not read the context.

        The majority baseline predicts the same ending index for all rows.
        """
        labels, gold = self.encode_labels(train), self.encode_labels(rows)
        assert labels is not None
        assert gold is not None
        predicted = predict_ending_only(
            self.parse_endings(train), labels, self.parse_endings(rows), self.config.seed
        )
        return {
            "majority": compute_accuracy(gold, predict_majority(labels, len(gold))),
            "ending_only": compute_accuracy(gold, predicted),
        }
