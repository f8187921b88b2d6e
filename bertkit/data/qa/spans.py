"""The best answers of each window, from the scores of starts and ends."""

from collections.abc import Callable

import numpy as np


def find_distinct_spans(
    logits: np.ndarray, allowed: np.ndarray, n: int, longest: int, text: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """As `best_spans`, but of spans with the same text only the best.

    Half as many more are looked for at once, since a text that stands in a window twice is common.

    Args:
        text: from places [windows, 2, m] to what tells their texts apart, [windows, m].
    """
    wanted = n + n // 2
    while True:
        places, found = find_best_spans(logits, allowed, wanted, longest)
        at = _first_of_each(text(places))[:, :n]
        missing = at == wanted
        if (~missing[:, -1] | np.isneginf(found[:, 0, -1])).all():
            break
        wanted *= 2
    at = np.where(missing, 0, at)[:, None]
    found = np.where(missing[:, None], np.float32(-np.inf), np.take_along_axis(found, at, 2))
    return np.take_along_axis(places, at, 2), found


def _first_of_each(keys: np.ndarray) -> np.ndarray:
    """[rows, m] the places at which a row has a key for the first time, in order; m where no more do."""
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, 1)
    order[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = keys.shape[1]
    return np.sort(order, axis=1)


def find_best_spans(
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
    starts = np.flatnonzero(best >= bound)
    window, first = np.divmod(starts, length)
    stretches = np.ndarray((size, length, longest), end.dtype, end, strides=(*end.strides, end.strides[1]))
    start, ends = start.ravel()[starts], stretches[window, first]
    scores = start[:, None] + ends
    spans = np.flatnonzero(scores >= bound[window])
    which, further = np.divmod(spans, longest)
    order, slot = _ranked(window[which], scores.ravel()[spans], size, n)
    spans, which, further = spans[order], which[order], further[order]
    places, found = np.zeros((2, size * n), np.int64), np.full((2, size * n), -np.inf, np.float32)
    places[:, slot] = first[which], first[which] + further
    found[:, slot] = start[which], ends.ravel()[spans]
    return places.reshape(2, size, n).swapaxes(0, 1), found.reshape(2, size, n).swapaxes(0, 1)


def _ranked(window: np.ndarray, score: np.ndarray, size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The best `n` spans of each window, which come window by window, and the place of each in [size * n]."""
    order = np.argsort((window << 32) + compute_descending_keys(score))
    counts = np.bincount(window, minlength=size)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = rank < n
    return order[kept], (window * n + rank)[kept]


def compute_descending_keys(scores: np.ndarray) -> np.ndarray:
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
