"""The probability that an answer is right: logistic regression on scores of the answer (Platt 1999)."""

from collections.abc import Mapping

import numpy as np

from bertkit.data.qa.spans import NBest
from bertkit.metrics.classification import sigmoid

INTERCEPT = "intercept"
INVERSE_PENALTY = 100.0  # `C` of scikit-learn: weak regularization, for features of standard deviation 1


def compute_answer_features(nbest: NBest, threshold: float | None) -> dict[str, np.ndarray]:
    """Return the scores that the probability of a right answer depends on, [n] by name.

    Without a threshold, these are the score of the answer and the null odds. Otherwise, they are the score of
    the answer, which may be empty, and the distance of the null odds from the threshold. Empty answers then
    have weights of their own.

    Args:
        nbest: The n-best lists.
        threshold: Null odds above which the answer is empty; None if no answer is empty.
    """
    score = nbest.score[nbest.offsets[:-1]].astype(np.float64)
    if threshold is None:
        return {"score": score, "null_odds": nbest.null_odds}
    is_empty = nbest.null_odds > threshold
    score = np.where(is_empty, score + nbest.null_odds, score)
    features = {"score": score, "distance": np.abs(nbest.null_odds - threshold)}
    empty_features = {f"empty_{name}": values * is_empty for name, values in features.items()}
    return {**features, "empty": is_empty.astype(np.float64), **empty_features}


def compute_nbest_probability(nbest: NBest, threshold: float | None) -> np.ndarray:
    """Return the probability of each answer in its n-best list, [n]; see `compute_answer_features`."""
    probabilities, null_probabilities = nbest.compute_probabilities(include_null=threshold is not None)
    best = probabilities[nbest.offsets[:-1]]
    return best if threshold is None else np.where(nbest.null_odds > threshold, null_probabilities, best)


def fit_answer_weights(features: Mapping[str, np.ndarray], is_correct: np.ndarray) -> dict[str, float]:
    """Return the weight of each feature, and the intercept.

    Args:
        features: [n] values by name.
        is_correct: [n] bool, whether the answer is right; there must be right and wrong answers.
    """
    from sklearn.linear_model import LogisticRegression

    values = np.stack(list(features.values()), axis=1).astype(np.float64)
    mean, deviation = values.mean(0), values.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000, tol=1e-8)
    model.fit((values - mean) / deviation, is_correct)
    weights = model.coef_[0] / deviation
    intercept = float(model.intercept_[0] - weights @ mean)
    return {INTERCEPT: intercept, **dict(zip(features, weights.tolist(), strict=True))}


def compute_answer_logits(features: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """Return [n] the logit of the probability that each answer is right.

    Args:
        features: [n] values by name.
        weights: Result of `fit_answer_weights`.
    """
    terms = [weights[name] * values.astype(np.float64) for name, values in features.items()]
    return weights[INTERCEPT] + np.sum(terms, axis=0)


def compute_answer_probability(
    features: Mapping[str, np.ndarray], weights: Mapping[str, float]
) -> np.ndarray:
    """Return [n] the probability that each answer is right."""
    return sigmoid(compute_answer_logits(features, weights))
