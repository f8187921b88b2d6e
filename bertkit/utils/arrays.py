"""Arrays: sequences of different lengths, stored in two flat arrays, and batches of a stream."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

VALUES_FILE, OFFSETS_FILE, INFO_FILE = "values.bin", "offsets.bin", "ragged.json"
CHUNK_SEQUENCES = 1 << 16  # sequences of a part, in computations over all values


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
        align_last: Whether the last window has the full size and ends at the end of the range, or else starts
            one stride after the previous window and may be shorter.

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

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the sequences [n]."""
        return np.diff(self.offsets)

    def slice_sequences(self, start: int, stop: int) -> "Ragged":
        """Return consecutive sequences."""
        offsets = self.offsets[start : stop + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def iter_parts(self) -> Iterator["Ragged"]:
        """Yield the sequences in parts, so that a computation over all values needs little memory."""
        for start in range(0, len(self), CHUNK_SEQUENCES):
            yield self.slice_sequences(start, start + CHUNK_SEQUENCES)

    @classmethod
    def load(cls, folder: Path) -> "Ragged":
        """Open the sequences that a `RaggedWriter` wrote; the values are memory-mapped."""
        values, offsets = map_ragged_files(folder)
        return cls(values, offsets.astype(np.int64))


class RaggedWriter:
    """Writer that appends sequences to the files of an existing directory.

    Offsets are stored as uint32 if possible, else as uint64.
    """

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder, self.dtype = folder, np.dtype(dtype)
        self.num_values = 0
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> "RaggedWriter":
        self._files = [(self.folder / name).open("wb") for name in (VALUES_FILE, OFFSETS_FILE)]
        return self

    def add(self, values: np.ndarray, lengths: np.ndarray) -> None:
        """Append sequences: their concatenated values [total], and the length of each [n]."""
        starts = self.num_values + np.cumsum(lengths) - lengths
        self._files[0].write(np.ascontiguousarray(values, self.dtype).data)
        self._files[1].write(starts.astype(np.uint64).data)
        self.num_values += len(values)

    def __exit__(self, error_type: object, *error: object) -> None:
        if error_type is None:
            self._files[1].write(np.array([self.num_values], np.uint64).data)
        for file in self._files:
            file.close()
        if error_type is None:
            if self.offset_dtype == "uint32":
                path = self.folder / OFFSETS_FILE
                np.memmap(path, np.uint64, "r").astype(np.uint32).tofile(path)
            info = {VALUES_FILE: self.dtype.name, OFFSETS_FILE: self.offset_dtype}
            (self.folder / INFO_FILE).write_text(json.dumps(info), "utf-8")

    @property
    def offset_dtype(self) -> str:
        return "uint32" if self.num_values < 1 << 32 else "uint64"


def map_ragged_files(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Memory-map the values and the offsets that a `RaggedWriter` wrote."""
    info = json.loads((folder / INFO_FILE).read_text("utf-8"))
    values, offsets = (map_array(folder / name, dtype) for name, dtype in info.items())
    return values, offsets


def map_array(path: Path, dtype: str | np.dtype) -> np.ndarray:
    """Memory-map a file of numbers, which may be empty."""
    return np.memmap(path, np.dtype(dtype), "r") if path.stat().st_size else np.empty(0, np.dtype(dtype))


def compute_offsets(lengths: np.ndarray) -> np.ndarray:
    """Return the starts of n concatenated sequences, followed by the total length [n + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)])


def get_index_dtype(size: int) -> np.dtype:
    """Return the smallest signed dtype, of at least 32 bits, for indices into `size` values."""
    return np.dtype(np.int32 if size < 1 << 31 else np.int64)


def compute_positions_in_groups(counts: np.ndarray) -> np.ndarray:
    """Return the position of each element in its group [total]: groups of 2 and 3 elements give 0 1 0 1 2."""
    group_starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(group_starts, counts)


T = TypeVar("T")


def iter_batches(
    items: Iterable[T], max_chars: int, max_items: int | None = None, count_chars: Callable[[Any], int] = len
) -> Iterator[list[T]]:
    """Yield the items, which are or contain texts, in batches.

    A batch ends with the item that reaches one of the limits.
    """
    batch: list[T] = []
    num_chars = 0
    for item in items:
        batch.append(item)
        num_chars += count_chars(item)
        if num_chars >= max_chars or len(batch) == max_items:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch
