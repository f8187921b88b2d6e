"""Losses as sums and counts, so that the mean is taken over the whole effective batch.

The effective batch spans all accumulation steps on all ranks. The trainer divides its summed loss by its
number of items. One step with 8 examples and 8 accumulated steps with 1 example each thus train alike.
The usual mean of per-batch means gives another result if batches differ in size or in total class weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F

from bertkit.data.features import TARGETS, WEIGHTS
from bertkit.data.masking import IGNORE_INDEX
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.utils.devices import copy_to_device


class Loss(Protocol):
    """A loss that is the sum of one or more parts; each part is averaged over its own number of items.

    The part of a loss with only one is called "loss". Pre-training has the parts "mlm" and "nsp".
    """

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the number of items in the batch by part, as scalars; weighted items count by weight."""

    def sum_losses(self, logits: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the loss summed over the items of the batch by part, as scalars with gradients."""


class LabelLoss(Loss, Protocol):
    """A loss towards labels with the part "loss", which can also compare logits with those of a teacher."""

    def sum_teacher_losses(
        self, logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the loss towards the predictions of a teacher, summed over as many items as `labels` has.

        The gradients of softened probabilities shrink by the squared temperature, so the loss is multiplied
        by it (Hinton et al. 2015, section 2.1).

        Args:
            logits: fp32 logits of the student.
            teacher_logits: fp32 logits of the teacher, of the same shape, and -inf at the same positions.
        """


@runtime_checkable
class LossWithAccuracy(Loss, Protocol):
    """A loss whose parts are logged separately, each with its accuracy."""

    def count_correct(self, logits: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the number of correct predictions by part, as scalars."""


def sum_parts(loss: Loss, means: Mapping[str, Any]) -> Any:
    """Return the sum of the mean losses of all parts, weighted if the loss has `part_weights`."""
    weights: dict[str, float] = getattr(loss, "part_weights", {})
    return sum(weights.get(part, 1.0) * mean for part, mean in means.items())


def get_item_weights(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the weight of each label of a weighted batch, in the shape of the labels."""
    labels, weights = batch["labels"], batch[WEIGHTS]
    return weights.view(-1, *[1] * (labels.dim() - 1)).expand_as(labels)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy for labels of one class each: logits `[..., num_classes]`, integer labels `[...]`.

    For the start and end of an answer, the classes are the positions of the sequence. With class weights,
    each label counts by the weight of its class, as in `torch.nn.CrossEntropyLoss`. Without them, labels of
    -100 are left out. A batch may have weights v `[examples]` and soft labels q `[examples, num_classes]`.
    With class weights w and predicted probabilities p, the loss of an example is then
    -v sum_c q_c w_c log p_c, and it counts as v sum_c q_c w_c items.

    Args:
        class_weights: `[num_classes]`, or None to count all labels alike.
        smoothing: Label smoothing, from 0 to 1.
    """

    class_weights: torch.Tensor | None = None
    smoothing: float = 0.0

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        labels = batch["labels"]
        class_weights = None
        if self.class_weights is not None:
            class_weights = copy_to_device(self.class_weights, labels.device)
        if class_weights is None:
            counts = (labels != IGNORE_INDEX).float()
        elif TARGETS in batch:
            counts = batch[TARGETS] @ class_weights
        else:
            counts = class_weights[labels]
        return {"loss": (counts * get_item_weights(batch) if WEIGHTS in batch else counts).sum()}

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights = None if self.class_weights is None else copy_to_device(self.class_weights, logits.device)
        targets = batch[TARGETS] if TARGETS in batch else batch["labels"].flatten()
        is_weighted = WEIGHTS in batch
        loss = F.cross_entropy(
            logits.float().flatten(0, -2), targets, weight=weights,
            reduction="none" if is_weighted else "sum", label_smoothing=self.smoothing,
        )  # fmt: skip
        return {"loss": (loss * get_item_weights(batch).flatten()).sum() if is_weighted else loss}

    def sum_teacher_losses(
        self, logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the summed KL divergence of the student's distributions from the teacher's."""
        is_class = teacher_logits != -torch.inf  # 0 * log(0) would be NaN
        student = torch.log_softmax(logits / temperature, -1).masked_fill(~is_class, 0.0)
        teacher = torch.log_softmax(teacher_logits / temperature, -1)
        divergence = teacher.exp() * (teacher.masked_fill(~is_class, 0.0) - student)
        return temperature**2 * divergence.sum()


class MeanOverLabels:
    """A loss of which each label is one item; a row with a weight counts by it."""

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        labels = batch["labels"]
        if WEIGHTS in batch:
            return {"loss": get_item_weights(batch).sum()}
        # `torch.full` starts a kernel; `torch.tensor` would wait for a copy to a GPU
        return {"loss": torch.full((), float(labels.numel()), device=labels.device)}

    def sum_items(self, losses: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the sum of the losses of all labels, which have the shape of the labels."""
        return {"loss": (losses * get_item_weights(batch) if WEIGHTS in batch else losses).sum()}


@dataclass(frozen=True)
class BinaryCrossEntropy(MeanOverLabels):
    """Binary cross-entropy for multi-label classification: logits and 0/1 labels `[batch, num_classes]`.

    A batch may have the probabilities of the labels, which replace 0 and 1.

    Args:
        pos_weights: `[num_classes]` factors on the loss of positive labels (PyTorch's `pos_weight`), or None.
        smoothing: Label smoothing, from 0 to 1.
    """

    pos_weights: torch.Tensor | None = None
    smoothing: float = 0.0

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        labels = batch[TARGETS] if TARGETS in batch else batch["labels"].float()
        targets = labels * (1 - self.smoothing) + self.smoothing / 2
        pos_weights = None if self.pos_weights is None else copy_to_device(self.pos_weights, logits.device)
        losses = F.binary_cross_entropy_with_logits(
            logits.float(), targets, pos_weight=pos_weights, reduction="none"
        )
        return self.sum_items(losses, batch)

    def sum_teacher_losses(
        self, logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the summed binary cross-entropy towards the teacher's probabilities."""
        targets = (teacher_logits / temperature).sigmoid()
        loss = F.binary_cross_entropy_with_logits(logits / temperature, targets, reduction="sum")
        return temperature**2 * loss


@dataclass(frozen=True)
class SquaredError(MeanOverLabels):
    """Squared error for regression: logits `[batch, 1]`, float labels `[batch]`."""

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        error = logits.float().squeeze(-1) - batch["labels"].float()
        return self.sum_items(error.square(), batch)

    def sum_teacher_losses(
        self, logits: torch.Tensor, teacher_logits: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Return the summed squared difference of the outputs, which have no temperature."""
        return (logits - teacher_logits).square().sum()


@dataclass(frozen=True)
class CosineSimilarityLoss(MeanOverLabels):
    """Squared error of the cosine similarity of pairs, as in sentence-transformers.

    The vectors `[2 * batch, size]` of a pair follow each other; labels `[batch]` are similarities.
    """

    def sum_losses(self, vectors: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        first, second = vectors.float().view(len(batch["labels"]), 2, -1).unbind(1)
        error = F.cosine_similarity(first, second) - batch["labels"].float()
        return self.sum_items(error.square(), batch)


def compute_class_weights(labels: TrainingLabels, num_classes: int) -> torch.Tensor:
    """Return the weight of each class `[num_classes]`.

    For classes, it is n / (num_classes * count), as in scikit-learn. For label sets, it is `pos_weight`, rows
    without the label / rows with it, or 1 if all rows have it. Rows count by their weights and soft labels.
    """
    counts = labels.sum_by_class(num_classes)
    total = float(len(labels.labels) if labels.weights is None else labels.weights.sum(dtype=np.float64))
    if labels.labels.ndim == 2:
        # A label that every row has would get the weight 0, and the model would not learn it.
        weights = np.where(counts > total * (1 - 1e-9), 1, (total - counts) / np.where(counts > 0, counts, 1))
    else:
        weights = total / (num_classes * np.where(counts > 0, counts, 1))
    return torch.tensor(weights, dtype=torch.float32)
