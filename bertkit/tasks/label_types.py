"""Kinds of labels a sequence can have: each knows its targets, loss, decision, scores and names."""

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
        names: the labels in the order of the model's outputs; empty for numbers.
        kind: what transformers' configs call it (`problem_type`).
        best: the score that chooses the checkpoint, where the data set has no other.
    """

    problem_type: ClassVar[str]
    default_metric: ClassVar[str]

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels

    @abstractmethod
    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n, ...] the labels as numbers. Raises `UserError` at a row without a valid one."""

    def parse_label(self, value: Any) -> Hashable | None:
        """A row's label in a form that can be compared; None where there is none."""
        from bertkit.data.labels import normalize_label

        return normalize_label(value)

    @abstractmethod
    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """The loss; `balanced` weighs classes by their rarity among `targets`."""

    @abstractmethod
    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Logits [n, outputs] to predictions of the shape of `targets`."""

    @abstractmethod
    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Scores of predictions; both arrays of the shape of `targets`."""

    @abstractmethod
    def decode_label(self, value: Any) -> Any:
        """One target or prediction as people write it."""

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray | None":
        """[n, outputs] the probability of each label; None of numbers."""
        return None


class SingleLabel(LabelType):
    """One label of several; `positive` is the one `positive_f1` is about."""

    problem_type = "single_label_classification"
    default_metric = "accuracy"
    positive_label: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n] int."""
        from bertkit.data.labels import encode_labels

        return encode_labels(rows, column, self.labels)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Cross-entropy."""
        from bertkit.modeling.heads import compute_class_weights
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy(compute_class_weights(targets, len(self.labels)) if balanced else None, smoothing)

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """[n] int, the highest."""
        return logits.argmax(-1)

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.score_single_label`."""
        from bertkit.metrics.classification import score_single_label

        number = None if self.positive_label is None else self.labels.index(self.positive_label)
        return score_single_label(gold, predicted, len(self.labels), number)

    def decode_label(self, value: Any) -> str:
        """The label's name."""
        return self.labels[int(value)]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Softmax."""
        from bertkit.metrics.classification import softmax

        return softmax(logits)


class MultiLabel(LabelType):
    """Any number of labels a row, as lists or parted by `separator`."""

    problem_type = "multi_label_classification"
    default_metric = "micro_f1"
    separator: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n, labels] of 0 and 1."""
        from bertkit.data.labels import binarize_labels

        return binarize_labels(rows, column, self.labels, self.separator)

    def parse_label(self, value: Any) -> Hashable | None:
        """The names, sorted."""
        from bertkit.data.labels import parse_label_set

        labels = parse_label_set(value, self.separator)
        return None if labels is None else tuple(sorted(labels))

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Binary cross-entropy over all decisions."""
        from bertkit.modeling.heads import compute_class_weights
        from bertkit.modeling.losses import BinaryCrossEntropy

        weights = compute_class_weights(targets, len(self.labels)) if balanced else None
        return BinaryCrossEntropy(weights, smoothing)

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """[n, labels]: those whose probability is above one half."""
        return (logits > 0).astype("int64")

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.score_multi_label`."""
        from bertkit.metrics.classification import score_multi_label

        return score_multi_label(gold, predicted)

    def decode_label(self, value: Any) -> list[str]:
        """The names of the labels that are there."""
        return [name for name, there in zip(self.labels, value, strict=True) if there]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Each label by itself."""
        from bertkit.metrics.classification import sigmoid

        return sigmoid(logits)


class Regression(LabelType):
    """Regression on one number."""

    problem_type = "regression"
    default_metric = "pearson"

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n] float."""
        from bertkit.data.labels import parse_regression_labels

        return parse_regression_labels(rows, column)

    def parse_label(self, value: Any) -> Hashable | None:
        """The number, however it is written."""
        from bertkit.data.labels import parse_number

        return parse_number(value)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Squared error."""
        from bertkit.modeling.losses import SquaredError

        return SquaredError()

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """[n] float, the one output."""
        return logits[:, 0]

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.score_regression`."""
        from bertkit.metrics.classification import score_regression

        return score_regression(gold, predicted)

    def decode_label(self, value: Any) -> float:
        """A plain number."""
        return float(value)
