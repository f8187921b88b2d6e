"""The collators of pre-training: pad, then say of the whole batch at once what is to be predicted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.masking.masks import MaskedBatch, TokenMasker
from bertkit.masking.rates import measure_masking, safe_divide
from bertkit.masking.words import find_continuation_tokens
from bertkit.modeling.losses import IGNORE_INDEX


@dataclass(frozen=True)
class MlmCollator:
    """Collator: what `Pad` gives, masked, with `masked_lm_positions` and `masked_lm_labels` [B, P].

    Attributes:
        special: [vocabulary] bool, the pieces that are never chosen.
        pairs: whether `next_sentence_label` [B] goes along.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    masker: TokenMasker
    is_special: np.ndarray
    has_pairs: bool

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of these examples: the same, example by example, in any company."""
        batch = self.pad(items)
        masked = self._masked(batch["input_ids"].numpy(), items)
        batch["input_ids"] = torch.from_numpy(masked.input_ids)
        batch["masked_lm_positions"] = torch.from_numpy(masked.masked_lm_positions)
        batch["masked_lm_labels"] = torch.from_numpy(masked.masked_lm_labels)
        if self.has_pairs:
            labels = np.array([item["next_sentence_label"] for item in items], np.int64)
            batch["next_sentence_label"] = torch.from_numpy(labels)
        return batch

    def measure(self, items: list[dict[str, Any]], is_continuation: np.ndarray | None) -> dict[str, float]:
        """What masking does to these examples, see `measured`."""
        ids = self.pad(items)["input_ids"].numpy()
        return measure_masking(self._masked(ids, items), ids, self.is_special[ids], is_continuation)

    def _masked(self, ids: np.ndarray, items: list[dict[str, Any]]) -> MaskedBatch:
        return self.masker(ids, self.is_special[ids], np.array([item["key"] for item in items]))


@dataclass(frozen=True)
class CausalLmCollator:
    """Collator: what `Pad` gives, and at each piece but the last the next one as what is predicted there.

    It has the keys of `MaskedPad`: `masked_lm_positions` [B, L - 1] are the places at which a piece is
    predicted, `masked_lm_labels` the pieces, -100 where there is none. The last [SEP] is predicted too, so
    that a text that is gone on with comes to an end.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    is_special: np.ndarray
    has_pairs: bool = False

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of these examples."""
        batch = self.pad(items)
        ids, real = batch["input_ids"], batch["attention_mask"].bool()
        batch["masked_lm_positions"] = torch.arange(ids.shape[1] - 1).expand(len(ids), -1)
        batch["masked_lm_labels"] = torch.where(real[:, :-1] & real[:, 1:], ids[:, 1:], IGNORE_INDEX)
        return batch

    def measure(self, items: list[dict[str, Any]], is_continuation: np.ndarray | None) -> dict[str, float]:
        """Nothing is masked: what is predicted of the pieces, and which of that is special."""
        batch = self(items)
        labels = batch["masked_lm_labels"].numpy()
        special = self.is_special[labels[labels != IGNORE_INDEX]]
        pieces = ~self.is_special[batch["input_ids"].numpy()]
        selected = safe_divide((~special).sum(), pieces.sum())
        of_special = safe_divide(special.sum(), len(special))
        return {"selected": selected, "mask": 0.0, "random": 0.0, "kept": 1.0, "special_selected": of_special}


def build_special_tokens_mask(tokenizer: Any) -> np.ndarray:
    """[vocabulary] bool: all special pieces but the one for what is unknown, which stands for text."""
    special = np.zeros(max(tokenizer.get_vocab().values()) + 1, bool)
    special[[number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]] = True
    return special


def build_masker(tokenizer: Any, is_special: np.ndarray, whole_words: bool, **rates: Any) -> TokenMasker:
    """Masking with a tokenizer's pieces; `rates` are the other fields of `Masking`."""
    ids = np.flatnonzero(~is_special)
    words = find_continuation_tokens(tokenizer) if whole_words else None
    return TokenMasker(tokenizer.mask_token_id, ids[ids != tokenizer.unk_token_id], words, **rates)
