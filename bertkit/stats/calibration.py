"""Probabilities and decisions: calibration, temperature, abstention, prediction sets and thresholds.

A decision is a choice between classes, whose probabilities are the softmax of their logits. A label that a
row may have or lack is a decision between two classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from bertkit.errors import UserError
from bertkit.stats.scores import Scores

NUM_BINS = 15  # Guo et al. 2017
PROBABILITY_SCORES = ("ece", "nll", "brier")
Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Decisions:
    """Decisions with their gold classes. A row has one decision, or several such as those of its labels.

    Attributes:
        logits: [n, classes] float64; -inf for a class that a decision does not have.
        gold: [n] int, gold class; -1 if it is not known.
        row: [n] int, index of the row of each decision.
        num_rows: Number of rows; rows may have no decisions.
        targets: [n, classes] probabilities of the gold classes; None if they are known.
        weights: [n] weight of each decision when a temperature is fitted; None if all count alike.
    """

    logits: np.ndarray
    gold: np.ndarray
    row: np.ndarray
    num_rows: int
    targets: np.ndarray | None = None
    weights: np.ndarray | None = None

    @classmethod
    def from_classes(
        cls, logits: np.ndarray, gold: np.ndarray | None, targets: np.ndarray | None = None
    ) -> "Decisions":
        """Return one decision for each row, from logits [n, classes].

        Args:
            gold: [n] gold classes, if they are known.
            targets: [n, classes] probabilities of the gold classes, if they are not certain.
        """
        gold = np.full(len(logits), -1) if gold is None else gold
        return cls(logits.astype(np.float64), gold, np.arange(len(logits)), len(logits), targets)

    @classmethod
    def from_label_sets(
        cls, logits: np.ndarray, gold: np.ndarray | None, targets: np.ndarray | None = None
    ) -> "Decisions":
        """Return a decision for each label of each row, between 0 (absent) and 1 (present).

        The sigmoid of the logits [n, labels] is the probability of a label. Gold labels are 0 or 1, if they
        are known; the targets [n, labels] are their probabilities, if they are not certain.
        """
        gold = np.full(logits.shape, -1) if gold is None else gold
        num_rows, num_labels = gold.shape
        present = logits.astype(np.float64).ravel()
        row = np.repeat(np.arange(num_rows), num_labels)
        if targets is not None:
            targets = np.stack([1 - targets.ravel(), targets.ravel()], axis=1)
        return cls(np.stack([np.zeros_like(present), present], axis=1), gold.ravel(), row, num_rows, targets)

    def scale(self, factor: float | np.ndarray) -> "Decisions":
        """Return the decisions with their logits multiplied by a factor, or by [n] factors."""
        factors = np.broadcast_to(factor, len(self.gold))
        return replace(self, logits=self.logits * factors[:, None])

    def select(self, is_selected: np.ndarray) -> "Decisions":
        """Return the decisions where [n] `is_selected` is true; their rows keep their indices."""
        values = {
            name: value[is_selected] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **values)

    def compute_reliability(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [n] the confidence in the most probable class, and [n] the probability that it is correct.

        Without uncertain gold classes, this probability is 1 or 0.
        """
        confidence, is_correct = self.compute_confidence()
        if self.targets is None:
            return confidence, is_correct
        return confidence, self.targets[np.arange(len(self.targets)), self.logits.argmax(1)]

    def compute_confidence(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [n] the probability of the most probable class, and [n] bool whether it is correct."""
        from scipy.special import softmax

        predicted = self.logits.argmax(1)
        probabilities = softmax(self.logits, axis=1)[np.arange(len(predicted)), predicted]
        return probabilities, predicted == self.gold

    def compute_row_confidence(self) -> tuple[np.ndarray, np.ndarray]:
        """Return [rows] the lowest confidence of each row's decisions, and bool whether all are correct.

        The confidence of a row without decisions is 1.
        """
        confidence, is_correct = self.compute_confidence()
        row_confidence, row_is_correct = np.ones(self.num_rows), np.ones(self.num_rows, bool)
        np.minimum.at(row_confidence, self.row, confidence)
        np.logical_and.at(row_is_correct, self.row, is_correct)
        return row_confidence, row_is_correct

    def compute_row_uncertainty(self) -> np.ndarray:
        """Return [rows] the highest uncertainty of each row's decisions, from 0 to 1; 0 without decisions.

        The uncertainty of a decision is 1 minus the margin, the difference of its two highest probabilities.
        """
        from scipy.special import softmax

        highest = np.partition(softmax(self.logits, axis=1), -2, axis=1)[:, -2:]
        uncertainty = np.zeros(self.num_rows)
        np.maximum.at(uncertainty, self.row, 1 - (highest[:, 1] - highest[:, 0]))
        return uncertainty


def make_yes_no_decisions(probability: np.ndarray, is_true: np.ndarray) -> Decisions:
    """Return one decision for each row, between false and true, from the probability of true, [n]."""
    from scipy.special import logit

    clipped = np.clip(probability.astype(np.float64), 1e-12, 1 - 1e-12)
    return Decisions.from_label_sets(logit(clipped)[:, None], is_true.astype(int)[:, None])


# ---- reliability, and the scores of probabilities


@dataclass(frozen=True)
class Calibration:
    """Count, mean confidence and accuracy of predictions in bins of equal width; NaN for an empty bin."""

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy (Guo et al. 2017, eq. 3)."""
        used = self.count > 0
        gaps = np.abs(self.accuracy[used] - self.confidence[used])
        return float((self.count[used] * gaps).sum() / max(self.count.sum(), 1))

    def to_dict(self) -> dict[str, list[float | None]]:
        """Return the fields as a JSON object; NaN becomes None."""
        return {
            name: [None if np.isnan(value) else value for value in values.tolist()]
            for name, values in vars(self).items()
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Calibration":
        """Return the object that `to_dict` converted."""
        count, confidence, accuracy = (
            np.array([np.nan if value is None else value for value in fields[name]])
            for name in ("count", "confidence", "accuracy")
        )
        return cls(count, confidence, accuracy)


def compute_calibration(confidence: np.ndarray, is_correct: np.ndarray, bins: int = NUM_BINS) -> Calibration:
    """Group predictions into bins by confidence.

    Bin m of M, counted from 1, covers the interval ((m - 1) / M, m / M]. `confidence` is [n] from 0 to 1,
    `is_correct` is [n] bool, or the probability of being correct.
    """
    bin_index = _find_bins(confidence, bins)
    count = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [
            np.bincount(bin_index, values, minlength=bins) / count for values in (confidence, is_correct)
        ]
    return Calibration(count, *means)


def _find_bins(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Return [n] the index of the bin of each confidence; NaN belongs to the first bin."""
    return np.clip(np.ceil(np.nan_to_num(confidence) * bins).astype(int) - 1, 0, bins - 1)


class EceScorer:
    """The expected calibration error (Guo et al. 2017, eq. 3), for any sample of the rows.

    It is computed from sums over rows, so a sample of the bootstrap costs one matrix product. A row may have
    several of the n predictions, or none; `row` is [n], the index of the row of each.
    """

    def __init__(
        self, confidence: np.ndarray, is_correct: np.ndarray, row: np.ndarray, num_rows: int
    ) -> None:
        self.num_rows = num_rows
        bins = _find_bins(confidence, NUM_BINS)
        gaps = _sum_by_row(row, num_rows, is_correct - confidence, bins, NUM_BINS)
        self._sums = np.concatenate([gaps, _sum_by_row(row, num_rows, np.ones(len(row)))], axis=1)

    def score(self, rows: np.ndarray) -> float:
        """Return the score of the rows at these indices, which may repeat."""
        sums = np.bincount(rows, minlength=self.num_rows) @ self._sums
        return float(np.abs(sums[:-1]).sum() / max(sums[-1], 1))


def _sum_by_row(
    row: np.ndarray, num_rows: int, values: np.ndarray, column: np.ndarray | int = 0, num_columns: int = 1
) -> np.ndarray:
    """Return [num_rows, num_columns] the sums of the [n] values of each row in each column."""
    cell = row * num_columns + column
    return np.bincount(cell, values, minlength=num_rows * num_columns).reshape(-1, num_columns)


class ProbabilityScorer:
    """The scores of probabilistic predictions, for any sample of the rows.

    * `ece`: expected calibration error, the mean gap between confidence and accuracy in 15 bins of equal
      width (Guo et al. 2017, eq. 3).
    * `nll`: mean negative log-likelihood of the gold class.
    * `brier`: mean of half the squared distance between the probabilities and the gold class (Brier 1950).
      It ranges from 0 to 1. For two classes, it is the squared error of the probability of either class.

    If the gold class is uncertain, its probabilities take its place: `nll` is their cross-entropy, and a
    prediction is as correct as its class is probable.
    """

    def __init__(self, decisions: Decisions) -> None:
        from scipy.special import log_softmax

        index = np.arange(len(decisions.gold))
        log_probabilities = log_softmax(decisions.logits, axis=1)
        errors = np.exp(log_probabilities)
        if decisions.targets is None:
            errors[index, decisions.gold] -= 1
            losses = -log_probabilities[index, decisions.gold]
        else:
            errors -= decisions.targets
            losses = -np.where(decisions.targets > 0, decisions.targets * log_probabilities, 0).sum(1)
        self.num_rows = decisions.num_rows
        self._ece = EceScorer(*decisions.compute_reliability(), decisions.row, decisions.num_rows)
        columns = (losses, (errors**2).sum(1) / 2, np.ones(len(index)))
        sums = [_sum_by_row(decisions.row, decisions.num_rows, values) for values in columns]
        self._sums = np.concatenate(sums, axis=1)  # [rows, 3]

    def score(self, rows: np.ndarray) -> Scores:
        """Return `ece`, `nll` and `brier` of the rows at these indices, which may repeat."""
        nll, brier, count = np.bincount(rows, minlength=self.num_rows) @ self._sums
        count = max(count, 1)
        return {"ece": self._ece.score(rows), "nll": float(nll / count), "brier": float(brier / count)}

    def score_all(self) -> Scores:
        return self.score(np.arange(self.num_rows))


# ---- temperature

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 1e4


def fit_temperature(decisions: Decisions) -> float:
    """Return the temperature with the lowest mean negative log-likelihood of the gold classes.

    Decisions count by their weights, and by the probabilities of the gold classes. The negative
    log-likelihood is convex in the inverse temperature, so its minimum is the only root of its derivative. If
    there is no root between `MIN_TEMPERATURE` and `MAX_TEMPERATURE`, the nearer bound is returned. If all
    predictions are correct, for example, a lower temperature is always better.
    """
    from scipy.optimize import brentq
    from scipy.special import softmax

    if decisions.targets is None:
        gold_logits = decisions.logits[np.arange(len(decisions.gold)), decisions.gold]
    else:
        gold_logits = np.where(decisions.targets > 0, decisions.targets * decisions.logits, 0).sum(1)
    margins = decisions.logits - gold_logits[:, None]
    finite_margins = np.where(np.isfinite(margins), margins, 0.0)
    weights = decisions.weights
    if weights is not None and not weights.any():
        weights = None

    def compute_slope(inverse: float) -> float:
        """Return the derivative of the mean negative log-likelihood."""
        slopes = (softmax(margins * inverse, axis=1) * finite_margins).sum(1)
        return float(np.average(slopes, weights=weights))

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if compute_slope(low) >= 0:
        return MAX_TEMPERATURE
    if compute_slope(high) <= 0:
        return MIN_TEMPERATURE
    return 1 / float(brentq(compute_slope, low, high, xtol=1e-14, rtol=1e-14))


def fit_adaptive_temperature(decisions: Decisions) -> tuple[float, float]:
    """Return a and b of the temperature T with 1 / T = a + b m, where m is the margin of a decision.

    The margin is the difference of its two highest logits. Neither a nor b is below 0, so that the order of
    the classes stays the same, and a decision with a higher margin has a higher confidence. The negative
    log-likelihood of the gold classes is convex in (a, b), because the logits are linear in them.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    index, logits = np.arange(len(decisions.gold)), decisions.logits
    margins = compute_margins(logits).max(1)
    scale = margins.mean() or 1.0
    inputs = np.stack([logits, logits * (margins / scale)[:, None]], axis=2)  # [n, classes, 2]
    if decisions.targets is None:
        targets = np.zeros_like(logits)
        targets[index, decisions.gold] = 1
    else:
        targets = decisions.targets
    weights = decisions.weights
    if weights is None or not weights.any():
        weights = np.ones(len(index))

    def compute_loss(factors: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean negative log-likelihood and its gradient."""
        log_probabilities = log_softmax(inputs @ factors, axis=1)
        errors = (np.exp(log_probabilities) - targets) * weights[:, None] / weights.sum()
        loss = -(targets * log_probabilities).sum(1) @ weights / weights.sum()
        return float(loss), np.tensordot(errors, inputs, 2)

    start = np.array([1 / fit_temperature(decisions), 0.0])
    found = minimize(compute_loss, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * 2)
    return float(found.x[0]), float(found.x[1] / scale)


def is_at_bound(temperature: float) -> bool:
    """Return whether `fit_temperature` found no minimum."""
    return temperature in (MIN_TEMPERATURE, MAX_TEMPERATURE)


def cross_fit(
    fit: Callable[[np.ndarray], Fitted],
    predict: Callable[[Fitted, np.ndarray], np.ndarray],
    folds: np.ndarray,
) -> tuple[list[Fitted], np.ndarray]:
    """Predict the rows of each fold by what is fitted on the rows of all other folds.

    `fit` and `predict` get rows as [rows] bool; `folds` is [rows], the fold of each row. Returns what is
    fitted for each fold, and [rows, ...] the predictions.
    """
    members = [folds == fold for fold in range(folds.max() + 1)]
    fitted = [fit(~is_member) for is_member in members]
    parts = [predict(part, is_member) for part, is_member in zip(fitted, members, strict=True)]
    predictions = np.empty((len(folds), *parts[0].shape[1:]), parts[0].dtype)
    for is_member, part in zip(members, parts, strict=True):
        predictions[is_member] = part
    return fitted, predictions


# ---- abstention

SELECTIVE_SCORES = ("coverage", "answered_accuracy", "aurc")


def fit_min_confidence(confidence: np.ndarray, coverage: float) -> float:
    """Return the confidence below which the model abstains, so that it answers a fraction of the rows.

    The result is halfway between the lowest answered confidence and the next lower one, so that rounding does
    not change which rows are answered. Rows of equal confidence are all answered, even if this makes the
    fraction higher.
    """
    values = np.sort(confidence)[::-1]
    lowest_answered = values[max(1, int(np.ceil(coverage * len(values) - 1e-9))) - 1]
    lower = values[values < lowest_answered]
    return float((lowest_answered + (lower[0] if len(lower) else 0.0)) / 2)


def compute_risk_coverage(confidence: np.ndarray, is_correct: np.ndarray) -> dict[str, list[float]]:
    """Return `coverage`, `risk` and `min_confidence` of 20 points of the curve, at coverages 0.05 to 1."""
    order = np.argsort(-confidence, kind="stable")
    num_answered = np.ceil(np.arange(1, 21) / 20 * len(order)).astype(int)
    risk = np.cumsum(~is_correct[order])[num_answered - 1] / num_answered
    return {
        "coverage": (num_answered / len(order)).tolist(),
        "risk": risk.tolist(),
        "min_confidence": confidence[order][num_answered - 1].tolist(),
    }


class SelectiveScorer:
    """The scores of a model that abstains below `min_confidence` (which may be one for each row).

    * `coverage`: fraction of the rows that are answered.
    * `answered_accuracy`: fraction of the answered rows that are correct; missing if no row is answered.
    * `aurc`: area under the risk-coverage curve. It is the mean risk over the numbers of answered rows if the
      most confident rows are answered first. Rows of equal confidence are answered together.
    """

    def __init__(
        self, confidence: np.ndarray, is_correct: np.ndarray, min_confidence: np.ndarray | float
    ) -> None:
        self.is_answered = confidence >= min_confidence
        self.is_correct = is_correct
        _, self._group = np.unique(-confidence, return_inverse=True)  # the most confident group is the first

    def score(self, rows: np.ndarray) -> Scores:
        """Return the scores of the rows at these indices, which may repeat."""
        is_answered, is_correct, group = (
            values[rows] for values in (self.is_answered, self.is_correct, self._group)
        )
        scores = {"coverage": float(is_answered.mean())}
        if is_answered.any():
            scores["answered_accuracy"] = float(is_correct[is_answered].mean())
        sizes, errors = np.bincount(group), np.bincount(group, ~is_correct)
        risk = np.cumsum(errors) / np.maximum(np.cumsum(sizes), 1)
        return scores | {"aurc": float((risk * sizes).sum() / max(sizes.sum(), 1))}


# ---- prediction sets

SET_LEVEL = 0.9  # fraction of the sets that contain the gold class
SET_SCORES = ("set_coverage", "set_size")


def compute_margins(logits: np.ndarray) -> np.ndarray:
    """Return [n, classes] the logit of each class minus the highest logit of the other classes.

    The margin is the conformity score of a class. A temperature divides all margins by the same
    number, so the sets do not depend on it. They are therefore valid although the temperature was fitted on
    the same rows. The logit of a class that a row does not have is -inf.
    """
    order = np.sort(logits, axis=1)
    best, second = order[:, -1:], order[:, -2:-1]
    is_best = np.arange(logits.shape[1]) == logits.argmax(1)[:, None]
    return logits - np.where(is_best, second, best)


def fit_set_margin(logits: np.ndarray, gold: np.ndarray) -> float:
    """Return the margin that a class of a prediction set has at least.

    Let k = floor((n + 1)(1 - `SET_LEVEL`)). If all n + 1 rows are exchangeable, the gold class of a new row
    has a margin below the k-th lowest of these n margins with a probability of at most k / (n + 1). The
    result is halfway between this margin and the next lower one, so that rounding does not change a set.
    """
    margins = np.sort(compute_margins(logits)[np.arange(len(gold)), gold])
    num_missed = int(np.floor((len(gold) + 1) * (1 - SET_LEVEL) + 1e-9))
    if num_missed == 0:
        return -np.inf
    lower = margins[max(num_missed - 2, 0)]
    return float((margins[num_missed - 1] + lower) / 2)


def find_members(logits: np.ndarray, margin: float | np.ndarray) -> np.ndarray:
    """Return [n, classes] bool, the classes in the prediction set of each row; margins may be [n, 1]."""
    return (compute_margins(logits) >= margin) & np.isfinite(logits)


def score_sets(is_member: np.ndarray, gold: np.ndarray) -> Scores:
    """Return `set_coverage`, the fraction of sets with the gold class, and `set_size`, the mean size."""
    has_gold = is_member[np.arange(len(gold)), gold]
    return {"set_coverage": float(has_gold.mean()), "set_size": float(is_member.sum(1).mean())}


# ---- decision thresholds

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True)
class ThresholdCriterion:
    """What a threshold is chosen for: the maximal F1, or a minimum of recall or precision.

    Of the thresholds that reach a minimum of recall, the one with the highest precision is chosen, and the
    other way round.
    """

    name: Literal["f1", "macro_f1", "recall", "precision"]
    minimum: float | None = None


def parse_criterion(text: str) -> ThresholdCriterion:
    """Return the criterion that `--threshold` names."""
    if text in ("f1", "macro_f1"):
        return ThresholdCriterion(text)  # type: ignore[arg-type]
    name, _, value = text.partition("=")
    try:
        minimum = float(value)
    except ValueError:
        minimum = -1.0
    if name not in ("recall", "precision") or not 0 < minimum <= 1:
        raise UserError(
            f"--threshold {text}: is not a criterion; use f1, macro_f1, recall=R or precision=P, with a "
            "number above 0 and up to 1"
        )
    return ThresholdCriterion(name, minimum)  # type: ignore[arg-type]


def fit_binary_threshold(
    probability: np.ndarray, is_positive: np.ndarray, criterion: ThresholdCriterion
) -> float | None:
    """Return the threshold that meets a criterion; None if no threshold does.

    Of equally good thresholds, the one nearest to 0.5 is returned. `macro_f1` is the mean F1 of the rows with
    and without the label. Rows with a probability of 0 are never predicted, because no threshold is below 0.
    """
    num_rows, num_positive = len(probability), int(is_positive.sum())
    if not num_positive:
        return None
    # Thresholds are halfway between adjacent probabilities, from no predicted rows to all.
    order = np.argsort(-probability, kind="stable")
    values = probability[order]
    is_boundary = np.concatenate([[True], values[1:] < values[:-1], values[-1:] > 0])
    num_predicted = np.flatnonzero(is_boundary)
    edges = np.concatenate([[1.0], values, [0.0]])
    thresholds = (edges[num_predicted] + edges[num_predicted + 1]) / 2
    num_correct = np.concatenate([[0], np.cumsum(is_positive[order])])[num_predicted]
    recall, precision = num_correct / num_positive, num_correct / np.maximum(num_predicted, 1)
    f1, minimum = 2 * num_correct / (num_predicted + num_positive), criterion.minimum or 0.0
    if criterion.name == "f1":
        score = f1
    elif criterion.name == "macro_f1":
        num_left, num_negative = num_rows - num_predicted, num_rows - num_positive
        num_correct_rest = num_negative - (num_predicted - num_correct)
        score = (f1 + 2 * num_correct_rest / np.maximum(num_left + num_negative, 1)) / 2
    elif criterion.name == "recall":
        score = np.where(recall >= minimum, precision, -1.0)
    else:
        score = np.where((precision >= minimum) & (num_correct > 0), recall, -1.0)
    if score.max() < 0:
        return None
    best = np.flatnonzero(score >= score.max() - 1e-12)
    return float(min(thresholds[best], key=lambda threshold: abs(threshold - DEFAULT_THRESHOLD)))


def fit_label_thresholds(
    probabilities: np.ndarray, gold: np.ndarray, criterion: ThresholdCriterion
) -> list[float | None]:
    """Return the threshold of each label of label sets [n, labels]; None if no threshold meets the criterion.

    With `f1`, all labels have the same threshold, which maximizes the micro F1. Otherwise, each label has its
    own threshold. The thresholds of `macro_f1` maximize the F1 of each label, and thus their mean.
    """
    if criterion.name == "f1":
        threshold = fit_binary_threshold(probabilities.ravel(), gold.ravel() == 1, criterion)
        return [threshold] * gold.shape[1]
    if criterion.name == "macro_f1":
        criterion = ThresholdCriterion("f1")
    return [
        fit_binary_threshold(probabilities[:, label], gold[:, label] == 1, criterion)
        for label in range(gold.shape[1])
    ]
