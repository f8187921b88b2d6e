"""Properties of the device that trains, and copies to it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def runs_asynchronously() -> bool:
    """Return whether kernels run in the background of the Python process, as on a GPU.

    Reading a tensor then waits for all pending kernels. Meanwhile, no new kernels are started.
    """
    import torch

    return torch.accelerator.is_available()


def copies_asynchronously() -> bool:
    """Return whether copies to the device may run in the background, as CUDA does safely."""
    import torch

    return torch.cuda.is_available()


def copy_to_device(tensor: "torch.Tensor", device: "torch.device") -> "torch.Tensor":
    """Copy a small tensor from the host to a device, without waiting for pending kernels on CUDA."""
    return tensor.to(device, non_blocking=copies_asynchronously())
