"""Dropout that draws its random numbers faster than `nn.Dropout` on a CPU."""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from bertkit.modeling.cpu.random_bits import KeepMasks, draw_seed, drop_, mask_dtype


class FastDropout(nn.Dropout):
    """`nn.Dropout` with faster random numbers in training on a CPU."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Zero each value with probability `p`, and divide the values kept by 1 - p."""
        if not (self.training and 0 < self.p < 1 and input.device.type == "cpu"):
            return super().forward(input)
        output: torch.Tensor = FastDropoutFunction.apply(input, self.p)  # type: ignore[no-untyped-call]
        return output


class FastDropoutFunction(torch.autograd.Function):
    """Dropout that saves only its mask for the backward pass, two bytes per value."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dropout: float) -> torch.Tensor:
        """Zero each value with probability `dropout`, and divide the values kept by `KeepMasks.keep_prob`."""
        keep_masks = KeepMasks(dropout, draw_seed())
        mask = keep_masks.draw(x.shape, torch.int16)
        ctx.scale = 1 / keep_masks.keep_prob
        ctx.save_for_backward(mask)
        return drop_(x * ctx.scale, mask.to(mask_dtype(x)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient with respect to `x`; it is 0 for dropped values."""
        (mask,) = ctx.saved_tensors
        return drop_(grad_output * ctx.scale, mask.to(mask_dtype(grad_output))), None
