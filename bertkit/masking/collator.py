"""The collator of pre-training: pads, then masks the batch at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.masking.masks import Masking
from bertkit.masking.words import continues


@dataclass(frozen=True)
class MaskedPad:
    """Collator: what `Pad` gives, masked, with `masked_lm_positions` and `masked_lm_labels` [B, P].

    Attributes:
        special: [vocabulary] bool, the pieces that are never chosen.
        pairs: whether `next_sentence_label` [B] goes along.
    """

    pad: Callable[..., dict[str, torch.Tensor]]
    masking: Masking
    special: np.ndarray
    pairs: bool

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of these examples: the same, example by example, in any company."""
        batch = self.pad(items)
        ids = batch["input_ids"].numpy()
        masked = self.masking(ids, self.special[ids], np.array([item["key"] for item in items]))
        batch["input_ids"] = torch.from_numpy(masked.input_ids)
        batch["masked_lm_positions"] = torch.from_numpy(masked.masked_lm_positions)
        batch["masked_lm_labels"] = torch.from_numpy(masked.masked_lm_labels)
        if self.pairs:
            labels = np.array([item["next_sentence_label"] for item in items], np.int64)
            batch["next_sentence_label"] = torch.from_numpy(labels)
        return batch


def special_pieces(tokenizer: Any) -> np.ndarray:
    """[vocabulary] bool: all special pieces but the one for what is unknown, which stands for text."""
    special = np.zeros(max(tokenizer.get_vocab().values()) + 1, bool)
    special[[number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]] = True
    return special


def masking_of(tokenizer: Any, special: np.ndarray, whole_words: bool, **rates: Any) -> Masking:
    """Masking with a tokenizer's pieces; `rates` are the other fields of `Masking`."""
    ids = np.flatnonzero(~special)
    words = continues(tokenizer) if whole_words else None
    return Masking(tokenizer.mask_token_id, ids[ids != tokenizer.unk_token_id], words, **rates)
