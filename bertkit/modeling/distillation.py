"""The loss of a student that learns the predictions of a teacher (Hinton et al. 2015, section 2)."""

from dataclasses import dataclass

import torch

from bertkit.data.features import UNLABELED
from bertkit.data.stored_logits import TEACHER_LOGITS
from bertkit.modeling.losses import LabelLoss


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
        like: Logits of the student, as `bertkit.modeling.forward.compute_logits` returns them. They are -inf
            at padding.
    """
    is_finite = like != -torch.inf
    indices = is_finite.flatten().cumsum(0).clamp(min=1) - 1  # a CUDA graph has no `masked_scatter`
    return flat.float()[indices].view_as(like).masked_fill(~is_finite, -torch.inf)
