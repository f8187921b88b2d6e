"""The kinds of labels of `classify` and `nli`: single labels, label sets and numbers."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.tasks.base import Scores
from bertkit.tasks.label_type import LabelType

if TYPE_CHECKING:
    import numpy as np
    import torch

    from bertkit.data.rows import Rows
    from bertkit.metrics.calibration import Decisions
    from bertkit.metrics.thresholds import ThresholdCriterion
    from bertkit.modeling.losses import Loss


class SingleLabel(LabelType):
    """One label per row.

    Attributes:
        positive_label: Label that `positive_f1` scores; None to leave out this score.
    """

    problem_type = "single_label_classification"
    default_metric = "accuracy"
    positive_label: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the label ids, [rows]."""
        from bertkit.data.labels import encode_labels

        return encode_labels(rows, column, self.labels)

    def make_loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return cross-entropy."""
        from bertkit.modeling.losses import CrossEntropy

        weights = _compute_weights(targets, len(self.labels)) if balanced else None
        return CrossEntropy(weights, smoothing)

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the label with the highest logit, or that on its side of the threshold, [rows]."""
        if not self.thresholds:
            return logits.argmax(-1)
        [positive] = self.labels_with_threshold
        positive_id = self.labels.index(positive)
        is_positive = self.compute_probabilities(logits)[:, positive_id] > self.thresholds[positive]
        return is_positive.astype("int64") if positive_id == 1 else 1 - is_positive.astype("int64")

    @property
    def labels_with_threshold(self) -> list[str]:
        """The positive label, if there are two labels and one of them is positive."""
        is_binary = self.positive_label is not None and len(self.labels) == 2
        return [self.positive_label] if is_binary else []  # type: ignore[list-item]

    def fit_thresholds(
        self, logits: "np.ndarray", gold: "np.ndarray", criterion: "ThresholdCriterion"
    ) -> dict[str, float | None]:
        """Return the threshold of the positive label."""
        from bertkit.metrics.thresholds import fit_binary_threshold

        [positive] = self.labels_with_threshold
        positive_id = self.labels.index(positive)
        probability = self.compute_probabilities(logits)[:, positive_id]
        return {positive: fit_binary_threshold(probability, gold == positive_id, criterion)}

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of `bertkit.metrics.classification.score_single_label`."""
        from bertkit.metrics.classification import score_single_label

        positive_id = None if self.positive_label is None else self.labels.index(self.positive_label)
        return score_single_label(gold, predicted, len(self.labels), positive_id)

    def make_example_labels(self) -> "np.ndarray":
        """Return each label id once, [labels]."""
        import numpy as np

        return np.arange(len(self.labels))

    def decode_label(self, value: Any) -> str:
        """Return the name of the label."""
        return self.labels[int(value)]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the softmax of the logits, [rows, labels]."""
        from bertkit.metrics.classification import softmax

        return softmax(logits)

    def make_decisions(self, logits: "np.ndarray", gold: "np.ndarray | None") -> "Decisions":
        """Return one decision for each row."""
        from bertkit.metrics.calibration import Decisions

        return Decisions.from_classes(logits, gold)


