"""`swag`: choose the ending that follows a context."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.data.columns import (
    LABEL_COLUMNS,
    find_column,
    guess_column,
    require_column,
    require_named_columns,
    require_texts,
)
from bertkit.data.features import Features, build_choice_features
from bertkit.data.labels import has_labels, normalize_label
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import SplitKeys
from bertkit.data.table import (
    Column,
    ComputedColumn,
    Rows,
    Splits,
    combine_hashes,
    hash_values,
    replace_values,
)
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.models.heads import CHOICE_HEAD, has_head, has_head_type, load_with_pooling
from bertkit.models.loading import ModelSource
from bertkit.models.losses import CrossEntropy, Loss
from bertkit.settings.declaration import get_column_settings, select_unset
from bertkit.stats.baseline_models import predict_ending_only, predict_majority
from bertkit.stats.calibration import Decisions
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores, softmax
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import (
    ColumnKind,
    InputSchema,
    LabelEvaluation,
    Outputs,
    ScoreDetail,
    Task,
    TaskState,
    TransformersPipeline,
    get_weights,
    make_label_scorer,
    remove_fitted_confidence,
)
from bertkit.tasks.choice.config import SWAG

FIRST_LABEL_KEY = "first_ending"  # attribute of the model's config


@dataclass(frozen=True, kw_only=True)
class ChoiceSchema(InputSchema):
    """The columns of a context and its endings."""

    context_columns: tuple[str, ...]  # of the context and, if any, of the common beginning of the endings
    ending_columns: tuple[str, ...]  # one for each ending, or a single column of lists

    def build_rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
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
        row = super().make_example_row()
        if len(self.ending_columns) == 1:
            row[self.ending_columns[0]] = ["...", "..."]
        return row


class ChoiceState(TaskState):
    """What a run of `swag` finds."""

    first_label: int = 0  # the label of the first ending if labels are numbers; 0 or 1


class Swag(Task):
    """Multiple choice (Devlin et al. 2018, 4.4).

    The model scores the pairs of the context with each ending, and a softmax over the scores of a row
    gives the probabilities. A label is the number, the letter or the text of the correct ending.
    """

    definition = SWAG
    state_class = ChoiceState
    state: ChoiceState
    sequence_grouping = "choice"

    @property
    def pipeline(self) -> TransformersPipeline:
        return TransformersPipeline(task="multiple-choice", caveat="has no task for multiple choice")

    @property
    def input_schema(self) -> ChoiceSchema:
        config = self.config
        contexts = tuple(column for column in (config.context_column, config.start_column) if column)
        endings = tuple(config.ending_columns or ())
        # A single column holds all endings; of several columns with one ending each, two are required.
        kinds: dict[str, ColumnKind] = dict.fromkeys(endings[2:], "optional text")
        return ChoiceSchema(
            text_columns=(*contexts, *endings),
            gold_columns=frozenset([config.label_column]),
            hidden_columns=frozenset([config.label_column]),
            columns_by_flag={"context": config.context_column, "ending": endings[0]} if endings else {},
            column_kinds={endings[0]: "texts"} if len(endings) == 1 else kinds,
            context_columns=contexts,
            ending_columns=endings,
            further_text_flag=None if config.start_column else "--start-column",
        )

    # ---- rows

    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        train = dataset.splits["train"]
        columns = get_column_settings(self.config)
        named = {name: column for name, column in columns.items() if column}
        self.resolve(**require_named_columns(train, named))
        if self.config.context_column is None:
            self.resolve(**select_unset(self.config, guess_context_columns(train)))
        if self.config.label_column is None:
            self.resolve(label_column=guess_column(train, CHOICE_LABEL_COLUMNS, "label"))
        if not self.config.ending_columns:
            self.resolve(ending_columns=guess_ending_columns(train))
        labels, all_endings = train[self.config.label_column], self.parse_endings(train)
        self.state = ChoiceState(first_label=infer_first_label(labels, all_endings))
        notes = ["labels are counted from 1"] if self.state.first_label else []
        if count := len(find_ambiguous_labels(labels, all_endings, self.state.first_label)):
            rows = format_count(count, "training row")
            notes.append(f"{rows} with an ambiguous label: {AMBIGUOUS_LABEL}; {AMBIGUOUS_LABEL_FIX}")
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
        if not start_column:
            return endings

        def join(row_endings: list[str], beginning: str) -> list[str]:
            return [f"{beginning} {ending}".strip() for ending in row_endings]

        return ComputedColumn(join, [endings, rows[start_column]])

    def make_split_keys(self, rows: Rows) -> SplitKeys:
        contexts = self.input_schema.context_columns
        endings = hash_values(tuple(sorted(row_endings)) for row_endings in self.parse_endings(rows))
        return SplitKeys(
            identity=combine_hashes([rows.hash_columns(contexts), endings]),
            group=rows.hash_columns(contexts[:1]),
            stratum=np.zeros(len(rows), int),
        )

    def validate_splits(self, splits: Splits) -> None:
        for name, rows in splits.items():
            self._check_texts(rows, requires_all_endings=True)
            is_required = name in ("train", "validation")
            if is_required:
                require_column(rows, self.config.label_column, f"the {name} split needs it")
            self.encode_labels(rows, required=is_required)

    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        if not require_labels:
            self._check_texts(rows)
            return rows, []
        require_column(rows, self.config.label_column, "the label")
        rows = self._clear_missing_labels(rows)
        self._check_texts(rows, requires_all_endings=True)
        self.encode_labels(rows, required=True)
        return rows, []

    def _check_texts(self, rows: Rows, requires_all_endings: bool = False) -> None:
        """Require a context and two endings in every row, or all columns of endings: each may be correct."""
        inputs = self.input_schema
        for column in inputs.context_columns:
            require_column(rows, column, "the context")
        for column in inputs.ending_columns if requires_all_endings else inputs.ending_columns[:2]:
            require_column(rows, column, "an ending")
        require_texts(rows, list(inputs.context_columns))
        self.parse_endings(rows)  # raises an error if a row lacks endings

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        """Guess the columns that these rows lack; if a guess fails, a later error names those of training."""
        trained = self.config
        if trained.context_column not in rows.columns:
            with suppress(UserError):
                self.resolve(**{"start_column": None} | guess_context_columns(rows))
        if trained.ending_columns[0] not in rows.columns:
            with suppress(UserError):
                self.resolve(ending_columns=guess_ending_columns(rows))
        if trained.label_column not in rows.columns:
            with suppress(UserError):
                self.resolve(label_column=guess_column(rows, CHOICE_LABEL_COLUMNS, "label"))
        super().map_columns(rows, named)

    def encode_labels(self, rows: Rows, required: bool = False) -> np.ndarray | None:
        """Return the index of the correct ending of each row, [rows]; None if the rows have no labels.

        With `required`, rows without labels are an error.
        """
        column = self.config.label_column
        if not required and not has_labels(rows, column):
            return None
        return encode_ending_labels(rows, column, self.parse_endings(rows), self.state.first_label)

    def get_labels(self, rows: Rows) -> list[Any]:
        labels = self.encode_labels(rows, required=True)
        assert labels is not None
        return list(labels.tolist())

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        column, changed = self.config.label_column, rows.select(list(labels))
        present = zip(changed[column], self.parse_endings(changed), labels.values(), strict=True)
        cells: list[Any] = []  # numbers, letters or texts, like the present labels
        for row, (value, endings, index) in enumerate(present):
            if not isinstance(index, int) or not 0 <= index < len(endings):
                raise UserError(
                    f"{changed.format_location(row)}: has no ending {shorten_repr(index)}; use a number from "
                    f"0 to {len(endings) - 1}"
                )
            text = normalize_label(value) or ""
            if _is_ending_number(text):
                cells.append(type(value)(index + self.state.first_label))
            else:
                cells.append(endings[index] if text in endings else chr(ord("A") + index))
        return rows.with_column(column, replace_values(rows[column], dict(zip(labels, cells, strict=True))))

    # ---- model

    def describe(self) -> str:
        inputs = self.input_schema
        endings = format_list(inputs.ending_columns)
        return f"{' + '.join(inputs.context_columns)} with one of {endings} by {self.config.label_column}"

    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        keeps_head = has_head(model_config, CHOICE_HEAD) and has_head_type(
            model_config, self.config.head, self.config.pooling
        )
        self.state.has_new_head = self.config.new_head or not keeps_head
        setattr(model_config, FIRST_LABEL_KEY, self.state.first_label)
        remove_fitted_confidence(model_config)
        return model_config

    def load_state(self, model_config: Any) -> None:
        super().load_state(model_config)
        self.state.first_label = getattr(model_config, FIRST_LABEL_KEY, 0)

    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        return build_choice_features(
            rows[self.config.context_column], self.parse_full_endings(rows), self.encode_labels(rows),
            tokenizer, self.config.max_length, cache=self.use_cache,
        )  # fmt: skip

    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        from transformers import AutoModelForMultipleChoice

        return load_with_pooling(
            AutoModelForMultipleChoice, source, model_config, self.state.has_new_head, self.config.head,
            self.config.pooling,
        )  # fmt: skip

    def make_loss(self, features: Features) -> Loss:
        return CrossEntropy()

    # ---- results

    def evaluate(self, outputs: Outputs) -> "ChoiceEvaluation":
        return ChoiceEvaluation(outputs, self.state.fitted_confidence)

    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        """Return `majority`, the most frequent index, and `ending_only`, a model that reads no context."""
        labels, gold = self.encode_labels(train), self.encode_labels(rows)
        assert labels is not None
        assert gold is not None
        correct = TrainingLabels(labels, get_weights(self, train))
        predicted = predict_ending_only(
            self.parse_endings(train), correct, self.parse_endings(rows), self.config.seed
        )
        predictions = {"majority": predict_majority(correct, len(gold)), "ending_only": predicted}
        return {
            name: make_label_scorer(compute_accuracy, gold, predicted)
            for name, predicted in predictions.items()
        }


class ChoiceEvaluation(LabelEvaluation):
    """The ending with the highest score for each row; each ending is a class, with its index from 0."""

    has_classes = True
    has_sets = True

    @cached_property
    def predicted(self) -> np.ndarray:
        return self.outputs.logits.argmax(-1)

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        return compute_accuracy(gold, predicted)

    def make_decisions(self) -> Decisions:
        return Decisions.from_classes(self.outputs.logits, self.outputs.features.labels)

    def decode_set(self, is_member: np.ndarray) -> list[int]:
        return is_member.nonzero()[0].tolist()

    def decode(self) -> DecodedPredictions:
        return DecodedPredictions(self.predicted.tolist(), self.gold.tolist())

    def make_examples(self) -> DecodedPredictions:
        return DecodedPredictions([0, 1], [0, 1])

    def list_scores(self) -> list[str]:
        return [*compute_accuracy(np.zeros(1), np.zeros(1)), *self.confidence_score_names]

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        features, logits = self.outputs.features, self.outputs.logits
        probabilities, num_endings = softmax(logits), np.diff(features.sequence_offsets)
        for index, (predicted, count) in enumerate(zip(self.predicted, num_endings, strict=True)):
            yield {
                "gold": None if features.labels is None else int(features.labels[index]),
                "predicted": int(predicted),
                "scores": logits[index, :count].tolist(),
                "probabilities": probabilities[index, :count].tolist(),
            }


def compute_accuracy(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the fraction of rows with the correct ending."""
    return {"accuracy": float((gold == predicted).mean())}


