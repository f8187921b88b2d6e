"""Deterministic algorithms of PyTorch, which `--deterministic` turns on for a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# A size with which cuBLAS and the LSTM of cuDNN are deterministic, and further variables that
# `enable_full_determinism` sets.
WORKSPACE_VARIABLE, WORKSPACE_SIZE = "CUBLAS_WORKSPACE_CONFIG", ":16:8"
VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC",
)  # fmt: skip


def choose_deterministic_workspace() -> None:
    """Choose the workspace of cuBLAS, which PyTorch reads once, before the first matrix product on a GPU.

    Trainer chooses it too, but after the products of a teacher or of a frozen encoder.
    """
    os.environ.setdefault(WORKSPACE_VARIABLE, WORKSPACE_SIZE)


@contextmanager
def restore_algorithms() -> Iterator[None]:
    """Turn deterministic algorithms off at the end of the block, if they were off before.

    With `full_determinism`, Trainer turns them on for the rest of the process.
    """
    import torch  # here, because missing data is reported before slow packages are imported

    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    cudnn_flags = cudnn.deterministic, cudnn.benchmark
    variables = {name: os.environ.get(name) for name in VARIABLES}
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        cudnn.deterministic, cudnn.benchmark = cudnn_flags
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
