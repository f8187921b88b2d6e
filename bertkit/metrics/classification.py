"""Scores of labels, label sets and numbers, from 0 to 1, as scikit-learn and SciPy define them.

Labels are scored from the confusion matrix rather than by scikit-learn, which needs milliseconds a
call where a bootstrap makes a thousand; the tests hold the two equal.
"""

import numpy as np

Scores = dict[str, float]


def score_single_label(
    gold: np.ndarray, predicted: np.ndarray, classes: int, positive: int | None = None
) -> Scores:
    """accuracy, macro f1 / precision / recall, matthews, and with a positive class its F1 (GLUE's).

    Args:
        gold, predicted: [n] label numbers.
        classes: how many labels there are; macro means are over those that occur.
        positive: the number of the positive label of two.
    """
    counts = np.bincount(gold * classes + predicted, minlength=classes * classes)
    confusion = counts.reshape(classes, classes).astype(float)
    right, golds, guesses = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    precision, recall = _ratio(right, guesses), _ratio(right, golds)
    f1 = _ratio(2 * right, golds + guesses)
    there = (golds + guesses) > 0
    scores = {
        "accuracy": right.sum() / len(gold),
        "f1": f1[there].mean(),
        "precision": precision[there].mean(),
        "recall": recall[there].mean(),
        "matthews": _matthews(right, golds, guesses),
    }
    if positive is not None:
        scores["positive_f1"] = f1[positive]
    return {name: float(value) for name, value in scores.items()}


def _matthews(right: np.ndarray, golds: np.ndarray, guesses: np.ndarray) -> float:
    """The R_k correlation; 0 where one side is constant (Gorodkin 2004)."""
    total = golds.sum()
    covariance = right.sum() * total - golds @ guesses
    spread = (total**2 - guesses @ guesses) * (total**2 - golds @ golds)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def score_multi_label(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Accuracy (all labels of a row right), micro_f1 and macro_f1. Both arrays [n, classes], 0 or 1."""
    both = (gold & predicted).sum(0).astype(float)
    either = (gold.sum(0) + predicted.sum(0)).astype(float)
    return {
        "accuracy": float((gold == predicted).all(1).mean()),
        "micro_f1": float(_ratio(2 * both.sum(keepdims=True), either.sum(keepdims=True))[0]),
        "macro_f1": float(_ratio(2 * both, either).mean()),
    }


def score_regression(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Pearson and spearman of two arrays [n]; 0 where either is constant."""
    from scipy.stats import rankdata

    return {
        "pearson": _correlation(gold, predicted),
        "spearman": _correlation(rankdata(gold), rankdata(predicted)),
    }


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
