"""Collators: from features to padded batches of tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.data.features import TARGETS, TEACHER_LOGITS, WEIGHTS

BATCH_SHAPE = "shape"  # key of the `BatchShape` in a batch
RETURN_VECTORS = "return_vectors"  # key of a batch for which the vectors of texts replace the logits
GROUPING_KEYS = ("document", "choice")


@dataclass(frozen=True)
class BatchShape:
    """Sizes of a batch, on the host. To read them from tensors on a GPU would wait for all pending work.

    Attributes:
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
    * `weights`: weights in the loss, `[examples]`, or `[predictions]` for token classification.
    * `targets`: `[examples, classes]` probabilities of the labels.
    * `document` or `choice` (see `sequence_grouping`): `[sequences]` index of the example in the batch.
    * `teacher_logits`: `[total]` logits of the teacher of all examples, concatenated.
    * `sequence` and `position`, only for token classification: `[predictions]` index of the sequence in the
      batch and of the token in the sequence.

    Attributes:
        return_token_type_ids: Whether the model takes `token_type_ids`.
        sequence_grouping: Key of the example indices if examples have several sequences; else None.
    """

    pad_token_id: int
    return_token_type_ids: bool
    sequence_grouping: str | None = None

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        if "vectors" in items[0]:
            vectors, mask = pad_vectors([sequence for item in items for sequence in item["vectors"]])
            batch = {"vectors": vectors, "attention_mask": mask}
        else:
            input_ids = [sequence for item in items for sequence in item["input_ids"]]
            mask = _pad([np.ones_like(sequence) for sequence in input_ids], 0)
            batch = {"input_ids": _pad(input_ids, self.pad_token_id), "attention_mask": mask}
            if self.return_token_type_ids:
                type_ids = [sequence for item in items for sequence in item["token_type_ids"]]
                batch["token_type_ids"] = _pad(type_ids, 0)
        if self.sequence_grouping:
            counts = torch.tensor([len(item["input_ids"]) for item in items])
            batch[self.sequence_grouping] = torch.repeat_interleave(torch.arange(len(items)), counts)
        if "positions" in items[0]:
            positions = [sequence_positions for item in items for sequence_positions in item["positions"]]
            batch["sequence"] = torch.repeat_interleave(torch.tensor(list(map(len, positions))))
            batch["position"] = torch.from_numpy(np.concatenate(positions).astype(np.int64))
        if "labels" in items[0]:
            join = np.concatenate if "positions" in items[0] else np.array
            batch["labels"] = torch.from_numpy(join([item["labels"] for item in items]))
        if WEIGHTS in items[0]:
            weights = np.array([item[WEIGHTS] for item in items])
            if "positions" in items[0]:
                weights = np.repeat(weights, [len(item["labels"]) for item in items])
            batch[WEIGHTS] = torch.from_numpy(weights)
        if TARGETS in items[0]:
            batch[TARGETS] = torch.from_numpy(np.array([item[TARGETS] for item in items]))
        if TEACHER_LOGITS in items[0]:
            batch[TEACHER_LOGITS] = torch.from_numpy(np.concatenate([item[TEACHER_LOGITS] for item in items]))
        return batch


@dataclass(frozen=True)
class VectorCollator:
    """Collator of batches for which the model returns the vectors of texts in place of logits."""

    collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collator(items) | {RETURN_VECTORS: torch.tensor(True)}


def _pad(sequences: Sequence[np.ndarray], value: int, dtype: type = np.int64) -> torch.Tensor:
    """Return `[sequences, longest, ...]`, padded with `value`."""
    shape = (len(sequences), max(map(len, sequences)), *np.shape(sequences[0])[1:])
    padded = np.full(shape, value, dtype)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(padded)


def pad_vectors(sequences: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors `[sequences, longest, layers, hidden]` in fp32 and their attention mask."""
    mask = _pad([np.ones(len(sequence), np.int64) for sequence in sequences], 0)
    return _pad(sequences, 0, np.float32), mask
