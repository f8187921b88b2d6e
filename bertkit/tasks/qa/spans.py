"""Find the best answer spans of each window.

Of several spans with the same text, only the best is kept. Texts are compared by their rolling hashes, which
are computed without slicing the texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.tokens import TokenizedTexts
from bertkit.utils.arrays import compute_positions_in_groups

BASE = 0x9E3779B97F4A7C15  # base of the rolling hash: an arbitrary large odd number
BASE_INVERSE = pow(BASE, -1, 2**64)
TEXTS_PER_BLOCK = 256  # number of texts hashed at a time, which limits the memory for arrays of characters

# ---- the best spans of each window


def find_distinct_spans(
    logits: np.ndarray,
    allowed: np.ndarray,
    n: int,
    max_answer_length: int,
    hash_spans: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best spans with different texts, in the same form as `find_best_spans`.

    The search begins with n + n // 2 spans, since windows often contain a text twice. This number is doubled
    until each window has `n` distinct texts or no more spans.

    Args:
        logits: [windows, 2, seq_len] fp32, start and end logits.
        allowed: [windows, seq_len] bool, whether an answer may begin or end at a position.
        n: Number of spans to return for each window.
        hash_spans: Maps first and last positions [windows, 2, m] to hashes of the texts [windows, m].
    """
    num_candidates = n + n // 2
    while True:
        positions, span_logits = find_best_spans(logits, allowed, num_candidates, max_answer_length)
        chosen = _find_first_occurrences(hash_spans(positions))[:, :n]
        is_missing = chosen == num_candidates
        has_no_more_spans = np.isneginf(span_logits[:, 0, -1])
        if (~is_missing[:, -1] | has_no_more_spans).all():
            break
        num_candidates *= 2
    chosen = np.where(is_missing, 0, chosen)[:, None]
    chosen_logits = np.take_along_axis(span_logits, chosen, 2)
    span_logits = np.where(is_missing[:, None], np.float32(-np.inf), chosen_logits)
    return np.take_along_axis(positions, chosen, 2), span_logits


