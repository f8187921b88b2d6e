"""A linear probe: a linear model on the vectors of an encoder that is not trained."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from bertkit.data.split import assign_folds
from bertkit.metrics.linear_layer import LinearLayer, fit_linear_layer

LINEAR_PROBE = "linear_probe"  # name of the baseline
PROBE_PREFIX = "eval_probe_"  # of the score of `--probe` in the training log
MAX_PROBE_ROWS = 2_000  # larger training sets are sampled: the encoder must compute a vector for each row
MAX_FOLDS = 5
PENALTIES = (1.0, 10.0, 0.1)  # strengths of the regularization; the first one wins ties
Score = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class LinearProbe:
    """A fitted linear probe.

    Attributes:
        pooling: Index of the pooling whose vectors the layer reads.
        penalty: Strength of the regularization.
        layer: The linear layer.
    """

    pooling: int
    penalty: float
    layer: LinearLayer

    def compute_logits(self, vectors: np.ndarray) -> np.ndarray:
        """Return the logits [n, outputs] of vectors [n, poolings, size]."""
        return self.layer.compute_logits(vectors[:, self.pooling])


def fit_linear_probe(
    vectors: np.ndarray, labels: np.ndarray, num_outputs: int, score: Score, seed: int, balanced: bool = False
) -> LinearProbe:
    """Fit a linear layer, and choose the pooling and then the regularization by cross-validation.

    Args:
        vectors: [n, poolings, size] vectors of the training texts. The first pooling wins ties.
        labels: [n, ...] labels, see `fit_linear_layer`.
        num_outputs: Number of outputs of the layer.
        score: Returns the score of logits, given the labels and the logits. Higher is better.
        seed: Seed of the folds.
        balanced: Whether to weight classes by the inverse of their frequency.
    """

    def fit(rows: np.ndarray, pooling: int, penalty: float) -> LinearLayer:
        return fit_linear_layer(vectors[rows, pooling], labels[rows], num_outputs, penalty, balanced)

    fold = _assign_folds(labels, seed)

    @cache
    def validate(pooling: int, penalty: float) -> float:
        logits = np.empty((len(labels), num_outputs))
        for number in range(fold.max() + 1):
            held_out = fold == number
            logits[held_out] = fit(~held_out, pooling, penalty).compute_logits(vectors[held_out, pooling])
        return score(labels, logits)

    pooling, penalty = 0, PENALTIES[0]
    if fold.any():
        pooling = max(range(vectors.shape[1]), key=lambda pooling: validate(pooling, penalty))
        penalty = max(PENALTIES, key=lambda penalty: validate(pooling, penalty))
    return LinearProbe(pooling, penalty, fit(np.ones(len(labels), bool), pooling, penalty))


def _assign_folds(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return [n] index of the fold of each row; classes are divided evenly.

    The second most frequent class has at least one row in each fold. The training rows of each fold then have
    at least two classes. There is only one fold if this class has at most one row.
    """
    has_classes = labels.dtype.kind != "f" and labels.ndim == 1
    strata = labels if has_classes else np.zeros(len(labels), int)
    limit = np.sort(np.bincount(labels, minlength=2))[-2] if has_classes else len(labels)
    num_folds = max(1, min(MAX_FOLDS, int(limit)))
    return assign_folds(np.arange(len(labels)), strata, num_folds, seed)
