"""Truncate texts to a number of tokens, or split them into windows, for all texts at once.

The truncation of transformers is not used: it supports neither `head+tail` nor windows, and does not report
how many tokens it has removed. For `head` and `tail` the result equals `truncation="longest_first"` of
transformers. `transformers.pipeline()` and bertkit thus give the same predictions.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertkit.utils.ragged import compute_positions_in_groups, slide_windows

LongTextStrategy = Literal["head", "tail", "head+tail", "windows"]


@dataclass(frozen=True)
class TokenRanges:
    """Ranges of tokens of `n` sequences.

    Attributes:
        column: Index of the text column of each range; the second range of a text follows the first.
        start: [n, ranges] index of the first token of each range, in the tokens of all texts of the column.
        stop: [n, ranges] index after the last token of each range.
    """

    column: tuple[int, ...]
    start: np.ndarray
    stop: np.ndarray


def truncate(
    starts: np.ndarray, stops: np.ndarray, max_tokens: int, long_texts: LongTextStrategy
) -> tuple[np.ndarray, TokenRanges]:
    """Truncate texts or pairs to `max_tokens` tokens without special tokens, or split them into windows.

    With `head+tail`, a quarter of the tokens come from the start of a text and the others from the end.
    This follows Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1. Windows overlap by
    a quarter.

    Args:
        starts: [n, columns] index of the first token of each text.
        stops: [n, columns] index after the last token of each text.
        max_tokens: Maximum number of tokens of a text or pair.
        long_texts: How longer texts are handled.

    Returns:
        [n] number of sequences of each text or pair, which is 1 without windows, and their ranges.
    """
    sizes = _allocate_tokens(stops - starts, max_tokens)
    num_rows, num_columns = sizes.shape
    if long_texts == "windows":
        return _split_into_windows(starts, stops, sizes)
    if long_texts == "head+tail":
        is_whole = sizes == stops - starts
        head = np.where(is_whole, sizes, sizes // 4)
        start = np.stack([starts, stops - (sizes - head)], 2).reshape(num_rows, 2 * num_columns)
        stop = np.stack([starts + head, stops], 2).reshape(num_rows, 2 * num_columns)
        columns = tuple(column for column in range(num_columns) for _ in range(2))
        return np.ones(num_rows, np.int64), TokenRanges(columns, start, stop)
    if long_texts == "head":
        stops = starts + sizes
    else:
        starts = stops - sizes
    return np.ones(num_rows, np.int64), TokenRanges(tuple(range(num_columns)), starts, stops)


def _allocate_tokens(lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return how many tokens each text keeps; the longer text is truncated first, as in `longest_first`.

    Args:
        lengths: [n, columns] number of tokens of each text.
        max_tokens: Maximum number of tokens of a text or pair.
    """
    if lengths.shape[1] == 1:
        return np.minimum(lengths, max_tokens)
    shorter = np.minimum(lengths.min(1), max_tokens // 2)
    longer = max_tokens - shorter
    first_is_shorter = lengths[:, 0] <= lengths[:, 1]
    sizes = np.stack(
        [np.where(first_is_shorter, shorter, longer), np.where(first_is_shorter, longer, shorter)], 1
    )
    return np.where(lengths.sum(1, keepdims=True) <= max_tokens, lengths, sizes)


def _split_into_windows(
    starts: np.ndarray, stops: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, TokenRanges]:
    """Return overlapping windows of each text or pair; every token is in a window.

    If one text of a pair has fewer windows, its last window is repeated.
    """
    windows = [
        slide_windows(start, stop, size, size - size // 4)
        for start, stop, size in zip(starts.T, stops.T, sizes.T, strict=True)
    ]
    counts = np.max([column_counts for column_counts, _, _ in windows], axis=0)
    number = compute_positions_in_groups(counts)  # of the window in its text or pair
    start, stop = [], []
    for column_counts, window_starts, window_stops in windows:
        first = np.repeat(np.cumsum(column_counts) - column_counts, counts)
        index = first + np.minimum(number, np.repeat(column_counts, counts) - 1)
        start.append(window_starts[index])
        stop.append(window_stops[index])
    return counts, TokenRanges(tuple(range(len(windows))), np.stack(start, 1), np.stack(stop, 1))
