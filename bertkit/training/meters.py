"""Statistics collected during training: the batches, the time waiting for them, and the parts of the loss."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bertkit.utils import distributed


class InputStats:
    """Statistics of the training batches since the run was started or resumed.

    Attributes:
        wait_seconds: Time that training waited for batches to be read, collated and sent to the device.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        self._num_positions = 0
        # A tensor on the device after the first batch, because reading it would wait for all pending work.
        self._num_tokens: Any = 0

    def track_batches(self, batches: Iterator[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches unchanged; measure the wait for each batch, and count its tokens."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - started
            if batch is None:
                return
            self._num_tokens = self._num_tokens + batch["attention_mask"].sum()
            self._num_positions += batch["attention_mask"].numel()
            yield batch

    @property
    def padding_fraction(self) -> float | None:
        """Fraction of positions that are padding; None before the first batch."""
        return 1 - int(self._num_tokens) / self._num_positions if self._num_positions else None

    def count_tokens_of_all_ranks(self) -> int:
        """Return the number of tokens without padding. All ranks must call this."""
        return sum(distributed.gather_object(int(self._num_tokens)))


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
