"""What is logged while training beside the loss: each part of it, and how often it is right."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class LossMeter:
    """Sums over the steps since the last that was logged, on the device.

    They are read when they are logged, since reading waits for all that the device has still to do.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}  # part -> [3] loss, how many are right, how many there are

    def add(self, *figures: dict[str, torch.Tensor]) -> None:
        """Of a batch: part -> its summed loss; part -> how many are right; part -> how many there are."""
        for part in figures[0]:
            more = torch.stack([of_parts[part].detach().float() for of_parts in figures])
            self.sums[part] = self.sums[part] + more if part in self.sums else more

    def gather_sums(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, list[list[float]]]:
        """The sums of each rank; `gather` gives those of all, one after the other."""
        return {part: gather(sums).view(-1, 3).tolist() for part, sums in self.sums.items()}

    def restore(self, read: dict[str, list[list[float]]], rank: int, device: torch.device) -> None:
        """Go on from what was read: each rank from its own."""
        self.sums = {part: torch.tensor(sums[rank], device=device) for part, sums in read.items()}

    def compute_and_reset(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
        """`mlm_loss`, `mlm_accuracy` and so on, each over all that is counted of its kind; begins anew."""
        read, self.sums = self.gather_sums(gather), {}
        together = {part: map(sum, zip(*sums, strict=True)) for part, sums in read.items()}
        return {
            f"{part}_{name}": figure / max(count, 1)
            for part, (loss, right, count) in together.items()
            for name, figure in (("loss", loss), ("accuracy", right))
        }


def merge_log_history(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Trainer logged, an entry a step: with validation scores, as `eval_NAME`, where there are any."""
    lines: dict[int, dict[str, Any]] = {}
    for entry in history:
        if "train_runtime" not in entry:  # the totals of one call
            line = lines.setdefault(entry["step"], {"step": entry["step"], "epoch": entry["epoch"]})
            line |= dict(sorted(entry.items()))  # as a checkpoint has them
    return list(lines.values())
