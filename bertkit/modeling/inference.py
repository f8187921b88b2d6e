"""Preparation of models for inference."""

from itertools import chain
from typing import TypeVar

from torch import nn

from bertkit.modeling.cpu.acceleration import replace_modules
from bertkit.modeling.first_position import compute_first_position_only
from bertkit.utils import devices
from bertkit.utils.allocator import keep_freed_memory

M = TypeVar("M", bound=nn.Module)


def prepare_for_inference(model: M) -> M:
    """Put a model into evaluation mode, on the accelerator if there is one, and return it.

    On a CPU, the weights are copied, oneDNN computes the linear layers, and freed memory is kept. Without
    dropout, PyTorch's own attention is a fused kernel already, with and without a mask.
    """
    compute_first_position_only(model)
    if devices.has_accelerator():
        return model.to(devices.select_device()).eval()
    copy_weights(model)
    keep_freed_memory()
    replace_modules(model, is_single_process=True)
    return model.eval()


def copy_weights(model: nn.Module) -> None:
    """Replace the weights of a model by copies in memory.

    Loaded weights are memory-mapped. If another program writes into their file, the predictions would change,
    or the process would end by SIGBUS. This matters for a server. All commands copy, because the position in
    memory can change the last bit of a result, and a server predicts what `bertkit predict` does.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone()
