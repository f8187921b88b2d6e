"""Token masking for MLM, with whole words, and the collators of the pre-training objectives."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex
import torch

from bertkit.data.language import UNSPACED_SCRIPTS
from bertkit.data.table import GOLDEN_GAMMA, mix_bits
from bertkit.utils.arrays import compute_positions_in_groups, concat_ranges

SPACE_MARKERS = ("Ġ", "▁")  # characters that represent a space in byte-level BPE and in SentencePiece
# Punctuation, symbols and characters of unspaced scripts begin a word. U+FFFD does not: a token decodes to it
# if the token contains only some of a character's bytes.
WORD_START = regex.compile(rf"(?!\uFFFD)[\p{{P}}\p{{S}}{UNSPACED_SCRIPTS}]")


def find_continuation_tokens(tokenizer: Any) -> np.ndarray:
    """Return whether each token continues the word of the previous token [vocabulary].

    In a WordPiece vocabulary, tokens with the prefix "##" continue a word. Other vocabularies mark tokens
    after a space ("Ġ" in byte-level BPE, "▁" in SentencePiece). In these vocabularies, tokens without the
    mark continue a word, unless they begin with punctuation, a symbol or a character of an unspaced script.
    Without this exception, a sentence in an unspaced script would be one word.

    Special tokens never continue a word. In a vocabulary without prefix and marks, no token does.
    """
    vocabulary = tokenizer.get_vocab()
    is_continuation = np.zeros(max(vocabulary.values(), default=-1) + 1, bool)
    prefix = json.loads(tokenizer.backend_tokenizer.to_str())["model"].get("continuing_subword_prefix")
    # A vocabulary has one marker, but Ġ is also a letter of Maltese, so the more frequent one is taken.
    counts = {marker: sum(token.startswith(marker) for token in vocabulary) for marker in SPACE_MARKERS}
    marker = max(counts, key=lambda name: counts[name])
    if prefix:
        tokens = [token for token in vocabulary if token.startswith(prefix)]
    elif counts[marker]:
        decoder = tokenizer.backend_tokenizer.decoder
        decode = "".join if decoder is None else decoder.decode
        unmarked = [token for token in vocabulary if not token.startswith(marker)]
        tokens = [token for token in unmarked if not WORD_START.match(decode([token]))]
    else:
        tokens = []
    is_continuation[[vocabulary[token] for token in tokens]] = True
    is_continuation[list(tokenizer.added_tokens_decoder)] = False
    return is_continuation


@dataclass(frozen=True)
class BatchWords:
    """The words of a batch, in the order of the flattened batch.

    Attributes:
        starts: [words] index of each word's first token in the flattened batch.
        sizes: [words] number of tokens of each word.
        word_counts: [batch] number of words in each example.
        token_counts: [batch] number of tokens in each example, without special tokens.
    """

    starts: np.ndarray
    sizes: np.ndarray
    word_counts: np.ndarray
    token_counts: np.ndarray

    @classmethod
    def from_batch(
        cls, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
    ) -> "BatchWords":
        """Find the words of a batch.

        A word is a token together with the tokens after it that continue it. It ends at a special token.

        Args:
            input_ids: [batch, seq_len] token ids.
            is_special: [batch, seq_len] bool, whether a token is special or padding.
            is_continuation: Whether a token continues the word of the previous token, by token id
                [vocabulary] (see `find_continuation_tokens`) or by position [batch, seq_len]. None: each
                token is a word.
        """
        is_text = ~is_special
        begins_word = is_text.copy()
        if is_continuation is not None:
            by_position = is_continuation if is_continuation.ndim == 2 else is_continuation[input_ids]
            begins_word[:, 1:] &= ~by_position[:, 1:] | is_special[:, :-1]
        # Each boundary begins a word or is a special token. Each row begins with a boundary.
        boundaries = np.flatnonzero(begins_word | is_special)
        is_word = begins_word.ravel()[boundaries]
        sizes = np.diff(boundaries, append=is_special.size)
        word_counts, token_counts = np.count_nonzero(begins_word, axis=1), np.count_nonzero(is_text, axis=1)
        return cls(boundaries[is_word], sizes[is_word], word_counts, token_counts)


def hashed_bits(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return random bits [len(keys), count] uint64. They depend only on seed, stream, key and column."""
    base = mix_bits(mix_bits(np.array([seed % 2**64], np.uint64)) + np.uint64(stream))
    state = mix_bits(keys.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + base)
    return mix_bits(state[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))


