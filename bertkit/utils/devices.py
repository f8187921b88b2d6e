"""Properties of the device that trains."""


def runs_asynchronously() -> bool:
    """Return whether kernels run in the background of the Python process, as on a GPU.

    Reading a tensor then waits for all pending kernels. Meanwhile, no new kernels are started.
    """
    import torch

    return torch.accelerator.is_available()
