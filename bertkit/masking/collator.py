"""Collators for pre-training, which pad a batch and choose the tokens that the model predicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.masking.hashing import hashed_uniform
from bertkit.masking.masker import IGNORE_INDEX, MaskedBatch, TokenMasker, measure_masking, safe_divide
from bertkit.masking.words import find_continuation_tokens

ORIGINAL_IDS = "original_ids"
SAMPLING_STREAM = 19  # random stream of `hashed_uniform`; the masker has 16 to 18


@dataclass(frozen=True)
class MlmCollator:
    """Collator that pads and masks a batch, and adds `masked_lm_positions` and `masked_lm_labels` [batch, P].

    The result for an example depends on its tokens and its key, not on the other examples of the batch.

    Attributes:
        pad: Padding collator.
        masker: Masker of the padded batch.
        is_special: [vocabulary] bool, whether a token is special and never chosen.
        has_pairs: Whether the examples are sentence pairs with a `next_sentence_label`.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    masker: TokenMasker
    is_special: np.ndarray
    has_pairs: bool

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Build the masked batch of some items."""
        batch = self.pad(items)
        masked = self._mask(batch["input_ids"].numpy(), items)
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
        masked = self._mask(input_ids, items)
        if "is_continuation" in items[0]:
            is_continuation = _pad_flags(items, input_ids.shape)
        return measure_masking(masked, input_ids, self.is_special[input_ids], is_continuation)

    def _mask(self, input_ids: np.ndarray, items: list[dict[str, Any]]) -> MaskedBatch:
        keys = np.array([item["key"] for item in items])
        is_continuation = _pad_flags(items, input_ids.shape) if "is_continuation" in items[0] else None
        return self.masker(input_ids, self.is_special[input_ids], keys, is_continuation)


def _pad_flags(items: list[dict[str, Any]], shape: tuple[int, ...]) -> np.ndarray:
    """Return the flags `is_continuation` of all items [batch, seq_len]."""
    flags = np.zeros(shape, bool)
    for row, item in zip(flags, items, strict=True):
        row[: len(item["is_continuation"])] = item["is_continuation"]
    return flags


@dataclass(frozen=True)
class ReplacedTokenCollator(MlmCollator):
    """Collator that also adds the inputs with which a `ReplacedTokenModel` samples tokens.

    * `original_ids` [batch, seq_len]: the tokens without masks.
    * `is_masked` [batch, P]: whether the position is predicted, or only fills the row.
    * `sampling_uniform` [batch, P]: uniform random numbers in [0, 1). They depend on the key of the example,
      so resumed runs and other batch sizes sample the same tokens.
    """

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Build the masked batch of some items."""
        batch = super().__call__(items)
        keys = np.array([item["key"] for item in items])
        num_predictions = batch["masked_lm_labels"].shape[1]
        uniform = hashed_uniform(self.masker.seed, keys, num_predictions, SAMPLING_STREAM)
        batch[ORIGINAL_IDS] = self.pad(items)["input_ids"]
        batch["is_masked"] = batch["masked_lm_labels"] != IGNORE_INDEX
        batch["sampling_uniform"] = torch.from_numpy(uniform.astype(np.float32))
        return batch


@dataclass(frozen=True)
class CausalLmCollator:
    """Collator for causal language models: it pads a batch, and labels each token with the next token.

    The batch has the same keys as that of `MlmCollator`: `masked_lm_positions` and `masked_lm_labels`, both
    [batch, seq_len - 1]. The labels are -100 at padding. The last [SEP] is predicted too, so that generated
    text ends.

    Attributes:
        pad: Padding collator.
        is_special: [vocabulary] bool, whether a token is special. Special tokens are also predicted.
        has_pairs: Always False, since causal models are not trained on sentence pairs.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    is_special: np.ndarray
    has_pairs: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Build the labeled batch of some items."""
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
    """Build the masker of a tokenizer.

    Args:
        tokenizer: A fast tokenizer.
        is_special: [vocabulary] bool, see `build_special_tokens_mask`.
        whole_words: Whether to mask whole words.
        settings: The remaining fields of `TokenMasker`.
    """
    text_ids = np.flatnonzero(~is_special)
    random_ids = text_ids[text_ids != tokenizer.unk_token_id]
    is_continuation = find_continuation_tokens(tokenizer) if whole_words else None
    return TokenMasker(tokenizer.mask_token_id, random_ids, is_continuation, **settings)
