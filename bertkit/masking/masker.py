"""Choose the tokens to predict in a batch, replace them, and measure the result."""

from dataclasses import dataclass

import numpy as np

from bertkit.masking.hashing import hashed_bits, hashed_uniform
from bertkit.masking.words import WordSpans
from bertkit.utils.ragged import compute_positions_in_groups, concat_ranges

IGNORE_INDEX = -100  # the label of a position that is not predicted, as in PyTorch
# Random streams of `hashed_uniform`. A change of these arbitrary numbers changes the masks of a seed.
ORDER_STREAM = 16  # the order in which the words of an example are considered
ACTION_STREAM = 17  # whether a chosen token is masked, replaced by a random token, or kept
TOKEN_STREAM = 18  # which random token replaces a chosen token
UNUSED, MASK, RANDOM, KEPT = range(4)  # values of `MaskedBatch.actions`
PADDING_WORD_SIZE = np.iinfo(np.int32).max  # pads rows of word sizes; a word of this size is never chosen


@dataclass(frozen=True)
class MaskedBatch:
    """A masked batch, with P = `max_predictions_per_seq` predictions for each example.

    If fewer than P tokens of an example are chosen, its last predictions are unused.

    Attributes:
        input_ids: [batch, seq_len] copy of the input in which chosen tokens are replaced.
        masked_lm_positions: [batch, P] int64, ascending positions of the chosen tokens; 0 if unused.
        masked_lm_labels: [batch, P] int64, original ids of the chosen tokens; -100 if unused.
        actions: [batch, P] int8, what was done to each chosen token: MASK, RANDOM or KEPT; UNUSED if unused.
    """

    input_ids: np.ndarray
    masked_lm_positions: np.ndarray
    masked_lm_labels: np.ndarray
    actions: np.ndarray


@dataclass(frozen=True)
class TokenMasker:
    """Token masking (Devlin et al. 2018, 3.1), with whole-word masking as in Google's BERT code.

    In an example of n non-special tokens, at most round(n * mlm_probability) tokens are chosen (Python's
    rounding), and never more than `max_predictions_per_seq`. Words are considered in random order; a word
    is skipped if the number of chosen tokens would exceed this maximum.

    If every word of an example exceeds round(n * mlm_probability), one of the shortest words is chosen, so
    that the example has a prediction. A word longer than `max_predictions_per_seq` is never chosen. Without
    whole-word masking, each token counts as a word.

    Attributes:
        mask_token_id: Id of [MASK].
        random_token_ids: Ids that random replacements are sampled from: all but special tokens.
        is_continuation: [vocabulary] bool, see `find_continuation_tokens`. None turns off whole-word masking.
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

    def __call__(
        self,
        input_ids: np.ndarray,
        is_special: np.ndarray,
        keys: np.ndarray,
        is_continuation: np.ndarray | None = None,
    ) -> MaskedBatch:
        """Mask a batch.

        The result for an example depends only on its tokens and key, not on padding or the other examples.

        Args:
            input_ids: [batch, seq_len] token ids.
            is_special: [batch, seq_len] bool, whether a token is special or padding, and never chosen.
            keys: [batch] int64, the key of each example, see `hashed_uniform`.
            is_continuation: [batch, seq_len] bool, whether a token continues the word of the previous token.
                It replaces the attribute `is_continuation`.
        """
        if is_continuation is None:
            is_continuation = self.is_continuation
        batch_size, seq_len = input_ids.shape
        predictions_shape = (batch_size, self.max_predictions_per_seq)
        words = WordSpans.from_batch(input_ids, is_special, is_continuation)
        token_indices = self._choose_tokens(words, keys)
        rows, positions = np.divmod(token_indices, seq_len)
        chosen_counts = np.bincount(rows, minlength=batch_size)
        # Indices into the flattened arrays of shape [batch, P].
        prediction_indices = rows * self.max_predictions_per_seq + compute_positions_in_groups(chosen_counts)
        original_ids = input_ids.ravel()[token_indices]
        actions = self._choose_actions(keys, prediction_indices)
        masked = input_ids.copy()
        masked.ravel()[token_indices] = self._replace(original_ids, actions, keys, prediction_indices)
        return MaskedBatch(
            masked,
            _scatter(np.zeros(predictions_shape, np.int64), prediction_indices, positions),
            _scatter(np.full(predictions_shape, IGNORE_INDEX, np.int64), prediction_indices, original_ids),
            _scatter(np.full(predictions_shape, UNUSED, np.int8), prediction_indices, actions),
        )

    def _choose_tokens(self, words: WordSpans, keys: np.ndarray) -> np.ndarray:
        """Return the indices of the chosen tokens in the flattened batch [chosen], ascending."""
        is_word = np.arange(words.word_counts.max(initial=0)) < words.word_counts[:, None]
        sizes = np.full(is_word.shape, PADDING_WORD_SIZE, np.int32)
        sizes[is_word] = words.sizes
        target_counts = np.rint(words.token_counts * self.mlm_probability).astype(np.int32)
        shortest_sizes = sizes.min(axis=1, initial=PADDING_WORD_SIZE)
        max_counts = np.minimum(np.maximum(target_counts, shortest_sizes), self.max_predictions_per_seq)
        order = _random_permutations(hashed_bits(self.seed, keys, is_word.shape[1], ORDER_STREAM))
        is_chosen = select_greedily(np.take_along_axis(sizes, order, axis=1), max_counts)
        first_words = np.cumsum(words.word_counts) - words.word_counts
        chosen_words = np.sort((order + first_words[:, None])[is_chosen])
        starts = words.starts[chosen_words]
        return concat_ranges(starts, starts + words.sizes[chosen_words])

    def _choose_actions(self, keys: np.ndarray, prediction_indices: np.ndarray) -> np.ndarray:
        """Return MASK, RANDOM or KEPT for each chosen token [chosen]."""
        uniform = self._sample_uniform(keys, prediction_indices, ACTION_STREAM)
        is_mask = uniform < self.mask_replace_prob
        is_mask_or_random = uniform < self.mask_replace_prob + self.random_replace_prob
        return np.where(is_mask, MASK, np.where(is_mask_or_random, RANDOM, KEPT))

    def _replace(
        self, original_ids: np.ndarray, actions: np.ndarray, keys: np.ndarray, prediction_indices: np.ndarray
    ) -> np.ndarray:
        """Return the ids that replace the original ids of the chosen tokens [chosen]."""
        uniform = self._sample_uniform(keys, prediction_indices, TOKEN_STREAM)
        random_ids = self.random_token_ids[(uniform * len(self.random_token_ids)).astype(np.int64)]
        return np.where(
            actions == MASK, self.mask_token_id, np.where(actions == RANDOM, random_ids, original_ids)
        )

    def _sample_uniform(self, keys: np.ndarray, prediction_indices: np.ndarray, stream: int) -> np.ndarray:
        """Return a uniform random number in [0, 1) for each chosen token [chosen]."""
        uniform = hashed_uniform(self.seed, keys, self.max_predictions_per_seq, stream)
        return uniform.ravel()[prediction_indices]


def select_greedily(sizes: np.ndarray, max_counts: np.ndarray) -> np.ndarray:
    """Select words of each example from left to right, skipping each word that exceeds the maximum.

    The loop processes all examples at once. Each round selects every word before the first that does not
    fit, then discards all words larger than the number of tokens left.

    Args:
        sizes: [batch, words] number of tokens of each word.
        max_counts: [batch] maximum number of tokens in all selected words of an example.

    Returns:
        [batch, words] bool, whether a word is selected.
    """
    is_selected = np.zeros(sizes.shape, bool)
    rows = np.arange(len(sizes))  # the examples that have candidates
    tokens_left = max_counts[:, None]
    candidates = np.where(sizes <= tokens_left, sizes, 0)  # sizes of the candidates, 0 for all other words
    while len(rows):
        totals = np.cumsum(candidates, axis=1, dtype=candidates.dtype)
        fits = totals <= tokens_left
        is_selected[rows] |= fits & (candidates > 0)
        tokens_left = tokens_left - np.where(fits, totals, 0).max(axis=1, initial=0, keepdims=True)
        candidates *= ~fits & (candidates <= tokens_left)
        has_candidates = candidates.any(axis=1)
        rows = rows[has_candidates]
        candidates, tokens_left = candidates[has_candidates], tokens_left[has_candidates]
    return is_selected


def _random_permutations(random_bits: np.ndarray) -> np.ndarray:
    """Return one random permutation of 0 ... n - 1 per row [batch, n], from random bits [batch, n] uint64.

    Each column index replaces the lower 32 of the column's random bits. The sorted numbers therefore contain
    the permutation, and sorting them is faster than `np.argsort`.
    """
    lower_bits = np.uint64(2**32 - 1)
    numbers = random_bits & ~lower_bits | np.arange(random_bits.shape[1], dtype=np.uint64)
    numbers.sort(axis=1)
    return (numbers & lower_bits).astype(np.int64)


def _scatter(array: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Write values at indices of the flattened array, and return the array."""
    array.ravel()[indices] = values
    return array