def _find_first_occurrences(keys: np.ndarray) -> np.ndarray:
    """Return the columns in which a key occurs for the first time in its row [rows, m].

    The columns of a row are ascending. A row with fewer than `m` distinct keys is padded with `m`.
    """
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, 1)
    order[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = keys.shape[1]
    return np.sort(order, axis=1)


def find_best_spans(
    logits: np.ndarray, allowed: np.ndarray, n: int, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `n` spans with the highest S·T_i + E·T_j, j >= i (Devlin et al. 2018, 4.2), best first.

    The search is exact and cheap. The best span of each start is found first. The n-th highest score among
    these spans is a lower bound of the score of the n-th best span. Only spans that reach the bound are
    sorted, and these are few.

    Args:
        logits: [windows, 2, seq_len] fp32, start and end logits.
        allowed: [windows, seq_len] bool, whether an answer may begin or end at a position.
        n: Number of spans to return for each window.

    Returns:
        The first and last positions of the spans [windows, 2, n] int, and their start and end logits
        [windows, 2, n]. The logits are -inf if a window has fewer than `n` spans.
    """
    num_windows, seq_len = allowed.shape
    max_answer_length = min(max_answer_length, seq_len)
    start_logits = np.where(allowed, logits[:, 0], np.float32(-np.inf))
    # Padded with -inf, so that every start has `max_answer_length` possible ends.
    end_logits = np.full((num_windows, seq_len + max_answer_length - 1), -np.inf, np.float32)
    np.copyto(end_logits[:, :seq_len], logits[:, 1], where=allowed)
    best_scores = start_logits + _compute_sliding_max(end_logits, max_answer_length)
    bound = np.full((num_windows, 1), np.finfo(np.float32).min)  # excludes scores of -inf: no valid span
    if n <= seq_len:
        bound = np.maximum(bound, np.partition(best_scores, -n, axis=1)[:, -n, None])
    # Candidates are the starts whose best span reaches the bound.
    candidates = np.flatnonzero(best_scores >= bound)
    candidate_window, candidate_position = np.divmod(candidates, seq_len)
    # A view [windows, seq_len, max_answer_length] of the logits of all ends that each start may have.
    end_logits_by_start = np.ndarray(
        (num_windows, seq_len, max_answer_length), end_logits.dtype, end_logits,
        strides=(*end_logits.strides, end_logits.strides[1]),
    )  # fmt: skip
    candidate_start_logits = start_logits.ravel()[candidates]
    candidate_end_logits = end_logits_by_start[candidate_window, candidate_position]
    scores = candidate_start_logits[:, None] + candidate_end_logits
    # Spans are indices into the flattened scores.
    spans = np.flatnonzero(scores >= bound[candidate_window])
    span_window = candidate_window[spans // max_answer_length]
    order, output_index = _rank_spans(span_window, scores.ravel()[spans], num_windows, n)
    spans = spans[order]
    span_candidate, num_further_tokens = np.divmod(spans, max_answer_length)
    positions = np.zeros((2, num_windows * n), np.int64)
    span_logits = np.full((2, num_windows * n), -np.inf, np.float32)
    positions[0, output_index] = candidate_position[span_candidate]
    positions[1, output_index] = candidate_position[span_candidate] + num_further_tokens
    span_logits[0, output_index] = candidate_start_logits[span_candidate]
    span_logits[1, output_index] = candidate_end_logits.ravel()[spans]
    shape = 2, num_windows, n
    return positions.reshape(shape).swapaxes(0, 1), span_logits.reshape(shape).swapaxes(0, 1)


def _rank_spans(
    window: np.ndarray, score: np.ndarray, num_windows: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rank the spans of each window by score.

    Args:
        window: [spans] index of each span's window, ascending.
        score: [spans] fp32 score of each span.
        num_windows: Number of windows.
        n: Number of spans to keep for each window.

    Returns:
        The indices of the best spans of each window, best first, and where they belong in a flattened array
        [num_windows, n].
    """
    order = np.argsort((window << 32) + compute_descending_keys(score))
    rank = compute_positions_in_groups(np.bincount(window, minlength=num_windows))
    is_kept = rank < n
    return order[is_kept], (window * n + rank)[is_kept]


def compute_descending_keys(scores: np.ndarray) -> np.ndarray:
    """Return int64 keys from 0 to 2**32 that sort fp32 scores in descending order.

    Read as integers, the bit patterns of positive floats sort like the floats. Those of negative floats sort
    in reverse.
    """
    patterns = scores.view(np.int32).astype(np.int64)
    return 2**31 - np.where(patterns < 0, -(patterns & 0x7FFFFFFF), patterns)


def _compute_sliding_max(values: np.ndarray, size: int) -> np.ndarray:
    """Return the maximum of each `size` consecutive values: [windows, n] from [windows, n + size - 1].

    The number of values in a maximum doubles at each step, so about log2(size) operations suffice.
    """
    width = 1  # number of values in a maximum
    while 2 * width <= size:
        values = np.maximum(values[:, :-width], values[:, width:])
        width *= 2
    rest = size - width
    return np.maximum(values[:, :-rest], values[:, rest:]) if rest else values


# ---- rolling hashes


@dataclass(frozen=True)
class RollingHash:
    """Prefix hashes of texts at token boundaries (Karp and Rabin 1987).

    The hash of a prefix is the sum of c_i * BASE**i over its characters c_i, modulo 2**64.

    Attributes:
        start_hash: [tokens] hash of the prefix before each token.
        end_hash: [tokens] hash of the prefix that ends with each token.
        start_scale: [tokens] BASE**-i, where i is the index of each token's first character.
    """

    start_hash: np.ndarray
    end_hash: np.ndarray
    start_scale: np.ndarray

    def hash_spans(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the hashes of the texts from a first to a last token, independent of the texts' positions.

        The hashes of different texts are equal with a probability of about 2**-64. The hash for token
        indices out of range is arbitrary.
        """
        start_hash = self.start_hash.take(first, mode="clip")
        start_scale = self.start_scale.take(first, mode="clip")
        return (self.end_hash.take(last, mode="clip") - start_hash) * start_scale


def build_rolling_hash(texts: Sequence[str], tokenized: TokenizedTexts) -> RollingHash:
    """Compute the prefix hashes of texts at the boundaries of their tokens."""
    token_offsets, text_offsets = tokenized.ids.offsets, tokenized.text_offsets
    hashes = np.zeros((3, len(tokenized.start)), np.uint64)
    for first in range(0, len(texts), TEXTS_PER_BLOCK):
        block = texts[first : first + TEXTS_PER_BLOCK]
        characters = np.frombuffer("\0".join(block).encode("utf-32-le", "surrogatepass"), np.uint32)
        prefix_hash = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(characters * _compute_powers(BASE, len(characters)), out=prefix_hash[1:])
        bounds = token_offsets[first : first + len(block) + 1]
        tokens = slice(bounds[0], bounds[-1])
        # Added to an index into a text, the shift gives an index into the characters of the block.
        shift = np.repeat(text_offsets[first : first + len(block)] - text_offsets[first], np.diff(bounds))
        start, stop = tokenized.start[tokens] + shift, tokenized.stop[tokens] + shift
        scale = _compute_powers(BASE_INVERSE, len(characters) + 1)
        hashes[:, tokens] = prefix_hash[start], prefix_hash[stop], scale[start]
    return RollingHash(*hashes)


def _compute_powers(base: int, size: int) -> np.ndarray:
    """Return the powers base**0 ... base**(size - 1), modulo 2**64 [size]."""
    factors = np.full(size, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)
