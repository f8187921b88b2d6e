"""The loss of a student that learns the predictions of a teacher (Hinton et al. 2015, section 2)."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.features import (
    TEACHER_LOGITS,
    UNLABELED,
    UNLABELED_NUMBER,
    Features,
    LogitsWriter,
    StoredLogits,
    update_with_tokens,
)
from bertkit.errors import UserError
from bertkit.models.forward import batch_by_length
from bertkit.models.losses import LabelLoss
from bertkit.training.scoring import bind_logits, score_with_halving
from bertkit.utils.arrays import compute_offsets
from bertkit.utils.cache import cache_or_write
from bertkit.utils.reporting import track_progress


@dataclass(frozen=True)
class DistillationLoss:
    """The mean loss towards the labels, plus the mean loss towards the teacher's predictions.

    The two parts are averaged separately: "labels" over the labeled items and "teacher" over all items. A
    batch without logits of the teacher has the plain loss towards the labels. So the validation loss can be
    compared with that of the teacher.

    Args:
        label_loss: The loss of the task.
        alpha: Weight of the part "teacher"; the part "labels" has the weight 1 - alpha.
        temperature: Number by which the logits of both models are divided.
        has_unlabeled: Whether batches may have unlabeled examples; their labels are placeholders.
    """

    label_loss: LabelLoss
    alpha: float
    temperature: float
    has_unlabeled: bool = False

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the number of labeled items and of all items."""
        labeled = self._mask_labeled(batch["labels"])
        labeled_batch = batch if labeled is None else {"labels": batch["labels"][labeled]}
        counts = self.label_loss.count_items(labeled_batch)
        if TEACHER_LOGITS not in batch:
            return counts
        labels = batch["labels"]
        return {
            "labels": counts["loss"],
            "teacher": torch.full((), float(labels.numel()), device=labels.device),
        }

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return both summed losses, multiplied by their weights."""
        labeled = self._mask_labeled(batch["labels"])
        labeled_logits = logits if labeled is None else logits[labeled]
        labeled_batch = batch if labeled is None else {"labels": batch["labels"][labeled]}
        sums = self.label_loss.sum_losses(labeled_logits, labeled_batch)
        if TEACHER_LOGITS not in batch:
            return sums
        targets = unflatten_logits(batch[TEACHER_LOGITS], logits)
        teacher = self.label_loss.sum_teacher_losses(logits.float(), targets, self.temperature)
        return {"labels": (1 - self.alpha) * sums["loss"], "teacher": self.alpha * teacher}

    def _mask_labeled(self, labels: torch.Tensor) -> torch.Tensor | None:
        """Return which examples (for `ner`, words) are labeled; None if all of them are."""
        if not self.has_unlabeled:
            return None
        first = labels.flatten(1)[:, 0] if labels.dim() > 1 else labels
        return ~first.isnan() if first.is_floating_point() else first != UNLABELED


def unflatten_logits(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the teacher's logits in the shape of the student's, with -inf where the student has -inf.

    Args:
        flat: The finite logits of all examples of a batch, concatenated.
        like: Logits of the student, as `bertkit.models.forward.compute_logits` returns them. They are -inf
            at padding.
    """
    is_finite = like != -torch.inf
    indices = is_finite.flatten().cumsum(0).clamp(min=1) - 1  # a CUDA graph has no `masked_scatter`
    return flat.float()[indices].view_as(like).masked_fill(~is_finite, -torch.inf)


# Keys of `config.json` that do not affect the logits.
IRRELEVANT_CONFIG_KEYS = {"_name_or_path", "transformers_version", "id2label", "label2id", "dtype"}


def compute_teacher_logits(
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
) -> StoredLogits:
    """Compute the logits of all examples, or load them from the cache.

    Args:
        model: The teacher, on the device to use.
        features: The examples as the teacher reads them.
        collator: Turns examples into a batch.
        batch_size: Number of examples per forward pass.

    Raises:
        UserError: Logits are NaN, or cannot be written.
    """

    def write(folder: Path) -> None:
        with LogitsWriter(folder) as writer:
            _write_logits(writer, model, features, collator, batch_size)

    key = _compute_cache_key(model, features)
    return StoredLogits.load(cache_or_write("teacher-logits", key, write, "the teacher's logits"))


