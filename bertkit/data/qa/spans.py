"""The best answer spans: of each window from its logits, and of each question over all of its windows.

Spans with the same text count once. A rolling hash compares their texts without slicing them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertkit.data.tokenization import TokenizedTexts
from bertkit.utils.ragged import offsets_from_lengths, position_in_group

if TYPE_CHECKING:
    from bertkit.data.qa.features import QuestionFeatures

BASE = 0x9E3779B97F4A7C15  # any large odd number
BASE_INVERSE = pow(BASE, -1, 2**64)
TEXTS_PER_BLOCK = 256  # texts hashed at a time; hashing takes eight bytes of memory per character
TEXT_HASH_FACTOR = 0xD1B54A32D192ED03  # odd, so that a product modulo 2**64 spreads over all bits

# ---- the best spans of each window


def find_distinct_spans(
    logits: np.ndarray,
    allowed: np.ndarray,
    n: int,
    max_answer_length: int,
    hash_spans: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best spans as `find_best_spans` does, but only the best of several with the same text.

    The search starts with n + n // 2 spans, since texts that occur twice in a window are common.

    Args:
        logits: [windows, 2, seq_len] fp32 of starts and ends.
        allowed: [windows, seq_len] bool, where an answer may begin and end.
        n: Number of spans to return.
        max_answer_length: Maximum length of an answer in tokens.
        hash_spans: Maps positions [windows, 2, m] to hashes of their texts [windows, m].
    """
    candidates = n + n // 2
    while True:
        positions, span_logits = find_best_spans(logits, allowed, candidates, max_answer_length)
        chosen = _find_first_occurrences(hash_spans(positions))[:, :n]
        is_missing = chosen == candidates
        has_all_spans = np.isneginf(span_logits[:, 0, -1])
        if (~is_missing[:, -1] | has_all_spans).all():
            break
        candidates *= 2
    chosen = np.where(is_missing, 0, chosen)[:, None]
    chosen_logits = np.take_along_axis(span_logits, chosen, 2)
    span_logits = np.where(is_missing[:, None], np.float32(-np.inf), chosen_logits)
    return np.take_along_axis(positions, chosen, 2), span_logits


