"""Predictions of one split, computed once, and the scores, tables and files derived from them."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.metrics.significance import Scorer
    from bertkit.tasks.base import Scores, Task

ScoreDetail = Literal["default", "compact", "all"]
EMPTY_ROW: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Outputs:
    """The model's outputs on one split.

    Attributes:
        logits: scores, [decisions, outputs].
        features: what the task's `featurize` returned for the rows.
        rows: the parsed rows.
    """

    logits: "np.ndarray"
    features: Any
    rows: "Rows"


class Evaluation(ABC):
    """Predictions of one split; every expensive step is computed at most once."""

    def __init__(self, outputs: Outputs) -> None:
        self.outputs = outputs

    @property
    def has_gold(self) -> bool:
        """Whether the split has labels to score against."""
        return self.outputs.features.labels is not None

    @cached_property
    def scores(self) -> "Scores":
        """The scores of a labeled split."""
        return self.compute_scores()

    @abstractmethod
    def compute_scores(self) -> "Scores":
        """Return the scores of a labeled split."""

    @abstractmethod
    def scorer(self) -> "Scorer":
        """Return a fast scorer of any subset of the rows, for bootstrap and paired tests."""

    def intervals(self, seed: int) -> dict[str, list[float]]:
        """Return the 95% interval of each score: Wilson's for proportions, else a bootstrap over rows."""
        from bertkit.metrics.significance import compute_intervals

        return compute_intervals(self.scorer(), seed)

    def details(self) -> "dict[str, Scores]":
        """Return scores of parts of a labeled split by name, such as those of each entity type."""
        return {}

    @abstractmethod
    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield a prediction for each row, with the keys of `predictions.jsonl`.

        Args:
            scores: "compact" leaves out scores of labels that are not predicted; "all" adds the scores
                that `predictions.jsonl` lacks.
        """

    def files(self) -> dict[str, Iterator[str]]:
        """Return further files of predictions, in the formats of the field's tools: name -> chunks."""
        return {}


def iter_prediction_records(task: "Task", evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield predictions preceded by the input columns; a column that clashes becomes `input_NAME`."""
    row_level, hidden = task.spec.row_level, task.inputs.hidden_columns
    rows = iter(evaluation.outputs.rows) if row_level else repeat(EMPTY_ROW)
    for number, (row, prediction) in enumerate(zip(rows, evaluation.records(), strict=row_level)):
        yield merge_prediction(number, row, hidden, prediction)


def merge_prediction(
    number: int, row: Mapping[str, Any], hidden_columns: Container[str], prediction: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a record of a row's number, its columns except the hidden ones, and its prediction."""
    keys = {"id", *prediction}
    inputs: dict[str, Any] = {}
    for name, value in row.items():
        if name in hidden_columns:
            continue
        while name in keys:
            name = f"input_{name}"
        keys.add(name)
        inputs[name] = value
    return {"id": number, **inputs, **prediction}
