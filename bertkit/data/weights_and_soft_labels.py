"""Sample weights, and soft labels: probabilities of classes, such as the votes of several annotators."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.groups_and_times import is_empty
from bertkit.data.labels import normalize_label, parse_number
from bertkit.data.table import ListColumn, Rows
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.utils.text import parse_literal

WEIGHT_FLAG = "--weight-column"

# ---- weights


def read_weights(rows: Rows, column: str) -> np.ndarray:
    """Return [n] float32 weight of each row. Their mean is 1, because only the ratios of weights count."""
    codes, values = rows.factorize(column)
    numbers = [parse_number(value) for value in values]
    for code, (value, number) in enumerate(zip(values, numbers, strict=True)):
        if number is None or number < 0:
            problem = "is empty" if is_empty(value) else f"{shorten_repr(value)} is not a weight"
            raise UserError(
                f"{rows.format_location(int(np.argmax(codes == code)))}: column {column!r} ({WEIGHT_FLAG}): "
                f"{problem}; write a number, 0 or more"
            )
    largest = max(filter(None, numbers), default=0.0)
    if largest == 0:
        raise UserError(
            f"{rows.files[0]}: column {column!r} ({WEIGHT_FLAG}): all weights are 0; name another column, or "
            "omit the flag"
        )
    weights = (np.array(numbers, dtype=np.float64) / largest)[codes]
    return (weights / weights.mean()).astype(np.float32)


def describe_weights(train: Rows, column: str) -> str:
    """Return a note on the weights of the training rows."""
    numbers = [parse_number(value) or 0.0 for value in train[column]]
    without = sum(number == 0 for number in numbers)
    zero = f"; {format_count(without, 'row has', 'rows have')} the weight 0" if without else ""
    return (
        f"weights in {column!r}: {min(numbers):g} to {max(numbers):g}{zero}; training, baselines and "
        "calibrate use them, and scores count each row once"
    )


# ---- soft labels

SUM_TOLERANCE = 0.02  # of rounded probabilities
# A text that Python or pandas writes for a dictionary, perhaps quoted again; a colon follows its first label.
DICTIONARY = re.compile(r"""[\s"']*(\{[^{}]*:|(OrderedDict|Counter|defaultdict)\()""")


def parse_soft_label(cell: Any) -> dict[str, float] | None:
    """Return the number of each label in a cell such as `{"pos": 0.7, "neg": 0.3}`; None for other cells.

    The cell is a mapping, or a text with one in the notation of JSON or Python.
    """
    if isinstance(cell, str):
        cell = parse_literal(cell) if cell.lstrip()[:1] == "{" else None
    if not isinstance(cell, Mapping):
        return None
    named = {normalize_label(label): value for label, value in cell.items() if value is not None}
    numbers = {label: parse_number(value) for label, value in named.items()}
    if not numbers or len(named) < sum(value is not None for value in cell.values()):
        return None
    if any(label is None or number is None for label, number in numbers.items()):
        return None
    return {str(label): float(number or 0.0) for label, number in numbers.items()}


def name_soft_label_column(label_column: str) -> str:
    """Return the name of the column that holds the probabilities after `split_soft_labels`."""
    return f"soft labels of {label_column}"


