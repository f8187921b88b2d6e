"""The one loss rule: the sum over counted items divided by their number in the effective batch.

The effective batch is all accumulation steps on all ranks. Losses here give sums and counts apart;
who trains divides by the counts of the whole effective batch, so 8 x 1, 2 x 4 and 1 x 8 train alike.
A mean of means, the usual way, does not where batches or weights differ.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from bertkit.masking.masker import IGNORE_INDEX
from bertkit.modeling.pretraining import PretrainingLogits

PRETRAINING_PARTS = ("mlm", "nsp")


class Loss(Protocol):
    """A loss in parts, each with its own denominator (pre-training has two)."""

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Part -> how many items (or how much weight) this batch counts; scalars."""

    def sum_losses(self, logits: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Part -> the loss summed over those items; scalars with gradient."""


@runtime_checkable
class LossWithAccuracy(Loss, Protocol):
    """A loss whose parts are logged apart, and how often each is right."""

    def count_correct(self, logits: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Part -> how many of its items are decided rightly; scalars."""


@dataclass(frozen=True)
class CrossEntropy:
    """Single-label decisions. `logits` [..., classes], `labels` [...] int.

    Of the start and the end of an answer the classes are the places in the sequence, -inf where there are
    none.
    With class weights an item counts as much as its class weighs, as in `torch.nn.CrossEntropyLoss`.
    """

    weights: torch.Tensor | None = None  # [classes]
    smoothing: float = 0.0

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The number of decisions, or their weight."""
        labels = batch["labels"]
        if self.weights is None:
            return {"loss": torch.tensor(float(labels.numel()), device=labels.device)}
        return {"loss": self.weights.to(labels.device)[labels].sum()}

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Summed cross-entropy in nats."""
        weights = None if self.weights is None else self.weights.to(logits.device)
        loss = F.cross_entropy(
            logits.float().flatten(0, -2), batch["labels"].flatten(), weight=weights, reduction="sum",
            label_smoothing=self.smoothing,
        )  # fmt: skip
        return {"loss": loss}


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Multi-label classification. `logits`, `labels` [batch, classes], labels 0 or 1."""

    weights: torch.Tensor | None = None  # [classes], on the positive side
    smoothing: float = 0.0

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The number of decisions: examples times classes."""
        labels = batch["labels"]
        return {"loss": torch.tensor(float(labels.numel()), device=labels.device)}

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Summed binary cross-entropy in nats."""
        targets = batch["labels"].float() * (1 - self.smoothing) + self.smoothing / 2
        weights = None if self.weights is None else self.weights.to(logits.device)
        loss = F.binary_cross_entropy_with_logits(
            logits.float(), targets, pos_weight=weights, reduction="sum"
        )
        return {"loss": loss}


@dataclass(frozen=True)
class SquaredError:
    """Regression. `logits` [batch, 1], `labels` [batch] float."""

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The number of examples."""
        labels = batch["labels"]
        return {"loss": torch.tensor(float(len(labels)), device=labels.device)}

    def sum_losses(self, logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Summed squared error."""
        error = logits.float().squeeze(-1) - batch["labels"].float()
        return {"loss": error.square().sum()}


@dataclass(frozen=True)
class PretrainingLoss:
    """Masked words, and whether the second text follows the first: two parts, each with its own mean.

    Devlin et al. 2018, A.2: the sum of the mean likelihoods. `masked_lm_labels` [B, P] are -100 where nothing
    is predicted; `next_sentence_label` [B] is there where there are pairs.
    """

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The number of masked pieces, and of pairs."""
        counts = {"mlm": (batch["masked_lm_labels"] != IGNORE_INDEX).sum().float()}
        if "next_sentence_label" in batch:
            pairs = batch["next_sentence_label"]
            counts["nsp"] = torch.tensor(float(len(pairs)), device=pairs.device)
        return counts

    def sum_losses(
        self, logits: PretrainingLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Summed cross-entropy in nats."""
        return {
            part: F.cross_entropy(some.float(), labels, ignore_index=IGNORE_INDEX, reduction="sum")
            for part, (some, labels) in select_predicted(logits, batch).items()
        }

    def count_correct(
        self, logits: PretrainingLogits, batch: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The number of right pieces, and of pairs."""
        return {
            part: (some.argmax(-1) == labels).sum()
            for part, (some, labels) in select_predicted(logits, batch).items()
        }


def select_predicted(
    logits: PretrainingLogits, batch: dict[str, torch.Tensor]
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Part -> logits [decisions, classes] and labels [decisions], -100 where there is nothing to decide."""
    found = {"mlm": (logits.prediction_logits.flatten(0, 1), batch["masked_lm_labels"].flatten())}
    if logits.seq_relationship_logits is not None and "next_sentence_label" in batch:
        found["nsp"] = (logits.seq_relationship_logits, batch["next_sentence_label"])
    return found


def sum_pretraining_logits(
    logits: PretrainingLogits, batch: dict[str, torch.Tensor], num_examples: int
) -> torch.Tensor:
    """Return [examples, 6]: for mlm, then nsp, the summed loss, the correct and all predictions."""
    predicted = select_predicted(logits, batch)
    zeros = torch.zeros(num_examples, 3, device=batch["input_ids"].device)
    sums = [
        _sum_per_example(*predicted[part], num_examples) if part in predicted else zeros
        for part in PRETRAINING_PARTS
    ]
    return torch.cat(sums, 1)


def _sum_per_example(logits: torch.Tensor, labels: torch.Tensor, num_examples: int) -> torch.Tensor:
    """Return [examples, 3] sums over predictions that are equally many in each example."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
    values = (loss, logits.argmax(-1) == labels, labels != IGNORE_INDEX)
    return torch.stack([value.float().view(num_examples, -1).sum(1) for value in values], 1)
