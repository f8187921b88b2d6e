"""From which odds on a question is held to have no answer: SQuAD 2.0's threshold and how it is chosen."""

from dataclasses import dataclass

import numpy as np

from bertkit.metrics.classification import Scores
from bertkit.metrics.squad import AnswerScores


@dataclass(frozen=True)
class ThresholdSweep:
    """Scores under every threshold that makes a difference.

    Attributes:
        threshold: [k] float, rising; the first is below all odds, so that nothing is answered.
        exact, f1: [k] float, in percent.
    """

    threshold: np.ndarray
    exact: np.ndarray
    f1: np.ndarray


def apply_threshold(
    marks: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, threshold: float
) -> AnswerScores:
    """The marks where no answer is given to questions whose odds are above the threshold.

    Args:
        null_odds: [n] float, how much speaks for no answer, on any scale.
        has_answer: [n] bool, of the gold.
    """
    none = marks.is_answered & (null_odds > threshold)
    exact, f1 = (np.where(none, ~has_answer, values) for values in (marks.exact, marks.f1))
    return AnswerScores(exact, f1, marks.is_answered)


def compute_best_scores(
    marks: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, empty: np.ndarray
) -> Scores:
    """The official script's best_exact and best_f1, and the thresholds they are reached with.

    The script tells questions of the same odds apart, which no threshold can, and begins with no question
    answered under the name of threshold 0; so these are for comparison, `sweep` for use.

    Args:
        empty: [n] bool, where the answer is the empty string. Other arguments as for `without_answer`.
    """
    rows = np.flatnonzero(marks.is_answered)
    rows = rows[np.argsort(null_odds[rows], kind="stable")]
    thresholds = np.append(0.0, null_odds[rows])
    best: Scores = {}
    for name, values in (("exact", marks.exact), ("f1", marks.f1)):
        steps = np.where(has_answer[rows], values[rows], np.where(empty[rows], 0.0, -1.0))
        reached = np.cumsum(np.append(float((~has_answer).sum()), steps))  # one by one, as the script adds
        first = int(reached.argmax())
        best[f"best_{name}"] = 100.0 * float(reached[first]) / max(len(rows), 1)
        best[f"best_{name}_thresh"] = float(thresholds[first])
    return best


def sweep_thresholds(marks: AnswerScores, null_odds: np.ndarray, right: np.ndarray) -> ThresholdSweep:
    """Scores where questions of odds above a threshold get the empty answer, under each of the odds.

    At least one question is answered. Questions of the same odds go together, as they do when a threshold
    is used.

    Args:
        null_odds: [n] float, how much speaks for no answer, on any scale.
        right: [n] whether the empty answer is right: by SQuAD 2.0 also where nothing is left of the gold.
    """
    rows = np.flatnonzero(marks.is_answered)
    odds, place = np.unique(null_odds[rows], return_inverse=True)
    below = np.nextafter(odds[:1], -np.inf)  # in the precision of the odds, or it could round up to them
    nothing = right[rows].astype(float)

    def scores(values: np.ndarray) -> np.ndarray:
        steps = np.bincount(place, values[rows] - nothing, minlength=len(odds))
        return 100.0 * np.cumsum(np.append(nothing.sum(), steps)) / len(rows)

    thresholds = np.concatenate([below, odds]).astype(float)
    return ThresholdSweep(thresholds, scores(marks.exact), scores(marks.f1))


def fit_threshold(sweep: ThresholdSweep) -> float:
    """The threshold with the best f1, the lowest of equals; what cumulated rounding tells apart is equal.

    It lies half-way to the next question's odds, or 1 beyond the last ones, so that the noise of another
    device or batch changes no answer.
    """
    at, odds = int(sweep.f1.round(9).argmax()), sweep.threshold
    if at == 0:
        return float(min(odds[0], odds[1] - 1.0))
    if at == len(odds) - 1:
        return float(odds[at] + 1.0)
    middle = odds[at] + (odds[at + 1] - odds[at]) / 2
    return float(middle if middle < odds[at + 1] else odds[at])
