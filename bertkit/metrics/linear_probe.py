"""A linear probe: a linear model on the vectors of an encoder that is not trained."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.split import assign_folds
from bertkit.metrics.baselines import build_linear_model

LINEAR_PROBE = "linear_probe"  # name of the baseline
MAX_PROBE_ROWS = 2_000  # larger training sets are sampled: the encoder must compute a vector for each row
MAX_FOLDS = 5
STRENGTHS = (1.0, 0.1, 10.0)  # inverse strengths of the regularization; the first one wins ties
Score = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class LinearProbe:
    """A fitted linear probe.

    Attributes:
        pooling: Index of the pooling whose vectors the model reads.
        model: The linear model of scikit-learn.
    """

    pooling: int
    model: Any

    def predict(self, vectors: np.ndarray) -> np.ndarray:
        """Return predictions in the form of the training labels, for vectors [n, poolings, size]."""
        return self.model.predict(vectors[:, self.pooling])


def fit_linear_probe(vectors: np.ndarray, labels: np.ndarray, score: Score, seed: int) -> LinearProbe:
    """Fit a logistic regression, or a ridge regression if the labels are numbers.

    Cross-validation on these rows chooses the pooling, and then the strength of the regularization.

    Args:
        vectors: [n, poolings, size] vectors of the training texts. The first pooling wins ties.
        labels: [n] int, [n, classes] int or [n] float, the training labels.
        score: Returns the score of predictions, given the labels and the predictions. Higher is better.
        seed: Seed of the folds.
    """
    validation = _CrossValidation(vectors, labels, _assign_folds(labels, seed), score)
    poolings = range(vectors.shape[1])
    pooling = max(poolings, key=lambda pooling: validation.compute_score(pooling, STRENGTHS[0]))
    strength = max(STRENGTHS, key=lambda strength: validation.compute_score(pooling, strength))
    return LinearProbe(pooling, _fit(vectors[:, pooling], labels, strength))


def _assign_folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return [n] index of the fold of each row; classes are divided evenly.

    The second most frequent class has at least one row in each fold. The training rows of each fold then have
    at least two classes. There is only one fold if this class has a single row.
    """
    has_classes = labels.dtype.kind != "f" and labels.ndim == 1
    strata = labels if has_classes else np.zeros(len(labels), int)
    limit = np.sort(np.bincount(labels))[-2] if has_classes else len(labels)
    return assign_folds(np.arange(len(labels)), strata, min(MAX_FOLDS, int(limit)), seed)


class _CrossValidation:
    """Scores of linear models on held-out rows.

    Args:
        vectors: [n, poolings, size] vectors.
        labels: [n, ...] labels.
        fold: [n] index of the fold of each row. If there is only one fold, all scores are 0.
        score: Returns the score of predictions.
    """

    def __init__(self, vectors: np.ndarray, labels: np.ndarray, fold: np.ndarray, score: Score) -> None:
        self.vectors, self.labels, self.fold, self.score = vectors, labels, fold, score
        self._scores: dict[tuple[int, float], float] = {}

    def compute_score(self, pooling: int, strength: float) -> float:
        """Return the score of the models with this pooling and regularization; each is fitted once."""
        key = pooling, strength
        if key not in self._scores:
            has_folds = bool(self.fold.any())
            self._scores[key] = self.score(self.labels, self._predict(*key)) if has_folds else 0.0
        return self._scores[key]

    def _predict(self, pooling: int, strength: float) -> np.ndarray:
        """Return the predictions for all rows, each by the model that is not fitted on its fold."""
        predicted, vectors = np.empty_like(self.labels), self.vectors[:, pooling]
        for number in range(self.fold.max() + 1):
            is_held_out = self.fold == number
            model = _fit(vectors[~is_held_out], self.labels[~is_held_out], strength)
            predicted[is_held_out] = model.predict(vectors[is_held_out])
        return predicted


def _fit(vectors: np.ndarray, labels: np.ndarray, strength: float) -> Any:
    """Fit the model, without the warnings about labels that no or all rows of a fold have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build_linear_model(labels, strength).fit(vectors, labels)
