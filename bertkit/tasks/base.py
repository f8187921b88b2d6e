"""The interface between a task and the pipeline: the columns it reads, its state, and its methods."""

import dataclasses
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bertkit.data.columns import (
    SEEN_ROWS,
    find_column,
    hold_texts,
    require_named_columns,
)
from bertkit.data.features import Features
from bertkit.data.groups_and_times import (
    TimeColumn,
)
from bertkit.data.sources import LoadedDataset, load_dataset, load_split
from bertkit.data.split import SplitKeys
from bertkit.data.table import Rows, Splits
from bertkit.data.weights_and_soft_labels import read_weights
from bertkit.errors import UserError, format_list
from bertkit.models import loading
from bertkit.models.loading import ModelSource, takes_token_type_ids
from bertkit.settings.declaration import get_column_settings
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.calibration import (
    PROBABILITY_SCORES,
    SELECTIVE_SCORES,
    SET_SCORES,
    Decisions,
    ProbabilityScorer,
    SelectiveScorer,
    find_members,
    score_sets,
)
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer, average_values
from bertkit.tasks import TaskDef
from bertkit.utils.reporting import report_warning

if TYPE_CHECKING:  # linear models of texts predict without torch
    import torch

    from bertkit.models.losses import Loss

# What a column of a row to predict holds; "words" is a list of words or a text.
ColumnKind = Literal["text", "words", "texts", "optional text", "optional span"]


