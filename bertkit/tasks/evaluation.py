"""The predictions of one split, and the scores and records that are computed from them."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar, Literal

import numpy as np

from bertkit.data.table import Rows
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
from bertkit.stats.significance import Scorer, compute_intervals
from bertkit.tasks.base import NOT_FITTED, FittedConfidence, Task

ScoreDetail = Literal["default", "compact", "all"]
EMPTY_ROW: Mapping[str, Any] = {}


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
        has_comparable_logits: Whether the logits of several models for the same rows can be averaged. If not,
            `merge_records` combines their predictions.
    """

    has_comparable_logits: ClassVar[bool] = True

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs

    @property
    def has_gold(self) -> bool:
        """Whether the split has labels, which scores require."""
        return self.outputs.features.labels is not None

    @cached_property
    def scores(self) -> Scores:
        """The cached result of `compute_scores`."""
        return self.compute_scores()

    @abstractmethod
    def compute_scores(self) -> Scores:
        """Return the scores by name; the split must have labels."""

    @abstractmethod
    def make_scorer(self) -> Scorer:
        """Return a function that scores any selection of the rows, for intervals and paired tests."""

    def compute_intervals(self, seed: int) -> dict[str, list[float]]:
        """Return the 95 % interval of each score, as [low, high]; see `compute_intervals`.

        Args:
            seed: Seed of the bootstrap.
        """
        return compute_intervals(self.make_scorer(), seed)

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
    """

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
        """Return the names of the scores of `compute_scores`; model outputs are not needed."""

    # ---- probabilities

    @property
    def has_classes(self) -> bool:
        """Whether predictions are choices between classes; model outputs are not needed."""
        return False

    @property
    def calibration_method(self) -> Literal["temperature", "answers"] | None:
        """How `calibrate` fits probabilities: a temperature, or the probability that an answer is right.

        None if the run cannot be calibrated. Model outputs are not needed.
        """
        return "temperature" if self.has_classes else None

    @property
    def has_sets(self) -> bool:
        """Whether each row has one of several classes, so that a prediction can be a set of classes."""
        return False

    def make_decisions(self) -> Decisions:
        """Return the decisions, with their gold classes if the split has labels.

        The predictions must have classes.
        """
        raise NotImplementedError

    def score_scaled(self, factor: float | np.ndarray) -> Scores:
        """Return further scores of the probabilities if the logits of decisions are multiplied by a factor.

        Args:
            factor: The factor, or [n] one for each decision.
        """
        return {}

    def compute_correct(self) -> np.ndarray:
        """Return [rows] bool, whether the whole prediction of each row is correct."""
        raise NotImplementedError

    @cached_property
    def confidence(self) -> np.ndarray:
        """The confidence in the prediction of each row, [rows]: the lowest confidence of its decisions."""
        return self.make_decisions().compute_row_confidence()[0]

    @cached_property
    def confidence_scorer(self) -> "ConfidenceScorer":
        """The scores of the probabilities and, if `calibrate` fitted them, of abstention and sets."""
        num_rows, fitted = len(self.outputs.rows), self.fitted
        if not self.has_classes:
            return ConfidenceScorer(num_rows)
        decisions, selection, sets = self.make_decisions(), None, None
        if fitted.min_confidence is not None:
            selection = SelectiveScorer(self.confidence, self.compute_correct(), fitted.min_confidence)
        if self._set_margin is not None:
            sets = find_members(decisions.logits, self._set_margin), decisions.gold
        return ConfidenceScorer(num_rows, ProbabilityScorer(decisions), selection, sets)

    @property
    def confidence_score_names(self) -> list[str]:
        """The names of the scores of `confidence_scorer`; model outputs are not needed."""
        return [
            *(PROBABILITY_SCORES if self.has_classes else ()),
            *(SELECTIVE_SCORES if self.fitted.min_confidence is not None else ()),
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

        With `score_detail="all"`, also `prediction_set` if the run is calibrated.
        """
        min_confidence, columns = self.fitted.min_confidence, {}
        if min_confidence is not None:
            columns["abstained"] = (self.confidence < min_confidence).tolist()
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

    def compute_scores(self) -> Scores:
        return self.score(self.gold, self.predicted) | self.confidence_scorer.score_all()

    def make_scorer(self) -> Scorer:
        """Return a scorer of rows; if each row has one class, it includes which rows are correct."""
        gold, predicted, confidence = self.gold, self.predicted, self.confidence_scorer

        def score(rows: np.ndarray) -> Scores:
            return self.score(gold[rows], predicted[rows]) | confidence.score(rows)

        return Scorer(score, len(gold), gold == predicted if self.has_sets else None)

    def compute_correct(self) -> np.ndarray:
        """Return whether the label, or the whole set of labels, is correct, [rows]."""
        is_correct = self.gold == self.predicted
        return is_correct.all(1) if is_correct.ndim == 2 else is_correct


def iter_prediction_records(task: Task, evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the records of `predictions.jsonl`.

    A record has an id, the input columns if there is one prediction per row, and the prediction.
    """
    has_rows, hidden_columns = task.definition.predicts_rows, task.input_schema.hidden_columns
    rows = iter(evaluation.outputs.rows) if has_rows else repeat(EMPTY_ROW)
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
class ConfidenceScorer:
    """The scores of the confidence in predictions. A part that is None is not scored.

    Attributes:
        num_rows: Number of rows.
        probabilities: Scores of the probabilities.
        selection: Scores of abstention.
        sets: [rows, classes] bool, the classes in each prediction set, and [rows] the gold classes.
    """

    num_rows: int
    probabilities: ProbabilityScorer | None = None
    selection: SelectiveScorer | None = None
    sets: tuple[np.ndarray, np.ndarray] | None = None

    def score(self, rows: np.ndarray) -> Scores:
        """Return the scores of the rows at these indices, which may repeat."""
        scores: Scores = self.probabilities.score(rows) if self.probabilities else {}
        if self.selection:
            scores |= self.selection.score(rows)
        if self.sets:
            is_member, gold = self.sets
            scores |= score_sets(is_member[rows], gold[rows])
        return scores

    def score_all(self) -> Scores:
        """Return the scores of all rows."""
        return self.score(np.arange(self.num_rows))
