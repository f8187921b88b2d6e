"""What training is fed with: how long it waits for it, and how much of it is padding."""

import time
from collections.abc import Iterator
from typing import Any

import torch


class InputStats:
    """Sums over the batches that were really trained on, since a run began or was gone on with.

    Attributes:
        waited: seconds until the batches were there: read, put together and on their way to the device.
    """

    def __init__(self) -> None:
        self.wait_seconds = 0.0
        self._places = 0
        self._pieces: Any = 0  # summed on the device: reading it would wait for all that it has still to do

    def track_batches(self, batches: Iterator[dict[str, torch.Tensor]]) -> Iterator[dict[str, torch.Tensor]]:
        """The batches as they are, each one counted and timed."""
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.wait_seconds += time.perf_counter() - began
            if batch is None:
                return
            mask = batch["attention_mask"]
            self._pieces = self._pieces + mask.sum()
            self._places += mask.numel()
            yield batch

    @property
    def padding_fraction(self) -> float | None:
        """The share of places that hold no piece; None where nothing was trained on."""
        return 1 - float(self._pieces) / self._places if self._places else None