def split_soft_labels(rows: Rows, column: str, are_sets: bool) -> Rows:
    """Move the probabilities in a column of labels to a column of their own.

    The column of labels then has the most probable label, of equally probable ones the first in sorted order;
    or, of label sets, the labels with a probability above 0.5. Whole numbers are votes, which are divided by
    their sum. The new column has a dictionary, or None in rows whose label is no dictionary.

    Args:
        are_sets: Whether each label has a probability of its own.
    """
    if column not in rows.columns:
        return rows
    codes, cells = rows.factorize(column)
    parsed = [parse_soft_label(cell) for cell in cells]
    if not any(parsed) and not any(isinstance(cell, str) and DICTIONARY.match(cell) for cell in cells):
        return rows
    new_column = name_soft_label_column(column)
    if new_column in rows.columns:
        raise UserError(
            f"{rows.files[0]}: column {new_column!r}: has the name under which the soft labels of column "
            f"{column!r} are kept; rename it"
        )
    labels: list[Any] = []
    probabilities: list[dict[str, float] | None] = []
    for code, (cell, numbers) in enumerate(zip(cells, parsed, strict=True)):
        location = rows.format_location(int(np.argmax(codes == code)))
        if numbers is None:
            is_empty_mapping = isinstance(cell, Mapping) and all(value is None for value in cell.values())
            is_text = isinstance(cell, str) and bool(DICTIONARY.match(cell))
            if (isinstance(cell, Mapping) or is_text) and not is_empty_mapping:
                raise UserError(
                    f"{location}: column {column!r}: {shorten_repr(cell)} has no number for each label; "
                    'write it like {"a": 0.7, "b": 0.3}, or write one label'
                )
            labels.append(None if is_empty_mapping else cell)
            probabilities.append(None)
            continue
        total = sum(numbers.values())
        are_votes = not are_sets and total > 1 and all(number.is_integer() for number in numbers.values())
        problem = None
        if min(numbers.values()) < 0:
            problem = "has a number below 0; write probabilities from 0 to 1"
        elif are_sets and max(numbers.values()) > 1:
            problem = "has a number above 1; write probabilities from 0 to 1"
        elif not are_sets and total == 0:
            problem = "has no vote or probability above 0; write one, or remove the row"
        elif not are_sets and not are_votes and abs(total - 1) > SUM_TOLERANCE:
            problem = (
                f"has probabilities that sum to {total:g}, not to 1; correct them, or pass --problem "
                "multi-label if each label has a probability of its own"
            )
        if problem:
            raise UserError(f"{location}: column {column!r}: {shorten_repr(cell)} {problem}")
        if are_sets:
            labels.append([label for label, number in numbers.items() if number > 0.5])
            probabilities.append(numbers)
        else:
            labels.append(min(numbers, key=lambda label: (-numbers[label], label)))
            probabilities.append({label: number / total for label, number in numbers.items()})
    return rows.with_column(column, ListColumn(labels).select(codes)).with_column(
        new_column, ListColumn(probabilities).select(codes)
    )


def get_soft_labels(rows: Rows, label_column: str) -> Sequence[dict[str, float] | None] | None:
    """Return the probabilities of each row that `split_soft_labels` found; None without any."""
    values = rows.columns.get(name_soft_label_column(label_column), ())
    first = next(filter(None, values), None)  # a column of the data may have this name
    return values if isinstance(first, dict) else None


def collect_names(rows: Rows, label_column: str) -> set[str]:
    """Return the labels that have a positive probability in a row."""
    values = get_soft_labels(rows, label_column) or ()
    return {label for numbers in values if numbers for label, number in numbers.items() if number > 0}


def encode_soft_labels(
    rows: Rows, label_column: str, labels: np.ndarray, names: Sequence[str]
) -> np.ndarray | None:
    """Return [n, classes] float32 the probability of each label; None if no row has probabilities.

    Args:
        labels: [n] ids or [n, classes] with 0 and 1, which are the probabilities of all other rows.
        names: The labels by id.
    """
    values = get_soft_labels(rows, label_column)
    if values is None:
        return None
    targets = labels.astype(np.float32) if labels.ndim == 2 else np.eye(len(names), dtype=np.float32)[labels]
    label_ids = {name: label_id for label_id, name in enumerate(names)}
    for row, numbers in enumerate(values):
        if numbers is None:
            continue
        targets[row] = 0
        for name, number in numbers.items():
            if name in label_ids:
                targets[row, label_ids[name]] = number
            elif number > 0:
                raise UserError(
                    f"{rows.format_location(row)}: label {name!r} does not occur in the training rows, which "
                    f"have {format_list(names)}; use one of these"
                )
    return targets


def compute_agreement(rows: Rows, label_column: str) -> np.ndarray | None:
    """Return [n] how probable the label of each row is; None if no row has probabilities.

    Of a label set, it is the most doubtful label, among those that the row has or lacks.
    """
    values = get_soft_labels(rows, label_column)
    if values is None:
        return None
    agreement = np.ones(len(rows))
    for row, (label, numbers) in enumerate(zip(rows[label_column], values, strict=True)):
        if numbers and isinstance(label, list):
            agreement[row] = min(max(number, 1 - number) for number in numbers.values())
        elif numbers:
            agreement[row] = max(numbers.values())
    return agreement


def name_soft_label_ids(rows: Rows, label_column: str, names: Sequence[str]) -> Rows:
    """Replace label ids by names in the probabilities, if there are any."""
    name_by_id = {str(label_id): name for label_id, name in enumerate(names)}

    def rename(values: list[dict[str, float] | None]) -> list[dict[str, float] | None]:
        return [
            numbers and {name_by_id.get(label, label): number for label, number in numbers.items()}
            for numbers in values
        ]

    column = name_soft_label_column(label_column)
    return rows.map_column(column, rename) if column in rows.columns else rows


