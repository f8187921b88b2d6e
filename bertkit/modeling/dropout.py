"""Dropout on a CPU: what is dropped is drawn with 16 bits, four draws from each random number."""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

RANDOM_LEVELS = 2**16


def sample_keep_mask(shape: torch.Size, dropped: int) -> torch.Tensor:
    """bool, false for `dropped` of `DRAWS`: four draws from each number, since drawing is what takes time."""
    n = shape.numel()
    bits = torch.empty(-(-n // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n]
    return (bits >= dropped - RANDOM_LEVELS // 2).view(shape)


def set_dropout(model: nn.Module, p: float) -> None:
    """Drop with probability `p` in all of `model` here; its config, by which others train it, stays."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p


def enable_fast_dropout(model: nn.Module) -> None:
    """Have every `nn.Dropout` of `model` draw so where it trains on a CPU; elsewhere it is as it was."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout


class FastDropout(nn.Dropout):
    """`nn.Dropout` but for how it draws."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Each value with probability `p` 0, else divided by 1 - p."""
        if not (self.training and 0 < self.p < 1 and input.device.type == "cpu"):
            return super().forward(input)
        found: torch.Tensor = FastDropoutFunction.apply(input, round(self.p * RANDOM_LEVELS))  # type: ignore[no-untyped-call]
        return found


class FastDropoutFunction(torch.autograd.Function):
    """What is kept, a byte a value, is all that is held for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dropped: int) -> torch.Tensor:
        """Make `dropped` of `DRAWS` of the values 0."""
        keep = sample_keep_mask(x.shape, dropped)
        ctx.scale = RANDOM_LEVELS / (RANDOM_LEVELS - dropped)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Of what was kept."""
        (keep,) = ctx.saved_tensors
        return (gradient * keep).mul_(ctx.scale), None