def _write_logits(
    writer: LogitsWriter,
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
) -> None:
    """Compute the logits of all examples. The longest ones come first: memory runs out at once or never."""
    compute, device = bind_logits(model), next(model.parameters()).device
    counts = np.diff(features.logit_offsets)

    def score(examples: np.ndarray) -> np.ndarray:
        batch = collator([features[index] for index in examples])
        logits: torch.Tensor = compute({name: tensor.to(device) for name, tensor in batch.items()})
        return logits.float().cpu().numpy()

    batches = batch_by_length(features, batch_size)
    with torch.no_grad():
        for batch_examples in track_progress(batches, len(batches), "computing the teacher's predictions"):
            for examples, logits in score_with_halving(score, batch_examples):
                if np.isnan(logits).any():
                    raise UserError("teacher: its logits are NaN; train it again")
                writer.add(examples, logits, counts[examples])


def _compute_cache_key(model: Any, features: Features) -> str:
    """Return a digest of everything that the logits depend on: the model, and the inputs in their order."""
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in IRRELEVANT_CONFIG_KEYS
    }
    digest = blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    digest.update(np.ascontiguousarray(features.sequence_offsets).data)
    digest.update(np.ascontiguousarray(features.sequence_lengths).data)
    update_with_tokens(digest, features)
    if positions := getattr(features, "positions", None):  # of the words of `ner`
        digest.update(np.ascontiguousarray(positions.offsets).data)
        digest.update(np.ascontiguousarray(positions.values).data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class ConcatenatedFeatures(Features):
    """The examples of several datasets, one after another, for training.

    Attributes:
        parts: The datasets.
    """

    parts: Sequence[Features]

    @classmethod
    def from_parts(cls, parts: Sequence[Features]) -> "ConcatenatedFeatures":
        """Concatenate datasets; the statistics are those of the first one."""
        counts = np.concatenate([np.diff(part.sequence_offsets) for part in parts])
        first = parts[0]
        return cls(
            parts=parts, sequence_offsets=compute_offsets(counts), labels=None,
            num_truncated=first.num_truncated, max_untruncated_length=first.max_untruncated_length,
            unk_fraction=first.unk_fraction, warnings=first.warnings,
        )  # fmt: skip

    @cached_property
    def _first_examples(self) -> np.ndarray:
        return compute_offsets(np.array([len(part) for part in self.parts]))

    @cached_property
    def _first_sequences(self) -> np.ndarray:
        return compute_offsets(np.array([len(part.sequence_lengths) for part in self.parts]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = int(np.searchsorted(self._first_examples, index, side="right")) - 1
        return self.parts[part][index - int(self._first_examples[part])]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of one sequence, both [length]."""
        part = int(np.searchsorted(self._first_sequences, number, side="right")) - 1
        return self.parts[part].get_sequence(number - int(self._first_sequences[part]))

    @cached_property
    def sequence_lengths(self) -> np.ndarray:  # type: ignore[override]
        """[sequences] number of tokens of each sequence."""
        return np.concatenate([part.sequence_lengths for part in self.parts])


def add_placeholder_labels(features: Features, labeled: Features) -> Features:
    """Return unlabeled features with labels that mark them as unlabeled.

    Args:
        features: Features of any task.
        labeled: Features of the same task, whose labels have the shape and the type of the placeholders.
    """
    assert labeled.labels is not None
    dtype = labeled.labels.dtype
    value = UNLABELED_NUMBER if np.issubdtype(dtype, np.floating) else UNLABELED
    shape = (int(features.logit_offsets[-1]), *labeled.labels.shape[1:])
    return dataclasses.replace(features, labels=np.full(shape, value, dtype))
