"""Kinds of labels of a text or a pair, each with its encoding, loss, decision and scores."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.tasks.base import Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.modeling.losses import Loss


class LabelType(ABC):
    """One kind of label.

    Attributes:
        labels: the labels in the order of the model's outputs; empty for regression.
        problem_type: its name in the configs of transformers.
        default_metric: the metric that selects the checkpoint, unless the dataset has another.
    """

    problem_type: ClassVar[str]
    default_metric: ClassVar[str]

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels

    @abstractmethod
    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the labels as numbers, [rows, ...].

        Raises:
            UserError: a row has no valid label.
        """

    def parse_label(self, value: Any) -> Hashable | None:
        """Return a row's label in a form that can be compared; None if it has no label."""
        from bertkit.data.labels import normalize_label

        return normalize_label(value)

    @abstractmethod
    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return the loss; `balanced` weights classes by the inverse of their frequency in `targets`."""

    @abstractmethod
    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the predictions of logits [rows, outputs], in the shape of the encoded labels."""

    @abstractmethod
    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of predictions; both arrays have the shape of the encoded labels."""

    @abstractmethod
    def decode_label(self, value: Any) -> Any:
        """Return one encoded label or prediction as people write it."""

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray | None":
        """Return the probability of each label, [rows, labels]; None for regression."""
        return None


class SingleLabel(LabelType):
    """One label out of several; `positive_f1` scores `positive_label`."""

    problem_type = "single_label_classification"
    default_metric = "accuracy"
    positive_label: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the label ids, [rows]."""
        from bertkit.data.labels import encode_labels

        return encode_labels(rows, column, self.labels)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return cross-entropy."""
        from bertkit.modeling.heads import compute_class_weights
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy(compute_class_weights(targets, len(self.labels)) if balanced else None, smoothing)

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the label with the highest logit, [rows]."""
        return logits.argmax(-1)

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of `bertkit.metrics.classification.score_single_label`."""
        from bertkit.metrics.classification import score_single_label

        positive = None if self.positive_label is None else self.labels.index(self.positive_label)
        return score_single_label(gold, predicted, len(self.labels), positive)

    def decode_label(self, value: Any) -> str:
        """Return the label's name."""
        return self.labels[int(value)]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the softmax of the logits, [rows, labels]."""
        from bertkit.metrics.classification import softmax

        return softmax(logits)


class MultiLabel(LabelType):
    """Any number of labels per row, as lists or separated by `separator`."""

    problem_type = "multi_label_classification"
    default_metric = "micro_f1"
    separator: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return an indicator matrix of 0 and 1, [rows, labels]."""
        from bertkit.data.labels import binarize_labels

        return binarize_labels(rows, column, self.labels, self.separator)

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the sorted names."""
        from bertkit.data.labels import parse_label_set

        labels = parse_label_set(value, self.separator)
        return None if labels is None else tuple(sorted(labels))

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return binary cross-entropy over all decisions."""
        from bertkit.modeling.heads import compute_class_weights
        from bertkit.modeling.losses import BinaryCrossEntropy

        weights = compute_class_weights(targets, len(self.labels)) if balanced else None
        return BinaryCrossEntropy(weights, smoothing)

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the labels whose probability is above one half, [rows, labels]."""
        return (logits > 0).astype("int64")

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of `bertkit.metrics.classification.score_multi_label`."""
        from bertkit.metrics.classification import score_multi_label

        return score_multi_label(gold, predicted)

    def decode_label(self, value: Any) -> list[str]:
        """Return the names of the labels that are set."""
        return [label for label, is_set in zip(self.labels, value, strict=True) if is_set]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the sigmoid of the logits, [rows, labels]."""
        from bertkit.metrics.classification import sigmoid

        return sigmoid(logits)


class Regression(LabelType):
    """A number to predict by regression."""

    problem_type = "regression"
    default_metric = "pearson"

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the numbers, [rows]."""
        from bertkit.data.labels import parse_regression_labels

        return parse_regression_labels(rows, column)

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the number, however it is written."""
        from bertkit.data.labels import parse_number

        return parse_number(value)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return squared error."""
        from bertkit.modeling.losses import SquaredError

        return SquaredError()

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the model's one output, [rows]."""
        return logits[:, 0]

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of `bertkit.metrics.classification.score_regression`."""
        from bertkit.metrics.classification import score_regression

        return score_regression(gold, predicted)

    def decode_label(self, value: Any) -> float:
        """Return a plain number."""
        return float(value)