def _find_first_occurrences(keys: np.ndarray) -> np.ndarray:
    """Return [rows, m] the columns where a key occurs first in its row, ascending; m marks the end."""
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, 1)
    order[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = keys.shape[1]
    return np.sort(order, axis=1)


def find_best_spans(
    logits: np.ndarray, allowed: np.ndarray, n: int, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `n` spans with the highest S·T_i + E·T_j, j >= i (Devlin et al. 2018, 4.2), best first.

    The search is exact and cheap. Each start with its best end is a span, so the n-th best of these is a
    lower bound of the n-th best span. Only the few spans above the bound are sorted.

    Args:
        logits: [windows, 2, seq_len] fp32 of starts and ends.
        allowed: [windows, seq_len] bool, where an answer may begin and end.
        n: Number of spans.
        max_answer_length: Maximum length of an answer in tokens.

    Returns:
        First and last positions [windows, 2, n] int, and their logits [windows, 2, n], which are -inf if
        there are fewer spans.
    """
    num_windows, length = allowed.shape
    max_answer_length = min(max_answer_length, length)
    start = np.where(allowed, logits[:, 0], np.float32(-np.inf))
    end = np.full((num_windows, length + max_answer_length - 1), -np.inf, np.float32)
    np.copyto(end[:, :length], logits[:, 1], where=allowed)
    best = start + _compute_sliding_max(end, max_answer_length)
    bound = np.full((num_windows, 1), np.finfo(np.float32).min)  # a score of -inf is not a span
    if n <= length:
        bound = np.maximum(bound, np.partition(best, -n, axis=1)[:, -n, None])
    candidates = np.flatnonzero(best >= bound)
    candidate_window, candidate_start = np.divmod(candidates, length)
    # [windows, seq_len, max_answer_length]: a view of the ends that each start may have
    ends_by_start = np.ndarray(
        (num_windows, length, max_answer_length), end.dtype, end, strides=(*end.strides, end.strides[1])
    )
    start_logits = start.ravel()[candidates]
    end_logits = ends_by_start[candidate_window, candidate_start]
    scores = start_logits[:, None] + end_logits
    spans = np.flatnonzero(scores >= bound[candidate_window])
    candidate, num_further_tokens = np.divmod(spans, max_answer_length)
    order, slot = _rank_spans(candidate_window[candidate], scores.ravel()[spans], num_windows, n)
    spans, candidate, num_further_tokens = spans[order], candidate[order], num_further_tokens[order]
    positions = np.zeros((2, num_windows * n), np.int64)
    span_logits = np.full((2, num_windows * n), -np.inf, np.float32)
    first = candidate_start[candidate]
    positions[:, slot] = first, first + num_further_tokens
    span_logits[:, slot] = start_logits[candidate], end_logits.ravel()[spans]
    shape = 2, num_windows, n
    return positions.reshape(shape).swapaxes(0, 1), span_logits.reshape(shape).swapaxes(0, 1)


def _rank_spans(
    window: np.ndarray, score: np.ndarray, num_windows: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best `n` spans of each window, best first, and the index of each in [num_windows * n].

    The spans must be grouped by window.
    """
    order = np.argsort((window << 32) + compute_descending_keys(score))
    rank = position_in_group(np.bincount(window, minlength=num_windows))
    kept = rank < n
    return order[kept], (window * n + rank)[kept]


def compute_descending_keys(scores: np.ndarray) -> np.ndarray:
    """Return int64 keys from 0 to 2**32 that sort fp32 scores in descending order.

    The bit patterns of positive floats sort like integers, those of negative floats in reverse.
    """
    patterns = scores.view(np.int32).astype(np.int64)
    return 2**31 - np.where(patterns < 0, -(patterns & 0x7FFFFFFF), patterns)


def _compute_sliding_max(values: np.ndarray, size: int) -> np.ndarray:
    """Return the maximum of each `size` consecutive values: [windows, n] of [windows, n + size - 1].

    The width doubles at each step, so a handful of operations suffices.
    """
    width = 1
    while 2 * width <= size:
        values = np.maximum(values[:, :-width], values[:, width:])
        width *= 2
    rest = size - width
    return np.maximum(values[:, :-rest], values[:, rest:]) if rest else values


# ---- the n-best list of each question


@dataclass(frozen=True)
class NBest:
    """The answers of `n` questions, concatenated and sorted best first; each question has at least one.

    Attributes:
        offsets: [n + 1] index of each question's first answer.
        start: [answers] first character in the context.
        stop: [answers] end in the context.
        start_logit: [answers] S·T_i.
        end_logit: [answers] E·T_j.
        null_logits: [n, 2] S·C and E·C of the window with the lowest null score.
    """

    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray
    null_logits: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """[answers] S·T_i + E·T_j."""
        return self.start_logit + self.end_logit

    @property
    def null_odds(self) -> np.ndarray:
        """[n] s_null minus the score of the best answer (Devlin et al. 2018, 4.3)."""
        return (self.null_logits.sum(1) - self.score[self.offsets[:-1]]).astype(np.float64)

    def compute_probabilities(self, include_null: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the softmax over each question's answers [answers], and the probability of no answer [n].

        Args:
            include_null: Whether "no answer" takes part in the softmax; its probability is 0 otherwise.
        """
        first, counts = self.offsets[:-1], np.diff(self.offsets)
        score, null_score = self.score.astype(np.float64), self.null_logits.sum(1, np.float64)
        best = np.maximum(score[first], null_score) if include_null else score[first]
        answers = np.exp(score - np.repeat(best, counts))
        null = np.exp(null_score - best) if include_null else np.zeros(len(null_score))
        total = np.add.reduceat(answers, first) + null
        return answers / np.repeat(total, counts), null / total


def merge_windows(reduced: np.ndarray, features: "QuestionFeatures") -> NBest:
    """Merge the answers of each question's windows; of several answers with the same text the best remains.

    s_null is the lowest of the windows, as in google's `run_squad.py`: a window without the answer says
    nothing about the others.

    Args:
        reduced: [windows, 2 + 4 n_best], the result of `QuestionFeatures.reduce_logits`.
        features: The features that the logits were computed from.
    """
    n = features.limits.n_best
    logits = reduced[:, 2 : 2 + 2 * n].reshape(-1, 2, n)
    tokens = features.start[:, None, None] + reduced[:, 2 + 2 * n :].reshape(-1, 2, n).astype(np.int64)
    exists = np.isfinite(logits).all(1)
    tokens = np.where(exists[:, None], tokens, 0)
    start, stop = features.contexts.start[tokens[:, 0]], features.contexts.stop[tokens[:, 1]]
    text = np.where(stop > start, features.rolling_hash.hash_spans(tokens[:, 0], tokens[:, 1]), 0)
    question = np.broadcast_to(features.question_index[:, None], start.shape)
    null = _select_lowest_null(reduced[:, :2], features)
    # A question whose context has no tokens gets the empty answer with the null logits.
    empty = np.flatnonzero(np.bincount(question[exists], minlength=len(null)) == 0)
    zeros = np.zeros(len(empty), start.dtype)
    return _build_n_best(
        np.concatenate([question[exists], empty]),
        np.concatenate([text[exists], zeros.astype(text.dtype)]),
        np.concatenate([start[exists], zeros]),
        np.concatenate([stop[exists], zeros]),
        np.concatenate([logits[:, 0][exists], null[empty, 0]]),
        np.concatenate([logits[:, 1][exists], null[empty, 1]]),
        null,
        n,
    )


def _select_lowest_null(null: np.ndarray, features: "QuestionFeatures") -> np.ndarray:
    """Return [n, 2] the null logits of each question's window with the lowest null score."""
    order = np.lexsort((null.sum(1), features.question_index))
    return null[order[features.window_offsets[:-1]]]


def _build_n_best(
    question: np.ndarray, text: np.ndarray, start: np.ndarray, stop: np.ndarray,
    start_logit: np.ndarray, end_logit: np.ndarray, null: np.ndarray, n: int,
) -> NBest:  # fmt: skip
    """Select the best `n` answers of each question; of answers with the same text only the best.

    The answers of a window are sorted already, which makes the stable sort fast.
    """
    order = np.argsort((question << 32) + compute_descending_keys(start_logit + end_logit), kind="stable")
    answer_key = text * np.uint64(TEXT_HASH_FACTOR) + question.astype(np.uint64)
    order = order[np.sort(np.unique(answer_key[order], return_index=True)[1])]
    counts = np.bincount(question[order], minlength=len(null))
    order = order[position_in_group(counts) < n]
    offsets = offsets_from_lengths(np.minimum(counts, n))
    return NBest(offsets, start[order], stop[order], start_logit[order], end_logit[order], null)


# ---- hashes of spans


@dataclass(frozen=True)
class RollingHash:
    """Prefix hashes of texts at token boundaries (Karp and Rabin 1987).

    A prefix hash is the sum of characters times powers of `BASE`, modulo 2**64.

    Attributes:
        start_hash: [tokens] hash of all characters before the token.
        end_hash: [tokens] hash of all characters up to the end of the token.
        start_scale: [tokens] `BASE` to the power of minus the token's first character index.
    """

    start_hash: np.ndarray
    end_hash: np.ndarray
    start_scale: np.ndarray

    def hash_spans(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Hash the texts from one token to another, independently of their position.

        Two different texts collide with a probability of 2**-64. Token indices out of range give any number.
        """
        start_hash = self.start_hash.take(first, mode="clip")
        start_scale = self.start_scale.take(first, mode="clip")
        return (self.end_hash.take(last, mode="clip") - start_hash) * start_scale


def build_rolling_hash(texts: Sequence[str], tokenized: TokenizedTexts) -> RollingHash:
    """Build the prefix hashes of texts."""
    token_offsets, text_offsets = tokenized.ids.offsets, tokenized.text_offsets
    hashes = np.zeros((3, token_offsets[-1]), np.uint64)
    for first in range(0, len(texts), TEXTS_PER_BLOCK):
        block = texts[first : first + TEXTS_PER_BLOCK]
        characters = np.frombuffer("\0".join(block).encode("utf-32-le", "surrogatepass"), np.uint32)
        prefix_hash = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(characters * _compute_powers(BASE, len(characters)), out=prefix_hash[1:])
        bounds = token_offsets[first : first + len(block) + 1]
        tokens = slice(bounds[0], bounds[-1])
        shift = np.repeat(text_offsets[first : first + len(block)] - text_offsets[first], np.diff(bounds))
        start, stop = tokenized.start[tokens] + shift, tokenized.stop[tokens] + shift
        scale = _compute_powers(BASE_INVERSE, len(characters) + 1)
        hashes[:, tokens] = prefix_hash[start], prefix_hash[stop], scale[start]
    return RollingHash(*hashes)


def _compute_powers(base: int, size: int) -> np.ndarray:
    """Return [size] 1, base, base**2 ..., modulo 2**64."""
    factors = np.full(size, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)
