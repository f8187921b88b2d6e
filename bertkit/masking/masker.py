"""Choose the tokens to predict in a batch, replace them, and measure the result."""

from dataclasses import dataclass

import numpy as np

from bertkit.masking.hashing import hashed_bits, hashed_uniform
from bertkit.masking.words import WordSpans
from bertkit.utils.ragged import concat_ranges

IGNORE_INDEX = -100  # the label of a position that is not predicted, as in PyTorch
# Streams of `hashed_bits`; lower numbers are reserved for sampling the examples themselves.
ORDER_STREAM, ACTION_STREAM, TOKEN_STREAM = 16, 17, 18
UNUSED, MASK, RANDOM, KEPT = range(4)  # what was done to a token
MISSING_WORD_SIZE = np.iinfo(np.int32).max  # padding in an array of word sizes: such a word never fits


@dataclass(frozen=True)
class MaskedBatch:
    """A masked batch. P is `max_predictions_per_seq` for every batch.

    Attributes:
        input_ids: [batch, seq_len] copy of the input with replacements.
        masked_lm_positions: [batch, P] int64, ascending; 0 where unused.
        masked_lm_labels: [batch, P] int64, the original tokens; -100 where unused.
        actions: [batch, P] int8, one of UNUSED, MASK, RANDOM and KEPT.
    """

    input_ids: np.ndarray
    masked_lm_positions: np.ndarray
    masked_lm_labels: np.ndarray
    actions: np.ndarray