# ---- columns, endings and labels

ENDING_LIST_COLUMNS = ["endings", "choices", "options", "answers", "candidates"]
NUMBERED_ENDING = re.compile(
    r"(ending|choice|option|answer|candidate|alternative|sol)[ _-]?(\d+|[a-z])", re.IGNORECASE
)
CONTEXT_COLUMNS = [
    "context", "ctx", "prompt", "premise", "question", "question_stem", "startphrase", "text", "sentence",
]  # fmt: skip
CONTEXT_START_COLUMNS = [  # context, common start of the endings
    ("sent1", "sent2"), ("ctx_a", "ctx_b"), ("context", "question"), ("article", "question"),
    ("passage", "question"), ("text", "question"),
]  # fmt: skip
CHOICE_LABEL_COLUMNS = [*LABEL_COLUMNS, "answer", "answerkey", "answer_key", "correct", "correct_answer"]
AMBIGUOUS_LABEL = (
    "the label is the text of one ending and the number or letter of another; numbers are read as numbers, "
    "letters as texts"
)
AMBIGUOUS_LABEL_FIX = (
    "if the labels are texts, replace them with letters (A is the first ending); if they are letters, "
    "replace them with numbers"
)


def guess_context_columns(rows: Rows) -> dict[str, str]:
    """Return the setting `context_column`, and `start_column` if a column holds the start of all endings."""
    for context, start in CONTEXT_START_COLUMNS:
        if context in rows.columns and start in rows.columns:
            return {"context_column": context, "start_column": start}
    return {"context_column": guess_column(rows, CONTEXT_COLUMNS, "context")}


