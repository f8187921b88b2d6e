"""Kinds of labels a sequence can have: each knows its targets, loss, decision, scores and names."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.tasks.base import Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.modeling.losses import Loss


class Problem(ABC):
    """One kind of label.

    Attributes:
        names: the labels in the order of the model's outputs; empty for numbers.
        kind: what transformers' configs call it (`problem_type`).
        best: the score that chooses the checkpoint, where the data set has no other.
    """

    kind: ClassVar[str]
    best: ClassVar[str]

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @abstractmethod
    def targets(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n, ...] the labels as numbers. Raises `UserError` at a row without a valid one."""

    def gold(self, value: Any) -> Hashable | None:
        """A row's label in a form that can be compared; None where there is none."""
        from bertkit.data.labels import label_text

        return label_text(value)

    @abstractmethod
    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """The loss; `balanced` weighs classes by their rarity among `targets`."""

    @abstractmethod
    def decide(self, logits: "np.ndarray") -> "np.ndarray":
        """Logits [n, outputs] to predictions of the shape of `targets`."""

    @abstractmethod
    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Scores of predictions; both arrays of the shape of `targets`."""

    @abstractmethod
    def readable(self, value: Any) -> Any:
        """One target or prediction as people write it."""

    def probabilities(self, logits: "np.ndarray") -> "np.ndarray | None":
        """[n, outputs] the probability of each label; None of numbers."""
        return None


class SingleLabel(Problem):
    """One label of several; `positive` is the one `positive_f1` is about."""

    kind = "single_label_classification"
    best = "accuracy"
    positive: str | None = None

    def targets(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n] int."""
        from bertkit.data.labels import class_numbers

        return class_numbers(rows, column, self.names)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Cross-entropy."""
        from bertkit.modeling.heads import balanced_weights
        from bertkit.modeling.losses import CrossEntropy

        return CrossEntropy(balanced_weights(targets, len(self.names)) if balanced else None, smoothing)

    def decide(self, logits: "np.ndarray") -> "np.ndarray":
        """[n] int, the highest."""
        return logits.argmax(-1)

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.single_label`."""
        from bertkit.metrics.classification import single_label

        number = None if self.positive is None else self.names.index(self.positive)
        return single_label(gold, predicted, len(self.names), number)

    def readable(self, value: Any) -> str:
        """The label's name."""
        return self.names[int(value)]

    def probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Softmax."""
        from bertkit.metrics.probabilities import softmax

        return softmax(logits)


class LabelSet(Problem):
    """Any number of labels a row, as lists or parted by `separator`."""

    kind = "multi_label_classification"
    best = "micro_f1"
    separator: str | None = None

    def targets(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n, labels] of 0 and 1."""
        from bertkit.data.labels import class_sets

        return class_sets(rows, column, self.names, self.separator)

    def gold(self, value: Any) -> Hashable | None:
        """The names, sorted."""
        from bertkit.data.labels import label_set

        labels = label_set(value, self.separator)
        return None if labels is None else tuple(sorted(labels))

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Binary cross-entropy over all decisions."""
        from bertkit.modeling.heads import balanced_weights
        from bertkit.modeling.losses import BinaryCrossEntropy

        weights = balanced_weights(targets, len(self.names)) if balanced else None
        return BinaryCrossEntropy(weights, smoothing)

    def decide(self, logits: "np.ndarray") -> "np.ndarray":
        """[n, labels]: those whose probability is above one half."""
        return (logits > 0).astype("int64")

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.multi_label`."""
        from bertkit.metrics.classification import multi_label

        return multi_label(gold, predicted)

    def readable(self, value: Any) -> list[str]:
        """The names of the labels that are there."""
        return [name for name, there in zip(self.names, value, strict=True) if there]

    def probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Each label by itself."""
        from bertkit.metrics.probabilities import sigmoid

        return sigmoid(logits)


class Number(Problem):
    """Regression on one number."""

    kind = "regression"
    best = "pearson"

    def targets(self, rows: "Rows", column: str) -> "np.ndarray":
        """[n] float."""
        from bertkit.data.labels import numbers_of

        return numbers_of(rows, column)

    def gold(self, value: Any) -> Hashable | None:
        """The number, however it is written."""
        from bertkit.data.labels import number_of

        return number_of(value)

    def loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Squared error."""
        from bertkit.modeling.losses import SquaredError

        return SquaredError()

    def decide(self, logits: "np.ndarray") -> "np.ndarray":
        """[n] float, the one output."""
        return logits[:, 0]

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """See `bertkit.metrics.classification.regression`."""
        from bertkit.metrics.classification import regression

        return regression(gold, predicted)

    def readable(self, value: Any) -> float:
        """A plain number."""
        return float(value)
