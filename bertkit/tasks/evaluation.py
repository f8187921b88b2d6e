"""The predictions of one split, and the scores and records that are computed from them."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.metrics.calibration import Decisions, ProbabilityScorer
    from bertkit.metrics.decoded import DecodedPredictions
    from bertkit.metrics.significance import Scorer
    from bertkit.tasks.base import Scores, Task

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

    logits: "np.ndarray"
    features: Any
    rows: "Rows"

    @property
    def labels(self) -> "np.ndarray":
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
    def scores(self) -> "Scores":
        """The cached result of `compute_scores`."""
        return self.compute_scores()

    @abstractmethod
    def compute_scores(self) -> "Scores":
        """Return the scores by name; the split must have labels."""

    @abstractmethod
    def make_scorer(self) -> "Scorer":
        """Return a function that scores any selection of the rows, for intervals and paired tests."""

    def compute_intervals(self, seed: int) -> dict[str, list[float]]:
        """Return the 95 % interval of each score, as [low, high]; see `compute_intervals`.

        Args:
            seed: Seed of the bootstrap.
        """
        from bertkit.metrics.significance import compute_intervals

        return compute_intervals(self.make_scorer(), seed)

    def compute_details(self) -> "dict[str, Scores]":
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
    """The predictions of a task with one prediction for each row, which modules of `evaluate` can score."""

    @abstractmethod
    def decode(self) -> "DecodedPredictions":
        """Return the predictions and the gold labels in the form that modules expect."""

    @abstractmethod
    def make_examples(self) -> "DecodedPredictions":
        """Return a few predictions in the form of `decode`, all correct; model outputs are not needed."""

    @abstractmethod
    def list_scores(self) -> list[str]:
        """Return the names of the scores of `compute_scores`; model outputs are not needed."""

    @property
    def has_classes(self) -> bool:
        """Whether predictions are choices between classes; model outputs are not needed."""
        return False

    def make_decisions(self) -> "Decisions":
        """Return the decisions with their gold classes, to score and calibrate their probabilities.

        The predictions must have classes, and the split must have labels.
        """
        raise NotImplementedError

    @cached_property
    def probability_scorer(self) -> "ProbabilityScorer":
        """The scores of the probabilities; see `make_decisions`."""
        from bertkit.metrics.calibration import ProbabilityScorer

        return ProbabilityScorer(self.make_decisions())


def iter_prediction_records(task: "Task", evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the records of `predictions.jsonl`.

    A record has an id, the input columns if there is one prediction per row, and the prediction.
    """
    has_rows, hidden_columns = task.spec.predicts_rows, task.input_schema.hidden_columns
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
