"""The collator: examples of unlike length in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class PaddingCollator:
    """Collator: pads to the longest of the batch, on the right.

    Gives `input_ids`, `attention_mask` (and `token_type_ids` where the model takes them), each
    [sequences, length]; under the name in `several` ("document", "choice") [sequences] the example that
    each belongs to; and `labels` [examples, ...]. Where pieces are decided one by one, `sequence` and
    `position` [decisions] say which, and `labels` are [decisions]. Items that bring `vectors` in place of
    ids give those.
    """

    pad_token_id: int
    return_token_type_ids: bool
    sequence_grouping: str | None = None

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of these examples."""
        batch = _vectors(items) if "vectors" in items[0] else self._pieces(items)
        if self.sequence_grouping:
            counts = torch.tensor([len(item["input_ids"]) for item in items])
            batch[self.sequence_grouping] = torch.repeat_interleave(torch.arange(len(items)), counts)
        if "positions" in items[0]:
            batch |= _decisions(items)
        if "labels" in items[0]:
            join = np.concatenate if "positions" in items[0] else np.array
            batch["labels"] = torch.from_numpy(join([item["labels"] for item in items]))
        return batch

    def _pieces(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [sequence for item in items for sequence in item["input_ids"]]
        batch = {
            "input_ids": self._padded(ids, self.pad_token_id),
            "attention_mask": self._padded([np.ones_like(sequence) for sequence in ids], 0),
        }
        if self.return_token_type_ids:
            kinds = [sequence for item in items for sequence in item["token_type_ids"]]
            batch["token_type_ids"] = self._padded(kinds, 0)
        return batch

    def _padded(self, sequences: list[np.ndarray], filler: int) -> torch.Tensor:
        padded = np.full((len(sequences), max(map(len, sequences))), filler, np.int64)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(sequence)] = sequence
        return torch.from_numpy(padded)


def _vectors(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    vectors, mask = pad_vectors([sequence for item in items for sequence in item["vectors"]])
    return {"vectors": vectors, "attention_mask": mask}


def _decisions(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Which sequence and which place in it each decided piece has."""
    positions = [some for item in items for some in item["positions"]]
    sequence = torch.repeat_interleave(torch.tensor([len(some) for some in positions]))
    position = torch.from_numpy(np.concatenate(positions).astype(np.int64))
    return {"sequence": sequence, "position": position}


def pad_vectors(sequences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors [sequences, longest, layers, hidden] in fp32 and their attention mask."""
    lengths = np.array([len(sequence) for sequence in sequences])
    padded = np.zeros((len(sequences), lengths.max(), *sequences[0].shape[1:]), np.float32)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    mask = np.arange(lengths.max()) < lengths[:, None]
    return torch.from_numpy(padded), torch.from_numpy(mask.astype(np.int64))
