"""Scores of classification and regression, as scikit-learn and SciPy define them, and probabilities.

Scores range from 0 to 1, and correlations from -1 to 1. scikit-learn takes milliseconds per call, which is
too slow for a bootstrap with a thousand calls. Single-label scores are therefore computed from the confusion
matrix. The tests check that they agree with scikit-learn.
"""

import numpy as np

Scores = dict[str, float]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return class probabilities [n, classes] in double precision. The probabilities of a row sum to 1."""
    from scipy.special import softmax as stable_softmax

    return stable_softmax(logits.astype(np.float64), axis=-1)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return label probabilities [n, classes] in double precision, for labels that are independent."""
    from scipy.special import expit

    return expit(logits.astype(np.float64))


def score_single_label(
    gold: np.ndarray, predicted: np.ndarray, classes: int, positive: int | None = None
) -> Scores:
    """Score single-label predictions.

    Args:
        gold: [n] gold label ids.
        predicted: [n] predicted label ids.
        classes: Number of labels.
        positive: Id of the positive label of a binary task, or None.

    Returns:
        `accuracy`; `f1`, `precision` and `recall`, the means over the labels that occur; and `matthews`, the
        Matthews correlation. With a positive label, also its F1, `positive_f1`, which GLUE reports.
    """
    counts = np.bincount(gold * classes + predicted, minlength=classes * classes)
    confusion = counts.reshape(classes, classes).astype(float)
    correct, gold_counts, predicted_counts = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    precision, recall = _divide_or_zero(correct, predicted_counts), _divide_or_zero(correct, gold_counts)
    f1 = _divide_or_zero(2 * correct, gold_counts + predicted_counts)
    occurs = (gold_counts + predicted_counts) > 0
    scores = {
        "accuracy": correct.sum() / len(gold),
        "f1": f1[occurs].mean(),
        "precision": precision[occurs].mean(),
        "recall": recall[occurs].mean(),
        "matthews": _compute_matthews(correct, gold_counts, predicted_counts),
    }
    if positive is not None:
        scores["positive_f1"] = f1[positive]
    return {name: float(value) for name, value in scores.items()}


def _compute_matthews(correct: np.ndarray, gold_counts: np.ndarray, predicted_counts: np.ndarray) -> float:
    """Return the R_k correlation (Gorodkin 2004), or 0 if all gold or all predicted labels are the same."""
    total = gold_counts.sum()
    covariance = correct.sum() * total - gold_counts @ predicted_counts
    spread = (total**2 - predicted_counts @ predicted_counts) * (total**2 - gold_counts @ gold_counts)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def score_multi_label(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Score multi-label predictions.

    Args:
        gold: [n, classes] int, 0 or 1.
        predicted: [n, classes] int, 0 or 1.

    Returns:
        `accuracy`, the fraction of rows with only correct labels; `micro_f1`; and `macro_f1`.
    """
    correct = (gold & predicted).sum(0).astype(float)
    totals = (gold.sum(0) + predicted.sum(0)).astype(float)
    return {
        "accuracy": float((gold == predicted).all(1).mean()),
        "micro_f1": float(_divide_or_zero(2 * correct.sum(keepdims=True), totals.sum(keepdims=True))[0]),
        "macro_f1": float(_divide_or_zero(2 * correct, totals).mean()),
    }


def score_regression(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the correlations `pearson` and `spearman` of two arrays [n], or 0 if an array is constant."""
    from scipy.stats import rankdata

    return {
        "pearson": _correlate(gold, predicted),
        "spearman": _correlate(rankdata(gold), rankdata(predicted)),
    }


def _correlate(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _divide_or_zero(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
