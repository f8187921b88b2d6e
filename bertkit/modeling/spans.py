"""The best answers of each window, from the scores of starts and ends."""

import numpy as np


def best_spans(
    logits: np.ndarray, allowed: np.ndarray, n: int, longest: int
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The `n` spans with the highest S·T_i + E·T_j, j >= i (Devlin et al. 2018, 4.2), best first.

    All spans compete. That is cheap, since the n-th best of the starts, each with its best end, is a bound:
    n spans at least reach it, so no other is among the best, and few have to be sorted.

    Args:
        logits: [windows, 2, length] fp32 of starts and ends.
        allowed: [windows, length] bool, where an answer may begin and end.
        longest: the most pieces of an answer.

    Returns:
        Places [windows, 2, n] int, first and last, and their logits [windows, 2, n], which are -inf where
        there are fewer spans.
    """
    size, length = allowed.shape
    longest = min(longest, length)
    start = np.where(allowed, logits[:, 0], np.float32(-np.inf))
    end = np.full((size, length + longest - 1), -np.inf, np.float32)
    np.copyto(end[:, :length], logits[:, 1], where=allowed)
    best = start + _sliding_max(end, longest)
    bound = np.full((size, 1), np.finfo(np.float32).min)  # -inf is no span
    if n <= length:
        bound = np.maximum(bound, np.partition(best, -n, axis=1)[:, -n, None])
    at = np.flatnonzero(best >= bound)
    ends = np.ndarray((size, length, longest), end.dtype, end, strides=(*end.strides, end.strides[1]))
    window, first = np.divmod(at, length)
    scores = start.ravel()[at, None] + ends[window, first]
    which, further = np.divmod(np.flatnonzero(scores >= bound[window]), longest)
    window, first, score = window[which], first[which], scores[which, further]
    last = first + further
    order = np.argsort((window << 32) + descending(score))
    window = window[order]
    rank = np.arange(len(order)) - np.searchsorted(window, window)
    order, window, rank = order[rank < n], window[rank < n], rank[rank < n]
    places, found = np.zeros((size, 2, n), np.int64), np.full((size, 2, n), -np.inf, np.float32)
    first, last = first[order], last[order]
    places[window, 0, rank], places[window, 1, rank] = first, last
    found[window, 0, rank], found[window, 1, rank] = start[window, first], end[window, last]
    return places, found


def descending(scores: np.ndarray) -> np.ndarray:
    """int64 from 0 to 2**32 that sort as fp32 scores do, the highest first.

    The bits of positive floats sort as integers do, those of negative ones the other way round.
    """
    bits = scores.view(np.int32).astype(np.int64)
    return 2**31 - np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _sliding_max(values: np.ndarray, size: int) -> np.ndarray:
    """The greatest of each `size` values in a row: [windows, length] of [windows, length + size - 1].

    By stretches twice as long each time: a handful of operations.
    """
    width = 1
    while 2 * width <= size:
        values = np.maximum(values[:, :-width], values[:, width:])
        width *= 2
    rest = size - width
    return np.maximum(values[:, :-rest], values[:, rest:]) if rest else values
