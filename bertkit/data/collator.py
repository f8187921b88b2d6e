"""Collator that pads examples of different lengths into one batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.data.stored_logits import TEACHER_LOGITS

BATCH_SHAPE = "shape"  # key of the `BatchShape` in a batch
RETURN_VECTORS = "return_vectors"  # key of a batch for which the vectors of texts replace the logits
GROUPING_KEYS = ("document", "choice")


@dataclass(frozen=True)
class BatchShape:
    """Sizes of a batch, on the host. To read them from tensors on a GPU would wait for all pending work.

    Attributes:
        lengths: Number of tokens of each sequence.
        sequences_per_example: Number of sequences of each example; None if each example has one.
    """

    lengths: tuple[int, ...]
    sequences_per_example: tuple[int, ...] | None

    @classmethod
    def measure(cls, batch: dict[str, torch.Tensor]) -> "BatchShape":
        """Return the shape of a collated batch that is still on the host."""
        counts = [torch.bincount(batch[key]).tolist() for key in GROUPING_KEYS if key in batch]
        lengths = batch["attention_mask"].sum(1).tolist()
        return cls(tuple(lengths), tuple(counts[0]) if counts else None)


@dataclass(frozen=True)
class PaddingCollator:
    """Collator that pads sequences on the right, to the length of the longest sequence in the batch.

    A batch contains `input_ids`, `attention_mask` and, if the model takes them, `token_type_ids`, each
    `[sequences, seq_len]`. If features are precomputed, the batch contains `vectors` instead of ids. Further
    keys:

    * `labels`: `[examples, ...]`, or `[predictions]` for token classification.
    * `document` or `choice` (see `sequence_grouping`): `[sequences]` index of the example in the batch.
    * `teacher_logits`: `[total]` logits of the teacher of all examples, concatenated.
    * `sequence` and `position`, only for token classification: `[predictions]` index of the sequence in the
      batch and of the token in the sequence.

    Attributes:
        pad_token_id: Id of the padding token.
        return_token_type_ids: Whether the model takes `token_type_ids`.
        sequence_grouping: Key of the example indices if examples have several sequences; else None.
    """

    pad_token_id: int
    return_token_type_ids: bool
    sequence_grouping: str | None = None

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of the given examples."""
        batch = _collate_vectors(items) if "vectors" in items[0] else self._collate_tokens(items)
        if self.sequence_grouping:
            counts = torch.tensor([len(item["input_ids"]) for item in items])
            batch[self.sequence_grouping] = torch.repeat_interleave(torch.arange(len(items)), counts)
        if "positions" in items[0]:
            batch |= _collate_positions(items)
        if "labels" in items[0]:
            join = np.concatenate if "positions" in items[0] else np.array
            batch["labels"] = torch.from_numpy(join([item["labels"] for item in items]))
        if TEACHER_LOGITS in items[0]:
            batch[TEACHER_LOGITS] = torch.from_numpy(np.concatenate([item[TEACHER_LOGITS] for item in items]))
        return batch

    def _collate_tokens(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        input_ids = [sequence for item in items for sequence in item["input_ids"]]
        batch = {
            "input_ids": _pad(input_ids, self.pad_token_id),
            "attention_mask": _pad([np.ones_like(sequence) for sequence in input_ids], 0),
        }
        if self.return_token_type_ids:
            type_ids = [sequence for item in items for sequence in item["token_type_ids"]]
            batch["token_type_ids"] = _pad(type_ids, 0)
        return batch


@dataclass(frozen=True)
class VectorCollator:
    """Collator of batches for which the model returns the vectors of texts in place of logits.

    Attributes:
        collator: Turns examples into a batch.
    """

    collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of the given examples."""
        return self.collator(items) | {RETURN_VECTORS: torch.tensor(True)}


def _pad(sequences: Sequence[np.ndarray], value: int, dtype: type = np.int64) -> torch.Tensor:
    """Return `[sequences, longest, ...]`, padded with `value`."""
    shape = (len(sequences), max(map(len, sequences)), *np.shape(sequences[0])[1:])
    padded = np.full(shape, value, dtype)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(padded)


def _collate_vectors(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    vectors, mask = pad_vectors([sequence for item in items for sequence in item["vectors"]])
    return {"vectors": vectors, "attention_mask": mask}


def _collate_positions(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the index of the sequence in the batch, and of the token in the sequence, of each prediction."""
    positions = [sequence_positions for item in items for sequence_positions in item["positions"]]
    sequence = torch.repeat_interleave(
        torch.tensor([len(sequence_positions) for sequence_positions in positions])
    )
    position = torch.from_numpy(np.concatenate(positions).astype(np.int64))
    return {"sequence": sequence, "position": position}


def pad_vectors(sequences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors `[sequences, longest, layers, hidden]` in fp32 and their attention mask."""
    mask = _pad([np.ones(len(sequence), np.int64) for sequence in sequences], 0)
    return _pad(sequences, 0, np.float32), mask
