"""Pre-training collators: pad a batch, then choose what is predicted, for the whole batch at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.masking.masker import IGNORE_INDEX, MaskedBatch, TokenMasker, measure_masking, safe_divide
from bertkit.masking.words import find_continuation_tokens


@dataclass(frozen=True)
class MlmCollator:
    """Collator that pads, masks, and adds `masked_lm_positions` and `masked_lm_labels` [batch, P].

    Attributes:
        pad: Padding collator.
        masker: Masks the padded batch.
        is_special: [vocabulary] bool, the tokens that are never chosen.
        has_pairs: Whether to add `next_sentence_label` [batch].
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    masker: TokenMasker
    is_special: np.ndarray
    has_pairs: bool

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch; an example is masked alike in any batch."""
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
        """Measure what masking does to these examples; see `measure_masking`."""
        input_ids = self.pad(items)["input_ids"].numpy()
        masked = self._mask(input_ids, items)
        return measure_masking(masked, input_ids, self.is_special[input_ids], is_continuation)

    def _mask(self, input_ids: np.ndarray, items: list[dict[str, Any]]) -> MaskedBatch:
        keys = np.array([item["key"] for item in items])
        return self.masker(input_ids, self.is_special[input_ids], keys)


@dataclass(frozen=True)
class CausalLmCollator:
    """Collator that pads and labels each token but the last with the next one.

    The keys are those of `MlmCollator`: `masked_lm_positions` [batch, seq_len - 1] and `masked_lm_labels`,
    -100 for padding. The last [SEP] is predicted too, so that generated text ends.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    is_special: np.ndarray
    has_pairs: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of these examples."""
        batch = self.pad(items)
        input_ids, is_real = batch["input_ids"], batch["attention_mask"].bool()
        batch["masked_lm_positions"] = torch.arange(input_ids.shape[1] - 1).expand(len(input_ids), -1)
        is_predicted = is_real[:, :-1] & is_real[:, 1:]
        batch["masked_lm_labels"] = torch.where(is_predicted, input_ids[:, 1:], IGNORE_INDEX)
        return batch

    def measure(self, items: list[dict[str, Any]], is_continuation: np.ndarray | None) -> dict[str, float]:
        """Measure which fraction of the tokens is predicted, and which of these are special."""
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
    """Return [vocabulary] bool: all special tokens except [UNK], which represents text."""
    is_special = np.zeros(max(tokenizer.get_vocab().values()) + 1, bool)
    is_special[[token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id]] = True
    return is_special


def build_masker(tokenizer: Any, is_special: np.ndarray, whole_words: bool, **settings: Any) -> TokenMasker:
    """Return a masker for a tokenizer; `settings` are the other fields of `TokenMasker`."""
    token_ids = np.flatnonzero(~is_special)
    is_continuation = find_continuation_tokens(tokenizer) if whole_words else None
    random_ids = token_ids[token_ids != tokenizer.unk_token_id]
    return TokenMasker(tokenizer.mask_token_id, random_ids, is_continuation, **settings)
