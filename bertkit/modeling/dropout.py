"""Fast dropout on CPUs: one 64-bit random number decides on four values, with 16 bits for each."""

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

RANDOM_LEVELS = 2**16  # number of values that 16 random bits can have


def sample_keep_mask(shape: torch.Size, dropped_levels: int) -> torch.Tensor:
    """Return a random bool mask that is false with probability `dropped_levels / RANDOM_LEVELS`.

    Generating random numbers takes most of dropout's time, so each 64-bit number decides on four values.
    """
    n = shape.numel()
    random_int64 = torch.empty(math.ceil(n / 4), dtype=torch.int64).random_(-(2**63), None)
    random_int16 = random_int64.view(torch.int16)[:n]
    return (random_int16 >= dropped_levels - RANDOM_LEVELS // 2).view(shape)


def set_dropout(model: nn.Module, p: float) -> None:
    """Set the dropout probability of all modules of `model`; its config keeps the original value."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p


def enable_fast_dropout(model: nn.Module) -> None:
    """Turn every `nn.Dropout` of `model` into a `FastDropout`, which differs only in training on a CPU."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout


class FastDropout(nn.Dropout):
    """`nn.Dropout` with faster random numbers in training on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Zero each value with probability `p`, and divide the values kept by 1 - p."""
        if not (self.training and 0 < self.p < 1 and input.device.type == "cpu"):
            return super().forward(input)
        output: torch.Tensor = FastDropoutFunction.apply(input, round(self.p * RANDOM_LEVELS))  # type: ignore[no-untyped-call]
        return output


class FastDropoutFunction(torch.autograd.Function):
    """Dropout that saves only its mask for the backward pass, one byte per value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dropped_levels: int) -> torch.Tensor:
        """Zero each value with probability `dropped_levels / RANDOM_LEVELS`, and scale the values kept."""
        keep = sample_keep_mask(x.shape, dropped_levels)
        ctx.scale = RANDOM_LEVELS / (RANDOM_LEVELS - dropped_levels)
        ctx.save_for_backward(keep)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient with respect to `x`; it is 0 for dropped values."""
        (keep,) = ctx.saved_tensors
        return (grad_output * keep).mul_(ctx.scale), None
