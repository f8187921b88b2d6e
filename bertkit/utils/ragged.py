"""Sequences of different lengths, stored in two flat arrays that can be memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def concat_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the integers of all half-open ranges in one array: [2, 5) and [7, 9) give 2 3 4 7 8."""
    sizes = stops - starts
    output_starts = np.cumsum(sizes) - sizes
    return np.arange(sizes.sum()) + np.repeat(starts - output_starts, sizes)


def slide_windows(
    starts: np.ndarray,
    stops: np.ndarray,
    sizes: np.ndarray | int,
    strides: np.ndarray | int,
    align_last: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cover each half-open range with overlapping windows.

    Args:
        starts: Starts of the ranges [n].
        stops: Stops of the ranges [n].
        sizes: Window sizes [n], or one size for all ranges.
        strides: Distances between the starts of successive windows [n], or one distance for all ranges. A
            stride is limited to the window size, so no position is skipped.
        align_last: Whether the last window has the full size and ends at the end of the range. Otherwise, it
            starts one stride after the previous window, and may be shorter.

    Returns:
        The number of windows of each range [n], and the starts and stops of the windows [windows].
    """
    strides = np.maximum(1, np.minimum(strides, sizes))
    uncovered = stops - starts - sizes  # positions that the first window does not cover
    counts = 1 + np.maximum(0, (uncovered + strides - 1) // strides)  # rounded up
    # From here on, arrays have one entry per window.
    indices = compute_positions_in_groups(counts)
    range_starts, range_stops = np.repeat(starts, counts), np.repeat(stops, counts)
    window_sizes = np.repeat(np.broadcast_to(sizes, counts.shape), counts)
    window_starts = range_starts + indices * np.repeat(np.broadcast_to(strides, counts.shape), counts)
    if align_last:
        window_starts = np.maximum(range_starts, np.minimum(window_starts, range_stops - window_sizes))
    return counts, window_starts, np.minimum(window_starts + window_sizes, range_stops)


@dataclass(frozen=True)
class Ragged:
    """List of n integer sequences of different lengths.

    Attributes:
        values: All sequences, concatenated [total].
        offsets: Start of each sequence in `values`, followed by `total` [n + 1].
    """

    values: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int] | np.ndarray], dtype: type = np.int32
    ) -> "Ragged":
        """Concatenate a list of sequences."""
        offsets = compute_offsets(np.fromiter(map(len, sequences), np.int64, len(sequences)))
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
        """Lengths of the sequences [n]."""
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


def compute_offsets(lengths: np.ndarray) -> np.ndarray:
    """Return the starts of n concatenated sequences, followed by the total length [n + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)])


def compute_positions_in_groups(counts: np.ndarray) -> np.ndarray:
    """Return the position of each element in its group [total]: groups of 2 and 3 elements give 0 1 0 1 2."""
    group_starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(group_starts, counts)
