"""Sequences of different lengths in two flat arrays, so that a dataset can be memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def concat_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the integers of all half-open ranges in order: [2, 5) and [7, 9) give 2 3 4 7 8.

    Args:
        starts: `[n]` first integer of each range.
        stops: `[n]` end of each range.
    """
    sizes = stops - starts
    shifts = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(shifts, sizes)


@dataclass(frozen=True)
class Ragged:
    """A list of `n` integer sequences.

    Attributes:
        values: `[total]` all sequences, concatenated.
        offsets: `[n + 1]` start of each sequence in `values`; the last offset is `total`.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int] | np.ndarray], dtype: type = np.int32
    ) -> "Ragged":
        """Concatenate a list of sequences."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = np.empty(offsets[-1], dtype)
        for sequence, start, stop in zip(sequences, offsets[:-1], offsets[1:], strict=True):
            values[start:stop] = sequence
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Length of each sequence: `[n]`."""
        return np.diff(self.offsets)

    def save(self, folder: Path) -> None:
        """Write both arrays into an existing directory."""
        np.save(folder / "values.npy", self.values)
        np.save(folder / "offsets.npy", self.offsets)

    @classmethod
    def load(cls, folder: Path) -> "Ragged":
        """Memory-map the arrays that `save` wrote."""
        return cls(
            np.load(folder / "values.npy", mmap_mode="r"), np.load(folder / "offsets.npy", mmap_mode="r")
        )
