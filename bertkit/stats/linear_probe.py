"""Linear layers that are fitted to vectors, by logistic or ridge regression, and the linear probe."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from bertkit.data.split import assign_balanced_folds, assign_folds
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.stats.calibration import cross_fit

MAX_ITERATIONS = 1000
# Elements of a matrix whose products are faster on one thread than on several, which wait for each other,
# above all beside other processes.
SMALL_MATRIX = 2_000_000
UNSEEN_LOGIT = -20.0  # logit of a class that no row has
MAX_CLASSES = 10  # see `scale_penalty`


class LinearLayer(NamedTuple):
    """Weight [outputs, size] and bias [outputs] of a linear layer."""

    weight: np.ndarray
    bias: np.ndarray

    def compute_logits(self, vectors: np.ndarray) -> np.ndarray:
        """Return the logits [n, outputs] of vectors [n, size]."""
        return vectors.astype(np.float64) @ self.weight.T + self.bias


def fit_linear_layer(
    vectors: np.ndarray, train: TrainingLabels, num_outputs: int, penalty: float = 1.0, balanced: bool = False
) -> LinearLayer:
    """Fit a linear layer to vectors [n, size], by logistic regression, or by ridge regression for numbers.

    Args:
        train: Class ids, for logits of a softmax; label sets, for logits of sigmoids; or numbers.
        penalty: Strength of the L2 penalty on the weights, `1 / C` or `alpha` in scikit-learn.
    """
    from sklearn.linear_model import Ridge

    vectors, labels = vectors.astype(np.float64), train.labels
    with threadpool_limits(1 if vectors.size < SMALL_MATRIX else None, "blas"):
        if labels.dtype.kind == "f":
            model = Ridge(alpha=penalty).fit(vectors, labels, train.weights)
            return LinearLayer(model.coef_[None], np.array([model.intercept_]))
        if labels.ndim == 1:
            return _fit_classes(vectors, train, num_outputs, penalty, balanced)
        parts = map(train.get_label, range(labels.shape[1]))
        layers = [_fit_classes(vectors, part, 2, penalty, balanced) for part in parts]
    # the sigmoid of the difference of two logits equals their softmax
    return LinearLayer(
        np.array([layer.weight[1] - layer.weight[0] for layer in layers]),
        np.array([layer.bias[1] - layer.bias[0] for layer in layers]),
    )


def _fit_classes(
    vectors: np.ndarray, train: TrainingLabels, num_classes: int, penalty: float, balanced: bool
) -> LinearLayer:
    """Fit one output per class; the outputs of classes without rows are constant."""
    from sklearn.linear_model import LogisticRegression

    layer = LinearLayer(np.zeros((num_classes, vectors.shape[1])), np.full(num_classes, UNSEEN_LOGIT))
    sums = train.sum_by_class(num_classes)
    classes = np.flatnonzero(sums)
    if len(classes) == 1:
        layer.bias[classes] = 0.0
        return layer
    # scikit-learn's "balanced" would count repeated rows
    class_weights = sums.sum() / (len(classes) * sums[classes]) if balanced else np.ones(len(classes))
    if train.targets is not None and len(classes) > 2:
        targets = train.targets[:, classes] * class_weights
        targets = targets if train.weights is None else targets * train.weights[:, None]
        layer.weight[classes], layer.bias[classes] = _fit_soft_classes(vectors, targets, penalty)
        return layer
    rows, labels, weights = train.expand_soft_labels()
    class_weight = dict(zip(classes.tolist(), class_weights.tolist(), strict=True)) if balanced else None
    model = LogisticRegression(C=1 / penalty, max_iter=MAX_ITERATIONS, class_weight=class_weight)
    model.fit(vectors if train.are_plain else vectors[rows], labels, weights)
    weight, bias = model.coef_, model.intercept_
    if len(classes) == 2:  # scikit-learn has one output for two classes
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    layer.weight[classes], layer.bias[classes] = weight, bias
    return layer


def _fit_soft_classes(
    vectors: np.ndarray, targets: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
    """Fit more than two classes to weighted probabilities [n, classes], as scikit-learn fits hard labels.

    scikit-learn has no soft labels, and a row for each of its labels takes n * classes rows.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    num_classes, size, total = targets.shape[1], vectors.shape[1], targets.sum()

    def compute_loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = parameters[:-num_classes].reshape(num_classes, size), parameters[-num_classes:]
        log_probabilities = log_softmax(vectors @ weight.T + bias, axis=1)
        loss = penalty / 2 * np.vdot(weight, weight) - np.vdot(targets, log_probabilities)
        slopes = np.exp(log_probabilities) * targets.sum(1, keepdims=True) - targets
        gradient = np.concatenate([((vectors.T @ slopes).T + penalty * weight).ravel(), slopes.sum(0)])
        return loss / total, gradient / total

    start = np.zeros(num_classes * (size + 1))
    options = {"maxiter": MAX_ITERATIONS, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps}
    parameters = minimize(compute_loss, start, jac=True, method="L-BFGS-B", options=options).x
    return parameters[:-num_classes].reshape(num_classes, size), parameters[-num_classes:]