@dataclass(frozen=True)
class TokenMasker:
    """Token masking (Devlin et al. 2018, 3.1), with Google's rules for whole words.

    Of n non-special tokens, round(n * mlm_probability) are chosen (Python's rounding), at most
    `max_predictions_per_seq`. Words are taken in random order; a word that would exceed the limit is
    skipped. If every word of an example exceeds it, the limit is raised to the shortest word, so that
    something is predicted, unless that exceeds `max_predictions_per_seq`. Without whole words, each token
    is treated as a word.

    Attributes:
        mask_token_id: Id of [MASK].
        random_token_ids: Ids that random replacements are sampled from: all but special tokens.
        is_continuation: [vocabulary] bool, see `find_continuation_tokens`; None masks single tokens.
        mlm_probability: Fraction of the tokens to choose.
        mask_replace_prob: Fraction of the chosen tokens that are replaced by [MASK].
        random_replace_prob: Fraction of the chosen tokens that are replaced by a random token.
        max_predictions_per_seq: Maximum number of chosen tokens per example.
        seed: Seed of all random choices.
    """

    mask_token_id: int
    random_token_ids: np.ndarray
    is_continuation: np.ndarray | None
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    max_predictions_per_seq: int = 20
    seed: int = 42

    def __call__(self, input_ids: np.ndarray, is_special: np.ndarray, keys: np.ndarray) -> MaskedBatch:
        """Mask a batch; the result for an example depends on its tokens and key, not on batch or padding.

        Args:
            input_ids: [batch, seq_len].
            is_special: [batch, seq_len] bool: special tokens and padding, which are never chosen.
            keys: [batch] int64, see `hashed_uniform`.
        """
        batch_size, length = input_ids.shape
        places = self._choose(WordSpans.from_batch(input_ids, is_special, self.is_continuation), keys)
        rows = places // length
        slots = rows * self.max_predictions_per_seq + _rank_in_row(np.bincount(rows, minlength=batch_size))
        labels = input_ids.ravel()[places]
        replacements, actions = self._replace(labels, keys, slots)
        masked = input_ids.copy()
        masked.ravel()[places] = replacements
        shape = (batch_size, self.max_predictions_per_seq)
        return MaskedBatch(
            masked,
            _fill(np.zeros(shape, np.int64), slots, places - rows * length),
            _fill(np.full(shape, IGNORE_INDEX, np.int64), slots, labels),
            _fill(np.full(shape, UNUSED, np.int8), slots, actions),
        )

    def _choose(self, words: WordSpans, keys: np.ndarray) -> np.ndarray:
        """Return [chosen] places of the chosen tokens in the flattened batch, ascending."""
        is_word = np.arange(words.word_counts.max(initial=0)) < words.word_counts[:, None]
        order = _shuffle_columns(hashed_bits(self.seed, keys, is_word.shape[1], ORDER_STREAM))
        sizes = _fill(np.full(is_word.shape, MISSING_WORD_SIZE, np.int32), is_word, words.sizes)
        shortest = sizes.min(axis=1, initial=MISSING_WORD_SIZE)
        wanted = np.rint(words.token_counts * self.mlm_probability).astype(np.int32)
        limits = np.minimum(np.maximum(wanted, shortest), self.max_predictions_per_seq)
        is_chosen = select_greedily(np.take_along_axis(sizes, order, axis=1), limits)
        first_words = np.cumsum(words.word_counts) - words.word_counts
        chosen = np.sort((order + first_words[:, None])[is_chosen])
        return concat_ranges(words.starts[chosen], words.starts[chosen] + words.sizes[chosen])

    def _replace(
        self, labels: np.ndarray, keys: np.ndarray, slots: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return [chosen] the replacement of each token, and [chosen] the action."""
        size = self.max_predictions_per_seq
        action_draws = hashed_uniform(self.seed, keys, size, ACTION_STREAM).ravel()[slots]
        token_draws = hashed_uniform(self.seed, keys, size, TOKEN_STREAM).ravel()[slots]
        random_ids = self.random_token_ids[(token_draws * len(self.random_token_ids)).astype(np.int64)]
        is_mask = action_draws < self.mask_replace_prob
        is_random = action_draws < self.mask_replace_prob + self.random_replace_prob
        actions = np.where(is_mask, MASK, np.where(is_random, RANDOM, KEPT))
        return np.where(is_mask, self.mask_token_id, np.where(is_random, random_ids, labels)), actions


def select_greedily(sizes: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return [batch, words] bool: the words taken when each in turn is taken if it still fits.

    Each round takes all words up to the first that does not fit, and discards the words that exceed the
    remaining room.

    Args:
        sizes: [batch, words] number of tokens of each word, in order.
        limits: [batch] maximum number of tokens in all words taken.
    """
    taken, rows, room = np.zeros(sizes.shape, bool), np.arange(len(sizes)), limits[:, None]
    remaining = np.where(sizes <= room, sizes, 0)  # 0: taken or discarded
    while len(rows):
        totals = np.cumsum(remaining, axis=1, dtype=remaining.dtype)
        fits = totals <= room
        taken[rows] |= fits & (remaining > 0)
        room = room - np.where(fits, totals, 0).max(axis=1, initial=0, keepdims=True)
        remaining *= ~fits & (remaining <= room)
        is_open = remaining.any(axis=1)
        rows, remaining, room = rows[is_open], remaining[is_open], room[is_open]
    return taken


def _shuffle_columns(random_bits: np.ndarray) -> np.ndarray:
    """Return [batch, n] a random permutation of the columns of each row, from [batch, n] uint64 bits.

    The lower half of the bits is replaced by the column index: sorting integers is faster than argsort.
    """
    lower = np.uint64(2**32 - 1)
    keys = random_bits & ~lower | np.arange(random_bits.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & lower).astype(np.int64)


def _rank_in_row(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... counts[0] - 1, 0, 1, ...: the index of each item within its row."""
    return concat_ranges(np.zeros_like(counts), counts)


def _fill(array: np.ndarray, where: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Write values to an array where a mask is true, or at flat indices, and return the array."""
    array.ravel()[where.ravel()] = values
    return array


# ---- measurements


def measure_masking(
    masked: MaskedBatch, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
) -> dict[str, float]:
    """Measure the fractions of a masked batch; a fraction of nothing is 0.

    Args:
        masked: The masked batch.
        input_ids: [batch, seq_len] before masking.
        is_special: [batch, seq_len] bool before masking.
        is_continuation: [vocabulary] bool that defines words; None: each token is a word.

    Returns:
        `selected`: the selected fraction of the non-special tokens. Fractions of the selected tokens:
        `mask`, `random` (even if the random token equals the original one), `kept` and
        `special_selected`. `whole_words`: of the words with a selected token, those selected completely.
    """
    row, slot = np.nonzero(masked.actions != UNUSED)
    is_selected = np.zeros(is_special.shape, bool)
    is_selected[row, masked.masked_lm_positions[row, slot]] = True
    words = WordSpans.from_batch(input_ids, is_special, is_continuation)
    cumulative = np.concatenate([[0], np.cumsum(is_selected)])
    selected_in_word = cumulative[words.starts + words.sizes] - cumulative[words.starts]
    actions = np.bincount(masked.actions.ravel(), minlength=KEPT + 1)
    return {
        "selected": safe_divide(len(row), words.token_counts.sum()),
        "mask": safe_divide(actions[MASK], len(row)),
        "random": safe_divide(actions[RANDOM], len(row)),
        "kept": safe_divide(actions[KEPT], len(row)),
        "special_selected": safe_divide((is_selected & is_special).sum(), len(row)),
        "whole_words": safe_divide((selected_in_word == words.sizes).sum(), (selected_in_word > 0).sum()),
    }


def safe_divide(part: int, whole: int) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return float(part / whole) if whole else 0.0
