"""The logits that a model predicts for the examples of a dataset, memory-mapped."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertkit.utils.ragged import Ragged, RaggedWriter, map_array

TEACHER_LOGITS = "teacher_logits"  # key of an example and of a batch
ORDER_FILE = "order.bin"


@dataclass(frozen=True)
class StoredLogits:
    """Logits of `n` examples; an example has as many as its head outputs, without padding.

    Attributes:
        values: [n] fp32 logits of each example, flattened, in the order in which they were computed.
        positions: [n] index in `values` of each example.
        label_order: Index of each output among those that are stored; None if the order is the same.
    """

    values: Ragged
    positions: np.ndarray
    label_order: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> np.ndarray:
        logits = self.values[self.positions[index]]
        if self.label_order is not None:
            logits = logits.reshape(-1, len(self.label_order))[:, self.label_order].ravel()
        return np.asarray(logits)

    def reorder_labels(self, label_order: np.ndarray) -> "StoredLogits":
        """Return the logits with the outputs in another order."""
        return replace(self, label_order=label_order)

    @classmethod
    def load(cls, folder: Path) -> "StoredLogits":
        """Open the logits that a `LogitsWriter` wrote."""
        order = map_array(folder / ORDER_FILE, "int64")
        return cls(Ragged.load(folder), np.argsort(order, kind="stable"))


class LogitsWriter:
    """Writer of the logits of one batch after another, in any order of the examples.

    Args:
        folder: An existing directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = RaggedWriter(folder, np.dtype(np.float32))
        self._order: list[np.ndarray] = []

    def __enter__(self) -> "LogitsWriter":
        self._writer.__enter__()
        return self

    def add(self, examples: np.ndarray, logits: np.ndarray, counts: np.ndarray) -> None:
        """Append the logits of a batch, without those that are -inf.

        Args:
            examples: [batch] indices of the examples.
            logits: [rows, ...] logits, as `bertkit.modeling.forward.compute_logits` returns them.
            counts: [batch] number of rows of each example.
        """
        is_output = logits != -np.inf
        row_sizes = is_output.reshape(len(logits), -1).sum(1)
        stops = np.cumsum(counts)
        sums = np.concatenate([[0], np.cumsum(row_sizes)])
        self._writer.add(logits[is_output], sums[stops] - sums[stops - counts])
        self._order.append(examples)

    def __exit__(self, error_type: object, *error: object) -> None:
        self._writer.__exit__(error_type, *error)
        if error_type is None:
            np.concatenate(self._order).astype(np.int64).tofile(self._folder / ORDER_FILE)
