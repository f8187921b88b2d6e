"""Texts that belong to no class: a score of a text, fitted on examples of such texts.

The score is sigmoid(w·x + v logsumexp(z) + b), a logistic regression on the vector x that the output layer of
the model reads, and on the negative energy of its logits z (Liu et al. 2020). The vector separates texts
like the examples from those of the classes, and the energy also separates other texts. w·x + b is linear, so
it is one more output of the output layer.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.stats.calibration import SelectiveScorer, fit_min_confidence
from bertkit.stats.significance import compute_wilson_interval

RECALL = "out_of_scope_recall"  # fraction of the texts out of scope that are found
DEFAULT_COVERAGE = 0.95  # fraction of the texts in scope that are accepted
REGULARIZATION = 0.1  # `C` of scikit-learn's logistic regression, on standardized features


def compute_scope_features(logits: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return [n, size + 1] vectors and negative energy, from [n, classes] logits and [n, size] vectors."""
    return np.concatenate([vectors, compute_negative_energy(logits)[:, None]], axis=1)


def compute_negative_energy(logits: np.ndarray) -> np.ndarray:
    from scipy.special import logsumexp

    negative_energy: np.ndarray = logsumexp(logits.astype(np.float64), axis=1)
    return negative_energy


def compute_scope_score(features: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Return [n] the score from 0 to 1 that a text is in scope; the last weight is the intercept.

    The score is not the probability that a text is in scope, which depends on how many texts are: the fit
    counts the texts in scope and those out of scope alike.
    """
    from scipy.special import expit

    score: np.ndarray = expit(features @ np.asarray(weights[:-1]) + weights[-1])
    return score


def fit_scope_weights(inside: np.ndarray, outside: np.ndarray) -> list[float]:
    """Return the weights of the score, from the features [n, size + 1] of texts in scope and out of scope."""
    from sklearn.linear_model import LogisticRegression

    features = np.concatenate([inside, outside]).astype(np.float64)
    mean, scale = inside.mean(0, np.float64), np.empty(features.shape[1])
    # The components of the vectors have one scale, so that those that hardly vary count little.
    scale[:-1], scale[-1] = np.sqrt(inside[:, :-1].var(0).mean()), inside[:, -1].std()
    scale = np.maximum(scale, 1e-6)
    model = LogisticRegression(C=REGULARIZATION, class_weight="balanced", max_iter=1000)
    model.fit((features - mean) / scale, np.arange(len(features)) < len(inside))
    weights = model.coef_[0] / scale
    return [*weights.tolist(), float(model.intercept_[0] - weights @ mean)]


def fit_scope(
    features: Sequence[np.ndarray],
    is_correct: np.ndarray,
    folds: tuple[np.ndarray, np.ndarray],
    coverage: float = DEFAULT_COVERAGE,
) -> dict[str, Any]:
    """Fit the score, and the lowest score of a text in scope; measure both by cross-fitting.

    The lowest score is a quantile of cross-fitted scores: those of the texts that the weights are fitted on
    are too high.

    Args:
        features: [n, size + 1] of texts in scope, and [m, size + 1] of texts out of scope; those of further
            texts out of scope may follow, which are fitted on, but not scored.
        is_correct: [n] bool, whether the prediction of a text in scope is correct.
        folds: [n] and [m], the fold of each text. Each fold is scored by what the other folds fit.
        coverage: Fraction of the texts in scope that are accepted.

    Returns the numbers and how good they are (see `SelectiveScorer` and `summarize_found`), as JSON.
    """
    inside, outside, *other = features
    score, outside_score = np.empty(len(inside)), np.empty(len(outside))
    minimum, is_found = np.empty(len(inside)), np.empty(len(outside), bool)
    masks = [tuple(part == fold for part in folds) for fold in range(max(part.max() for part in folds) + 1)]
    for is_inside, is_outside in masks:
        weights = fit_scope_weights(inside[~is_inside], np.concatenate([outside[~is_outside], *other]))
        score[is_inside] = compute_scope_score(inside[is_inside], weights)
        outside_score[is_outside] = compute_scope_score(outside[is_outside], weights)
    for is_inside, is_outside in masks:
        lowest = fit_min_confidence(score[~is_inside], coverage)
        minimum[is_inside], is_found[is_outside] = lowest, outside_score[is_outside] < lowest
    return {
        "requested": coverage,
        "min_score": fit_min_confidence(score, coverage),
        "weights": fit_scope_weights(inside, np.concatenate([outside, *other])),
        **SelectiveScorer(score, is_correct, minimum).score(np.arange(len(inside))),
        **summarize_found(is_found),
    }


def summarize_found(is_found: np.ndarray) -> dict[str, Any]:
    """Return the fraction of texts out of scope that are found, [n] bool, with its 95 % interval."""
    num_found, count = int(is_found.sum()), len(is_found)
    return {RECALL: num_found / count, "interval": compute_wilson_interval(num_found, count), "texts": count}
