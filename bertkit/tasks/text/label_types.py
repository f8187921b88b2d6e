"""The kinds of labels of `classify` and `nli`: one label, a set of labels, or a number for each row."""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bertkit.data.labels import (
    binarize_labels,
    encode_labels,
    normalize_label,
    parse_label_set,
    parse_number,
    parse_regression_labels,
)
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.stats.calibration import (
    DEFAULT_THRESHOLD,
    ThresholdCriterion,
    fit_binary_threshold,
    fit_label_thresholds,
)
from bertkit.stats.scores import (
    Scores,
    score_multi_label,
    score_regression,
    score_single_label,
    sigmoid,
    softmax,
)

if TYPE_CHECKING:  # linear models of texts predict without torch
    import torch

    from bertkit.models.losses import Loss


class LabelType(ABC):
    """A kind of labels: how labels are parsed, encoded, learned, predicted and scored.

    Encoded labels have the shape [rows]; those of label sets have the shape [rows, labels].

    Attributes:
        labels: The labels in the order of the model's outputs; empty for regression.
        problem_type: Value of `problem_type` in the model's config.
        default_metric: Metric that selects the checkpoint if the dataset registry states no other.
        label_key: Key of a label fix that selects one of several labels of a row; None for a single label.
        thresholds: Probability above which a label is predicted, for labels whose threshold is fitted; see
            `fit_thresholds`.
    """

    problem_type: ClassVar[str]
    default_metric: ClassVar[str]
    label_key: ClassVar[Literal["label"] | None] = None

    def __init__(self, labels: list[str]) -> None:
        self.labels = labels
        self.thresholds: dict[str, float] = {}

    @abstractmethod
    def encode_labels(self, rows: Rows, column: str) -> np.ndarray:
        """Return the labels of a column as numbers."""

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the label in a cell in a form that can be compared; None if the cell has no label."""
        return normalize_label(value)

    @abstractmethod
    def make_loss(self, weights: "torch.Tensor | None", smoothing: float) -> "Loss":
        """Return the loss.

        Args:
            weights: [labels] weight of each class, or None.
            smoothing: Fraction of the target probability spread over all classes.
        """

    @abstractmethod
    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return the predicted labels in encoded form, from logits [rows, outputs]."""

    @abstractmethod
    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        """Return the scores of encoded predictions."""

    @abstractmethod
    def make_example_labels(self) -> np.ndarray:
        """Return encoded labels of a few rows, in which every label occurs."""

    @abstractmethod
    def decode_label(self, value: Any) -> Any:
        """Return the JSON value of one row's encoded label or prediction."""

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        """Return labels, as `decode_label` returns them, as cells of a column with these distinct cells."""
        cell_by_label = {self.parse_label(cell): cell for cell in cells}
        for label in labels:
            if label not in cell_by_label:
                raise UserError(
                    f"label {shorten_repr(label)}: does not occur in the training rows; use one of "
                    f"{format_list(self.labels)}"
                )
        return [cell_by_label[label] for label in labels]

    def compute_probabilities(self, logits: np.ndarray) -> np.ndarray | None:
        """Return the probability of each label, [rows, labels]; None for regression."""
        return None

    @property
    def labels_with_threshold(self) -> list[str]:
        """The labels that may have a threshold; empty if the predicted label is the most probable one."""
        return []

    def fit_thresholds(
        self, logits: np.ndarray, gold: np.ndarray, criterion: ThresholdCriterion
    ) -> dict[str, float | None]:
        """Return the threshold of each of `labels_with_threshold`; None if no threshold meets the criterion.

        `logits` has the shape [rows, outputs], and `gold` holds the encoded gold labels.
        """
        return {}


