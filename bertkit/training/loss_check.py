"""Detection of a loss that is NaN or infinite."""

import math

import torch

from bertkit.errors import NAN_HINT, TrainingFailed
from bertkit.utils import devices


class LossCheck:
    """Check that the loss of every step is finite.

    On a CPU, the check is immediate. On an accelerator, reading the loss of each step would wait for all
    pending kernels. There, a tensor on the device records the first step whose loss is not finite, and
    `raise_if_recorded` reads it: before weights are evaluated or a checkpoint is written. Logging reads it
    together with the loss.

    Attributes:
        recorded: Step and loss, `[2]`; the step is 0 if all losses are finite. None if nothing is recorded.
    """

    def __init__(self) -> None:
        self._is_deferred = devices.runs_asynchronously()
        self.recorded: torch.Tensor | None = None

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Check the loss of a step, or record it if it is the first that is not finite.

        Args:
            loss: A scalar.
            step: Number of the optimizer step, from 1.

        Raises:
            UserError: The loss is NaN or infinite, and the check is immediate.
        """
        if not self._is_deferred:
            raise_if_not_finite(float(loss), step)
            return
        loss = loss.detach().float()  # some accelerators have no float64
        current = torch.stack([torch.full_like(loss, step), loss])
        if self.recorded is None:
            self.recorded = torch.zeros_like(current)
        is_first = ~torch.isfinite(loss) & (self.recorded[0] == 0)
        self.recorded = torch.where(is_first, current, self.recorded)

    def raise_if_recorded(self) -> None:
        """Raise a `UserError` if a loss has been recorded; on an accelerator, wait for all pending steps."""
        if self.recorded is not None:
            step, loss = self.recorded.tolist()
            raise_if_not_finite(loss, int(step))


def raise_if_not_finite(loss: float, step: int) -> None:
    """Raise a `UserError` if the loss of a step is NaN or infinite."""
    if not math.isfinite(loss):
        raise TrainingFailed(f"the loss is {loss} at step {step}; {NAN_HINT}")
