"""Preparation of models for inference."""

from typing import TypeVar

import torch
from torch import nn

from bertkit.modeling.cpu.acceleration import replace_modules
from bertkit.utils.allocator import keep_freed_memory

M = TypeVar("M", bound=nn.Module)


def prepare_for_inference(model: M) -> M:
    """Put a model into evaluation mode, on the accelerator if there is one, and return it.

    On a CPU, oneDNN computes the linear layers, and freed memory is kept. Without dropout, PyTorch's own
    attention is a fused kernel already, with and without a mask.
    """
    if torch.accelerator.is_available():
        return model.to(torch.accelerator.current_accelerator()).eval()
    keep_freed_memory()
    replace_modules(model, is_single_process=True)
    return model.eval()