def describe_soft_labels(train: Rows, label_column: str, are_sets: bool) -> list[str]:
    """Return a note on the probabilities of the labels of training rows; [] without any."""
    values = list(filter(None, get_soft_labels(train, label_column) or ()))
    if not values:
        return []
    of_rows = f"{len(values):,} of {format_count(len(train), 'training row')} have soft labels"
    use = "training, baselines, nll, brier, ece and calibrate use the probabilities"
    if are_sets:
        return [f"{of_rows}; for the other scores, a row has the labels above 0.5; {use}"]
    ordered = [sorted(numbers.values(), reverse=True) for numbers in values]
    ties = sum(len(numbers) > 1 and numbers[0] == numbers[1] for numbers in ordered)
    tie_note = f", of equal ones the first in sorted order ({format_count(ties, 'row')})" if ties else ""
    mean = np.mean([numbers[0] for numbers in ordered])
    return [
        f"{of_rows} (mean of the highest probability: {mean:.2f}); {use}, and the other scores the most "
        f"probable label{tie_note}"
    ]


# ---- what models are fitted to


MIN_PROBABILITY = 1e-3  # of a label that a row may have, when labels are mixed with predictions


@dataclass(frozen=True)
class TrainingLabels:
    """The labels that a model is fitted to.

    Attributes:
        labels: [n] class ids, [n, classes] with 0 and 1, or [n] float.
        weights: [n] float weight of each row; None if all count alike.
        targets: [n, classes] float probabilities of the labels; None without soft labels.
    """

    labels: np.ndarray
    weights: np.ndarray | None = None
    targets: np.ndarray | None = None

    def select(self, rows: np.ndarray) -> "TrainingLabels":
        """Return the labels of some rows, given as indices or as [n] bool.

        If all their weights are 0, the rows count alike.
        """
        weights, targets = (
            None if values is None else values[rows] for values in (self.weights, self.targets)
        )
        if weights is not None and not weights.any():
            weights = None
        return TrainingLabels(self.labels[rows], weights, targets)

    def mix(self, predicted: np.ndarray, alpha: float) -> "TrainingLabels":
        """Return the labels mixed with predictions, and the predictions of further rows.

        Args:
            predicted: [m, classes] probabilities or [m] numbers. The first n are those of these rows.
            alpha: Weight of the predictions; that of the labels is 1 - alpha.
        """
        n, num_further = len(self.labels), len(predicted) - len(self.labels)
        weights = None if self.weights is None else np.append(self.weights, np.ones(num_further))
        own = self.labels if self.targets is None else self.targets
        if predicted.ndim == 2 and own.ndim == 1:
            own = np.eye(predicted.shape[1])[own]
        mixed = np.concatenate([(1 - alpha) * own + alpha * predicted[:n], predicted[n:]])
        if predicted.ndim == 1:
            return TrainingLabels(mixed, weights)
        if self.labels.ndim == 2:
            return TrainingLabels((mixed > 0.5).astype(self.labels.dtype), weights, mixed)
        mixed = np.where(mixed < MIN_PROBABILITY, 0, mixed)  # of many classes, few are probable
        mixed /= mixed.sum(1, keepdims=True)
        return TrainingLabels(mixed.argmax(1), weights, mixed)

    @property
    def are_plain(self) -> bool:
        """Whether rows count alike, and labels are hard."""
        return self.weights is None and self.targets is None

    def expand_soft_labels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return hard labels in place of soft ones: a row is repeated for each label that it may have.

        Rows with the weight 0 are left out.

        Returns:
            [m] index of the row, [m] its label, and [m] its weight times the probability of the label; None
            if all weights are 1.
        """
        if self.are_plain:
            return np.arange(len(self.labels)), self.labels, None
        weights = np.ones(len(self.labels)) if self.weights is None else self.weights.astype(np.float64)
        if self.targets is None:
            rows = np.flatnonzero(weights)
            return rows, self.labels[rows], weights[rows]
        rows, ids = np.nonzero(self.targets * weights[:, None])
        return rows, ids, weights[rows] * self.targets[rows, ids]

    def get_label(self, label: int) -> "TrainingLabels":
        """Return whether each row has one label of its set, as class ids 0 and 1."""
        probability = None if self.targets is None else self.targets[:, label]
        targets = None if probability is None else np.stack([1 - probability, probability], 1)
        return TrainingLabels(self.labels[:, label].astype(np.int64), self.weights, targets)

    def sum_by_class(self, num_classes: int) -> np.ndarray:
        """Return [classes] the sum of the weights of the rows of each class; of label sets, of each label."""
        weights = np.ones(len(self.labels)) if self.weights is None else self.weights.astype(np.float64)
        if self.targets is not None or self.labels.ndim == 2:
            values = self.labels if self.targets is None else self.targets
            return weights @ values.astype(np.float64)
        return np.bincount(self.labels, weights, minlength=num_classes)
