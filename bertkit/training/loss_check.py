"""Detection of a loss that is NaN or infinite."""

import math

import torch

from bertkit.errors import NAN_HINT, TrainingFailed
from bertkit.utils import devices


class LossCheck:
    """Check that the loss of every step is finite.

    On a CPU, the check is immediate. On an accelerator, reading the loss of each step would wait for all
    pending kernels. There, a tensor on the device records the first step whose loss is not finite, and
    `raise_if_recorded` reads it: before the loss is logged, weights are evaluated or a checkpoint is written.
    """

    def __init__(self) -> None:
        self._is_deferred = devices.runs_asynchronously()
        self._recorded: torch.Tensor | None = None  # `[2]`: step and loss; the step is 0 if all are finite

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Check the loss of a step, or record it if it is the first that is not finite.

        Args:
            loss: A scalar.
            step: Number of the optimizer step, from 1.

        Raises:
            UserError: The loss is NaN or infinite, and the check is immediate.
        """
        if not self._is_deferred:
            _raise_if_not_finite(float(loss), step)
            return
        loss = loss.detach().float()  # some accelerators have no float64
        current = torch.stack([torch.full_like(loss, step), loss])
        if self._recorded is None:
            self._recorded = torch.zeros_like(current)
        is_first = ~torch.isfinite(loss) & (self._recorded[0] == 0)
        self._recorded = torch.where(is_first, current, self._recorded)

    def raise_if_recorded(self) -> None:
        """Raise a `UserError` if a loss has been recorded; on an accelerator, wait for all pending steps."""
        if self._recorded is not None:
            step, loss = self._recorded.tolist()
            _raise_if_not_finite(loss, int(step))


def _raise_if_not_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise TrainingFailed(f"the loss is {loss} at step {step}; {NAN_HINT}")