def hashed_uniform(seed: int, keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Return uniform random numbers in [0, 1), [len(keys), count] float64.

    Each number depends only on seed, stream, key and column, so another `count` does not change the numbers
    of the common columns. Uses with the same seed and keys need different streams.
    """
    # The upper 53 bits, since a float64 has a precision of 53 bits.
    return (hashed_bits(seed, keys, count, stream) >> np.uint64(11)) * 2.0**-53


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
        random_token_ids: Ids that random replacements are sampled from: all but special tokens.
        is_continuation: [vocabulary] bool, see `find_continuation_tokens`. None turns off whole-word masking.
        mlm_probability: Fraction of the tokens to choose.
        mask_replace_prob: Fraction of the chosen tokens that are replaced by [MASK].
        random_replace_prob: Fraction of the chosen tokens that are replaced by a random token.
        max_predictions_per_seq: Maximum number of chosen tokens per example.
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
        words = BatchWords.from_batch(input_ids, is_special, is_continuation)
        token_indices = self._choose_tokens(words, keys)
        rows, positions = np.divmod(token_indices, seq_len)
        chosen_counts = np.bincount(rows, minlength=batch_size)
        # Indices into the flattened arrays of shape [batch, P].
        prediction_indices = rows * self.max_predictions_per_seq + compute_positions_in_groups(chosen_counts)
        original_ids = input_ids.ravel()[token_indices]
        uniform = self._sample_uniform(keys, prediction_indices, ACTION_STREAM)
        is_mask_or_random = uniform < self.mask_replace_prob + self.random_replace_prob
        actions = np.where(uniform < self.mask_replace_prob, MASK, np.where(is_mask_or_random, RANDOM, KEPT))
        masked = input_ids.copy()
        uniform = self._sample_uniform(keys, prediction_indices, TOKEN_STREAM)
        random_ids = self.random_token_ids[(uniform * len(self.random_token_ids)).astype(np.int64)]
        replaced_ids = np.where(actions == RANDOM, random_ids, original_ids)
        masked.ravel()[token_indices] = np.where(actions == MASK, self.mask_token_id, replaced_ids)
        return MaskedBatch(
            masked,
            _scatter(np.zeros(predictions_shape, np.int64), prediction_indices, positions),
            _scatter(np.full(predictions_shape, IGNORE_INDEX, np.int64), prediction_indices, original_ids),
            _scatter(np.full(predictions_shape, UNUSED, np.int8), prediction_indices, actions),
        )

    def _choose_tokens(self, words: BatchWords, keys: np.ndarray) -> np.ndarray:
        """Return the indices of the chosen tokens in the flattened batch [chosen], ascending."""
        is_word = np.arange(words.word_counts.max(initial=0)) < words.word_counts[:, None]
        sizes = np.full(is_word.shape, PADDING_WORD_SIZE, np.int32)
        sizes[is_word] = words.sizes
        target_counts = np.rint(words.token_counts * self.mlm_probability).astype(np.int32)
        shortest_sizes = sizes.min(axis=1, initial=PADDING_WORD_SIZE)
        max_counts = np.minimum(np.maximum(target_counts, shortest_sizes), self.max_predictions_per_seq)
        # A random permutation of the words in each row. The column index replaces the lower 32 of the random
        # bits, so the sorted numbers contain the permutation. Sorting them is faster than `np.argsort`.
        lower_bits = np.uint64(2**32 - 1)
        numbers = hashed_bits(self.seed, keys, is_word.shape[1], ORDER_STREAM) & ~lower_bits
        numbers |= np.arange(is_word.shape[1], dtype=np.uint64)
        numbers.sort(axis=1)
        order = (numbers & lower_bits).astype(np.int64)
        is_chosen = select_greedily(np.take_along_axis(sizes, order, axis=1), max_counts)
        first_words = np.cumsum(words.word_counts) - words.word_counts
        chosen_words = np.sort((order + first_words[:, None])[is_chosen])
        starts = words.starts[chosen_words]
        return concat_ranges(starts, starts + words.sizes[chosen_words])

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


def _scatter(array: np.ndarray, indices: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Write values at indices of the flattened array, and return the array."""
    array.ravel()[indices] = values
    return array


# ---- measurements


def measure_masking(
    masked: MaskedBatch, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
) -> dict[str, float]:
    """Measure which fractions of a batch were chosen and replaced; 0 if the denominator is 0.

    `input_ids` and `is_special`, both [batch, seq_len], are those before masking. `is_continuation` defines
    the words, as in `BatchWords.from_batch`.

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
    words = BatchWords.from_batch(input_ids, is_special, is_continuation)
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


# ---- collators

ORIGINAL_IDS = "original_ids"


@dataclass(frozen=True)
class MlmCollator:
    """Collator that pads and masks a batch, and adds `masked_lm_positions` and `masked_lm_labels` [batch, P].

    The result for an example depends on its tokens and its key, not on the other examples of the batch.

    Attributes:
        is_special: [vocabulary] bool, whether a token is special and never chosen.
        has_pairs: Whether the examples are sentence pairs with a `next_sentence_label`.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    masker: TokenMasker
    is_special: np.ndarray
    has_pairs: bool

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.pad(items)
        masked, _ = self._mask(batch["input_ids"].numpy(), items)
        batch["input_ids"] = torch.from_numpy(masked.input_ids)
        batch["masked_lm_positions"] = torch.from_numpy(masked.masked_lm_positions)
        batch["masked_lm_labels"] = torch.from_numpy(masked.masked_lm_labels)
        if self.has_pairs:
            labels = np.array([item["next_sentence_label"] for item in items], np.int64)
            batch["next_sentence_label"] = torch.from_numpy(labels)
        return batch

    def measure(self, items: list[dict[str, Any]], is_continuation: np.ndarray | None) -> dict[str, float]:
        """Measure what masking does to these items, see `measure_masking`."""
        input_ids = self.pad(items)["input_ids"].numpy()
        masked, flags = self._mask(input_ids, items)
        words = is_continuation if flags is None else flags
        return measure_masking(masked, input_ids, self.is_special[input_ids], words)

    def _mask(
        self, input_ids: np.ndarray, items: list[dict[str, Any]]
    ) -> tuple[MaskedBatch, np.ndarray | None]:
        """Return the masked batch, and the flags `is_continuation` of the items [batch, seq_len], if any."""
        keys, flags = np.array([item["key"] for item in items]), None
        if "is_continuation" in items[0]:
            flags = np.zeros(input_ids.shape, bool)
            for row, item in zip(flags, items, strict=True):
                row[: len(item["is_continuation"])] = item["is_continuation"]
        return self.masker(input_ids, self.is_special[input_ids], keys, flags), flags


@dataclass(frozen=True)
class CausalLmCollator:
    """Collator for causal language models: it pads a batch, and labels each token with the next token.

    The batch has the same keys as that of `MlmCollator`: `masked_lm_positions` and `masked_lm_labels`, both
    [batch, seq_len - 1]. The labels are -100 at padding. The last [SEP] is predicted too, so that generated
    text ends.

    Attributes:
        is_special: [vocabulary] bool, whether a token is special. Special tokens are also predicted.
        has_pairs: Always False, since causal models are not trained on sentence pairs.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    is_special: np.ndarray
    has_pairs: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.pad(items)
        input_ids, is_token = batch["input_ids"], batch["attention_mask"].bool()
        # `repeat` copies: the rows of an expanded tensor are the same memory, which cannot be pinned
        batch["masked_lm_positions"] = torch.arange(input_ids.shape[1] - 1).repeat(len(input_ids), 1)
        is_predicted = is_token[:, :-1] & is_token[:, 1:]
        batch["masked_lm_labels"] = torch.where(is_predicted, input_ids[:, 1:], IGNORE_INDEX)
        return batch

    def measure(self, items: list[dict[str, Any]], is_continuation: np.ndarray | None) -> dict[str, float]:
        """Return the fractions that `measure_masking` returns, without `whole_words`.

        All predicted tokens count as kept, because nothing is masked.
        """
        batch = self(items)
        labels = batch["masked_lm_labels"].numpy()
        is_special = self.is_special[labels[labels != IGNORE_INDEX]]
        num_tokens = (~self.is_special[batch["input_ids"].numpy()]).sum()
        return {
            "selected": safe_divide((~is_special).sum(), num_tokens),
            "mask": 0.0,
            "random": 0.0,
            "kept": 1.0,
            "special_selected": safe_divide(is_special.sum(), len(is_special)),
        }


def build_special_tokens_mask(tokenizer: Any) -> np.ndarray:
    """Return whether each token is special [vocabulary]. [UNK] is not, because it represents text."""
    is_special = np.zeros(max(tokenizer.get_vocab().values()) + 1, bool)
    special_ids = [token_id for token_id in tokenizer.all_special_ids if token_id != tokenizer.unk_token_id]
    is_special[special_ids] = True
    return is_special


def build_masker(tokenizer: Any, is_special: np.ndarray, whole_words: bool, **settings: Any) -> TokenMasker:
    """Build the masker of a tokenizer; `settings` are the remaining fields of `TokenMasker`."""
    text_ids = np.flatnonzero(~is_special)
    random_ids = text_ids[text_ids != tokenizer.unk_token_id]
    is_continuation = find_continuation_tokens(tokenizer) if whole_words else None
    return TokenMasker(tokenizer.mask_token_id, random_ids, is_continuation, **settings)
