"""Statistics collected while training: input waiting time, padding, and the parts of the loss."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


class InputStats:
    """Statistics of the batches trained on since the run was started or resumed.

    Attributes:
        wait_seconds: time until batches were ready: read, collated, and on their way to the device.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        self._positions = 0
        self._tokens: Any = 0  # stays on the device, because reading it would wait for all pending work

    def track_batches(self, batches: Iterator[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the batches unchanged, and count and time each of them."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - started
            if batch is None:
                return
            mask = batch["attention_mask"]
            self._tokens = self._tokens + mask.sum()
            self._positions += mask.numel()
            yield batch

    @property
    def padding_fraction(self) -> float | None:
        """The fraction of positions that are padding; None before the first batch."""
        return 1 - float(self._tokens) / self._positions if self._positions else None


class LossMeter:
    """Sums of loss, correct predictions and items over the steps since the last log entry.

    The sums stay on the device until they are logged, because reading them would wait for all pending work.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}  # part -> [3]: loss, correct predictions, items

    def add(
        self,
        losses: dict[str, torch.Tensor],
        correct: dict[str, torch.Tensor],
        counts: dict[str, torch.Tensor],
    ) -> None:
        """Add a batch: for each part its summed loss, its correct predictions, and its items."""
        for part in losses:
            values = (losses[part], correct[part], counts[part])
            sums = torch.stack([value.detach().float() for value in values])
            self.sums[part] = self.sums[part] + sums if part in self.sums else sums

    def gather_sums(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, list[list[float]]]:
        """Return part -> the sums of each rank; `gather` concatenates the tensors of all ranks."""
        return {part: gather(sums).view(-1, 3).tolist() for part, sums in self.sums.items()}

    def load_sums(self, saved: dict[str, list[list[float]]], rank: int, device: torch.device) -> None:
        """Load this rank's sums from the output of `gather_sums`."""
        self.sums = {part: torch.tensor(sums[rank], device=device) for part, sums in saved.items()}

    def compute_and_reset(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """Return `mlm_loss`, `mlm_accuracy` and so on, averaged over all items of all ranks, and reset."""
        sums_of_ranks, self.sums = self.gather_sums(gather), {}
        metrics = {}
        for part, sums in sums_of_ranks.items():
            loss, correct, count = map(sum, zip(*sums, strict=True))
            metrics[f"{part}_loss"] = loss / max(count, 1)
            metrics[f"{part}_accuracy"] = correct / max(count, 1)
        return metrics


def merge_log_history(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge Trainer's log into one entry per step; validation scores are in it as `eval_NAME`."""
    entries: dict[int, dict[str, Any]] = {}
    for logged in history:
        if "train_runtime" not in logged:  # the totals of one call of `train`
            entry = entries.setdefault(logged["step"], {"step": logged["step"], "epoch": logged["epoch"]})
            entry |= dict(sorted(logged.items()))  # the order they have in checkpoints
    return list(entries.values())