class SingleLabel(LabelType):
    """One label per row.

    Attributes:
        positive_label: Label that `positive_f1` scores; None to leave out this score.
    """

    problem_type = "single_label_classification"
    default_metric = "accuracy"

    def __init__(self, labels: list[str], positive_label: str | None = None) -> None:
        super().__init__(labels)
        self.positive_label = positive_label

    def encode_labels(self, rows: Rows, column: str) -> np.ndarray:
        return encode_labels(rows, column, self.labels)

    def make_loss(self, weights: "torch.Tensor | None", smoothing: float) -> "Loss":
        from bertkit.models.losses import CrossEntropy

        return CrossEntropy(weights, smoothing)

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return the label with the highest logit, or that on its side of the threshold, [rows]."""
        if not self.thresholds:
            return logits.argmax(-1)
        [positive] = self.labels_with_threshold
        positive_id = self.labels.index(positive)
        is_positive = self.compute_probabilities(logits)[:, positive_id] > self.thresholds[positive]
        return is_positive.astype("int64") if positive_id == 1 else 1 - is_positive.astype("int64")

    @property
    def labels_with_threshold(self) -> list[str]:
        is_binary = self.positive_label is not None and len(self.labels) == 2
        return [self.positive_label] if is_binary else []  # type: ignore[list-item]

    def fit_thresholds(
        self, logits: np.ndarray, gold: np.ndarray, criterion: ThresholdCriterion
    ) -> dict[str, float | None]:
        [positive] = self.labels_with_threshold
        positive_id = self.labels.index(positive)
        probability = self.compute_probabilities(logits)[:, positive_id]
        return {positive: fit_binary_threshold(probability, gold == positive_id, criterion)}

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        positive_id = None if self.positive_label is None else self.labels.index(self.positive_label)
        return score_single_label(gold, predicted, len(self.labels), positive_id)

    def make_example_labels(self) -> np.ndarray:
        return np.arange(len(self.labels))

    def decode_label(self, value: Any) -> str:
        return self.labels[int(value)]

    def compute_probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits)


class MultiLabel(LabelType):
    """Any number of labels per row.

    Attributes:
        separator: Separator of the labels in a cell of text; None if such a cell holds one label.
    """

    problem_type = "multi_label_classification"
    default_metric = "micro_f1"
    label_key = "label"

    def __init__(self, labels: list[str], separator: str | None = None) -> None:
        super().__init__(labels)
        self.separator = separator

    def encode_labels(self, rows: Rows, column: str) -> np.ndarray:
        return binarize_labels(rows, column, self.labels, self.separator)

    def parse_label(self, value: Any) -> Hashable | None:
        labels = parse_label_set(value, self.separator)
        return None if labels is None else tuple(sorted(labels))

    def make_loss(self, weights: "torch.Tensor | None", smoothing: float) -> "Loss":
        from bertkit.models.losses import BinaryCrossEntropy

        return BinaryCrossEntropy(weights, smoothing)

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        for label in {label for row_labels in labels for label in row_labels} - set(self.labels):
            raise UserError(
                f"label {shorten_repr(label)}: does not occur in the training rows; use one of "
                f"{format_list(self.labels)}"
            )
        return [list(row_labels) for row_labels in labels]

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return 1 for each label with a probability above its threshold, else 0; [rows, labels]."""
        if not self.thresholds:
            return (logits > 0).astype("int64")

        thresholds = [self.thresholds.get(label, DEFAULT_THRESHOLD) for label in self.labels]
        return (self.compute_probabilities(logits) > thresholds).astype("int64")

    @property
    def labels_with_threshold(self) -> list[str]:
        return self.labels

    def fit_thresholds(
        self, logits: np.ndarray, gold: np.ndarray, criterion: ThresholdCriterion
    ) -> dict[str, float | None]:
        thresholds = fit_label_thresholds(self.compute_probabilities(logits), gold, criterion)
        return dict(zip(self.labels, thresholds, strict=True))

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        return score_multi_label(gold, predicted)

    def make_example_labels(self) -> np.ndarray:
        return np.eye(len(self.labels), dtype=int)

    def decode_label(self, value: Any) -> list[str]:
        return [label for label, is_member in zip(self.labels, value, strict=True) if is_member]

    def compute_probabilities(self, logits: np.ndarray) -> np.ndarray:
        return sigmoid(logits)


class Regression(LabelType):
    """One number per row.

    Attributes:
        training_mean: Mean of the training labels, at which a new head starts; None if it is not known.
    """

    problem_type = "regression"
    default_metric = "pearson"
    training_mean: float | None = None

    def encode_labels(self, rows: Rows, column: str) -> np.ndarray:
        return parse_regression_labels(rows, column)

    def parse_label(self, value: Any) -> Hashable | None:
        return parse_number(value)

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        for label in labels:
            if self.parse_label(label) is None:
                raise UserError(f"label {shorten_repr(label)}: is not a number; write a number")
        return list(labels)

    def make_loss(self, weights: "torch.Tensor | None", smoothing: float) -> "Loss":
        from bertkit.models.losses import SquaredError

        return SquaredError()

    def predict(self, logits: np.ndarray) -> np.ndarray:
        return logits[:, 0]

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        return score_regression(gold, predicted)

    def make_example_labels(self) -> np.ndarray:
        return np.array([0.0, 1.0])

    def decode_label(self, value: Any) -> float:
        return float(value)


NEGATIONS = ("not", "non", "un", "no")
POSITIVE_NAMES = {"1", "positive", "pos", "true", "yes", "긍정", "참", "예"}
NEGATIVE_NAMES = {"0", "negative", "neg", "false", "no", "부정", "거짓", "아니오"}


def infer_positive_label(labels: Sequence[str]) -> str:
    """Return the positive one of two labels, which is the class that `positive_f1` scores.

    `duplicate` is positive if the other label is `not_duplicate`, and `true` if the other label is a negative
    name such as `false`. Otherwise, the second label is positive.
    """
    first, second = (re.sub(r"[_\-\s]+", "", label.casefold()) for label in labels)
    is_negated = first != "" and second in {prefix + first for prefix in NEGATIONS}
    has_positive_name = first in POSITIVE_NAMES and second in NEGATIVE_NAMES
    return labels[0] if is_negated or has_positive_name else labels[1]
