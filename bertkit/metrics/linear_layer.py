"""A linear layer that is fitted to vectors, by logistic regression or ridge regression."""

from typing import NamedTuple

import numpy as np

MAX_ITERATIONS = 1000
UNSEEN_LOGIT = -20.0  # logit of a class that no row has


class LinearLayer(NamedTuple):
    """Weight [outputs, size] and bias [outputs] of a linear layer."""

    weight: np.ndarray
    bias: np.ndarray

    def compute_logits(self, vectors: np.ndarray) -> np.ndarray:
        """Return the logits [n, outputs] of vectors [n, size]."""
        return vectors.astype(np.float64) @ self.weight.T + self.bias


def fit_linear_layer(
    vectors: np.ndarray, labels: np.ndarray, num_outputs: int, penalty: float = 1.0, balanced: bool = False
) -> LinearLayer:
    """Fit a linear layer by logistic regression, or by ridge regression if the labels are numbers.

    Args:
        vectors: [n, size].
        labels: [n] class ids, for logits of a softmax; [n, outputs] with 0 and 1, for logits of sigmoids; or
            [n] float.
        num_outputs: Number of classes or labels; 1 for numbers.
        penalty: Strength of the L2 penalty on the weights, `1 / C` or `alpha` in scikit-learn.
        balanced: Whether to weight classes by the inverse of their frequency.
    """
    vectors = vectors.astype(np.float64)
    if labels.dtype.kind == "f":
        return _fit_numbers(vectors, labels, penalty)
    if labels.ndim == 1:
        return _fit_classes(vectors, labels, num_outputs, penalty, balanced)
    layers = [_fit_classes(vectors, column, 2, penalty, balanced) for column in labels.T.astype(np.int64)]
    # the sigmoid of the difference of two logits equals their softmax
    return LinearLayer(
        np.array([layer.weight[1] - layer.weight[0] for layer in layers]),
        np.array([layer.bias[1] - layer.bias[0] for layer in layers]),
    )


def _fit_numbers(vectors: np.ndarray, labels: np.ndarray, penalty: float) -> LinearLayer:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=penalty).fit(vectors, labels)
    return LinearLayer(model.coef_[None], np.array([model.intercept_]))


def _fit_classes(
    vectors: np.ndarray, labels: np.ndarray, num_classes: int, penalty: float, balanced: bool
) -> LinearLayer:
    """Fit one output per class; the outputs of classes without rows are constant."""
    from sklearn.linear_model import LogisticRegression

    layer = LinearLayer(np.zeros((num_classes, vectors.shape[1])), np.full(num_classes, UNSEEN_LOGIT))
    classes = np.unique(labels)
    if len(classes) == 1:
        layer.bias[classes] = 0.0
        return layer
    class_weight = "balanced" if balanced else None
    model = LogisticRegression(C=1 / penalty, max_iter=MAX_ITERATIONS, class_weight=class_weight)
    model.fit(vectors, labels)
    weight, bias = model.coef_, model.intercept_
    if len(classes) == 2:  # scikit-learn has one output for two classes
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    layer.weight[classes], layer.bias[classes] = weight, bias
    return layer
