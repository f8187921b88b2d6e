"""Sequences of unlike length in two flat arrays, so that a data set is memory-mapped, not a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def concat_ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The numbers of all half-open stretches, one behind the other: [2, 5), [7, 9) are 2 3 4 7 8."""
    sizes = stops - starts
    shifts = starts - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(shifts, sizes)


def offsets_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return [n + 1] the index at which each of `n` concatenated sequences begins; the last is the total."""
    return np.concatenate([[0], np.cumsum(lengths)])


def position_in_group(counts: np.ndarray) -> np.ndarray:
    """Return [total] the position of each element in its group: counts 2, 3 give 0 1 0 1 2."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def slide_windows(
    start: np.ndarray, stop: np.ndarray, budget: int | np.ndarray, step: int | np.ndarray, flush_last: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split half-open ranges into windows of at most `budget` elements.

    Args:
        start: [n] where each range begins.
        stop: [n] where each range ends.
        budget: maximum size of a window, one for all ranges or [n].
        step: distance between the starts of two windows, one for all ranges or [n].
        flush_last: whether the last window is moved back to end with the range at full size.

    Returns:
        The start [windows] and stop [windows] of each window, and the number of windows of each range [n].
    """
    counts = 1 + np.maximum(0, -(-(stop - start - budget) // step))
    budget, step = np.broadcast_to(budget, start.shape), np.broadcast_to(step, start.shape)
    first, last, size = np.repeat(start, counts), np.repeat(stop, counts), np.repeat(budget, counts)
    begin = first + position_in_group(counts) * np.repeat(step, counts)
    if flush_last:
        begin = np.maximum(first, np.minimum(begin, last - size))
    return begin, np.minimum(begin + size, last), counts


@dataclass(frozen=True)
class Ragged:
    """`n` sequences of integers.

    Attributes:
        values: [total] all sequences one after the other.
        offsets: [n + 1] where each begins; the last is `total`.
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
        """[n] the length of each sequence."""
        return np.diff(self.offsets)

    def save(self, folder: Path) -> None:
        """Write both arrays into an existing folder."""
        np.save(folder / "values.npy", self.values)
        np.save(folder / "offsets.npy", self.offsets)

    @classmethod
    def load(cls, folder: Path) -> "Ragged":
        """Memory-map what `save` wrote."""
        return cls(
            np.load(folder / "values.npy", mmap_mode="r"), np.load(folder / "offsets.npy", mmap_mode="r")
        )
