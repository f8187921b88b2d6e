"""Preparation of models for inference."""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from bertkit.utils.memory_pool import keep_freed_memory

M = TypeVar("M", bound=nn.Module)
MIN_ROWS = 16  # below this, copying to oneDNN's layout takes longer than oneDNN saves


class OneDnnLinear(nn.Linear):
    """`nn.Linear` that computes fp32 outputs with oneDNN on a CPU, unless gradients are needed.

    PyTorch itself uses MKL, which is half as fast on AMD's processors with AVX-512.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return `input @ weight.T + bias`, `[..., out_features]`."""
        is_fp32 = input.dtype == self.weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        is_on_cpu = input.device.type == self.weight.device.type == "cpu"
        is_large = input.numel() >= MIN_ROWS * self.in_features
        if torch.is_grad_enabled() or not (is_fp32 and is_on_cpu and is_large):
            return super().forward(input)
        return F.linear(input.to_mkldnn(), self.weight, self.bias).to_dense()


def prepare_for_inference(model: M) -> M:
    """Put a model into evaluation mode, on the accelerator if there is one, and return it.

    On a CPU, oneDNN computes the linear layers, and freed memory is kept. Without dropout, PyTorch's own
    attention is a fused kernel already, with and without a mask.
    """
    if torch.accelerator.is_available():
        return model.to(torch.accelerator.current_accelerator()).eval()
    keep_freed_memory()
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear
    return model.eval()
