"""The scores of probabilities, of abstention and of prediction sets, for any sample of the rows."""

from dataclasses import dataclass

import numpy as np

from bertkit.metrics.calibration import ProbabilityScorer
from bertkit.metrics.classification import Scores
from bertkit.metrics.prediction_sets import score_sets
from bertkit.metrics.selection import SelectiveScorer


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
