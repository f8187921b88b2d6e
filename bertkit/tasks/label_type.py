"""The interface of a kind of labels; `bertkit.tasks.label_types` has the kinds."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bertkit.errors import UserError, format_list, shorten_repr
from bertkit.tasks.base import Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.metrics.calibration import Decisions
    from bertkit.metrics.thresholds import ThresholdCriterion
    from bertkit.modeling.losses import Loss


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
    def encode_labels(self, rows: "Rows", column: str) -> "np.ndarray":
        """Return the labels of a column as numbers.

        Raises:
            UserError: A row has no valid label.
        """

    def parse_label(self, value: Any) -> Hashable | None:
        """Return the label in a cell in a form that can be compared; None if the cell has no label."""
        from bertkit.data.labels import normalize_label

        return normalize_label(value)

    @abstractmethod
    def make_loss(self, targets: "np.ndarray", balanced: bool, smoothing: float) -> "Loss":
        """Return the loss.

        Args:
            targets: The encoded training labels.
            balanced: Whether to weight classes by the inverse of their frequency in `targets`.
            smoothing: Fraction of the target probability spread over all classes.
        """

    def observe_training_labels(self, targets: "np.ndarray") -> None:
        """Store what `initialize_head` needs of the encoded training labels; by default nothing."""
        return

    def initialize_head(self, model: Any) -> None:
        """Initialize a new head further than transformers does; by default not."""
        return

    def describe_class_weights(self, targets: "np.ndarray") -> list[str]:
        """Return warnings about the class weights for these encoded training labels; by default none."""
        return []

    @abstractmethod
    def predict(self, logits: "np.ndarray") -> "np.ndarray":
        """Return the predicted labels in encoded form.

        Args:
            logits: Logits [rows, outputs].
        """

    @abstractmethod
    def score(self, gold: "np.ndarray", predicted: "np.ndarray") -> Scores:
        """Return the scores of encoded predictions."""

    @abstractmethod
    def make_example_labels(self) -> "np.ndarray":
        """Return encoded labels of a few rows, in which every label occurs."""

    @abstractmethod
    def decode_label(self, value: Any) -> Any:
        """Return the JSON value of one row's encoded label or prediction."""

    def format_cells(self, labels: Sequence[Any], cells: Sequence[Any]) -> list[Any]:
        """Return decoded labels as cells of the label column.

        Args:
            labels: The labels, as `decode_label` returns them.
            cells: The distinct values of the column.

        Raises:
            UserError: A label does not occur in the column.
        """
        cell_by_label = {self.parse_label(cell): cell for cell in cells}
        for label in labels:
            if label not in cell_by_label:
                raise UserError(
                    f"label {shorten_repr(label)}: does not occur in the training rows; use one of "
                    f"{format_list(self.labels)}"
                )
        return [cell_by_label[label] for label in labels]

    def compute_probabilities(self, logits: "np.ndarray") -> "np.ndarray | None":
        """Return the probability of each label, [rows, labels]; None for regression."""
        return None

    def make_decisions(self, logits: "np.ndarray", gold: "np.ndarray | None") -> "Decisions":
        """Return the decisions of the model with their encoded gold labels; not defined for regression.

        Args:
            logits: Logits [rows, outputs].
            gold: The encoded gold labels; None if they are not known.
        """
        raise NotImplementedError

    @property
    def labels_with_threshold(self) -> list[str]:
        """The labels that may have a threshold; empty if the predicted label is the most probable one."""
        return []

    def fit_thresholds(
        self, logits: "np.ndarray", gold: "np.ndarray", criterion: "ThresholdCriterion"
    ) -> dict[str, float | None]:
        """Return the threshold of each of `labels_with_threshold`; None if no threshold meets the criterion.

        Args:
            logits: Logits [rows, outputs].
            gold: The encoded gold labels.
            criterion: What the thresholds are chosen for.
        """
        return {}