@dataclass(frozen=True, kw_only=True)
class InputSchema:
    """The columns that a task reads, and the flags of `bertkit predict` that fill them.

    Attributes:
        text_columns: Columns of texts, in reading order.
        gold_columns: Columns of labels, which prediction ignores.
        hidden_columns: Input columns that are not copied to the predictions.
        columns_by_flag: Column that each text flag of `bertkit predict` fills, in the order of the columns.
        group_columns: Possible names of the column that defines groups; the first name that exists is used.
            Adjacent rows with the same value form a group and must be predicted together.
        span_columns: Columns of spans of the first text, which may be missing if the text marks the spans.
        example_text: The first text of an example row.
        column_kinds: What those text columns hold that do not hold one text.
        label_key: Key of a label fix that selects one of several labels of a row; None for a single label.
        further_text_flag: The flag that names one more column of texts; None if the task reads no more.
        out_of_scope_label: The label of texts that belong to no class; None if there is none.
    """

    text_columns: tuple[str, ...]
    gold_columns: frozenset[str] = frozenset()
    hidden_columns: frozenset[str] = frozenset()
    columns_by_flag: Mapping[str, str] = field(default_factory=dict)
    group_columns: tuple[str, ...] = ()
    span_columns: tuple[str, ...] = ()
    example_text: str = "..."
    column_kinds: Mapping[str, ColumnKind] = field(default_factory=dict)
    label_key: Literal["word", "label"] | None = None
    further_text_flag: str | None = None
    out_of_scope_label: str | None = None

    def build_rows_from_flags(self, texts_by_flag: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Return rows that combine the texts of several flags (see `columns_by_flag`).

        A flag with a single text fills its column in all rows with this text.
        """
        num_rows = max(map(len, texts_by_flag.values()))
        if any(len(texts) not in (1, num_rows) for texts in texts_by_flag.values()):
            counts = ", ".join(
                f"{len(texts)} of --{flag.replace('_', '-')}" for flag, texts in texts_by_flag.items()
            )
            raise UserError(f"{counts}: the numbers differ; pass equally many of each, or a single one")
        columns = {
            self.columns_by_flag[flag]: texts if len(texts) == num_rows else texts * num_rows
            for flag, texts in texts_by_flag.items()
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def sample_texts(self, rows: Rows, count: int) -> list[str]:
        """Return the first texts of parsed rows."""
        texts: list[str] = []
        for row in rows.select(range(min(len(rows), count))):
            for column in self.text_columns:  # of texts, or of lists of texts, which may be missing
                values = [row[column]] if isinstance(row[column], str) else row[column] or ()
                texts += [text for text in values if isinstance(text, str)]
        return texts[:count]

    def make_example_row(self) -> dict[str, Any]:
        """Return a row with placeholder texts, for the example code of the model card."""
        first_text = dict.fromkeys(self.text_columns[:1], self.example_text)
        return dict.fromkeys(self.text_columns, "...") | first_text

    def get_column_kinds(self) -> dict[str, ColumnKind]:
        """Return what the columns of a row to predict hold: texts, spans and the key of a group."""
        kinds = {column: self.column_kinds.get(column, "text") for column in self.text_columns}
        spans: dict[str, ColumnKind] = dict.fromkeys(self.span_columns, "optional span")
        groups: dict[str, ColumnKind] = dict.fromkeys(self.group_columns[:1], "optional text")
        return kinds | spans | groups

    def get_group_ids(self, rows: Rows) -> Sequence[Any] | None:
        """Return the group of each row; None if rows can be predicted one by one."""
        column = find_column(rows, *self.group_columns)
        return rows[column] if column else None


# Usual names of columns of numbers and keys, which are not worth a note.
ID_COLUMNS = {
    "",
    "id",
    "idx",
    "index",
    "guid",
    "uid",
    "qid",
    "paragraphs",
    "document",
    "document_id",
    "doc_id",
}


UNREAD_NOTE = "columns not read"


def list_read_columns(task: "Task") -> set[str]:
    """Return the columns that a task reads, or by which its rows are split."""
    schema, config = task.input_schema, task.config
    read = {name for name in (config.group_column, config.time_column, config.weight_column) if name}
    for value in get_column_settings(config).values():
        read.update(value if isinstance(value, list) else [value, *value.split(",")] if value else [])
    return read.union(schema.text_columns, schema.gold_columns, schema.hidden_columns, schema.group_columns)


def describe_unread_columns(task: "Task", train: Rows) -> list[str]:
    """Return a note on the columns of the training rows that a task does not read; [] if there are none.

    The note names the flag that reads a further column of texts, if the task has one.
    """
    read = list_read_columns(task)
    unread = [
        name
        for name, values in train.columns.items()
        if name not in read and (name.lower() not in ID_COLUMNS or hold_texts(values[:SEEN_ROWS]))
    ]
    if not unread:
        return []
    flag = task.input_schema.further_text_flag
    texts = [name for name in unread if flag and hold_texts(train[name][:SEEN_ROWS])]
    fix = f"; {flag} {shlex.quote(texts[0])} reads it, too" if texts else ""
    return [f"{UNREAD_NOTE}: {format_list(unread)}{fix}"]


def get_weights(task: "Task", rows: Rows) -> np.ndarray | None:
    """Return [n] float32 weight of each row; None if all rows count alike, or these have no weights."""
    column = task.config.weight_column
    return read_weights(rows, column) if column in rows.columns else None


@dataclass(frozen=True, kw_only=True)
class TransformersPipeline:
    """Arguments with which `transformers.pipeline()` makes the same predictions as bertkit.

    Attributes:
        task: Task name of `pipeline()`, which is also the pipeline tag on the Hub.
        init_kwargs: Further arguments of `pipeline()`.
        call_kwargs: Keyword arguments of the call of the pipeline.
        example_input: Input in the example code of the model card.
        caveat: Why the predictions differ from bertkit's, or None if they are the same. The text completes
            the sentence "`transformers.pipeline` ..." in the model card.
    """

    task: str
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    call_kwargs: Mapping[str, Any] = field(default_factory=dict)
    example_input: str = "..."
    caveat: str | None = None


# ---- what a run finds

CONFIDENCE_KEY = "bertkit_confidence"  # in config.json


@dataclass(frozen=True)
class FittedConfidence:
    """What a run says about its confidence in a prediction; None for a number that is not fitted.

    Attributes:
        min_confidence: Confidence below which the model abstains.
        set_margin: Margin of the classes in a prediction set; see `bertkit.stats.calibration`.
        answer_weights: Weights of the probability that an answer of `qa` is right.
        scope_weights: Weights of the score that a text is in scope; see `bertkit.stats.scope_score`.
        min_scope_score: Score below which a text is out of scope.
    """

    min_confidence: float | None = None
    set_margin: float | None = None
    answer_weights: Mapping[str, float] | None = None
    scope_weights: Sequence[float] | None = None
    min_scope_score: float | None = None

    @property
    def can_abstain(self) -> bool:
        """Whether some rows may have no answer."""
        return self.min_confidence is not None or self.min_scope_score is not None

    @classmethod
    def load(cls, model_config: Any) -> "FittedConfidence":
        """Return the numbers in the model config of a finished run."""
        return cls(**(getattr(model_config, CONFIDENCE_KEY, None) or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted numbers as a JSON object."""
        return {name: value for name, value in vars(self).items() if value is not None}


NOT_FITTED = FittedConfidence()


def remove_fitted_confidence(model_config: Any) -> None:
    """Remove the numbers from a model config: they were fitted for the model that a run starts from."""
    vars(model_config).pop(CONFIDENCE_KEY, None)


class TaskState(SimpleNamespace):
    """What a run finds out about its data and its model. Tasks add what they find: labels, types, tags.

    `Task.parse_dataset` creates the state, and `configure_model` and `fit_decision` complete it. What
    prediction needs is saved in the model's `config.json`, from which `Task.load_state` restores it. Settings
    that the run finds, such as columns, are in `Task.config`.

    Attributes:
        has_new_head: Whether the head is re-initialized.
        head_note: Remark about the head for the console; None for the default remark.
        label_type: Kind of the labels, a `bertkit.tasks.text.label_types.LabelType`, if each text has one
            label, one set of labels or one number; None for other tasks.
        new_tokens: Tokens that the task needs in addition to those of the tokenizer.
        time_column: The column of `--time-column` in the data of the run.
        best_metric: Metric that selects the best checkpoint, and +1 if higher is better or -1 if lower is.
            It is that of `--metric-for-best-model`, of the dataset, or of the task.
        fitted_params: Parameters that `fit_decision` chooses, by their name in `config.json`.
        fitted_confidence: Numbers that `calibrate` stored in `config.json`.
    """

    has_new_head: bool = True
    head_note: str | None = None
    label_type: Any = None
    new_tokens: Sequence[str] = ()
    time_column: TimeColumn | None = None
    best_metric: tuple[str, int] = ("accuracy", 1)
    fitted_params: Mapping[str, Any] = {}
    fitted_confidence: FittedConfidence = NOT_FITTED

    @property
    def labels(self) -> list[str]:
        """The names of the labels or of the entity types; empty if there are none."""
        return list(self.label_type.labels) if self.label_type else []

    @property
    def num_classes(self) -> int:
        """The number of classes, of which each text has one; 0 for label sets, numbers and other tasks."""
        has_classes = self.label_type and self.label_type.problem_type == "single_label_classification"
        return len(self.label_type.labels) if has_classes else 0

    def average(self, states: "Sequence[TaskState]") -> None:
        """Replace the fitted parameters by the means over all members of an ensemble.

        An ensemble neither abstains nor has prediction sets, because the confidence of the mean differs from
        that of a member.
        """
        self.fitted_confidence = NOT_FITTED
        self.fitted_params = average_values([state.fitted_params for state in states])


ScoreDetail = Literal["default", "compact", "all"]


@dataclass(frozen=True)
class Outputs:
    """The model's outputs on one split.

    Attributes:
        logits: What `Features.reduce_logits` keeps of the logits; the shape depends on the task.
        features: The features of the rows, as `Task.featurize` returns them.
        rows: The parsed rows.
    """

    logits: np.ndarray
    features: Any
    rows: Rows

    @property
    def labels(self) -> np.ndarray:
        """The labels of the features; the split must have labels."""
        assert self.features.labels is not None
        return self.features.labels


class Evaluation(ABC):
    """The predictions of one split. Subclasses cache the results of expensive steps.

    Attributes:
        outputs: The model's outputs.
        perfect_score: Score of correct predictions: 1, or 100 for scores in percent.
        has_comparable_logits: Whether the logits of several models for the same rows can be averaged. If not,
            `merge_records` combines their predictions.
    """

    perfect_score: ClassVar[float] = 1.0
    has_comparable_logits: ClassVar[bool] = True

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs

    @property
    def has_gold(self) -> bool:
        """Whether the split has labels, which scores require."""
        return self.outputs.features.labels is not None

    @property
    @abstractmethod
    def scores(self) -> Scores:
        """The scores by name; the split must have labels."""

    @property
    @abstractmethod
    def scorer(self) -> Scorer:
        """A function that scores any selection of the rows, for intervals and paired tests."""

    def compute_details(self) -> dict[str, Scores]:
        """Return the scores of parts of the predictions by name of the part, such as an entity type."""
        return {}

    @abstractmethod
    def iter_records(self, score_detail: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield the prediction for each row as a dictionary.

        Args:
            score_detail: Which scores to include. "default": the scores in `predictions.jsonl`; "compact":
                only the scores of predicted labels; "all": also scores that `predictions.jsonl` lacks.
        """

    def compute_uncertainty(self) -> np.ndarray:
        """Return [rows] the uncertainty of each prediction, from 0 to 1; regression has none."""
        raise NotImplementedError

    def iter_full_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records with the probabilities of all labels, which other programs can analyze."""
        return self.iter_records()

    @staticmethod
    def merge_records(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Combine the full records of several models for one row; see `has_comparable_logits`."""
        raise NotImplementedError

    def format_files(self) -> dict[str, Iterator[str]]:
        """Return the contents of further prediction files by file name, in chunks of text."""
        return {}


class RowEvaluation(Evaluation):
    """The predictions of a task with one prediction for each row, which modules of `evaluate` can score.

    Attributes:
        fitted: Numbers that `calibrate` fitted for the run.
        scope_score: [rows] score from 0 to 1 that the text is in scope; None if it is not fitted.
    """

    scope_score: np.ndarray | None = None

    def __init__(self, outputs: Outputs, fitted: FittedConfidence = NOT_FITTED) -> None:
        super().__init__(outputs)
        self.fitted = fitted

    @abstractmethod
    def decode(self) -> DecodedPredictions:
        """Return the predictions and the gold labels in the form that modules expect."""

    @abstractmethod
    def make_examples(self) -> DecodedPredictions:
        """Return a few predictions in the form of `decode`, all correct; model outputs are not needed."""

    @abstractmethod
    def list_scores(self) -> list[str]:
        """Return the names of the scores; model outputs are not needed."""

    # ---- probabilities

    @property
    def has_classes(self) -> bool:
        """Whether predictions are choices between classes; model outputs are not needed."""
        return False

    @property
    def calibration_method(self) -> Literal["temperature", "output layer", "answers"] | None:
        """What `calibrate` fits; None if it cannot. Model outputs are not needed.

        With "output layer", a row has one class, and its logits are a linear function of one vector.
        """
        return "temperature" if self.has_classes else None

    @property
    def has_sets(self) -> bool:
        """Whether each row has one of several classes, so that a prediction can be a set of classes."""
        return False

    def make_decisions(self) -> Decisions:
        """Return the decisions, with their gold classes if the split has labels; needs `has_classes`."""
        raise NotImplementedError

    def score_scaled(self, factor: float | np.ndarray) -> Scores:
        """Return further scores if the logits of decisions are multiplied by a factor or [n] factors."""
        return {}

    def compute_correct(self) -> np.ndarray:
        """Return [rows] bool, whether the whole prediction of each row is correct."""
        raise NotImplementedError

    @cached_property
    def confidence(self) -> np.ndarray:
        """The confidence in the prediction of each row, [rows]: the lowest confidence of its decisions."""
        return self.make_decisions().compute_row_confidence()[0]

    @property
    def is_out_of_scope(self) -> np.ndarray:
        """[rows] bool, whether each text belongs to no class; needs `scope_score`."""
        assert self.scope_score is not None
        return self.scope_score < self.fitted.min_scope_score

    def compute_uncertainty(self) -> np.ndarray:
        return self.make_decisions().compute_row_uncertainty()

    @cached_property
    def abstention_scorer(self) -> SelectiveScorer | None:
        """The scores of abstention, also from texts out of scope; None if neither is fitted."""
        if not self.fitted.can_abstain:
            return None
        minimum = np.full(len(self.outputs.rows), self.fitted.min_confidence or 0.0)
        if self.scope_score is not None:
            minimum[self.is_out_of_scope] = np.inf
        return SelectiveScorer(self.confidence, self.compute_correct(), minimum)

    @cached_property
    def confidence_scorer(self) -> Scorer:
        """The scores of the probabilities and, if `calibrate` fitted them, of abstention and sets."""
        if not self.has_classes:
            return Scorer(lambda _: {}, len(self.outputs.rows))
        decisions, abstention = self.make_decisions(), self.abstention_scorer
        probabilities = ProbabilityScorer(decisions)
        is_member = None if self._set_margin is None else find_members(decisions.logits, self._set_margin)

        def score(rows: np.ndarray) -> Scores:
            scores = probabilities.score(rows)
            if abstention:
                scores |= abstention.score(rows)
            if is_member is not None:
                scores |= score_sets(is_member[rows], decisions.gold[rows])
            return scores

        return Scorer(score, len(self.outputs.rows))

    @property
    def confidence_score_names(self) -> list[str]:
        """The names of the scores of `confidence_scorer`; model outputs are not needed."""
        return [
            *(PROBABILITY_SCORES if self.has_classes else ()),
            *(SELECTIVE_SCORES if self.fitted.can_abstain else ()),
            *(SET_SCORES if self._set_margin is not None else ()),
        ]

    @property
    def _set_margin(self) -> float | None:
        """The margin of prediction sets; None if the run has none."""
        return self.fitted.set_margin if self.has_sets else None

    # ---- records

    @abstractmethod
    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield the prediction for each row; see `iter_records`."""

    def decode_set(self, is_member: np.ndarray) -> list[Any]:
        """Return the JSON value of a prediction set, from [classes] bool; needs `has_sets`."""
        raise NotImplementedError

    def iter_records(self, score_detail: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield the predictions, with `abstained` if the run abstains from rows of low confidence.

        If texts out of scope are fitted, there are also `out_of_scope` and `scope_score`; with
        `score_detail="all"`, `prediction_set` if the run is calibrated.
        """
        columns: dict[str, Iterable[Any]] = {}
        if self.fitted.min_confidence is not None:
            columns["abstained"] = (self.confidence < self.fitted.min_confidence).tolist()
        if self.scope_score is not None:
            columns["out_of_scope"] = self.is_out_of_scope.tolist()
            columns["scope_score"] = self.scope_score.tolist()
        if score_detail == "all" and self._set_margin is not None:
            is_member = find_members(self.make_decisions().logits, self._set_margin)
            columns["prediction_set"] = map(self.decode_set, is_member)
        added = zip(*columns.values(), strict=True) if columns else repeat(())
        for record, values in zip(self.iter_predictions(score_detail), added, strict=bool(columns)):
            yield record | dict(zip(columns, values, strict=True))


class LabelEvaluation(RowEvaluation):
    """The predictions of a task with one label, one set of labels or one number for each row."""

    @property
    def gold(self) -> np.ndarray:
        """The gold labels as numbers, [rows] or [rows, labels]."""
        return self.outputs.labels

    @property
    @abstractmethod
    def predicted(self) -> np.ndarray:
        """The predicted labels as numbers, in the shape of `gold`."""

    @abstractmethod
    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        """Return the scores of labels, without those of their probabilities."""

    @cached_property
    def scores(self) -> Scores:
        return self.score(self.gold, self.predicted) | self.confidence_scorer.score_all()

    @cached_property
    def scorer(self) -> Scorer:
        labels, confidence = make_label_scorer(self.score, self.gold, self.predicted), self.confidence_scorer
        is_correct = labels.is_correct if self.has_sets else None
        return Scorer(lambda rows: labels.score(rows) | confidence.score(rows), labels.size, is_correct)

    def compute_correct(self) -> np.ndarray:
        is_correct = self.gold == self.predicted
        return is_correct.all(1) if is_correct.ndim == 2 else is_correct


def make_label_scorer(
    score: Callable[[np.ndarray, np.ndarray], Scores], gold: np.ndarray, predicted: np.ndarray
) -> Scorer:
    """Return a scorer of labels, [n] class ids, [n, classes] label sets or [n] numbers.

    `score` returns the scores of gold and predicted labels.
    """
    has_one_class = gold.ndim == 1 and gold.dtype.kind != "f"
    is_correct = gold == predicted if has_one_class else None
    if gold.ndim == 2:  # 0 or 1: the bootstrap copies less memory
        gold, predicted = gold.astype(np.int8), predicted.astype(np.int8)
    return Scorer.from_columns(score, [gold, predicted], is_correct)


def iter_prediction_records(task: "Task", evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the records of `predictions.jsonl`.

    A record has an id, the input columns if there is one prediction per row, and the prediction.
    """
    has_rows, hidden_columns = task.definition.predicts_rows, task.input_schema.hidden_columns
    rows = iter(evaluation.outputs.rows) if has_rows else repeat({})
    pairs = zip(rows, evaluation.iter_records(), strict=has_rows)
    for row_id, (row, prediction) in enumerate(pairs):
        yield merge_prediction(row_id, row, hidden_columns, prediction)


def merge_prediction(
    row_id: int, row: Mapping[str, Any], hidden_columns: Container[str], prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one dictionary of the id, the columns that are not hidden, and the prediction.

    A column with the name of another key is renamed by adding the prefix `input_`.
    """
    keys = {"id", *prediction}
    inputs: dict[str, Any] = {}
    for column, value in row.items():
        if column in hidden_columns:
            continue
        key = column
        while key in keys:
            key = f"input_{key}"
        keys.add(key)
        inputs[key] = value
    return {"id": row_id, **inputs, **prediction}


@dataclass(frozen=True)
class Preview:
    """Training examples as the model reads them.

    Attributes:
        statistics: Statistics of the examples by name.
        samples: The examples, in the format of the predictions file.
        notes: Remarks for the console.
    """

    statistics: Scores
    samples: list[dict[str, Any]]
    notes: list[str]


class Task(ABC):
    """A task in one run: its definition, the settings of the run, and what the run has found.

    Attributes:
        definition: What the task is, independent of any run.
        label_setting: Name of the setting of the column that a person fills in to label a row.
        config: The settings. The user's settings are never changed; `resolve` sets what the run finds.
        state: What the run has found besides settings.
        use_cache: Whether tokenized texts are cached on disk.
    """

    definition: ClassVar[TaskDef]
    label_setting: ClassVar[str] = "label_column"
    state_class: ClassVar[type[TaskState]] = TaskState
    config: Any
    state: TaskState

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.state = self.state_class()
        self.use_cache = True

    def resolve(self, **found: Any) -> None:
        """Replace settings by what the run has found, such as columns, `max_length` and the batch size.

        Nothing else changes the settings of a task. `run.yaml` saves them with these values, so that neither
        a finished run nor its repetition guesses again.
        """
        self.config = dataclasses.replace(self.config, **found)

    # ---- properties that depend on the settings or on the state

    @property
    @abstractmethod
    def pipeline(self) -> TransformersPipeline:
        """The arguments of `transformers.pipeline()` for the model of the run."""

    @property
    def default_hyperparameters(self) -> Mapping[str, Any]:
        """Hyperparameters that replace those suggested from the sizes of the data and of the model."""
        return {}

    @property
    def uses_windows(self) -> bool:
        """Whether long inputs are split into windows; otherwise they are truncated."""
        return False

    @property
    def sequence_grouping(self) -> Literal["document", "choice"] | None:
        """What the sequences of an example are: the windows of a text, or the choices of a row.

        None if each example is one sequence.
        """
        return None

    @property
    def training_phrase(self) -> str:
        """Words between the initial model and the name of the task in the model card."""
        return "fine-tuned for"

    @property
    @abstractmethod
    def input_schema(self) -> InputSchema:
        """The columns that the task reads; those that are not guessed yet are missing."""

    # ---- rows

    def load_data(self) -> LoadedDataset:
        """Load the splits of `--data`. The values of `--validation` and `--test` replace those splits."""
        config = self.config
        dialect = self.definition.make_dialect(config)
        dataset = load_dataset(config.data, self.definition.name, config.data_dir, dialect)
        dataset.require_training_split()
        sources = {"validation": config.validation, "test": config.test}
        return dataset.add_splits(
            {split: load_split(source, split, dialect) for split, source in sources.items() if source}
        )

    @abstractmethod
    def parse_dataset(self, dataset: LoadedDataset) -> LoadedDataset:
        """Find the columns and the labels, and return the dataset with parsed rows.

        The notes of the returned dataset report the rows that were left out or changed.
        """

    @abstractmethod
    def parse_rows(self, rows: Rows, split: str = "", require_labels: bool = False) -> tuple[Rows, list[str]]:
        """Return the rows in the task's internal format, and notes on rows that are left out.

        Args:
            rows: Rows of any split. Rows in the internal format are returned unchanged.
            split: Name of the split, for the notes.
            require_labels: Whether every returned row must have a label that the model can predict.
        """

    @abstractmethod
    def make_split_keys(self, rows: Rows) -> SplitKeys:
        """Return the keys by which rows are split, without those of `--group-column` and `--time-column`."""

    def split_keys(self, rows: Rows) -> SplitKeys:
        """Return keys by which rows are split; columns that these rows lack have no effect."""
        keys, group_column, time_column = (
            self.make_split_keys(rows), self.config.group_column, self.state.time_column,
        )  # fmt: skip
        if group_column in rows.columns:
            keys = keys.add_group_column(rows, group_column)
        if time_column is not None and time_column.name in rows.columns:
            keys = keys.add_time_column(rows, time_column)
        return keys

    @abstractmethod
    def validate_splits(self, splits: Splits) -> None:
        """Check the values of all splits. `bertkit check` calls this with one split, and with single rows."""

    def get_labels(self, rows: Rows) -> list[Any]:
        """Return the label of each parsed row like the key `gold` of the predictions; tags are in IOB2."""
        raise NotImplementedError

    def replace_labels(self, rows: Rows, labels: Mapping[int, Any]) -> Rows:
        """Return parsed rows with other labels by the index of the row, in the form of `get_labels`."""
        raise NotImplementedError

    def map_columns(self, rows: Rows, named: Mapping[str, Any]) -> None:
        """Adapt the column settings to these rows.

        If the rows lack a column that training used, a column with another common name is used.

        Args:
            rows: The rows as read.
            named: Columns that the user named, by setting. They take precedence.
        """
        self.resolve(**require_named_columns(rows, named))

    # ---- model

    def resolve_model(self, is_model_requested: bool, needs_weights: bool = True) -> ModelSource:
        """Find the model that training starts from.

        If the model was suggested by the dataset, not by the user, and cannot be found, the default model is
        used.
        """
        name = self.config.model
        if name is None or is_model_requested:
            return loading.find_model(name or loading.choose_default_model(), needs_weights=needs_weights)
        try:
            return loading.find_model(name, needs_weights=needs_weights)
        except UserError as error:
            default = loading.choose_default_model()
            report_warning(f"using {default} instead of the model that the dataset suggests ({error})")
            self.resolve(model=None)
            return loading.find_model(default, needs_weights=needs_weights)

    @abstractmethod
    def configure_model(self, model_config: Any, source: ModelSource) -> Any:
        """Return the model's config with the labels of this task, and decide whether to keep its head."""

    def load_state(self, model_config: Any) -> None:
        """Restore the labels and the fitted parameters from the model config of a finished run."""
        fitted = FittedConfidence.load(model_config)
        self.state = self.state_class(has_new_head=False, fitted_confidence=fitted)

    @abstractmethod
    def describe(self) -> str:
        """Return one line on the inputs and the labels, for the console and the model card."""

    @abstractmethod
    def featurize(self, rows: Rows, tokenizer: Any, training: bool = False) -> Features:
        """Return the tokenized inputs of parsed rows of one split, with their labels if they have labels."""

    def preview(self, features: Features, tokenizer: Any) -> Preview | None:
        """Return training examples if the user passed `--preview`; None to train."""
        return None

    @abstractmethod
    def build_model(self, model_config: Any, source: ModelSource) -> Any:
        """Return the encoder with this task's head; weights that `source` lacks are initialized randomly."""

    def combine_logits(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Combine the logits of several models [models, ...] to those of one; by default by probability."""
        from bertkit.models.forward import average_probabilities

        return average_probabilities(logits)

    def make_collator(self, tokenizer: Any, model: Any) -> Callable[..., Any]:
        """Return a function that pads a list of features to a batch."""
        from bertkit.data.collators import PaddingCollator

        return PaddingCollator(tokenizer.pad_token_id, takes_token_type_ids(model), self.sequence_grouping)

    def verify_label_order(self, predict_sample: "Callable[[], Outputs]") -> None:
        """Refuse an existing head whose predictions fit the labels far better in another order of its labels.

        `predict_sample` returns the model's outputs on a sample of validation rows.
        """
        return

    @abstractmethod
    def make_loss(self, features: Features) -> "Loss":
        """Return the loss of predictions, for these training features."""

    # ---- results

    @abstractmethod
    def evaluate(self, outputs: "Outputs") -> "Evaluation":
        """Return the predictions of a split."""

    def fit_decision(self, evaluation: "Evaluation") -> None:
        """Fit thresholds on the validation split, and store them in `state.fitted_params`."""
        return

    @abstractmethod
    def fit_baselines(self, train: Rows, rows: Rows) -> dict[str, Scorer]:
        """Return the scorers of simple baselines by name: fitted on `train`, they predict `rows`."""