class MultiLabel(LabelType):
    """Any number of labels per row.

    Attributes:
        separator: Separator of the labels in a cell of text; None if such a cell holds one label.
    """

    problem_type = "multi_label_classification"
    default_metric = "micro_f1"
    label_key = "label"
    separator: str | None = None

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return 1 for the labels of each row and 0 for the other labels, [rows, labels]."""
        from bertkit.data.labels import binarize_labels

        return binarize_labels(rows, column, self.labels, self.separator)

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the sorted labels in a cell."""
        from bertkit.data.labels import parse_label_set

        labels = parse_label_set(value, self.separator)
        return None if labels is None else tuple(sorted(labels))

    def make_loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return the mean binary cross-entropy over all rows and labels."""
        from bertkit.modeling.losses import BinaryCrossEntropy

        weights = _compute_weights(targets, len(self.labels)) if balanced else None
        return BinaryCrossEntropy(weights, smoothing)

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        """Return lists of labels; a label set column may mix lists and texts."""
        for label in {label for row_labels in labels for label in row_labels} - set(self.labels):
            raise UserError(
                f"label {shorten_repr(label)}: does not occur in the training rows; use one of "
                f"{format_list(self.labels)}"
            )
        return [list(row_labels) for row_labels in labels]

    def describe_class_weights(self, targets: "np.ndarray") -> list[str]:
        """Return a warning about labels that every row has."""
        ubiquitous = [label for label, column in zip(self.labels, targets.T, strict=True) if column.all()]
        if not ubiquitous:
            return []
        return [
            "--class-weights balanced: labels that every training row has get the weight 1: "
            f"{format_list(ubiquitous)}"
        ]

    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return 1 for each label with a probability above its threshold, else 0; [rows, labels].

        The default threshold is one half.
        """
        if not self.thresholds:
            return (logits > 0).astype("int64")
        from bertkit.metrics.thresholds import DEFAULT_THRESHOLD

        thresholds = [self.thresholds.get(label, DEFAULT_THRESHOLD) for label in self.labels]
        return (self.compute_probabilities(logits) > thresholds).astype("int64")

    @property
    def labels_with_threshold(self) -> list[str]:
        """All labels."""
        return self.labels

    def fit_thresholds(
        self, logits: "np.ndarray", gold: "np.ndarray", criterion: "ThresholdCriterion"
    ) -> dict[str, float | None]:
        """Return the threshold of each label."""
        from bertkit.metrics.thresholds import fit_label_thresholds

        thresholds = fit_label_thresholds(self.compute_probabilities(logits), gold, criterion)
        return dict(zip(self.labels, thresholds, strict=True))

    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of `bertkit.metrics.classification.score_multi_label`."""
        from bertkit.metrics.classification import score_multi_label

        return score_multi_label(gold, predicted)

    def make_example_labels(self) -> "np.ndarray":
        """Return one row for each label, [labels, labels]."""
        import numpy as np

        return np.eye(len(self.labels), dtype=int)

    def decode_label(self, value: Any) -> list[str]:
        """Return the names of the labels that are encoded as 1."""
        return [label for label, is_member in zip(self.labels, value, strict=True) if is_member]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the sigmoid of the logits, [rows, labels]."""
        from bertkit.metrics.classification import sigmoid

        return sigmoid(logits)

    def make_decisions(self, logits: "np.ndarray", gold: "np.ndarray | None") -> "Decisions":
        """Return a decision for each label of each row."""
        from bertkit.metrics.calibration import Decisions

        return Decisions.from_label_sets(logits, gold)


class Regression(LabelType):
    """One number per row.

    Attributes:
        training_mean: Mean of the training labels, at which a new head starts; None if it is not known.
    """

    problem_type = "regression"
    default_metric = "pearson"
    training_mean: float | None = None

    def observe_training_labels(self, targets: "np.ndarray") -> None:
        """Store the mean of the training labels."""
        self.training_mean = float(targets.mean())

    def initialize_head(self, model: Any) -> None:
        """Set the output bias to the mean of the training labels.

        With a bias of 0, training would first have to move the outputs to the range of the labels.
        """
        from bertkit.modeling.heads import set_output_bias

        if self.training_mean is not None:
            set_output_bias(model, self.training_mean)

    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the numbers, [rows]."""
        from bertkit.data.labels import parse_regression_labels

        return parse_regression_labels(rows, column)

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the number in a cell, regardless of its notation."""
        from bertkit.data.labels import parse_number

        return parse_number(value)

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        """Return the numbers.

        Raises:
            UserError: A label is not a number.
        """
        for label in labels:
            if self.parse_label(label) is None:
                raise UserError(f"label {shorten_repr(label)}: is not a number; write a number")
        return list(labels)

    def make_loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
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

    def make_example_labels(self) -> "np.ndarray":
        """Return two numbers."""
        import numpy as np

        return np.array([0.0, 1.0])

    def decode_label(self, value: Any) -> float:
        """Return the number as a Python float."""
        return float(value)


def _compute_weights(targets: "np.ndarray", num_classes: int) -> "torch.Tensor":
    """Return the weight of each class on the device, to which a CUDA graph could not copy it."""
    from bertkit.modeling.heads import compute_class_weights
    from bertkit.utils import devices

    return compute_class_weights(targets, num_classes).to(devices.get_device())