# ---- measurements


def measure_masking(
    masked: MaskedBatch, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
) -> dict[str, float]:
    """Measure which fractions of a batch were chosen and replaced; 0 if the denominator is 0.

    Args:
        masked: The masked batch.
        input_ids: [batch, seq_len] token ids before masking.
        is_special: [batch, seq_len] bool, whether a token was special or padding before masking.
        is_continuation: [vocabulary] or [batch, seq_len] bool that defines words. With None, each token is a
            word.

    Returns:
        Fractions by name.

        * `selected`: chosen tokens per non-special token.
        * `mask`, `random`, `kept`: chosen tokens with this action per chosen token. `random` includes
          tokens whose random replacement equals the original token.
        * `special_selected`: special tokens per chosen token; anything but 0 is a bug.
        * `whole_words`: completely chosen words per word with a chosen token.
    """
    rows, prediction_columns = np.nonzero(masked.actions != UNUSED)
    is_chosen = np.zeros(is_special.shape, bool)
    is_chosen[rows, masked.masked_lm_positions[rows, prediction_columns]] = True
    words = WordSpans.from_batch(input_ids, is_special, is_continuation)
    cumulative_counts = np.concatenate([[0], np.cumsum(is_chosen)])
    chosen_in_word = cumulative_counts[words.starts + words.sizes] - cumulative_counts[words.starts]
    action_counts = np.bincount(masked.actions.ravel(), minlength=KEPT + 1)
    num_chosen = len(rows)
    return {
        "selected": safe_divide(num_chosen, words.token_counts.sum()),
        "mask": safe_divide(action_counts[MASK], num_chosen),
        "random": safe_divide(action_counts[RANDOM], num_chosen),
        "kept": safe_divide(action_counts[KEPT], num_chosen),
        "special_selected": safe_divide((is_chosen & is_special).sum(), num_chosen),
        "whole_words": safe_divide((chosen_in_word == words.sizes).sum(), (chosen_in_word > 0).sum()),
    }


def safe_divide(part: int, whole: int) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return float(part / whole) if whole else 0.0