def guess_ending_columns(rows: Rows) -> list[str]:
    """Return the columns of the endings: one column of lists, or `ending0`, `ending1`, ... in order."""
    for name in ENDING_LIST_COLUMNS:
        list_column = find_column(rows, name)
        if list_column and any(isinstance(value, (list, tuple)) for value in rows[list_column]):
            return [list_column]
    columns_by_word: dict[str, list[tuple[int, str, str]]] = {}
    for column in rows.columns:
        if match := NUMBERED_ENDING.fullmatch(column):
            word, suffix = match[1].lower(), match[2].lower()
            sort_key = (int(suffix) if suffix.isdigit() else -1, suffix)
            columns_by_word.setdefault(word, []).append((*sort_key, column))
        elif column in tuple("ABCDEFGH"):
            columns_by_word.setdefault("", []).append((-1, column, column))
    ending_columns = max(columns_by_word.values(), key=len, default=[])
    if len(ending_columns) < 2:
        raise UserError(
            f"{rows.files[0]}: no columns look like the endings (it has {format_list(rows.columns)}); "
            "name them with --ending-columns"
        )
    return [column for _, _, column in sorted(ending_columns)]


def parse_endings(rows: Rows, columns: Sequence[str]) -> Column:
    """Return a column with the list of endings of each row, without blank columns after the last one."""
    is_list = len(columns) == 1

    def join(*values: Any) -> Any:
        if is_list:
            return list(values[0]) if isinstance(values[0], (list, tuple)) else values[0]
        non_blank = [index for index, value in enumerate(values) if value not in (None, "")]
        return list(values[: non_blank[-1] + 1]) if non_blank else []

    all_endings = ComputedColumn(join, [rows[column] for column in columns])
    for index, endings in enumerate(all_endings):
        location = rows.format_location(index)
        if not isinstance(endings, list):
            raise UserError(f"{location}: column {columns[0]!r} holds {endings!r}, not a list of endings")
        for number, ending in enumerate(endings):
            if not isinstance(ending, str) or not ending:
                name = f"ending {number} of {columns[0]!r}" if is_list else f"column {columns[number]!r}"
                problem = f"holds {ending!r}, not a text" if ending else "is blank, but a later one is not"
                raise UserError(f"{location}: {name} {problem}; fill in a text, or remove the row")
        if len(endings) < 2:
            count = "one ending" if endings else "no ending"
            raise UserError(
                f"{location}: has {count}, but a choice needs two; add endings, or remove the row"
            )
    return all_endings


