"""Statistics collected during training: the batches, the time waiting for them, and the parts of the loss."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from bertkit.masking.masker import IGNORE_INDEX
from bertkit.utils import distributed


@dataclass(frozen=True)
class SequenceCounts:
    """Numbers of sequences and predictions in the training batches.

    Attributes:
        length_counts: `[max_length + 1]` number of sequences of each length, without padding.
        num_predictions: Number of predicted positions in pre-training, else 0.
    """

    length_counts: torch.Tensor
    num_predictions: int = 0

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return int(self.length_counts.sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without padding."""
        return int(self.length_counts @ torch.arange(len(self.length_counts)))


class InputStats:
    """Statistics of the training batches since the run was started or resumed.

    Attributes:
        wait_seconds: Time that training waited for batches to be read, collated and sent to the device.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        self._num_positions = 0
        # Counts stay on the device, because reading them would wait for all pending work.
        self._length_counts: torch.Tensor | None = None
        self._num_predictions: Any = 0

    def track_batches(self, batches: Iterator[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches unchanged; measure the wait for each batch, and count its tokens."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - started
            if batch is None:
                return
            self._count_sequences(batch["attention_mask"])
            if "masked_lm_labels" in batch:
                is_predicted = batch["masked_lm_labels"] != IGNORE_INDEX
                self._num_predictions = self._num_predictions + is_predicted.sum()
            yield batch

    def _count_sequences(self, mask: torch.Tensor) -> None:
        """Count the sequences of a batch by their length.

        Args:
            mask: Attention mask `[num_sequences, seq_len]`.
        """
        lengths, size = mask.sum(-1), mask.shape[-1] + 1
        counts = lengths.new_zeros(0) if self._length_counts is None else self._length_counts
        if len(counts) < size:
            counts = torch.cat([counts, counts.new_zeros(size - len(counts))])
        self._length_counts = counts.index_add_(0, lengths, torch.ones_like(lengths))
        self._num_positions += mask.numel()

    @property
    def padding_fraction(self) -> float | None:
        """Fraction of positions that are padding; None before the first batch."""
        return 1 - self._count().num_tokens / self._num_positions if self._num_positions else None

    def gather_counts(self) -> SequenceCounts:
        """Return the counts of all ranks; all ranks must call this."""
        counts = distributed.gather_object(self._count())
        length_counts = pad_sequence([count.length_counts for count in counts], batch_first=True).sum(0)
        return SequenceCounts(length_counts, sum(count.num_predictions for count in counts))

    def _count(self) -> SequenceCounts:
        counts = torch.zeros(1, dtype=torch.long) if self._length_counts is None else self._length_counts
        return SequenceCounts(counts.cpu(), int(self._num_predictions))


class LossMeter:
    """Loss and accuracy of each part of the loss (such as `mlm`) since the last log entry.

    The sums stay on the device until they are logged, because reading them would wait for all pending work.
    """

    def __init__(self) -> None:
        # By part of the loss, a tensor `[3]`: sum of losses, number of correct predictions, number of items.
        self.sums: dict[str, torch.Tensor] = {}

    def add(
        self,
        losses: dict[str, torch.Tensor],
        correct: dict[str, torch.Tensor],
        counts: dict[str, torch.Tensor],
    ) -> None:
        """Add the sums of a batch.

        Args:
            losses: Sum of losses by part.
            correct: Number of correct predictions by part.
            counts: Number of items by part.
        """
        for part in losses:
            values = (losses[part], correct[part], counts[part])
            sums = torch.stack([value.detach().float() for value in values])
            self.sums[part] = self.sums[part] + sums if part in self.sums else sums

    def load_sums(self, saved: dict[str, list[list[float]]], rank: int, device: torch.device) -> None:
        """Restore the sums of this rank from `saved`: for each part, the sums of each rank."""
        self.sums = {part: torch.tensor(sums[rank], device=device) for part, sums in saved.items()}

    def reset(self) -> None:
        """Start the next log entry."""
        self.sums = {}


def compute_part_metrics(sums: dict[str, list[list[float]]]) -> dict[str, float]:
    """Return the mean loss and the accuracy over the items of all ranks, such as `mlm_loss`.

    Args:
        sums: For each part, the three sums of a `LossMeter` of each rank.
    """
    metrics = {}
    for part, rank_sums in sums.items():
        loss, correct, count = map(sum, zip(*rank_sums, strict=True))
        metrics[f"{part}_loss"] = loss / max(count, 1)
        metrics[f"{part}_accuracy"] = correct / max(count, 1)
    return metrics


def merge_log_history(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the entries of Trainer's log into one entry per step, with validation scores as `eval_NAME`."""
    entries: dict[int, dict[str, Any]] = {}
    for logged in history:
        if "train_runtime" not in logged:  # skips the totals that Trainer logs at the end of `train`
            entry = entries.setdefault(logged["step"], {"step": logged["step"], "epoch": logged["epoch"]})
            entry |= dict(sorted(logged.items()))  # sorted as in checkpoints, so resumed runs log the same
    return list(entries.values())