def scale_penalty(penalty: float, train: TrainingLabels, num_outputs: int) -> float:
    """Return the penalty for a number of classes: `penalty * 10 / num_outputs` for more than 10.

    The penalty of few classes leaves the frequencies of many classes to decide. Each label of a set has a
    logistic regression of its own, with two classes.
    """
    return penalty if train.labels.ndim == 2 else penalty * min(1.0, MAX_CLASSES / num_outputs)


# ---- the linear probe

LINEAR_PROBE = "linear_probe"  # name of the baseline
PROBE_PREFIX = "eval_probe_"  # of the score of `--probe` in the training log
MAX_PROBE_ROWS = 2_000  # larger training sets are sampled: the encoder must compute a vector for each row
MAX_FOLDS = 5
PENALTIES = (1.0, 10.0, 0.1)  # strengths of the regularization; the first one wins ties
Score = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class LinearProbe:
    """A fitted linear probe."""

    pooling: int
    penalty: float
    layer: LinearLayer

    def compute_logits(self, vectors: np.ndarray) -> np.ndarray:
        """Return the logits [n, outputs] of vectors [n, poolings, size]."""
        return self.layer.compute_logits(vectors[:, self.pooling])


def fit_linear_probe(
    vectors: np.ndarray,
    train: TrainingLabels,
    num_outputs: int,
    score: Score,
    seed: int,
    balanced: bool = False,
    groups: np.ndarray | None = None,
) -> LinearProbe:
    """Fit a linear layer to vectors [n, poolings, size]; choose pooling and then penalty by cross-validation.

    The first pooling wins ties. `score` gets the labels and the logits; higher is better. Rows with equal
    keys in `groups` [n] are in one fold.
    """

    def fit(rows: np.ndarray, pooling: int, penalty: float) -> LinearLayer:
        return fit_linear_layer(vectors[rows, pooling], train.select(rows), num_outputs, penalty, balanced)

    labels = train.labels
    # Classes are divided evenly. The second most frequent class has at least one row in each fold, so the
    # training rows of each fold have at least two classes. If it has at most one row, there is one fold.
    has_classes = labels.dtype.kind != "f" and labels.ndim == 1
    strata = labels if has_classes else np.zeros(len(labels), int)
    limit = np.sort(np.bincount(labels, minlength=2))[-2] if has_classes else len(labels)
    num_folds = max(1, min(MAX_FOLDS, int(limit)))
    if groups is None:
        fold = assign_folds(np.arange(len(labels)), strata, num_folds, seed)
    else:
        num_folds = min(num_folds, len(np.unique(groups)))
        fold = np.zeros(len(labels), int)
        if num_folds > 1:
            fold = assign_balanced_folds(groups, strata, num_folds, seed)

    @cache
    def validate(pooling: int, penalty: float) -> float:
        _, logits = cross_fit(
            lambda rows: fit(rows, pooling, penalty),
            lambda layer, rows: layer.compute_logits(vectors[rows, pooling]),
            fold,
        )
        return score(labels, logits)

    pooling, penalty = 0, PENALTIES[0]
    if fold.any():
        pooling = max(range(vectors.shape[1]), key=lambda pooling: validate(pooling, penalty))
        penalty = max(PENALTIES, key=lambda penalty: validate(pooling, penalty))
    return LinearProbe(pooling, penalty, fit(np.ones(len(labels), bool), pooling, penalty))
