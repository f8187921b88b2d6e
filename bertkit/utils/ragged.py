"""Sequences of different lengths in two flat arrays, so that a dataset can be memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def concat_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the integers of all half-open ranges in one array: [2, 5), [7, 9) give 2 3 4 7 8."""
    sizes = stops - starts
    shifts = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(shifts, sizes)


def slide_windows(
    starts: np.ndarray,
    stops: np.ndarray,
    sizes: np.ndarray | int,
    strides: np.ndarray | int,
    align_last: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cover each half-open range with overlapping windows.

    Args:
        starts: [n] first position of each range.
        stops: [n] end of each range.
        sizes: Positions in a window, [n] or the same for all ranges.
        strides: Positions between the starts of two windows, [n] or the same for all ranges. A stride is
            limited to the window size, so that no position is skipped.
        align_last: Whether the last window ends with the range and is as long as the others. Otherwise it
            starts one stride after the window before it, and may be shorter.

    Returns:
        The number of windows of each range [n], and where each window starts and stops [windows].
    """
    steps = np.maximum(1, np.minimum(strides, sizes))
    counts = 1 + np.maximum(0, -(-(stops - starts - sizes) // steps))
    indices = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first, end = np.repeat(starts, counts), np.repeat(stops, counts)
    size = np.repeat(np.broadcast_to(sizes, counts.shape), counts)
    window_starts = first + indices * np.repeat(np.broadcast_to(steps, counts.shape), counts)
    if align_last:
        window_starts = np.maximum(first, np.minimum(window_starts, end - size))
    return counts, window_starts, np.minimum(window_starts + size, end)


@dataclass(frozen=True)
class Ragged:
    """A list of `n` integer sequences, stored flat.

    Attributes:
        values: [total] all sequences, concatenated.
        offsets: [n + 1] start of each sequence in `values`; the last entry is `total`.
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int] | np.ndarray], dtype: type = np.int32
    ) -> "Ragged":
        """Flatten a list of sequences."""
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
        """Return the length of each sequence [n]."""
        return np.diff(self.offsets)

    def save(self, folder: Path) -> None:
        """Write both arrays to an existing folder."""
        np.save(folder / "values.npy", self.values)
        np.save(folder / "offsets.npy", self.offsets)

    @classmethod
    def load(cls, folder: Path) -> "Ragged":
        """Memory-map the arrays that `save` wrote."""
        return cls(
            np.load(folder / "values.npy", mmap_mode="r"), np.load(folder / "offsets.npy", mmap_mode="r")
        )


def offsets_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return [n + 1] the index at which each of `n` concatenated sequences begins; the last is the total."""
    return np.concatenate([[0], np.cumsum(lengths)])


def position_in_group(counts: np.ndarray) -> np.ndarray:
    """Return [total] the position of each element in its group: counts 2, 3 give 0 1 0 1 2."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