def encode_ending_labels(
    rows: Rows, column: str, endings: Sequence[Sequence[str]], first_label: int
) -> np.ndarray:
    """Return [n] the index of the correct ending of each row.

    A label is the number of the ending (counted from `first_label`), a letter (A is the first ending), or the
    text of the ending.
    """
    indices = []
    for row, (value, row_endings) in enumerate(zip(rows[column], endings, strict=True)):
        text = normalize_label(value) or ""
        if text in row_endings and not _is_ending_number(text):
            index: int | None = list(row_endings).index(text)
        else:
            index = _parse_position(text, len(row_endings), first_label)
        if index is None:
            location = rows.format_location(row)
            if (label := normalize_label(value)) is None:
                raise UserError(
                    f"{location}: no label in column {column!r}; fill in the label, or remove the row"
                )
            # Endings that are numbers cannot be labels, so such a label is probably meant as a text.
            is_text = label in row_endings
            hint = "; it is read as a number, so write the letter of the ending instead" if is_text else ""
            raise UserError(
                f"{location}: label {shorten_repr(value)} is none of the {len(row_endings)} endings (a "
                f"number from {first_label} to {len(row_endings) - 1 + first_label}, a letter, or the ending "
                f"itself){hint}"
            )
        indices.append(index)
    return np.array(indices, dtype=np.int64)


def _parse_position(text: str, num_endings: int, first_label: int) -> int | None:
    """Return the index of the ending that a number or a letter names; None for other texts."""
    if re.fullmatch("[A-Za-z]", text):
        index = ord(text.upper()) - ord("A")
    else:
        index = int(text) - first_label if _is_ending_number(text) else -1
    return index if 0 <= index < num_endings else None


def find_ambiguous_labels(
    values: Sequence[Any], endings: Sequence[Sequence[str]], first_label: int
) -> list[int]:
    """Return the rows whose label is the text of one ending and the number or letter of another."""
    ambiguous = []
    for index, (value, row_endings) in enumerate(zip(values, endings, strict=True)):
        text = normalize_label(value) or ""
        position = _parse_position(text, len(row_endings), first_label)
        if position is not None and text in row_endings and row_endings[position] != text:
            ambiguous.append(index)
    return ambiguous


def _is_ending_number(text: str) -> bool:
    """Return whether a text can be the number of an ending."""
    return text.isdecimal() and len(text) < 10  # a longer text cannot be an index


def infer_first_label(values: Sequence[Any], endings: Sequence[Sequence[str]]) -> int:
    """Return the number of the first ending: 0 or 1.

    It is 1 if no label is 0 and some label equals the number of endings of its row.
    """
    has_last = False
    for value, row_endings in zip(values, endings, strict=True):
        text = normalize_label(value) or ""
        if _is_ending_number(text):
            if int(text) == 0:
                return 0
            has_last |= int(text) == len(row_endings)
    return int(has_last)
