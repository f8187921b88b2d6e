"""The device of this process: its choice, the check of MPS, and what it supports."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.utils import system
from bertkit.utils.compat import get_cpu_capabilities
from bertkit.utils.reporting import report_info, report_warning

AUTO = "auto"
_requested = AUTO  # value of --device of the current command


def request_device(name: str) -> None:
    """Set the device on which this process loads models; "auto" is found when it is needed, in a second."""
    global _requested
    if name != AUTO:
        _find_device(name)
    _requested = name


def is_requested() -> bool:
    """Return whether the user chose the device."""
    return _requested != AUTO


def get_device() -> torch.device:
    """Return the device on which this process loads models."""
    return _find_device(_requested)


def select_device() -> torch.device:
    """Make the device of this process the current one on CUDA, which initializes it; return the device.

    cuDNN's attention is turned off. On Hopper GPUs, PyTorch prefers it, and it builds a plan for each new
    shape, which takes 4 ms of the CPU's time per layer. Nearly every batch of texts has another shape.
    """
    device = get_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def has_accelerator() -> bool:
    """Return whether models run on another device than the CPU."""
    return get_device().type != "cpu"


@cache
def _find_device(name: str) -> torch.device:
    """Return a device with its index, if its type has several; refuse one that this machine does not have."""
    if name == "cpu":
        return torch.device("cpu")
    if name == AUTO:
        return _choose_device()
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("--device mps: needs a Mac with Apple silicon; pass cpu or auto")
        if system.get_launched_world_size() > 1:
            raise UserError("--device mps: runs in one process; omit --nproc")
        return torch.device("mps")
    return _find_gpu(name)


def _find_gpu(name: str) -> torch.device:
    """Return the GPU of this rank, or that with the number of `name`."""
    count, local_rank = torch.cuda.device_count(), system.get_local_rank()
    if count == 0:
        raise UserError(f"--device {name}: PyTorch finds no GPU; pass cpu or auto")
    if name == "cuda":
        return torch.device("cuda", local_rank if local_rank < count else 0)
    if system.get_launched_world_size() > 1:
        raise UserError(f"--device {name}: each process has a GPU of its own; pass cuda")
    if int(name.partition(":")[2]) >= count:
        raise UserError(f"--device {name}: the last GPU is cuda:{count - 1}; pass another number")
    return torch.device(name)


def _choose_device() -> torch.device:
    """Return the accelerator of this machine, unless MPS computes wrong results here, or the CPU."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return torch.device("cpu")
    if device.type == "cuda":
        return _find_gpu("cuda")
    if device.type == "mps" and (system.get_launched_world_size() > 1 or find_errors(device)):
        return torch.device("cpu")
    return device


# ---- descriptions


def describe_device() -> str:
    """Return the device and, for a GPU, its name, such as "cuda:0 (NVIDIA H100)"."""
    device = get_device()
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def get_total_memory() -> int | None:
    """Return the memory of an NVIDIA or AMD GPU in bytes; None on other devices."""
    device = get_device()
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def describe_errors() -> str | None:
    """Return a warning if the device of this process computes wrong results, else None."""
    device = get_device()
    if errors := ", ".join(find_errors(device)):
        return f"--device {device}: computes wrong results on this machine ({errors}); pass cpu"
    return None


def report_device(model: Any = None) -> None:
    """Report the device of this process, unless it is the CPU and was chosen automatically.

    Nothing is reported about an exported model, which reports its device when it is loaded.
    """
    if model is not None and next(model.parameters()).device.type != get_device().type:
        return
    if is_requested() or has_accelerator():
        report_info(f"device: {describe_device()}")
    if warning := describe_errors():
        report_warning(warning)


# ---- precision


def supports_fp16() -> bool:
    """Return whether training in fp16 with loss scaling is supported."""
    return get_device().type not in ("cpu", "mps")


def supports_bf16() -> bool:
    """Return whether training in bf16 is supported, natively or emulated."""
    return get_device().type != "mps" or torch.backends.mps.is_macos_or_newer(14, 0)


def is_bf16_faster() -> bool:
    """Return whether the device has bf16 instructions. Emulated bf16 is many times slower than fp32."""
    device = get_device()
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = get_cpu_capabilities() if device.type == "cpu" else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


# ---- asynchronous work

SYNCHRONOUS_COPIES = ("cpu", "mps")  # on MPS, copies in the background may read changed memory


def runs_asynchronously() -> bool:
    """Return whether kernels run in the background of the Python process, as on a GPU.

    Reading a tensor then waits for all pending kernels. Meanwhile, no new kernels are started.
    """
    return has_accelerator()


def supports_graphs() -> bool:
    """Return whether kernels can be recorded as CUDA graphs; on AMD's GPUs, this has not been tried."""
    return get_device().type == "cuda" and torch.version.hip is None


def copies_asynchronously() -> bool:
    """Return whether copies to the device of this process may run in the background."""
    return get_device().type not in SYNCHRONOUS_COPIES


def copy_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small tensor from the host to a device, without waiting for pending kernels."""
    return tensor.to(device, non_blocking=device.type not in SYNCHRONOUS_COPIES)


# ---- the check of a device
#
# Kernels for MPS have been wrong before. Known cases are the training of BERT (PyTorch issue 82707), padded
# batches of BERT (170837), and causal attention in half precision, which saw later tokens (195910).

BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE, NUM_STEPS = 4, 40, 64, 3
ATTENTION_SHAPE = (3, BATCH_SIZE, 4, SEQ_LEN, HIDDEN_SIZE)  # query, key and value, with 4 heads
TOLERANCE, HALF_TOLERANCE = 2e-3, 5e-2


@cache
def find_errors(device: torch.device) -> tuple[str, ...]:
    """Return the computations that are wrong on a device; only devices of Macs are checked."""
    return tuple(find_wrong_computations(device)) if device.type == "mps" else ()


def find_wrong_computations(device: torch.device) -> list[str]:
    """Return the computations whose results differ from those of the CPU, which takes about a second."""
    computations: dict[str, tuple[Callable[[torch.device], torch.Tensor], float]] = {
        "attention with padding": (_attend_padded, TOLERANCE),
        "causal attention in half precision": (_attend_causally, HALF_TOLERANCE),
        "training a Transformer": (_train_encoder, TOLERANCE),
        "training an LSTM": (_train_lstm, TOLERANCE),
    }
    return [name for name, (compute, limit) in computations.items() if not _is_equal(compute, device, limit)]


def _is_equal(compute: Callable[[torch.device], torch.Tensor], device: torch.device, limit: float) -> bool:
    """Return whether a computation has the same result on a device as on the CPU."""
    results = []
    for target in (torch.device("cpu"), device):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the CPU makes all random numbers
            try:
                results.append(compute(target).cpu())
            except (RuntimeError, NotImplementedError):
                return False
    expected, result = results
    return torch.allclose(result, expected, rtol=0.0, atol=limit)  # False for NaN


def _attend_padded(device: torch.device) -> torch.Tensor:
    """Attend to sequences of different lengths, in fp32."""
    query, key, value = torch.randn(ATTENTION_SHAPE).to(device).unbind()
    mask = (torch.arange(SEQ_LEN) < _make_lengths()).to(device)
    return nn.functional.scaled_dot_product_attention(query, key, value, mask[:, None, None])


def _attend_causally(device: torch.device) -> torch.Tensor:
    """Attend to earlier tokens only, in bf16 and in fp16."""
    outputs = []
    for dtype in (torch.bfloat16, torch.float16):
        query, key, value = torch.randn(ATTENTION_SHAPE).to(device, dtype).unbind()
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        outputs.append(attended.float())
    return torch.stack(outputs)


def _train_encoder(device: torch.device) -> torch.Tensor:
    """Train a small encoder on padded sequences."""
    embedding = nn.Embedding(100, HIDDEN_SIZE)
    layer = nn.TransformerEncoderLayer(HIDDEN_SIZE, 4, 128, 0.0, "gelu", batch_first=True)
    model = nn.ModuleList([embedding, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)]).to(device)
    ids = torch.randint(1, 100, (BATCH_SIZE, SEQ_LEN)).to(device)
    is_padding = (torch.arange(SEQ_LEN) >= _make_lengths()).to(device)
    return _train(
        model, ids, lambda inputs: model[1](model[0](inputs), src_key_padding_mask=is_padding)[:, 0]
    )


def _train_lstm(device: torch.device) -> torch.Tensor:
    """Train a small bidirectional LSTM."""
    model = nn.LSTM(HIDDEN_SIZE, 32, bidirectional=True, batch_first=True)
    inputs = torch.randn(BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE)
    return _train(model.to(device), inputs.to(device), lambda batch: model(batch)[0])


def _make_lengths() -> torch.Tensor:
    """Return different lengths of sequences [batch, 1]."""
    return torch.arange(1, BATCH_SIZE + 1)[:, None] * (SEQ_LEN // BATCH_SIZE)


def _train(
    model: nn.Module, inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Train a model for some steps, and return its outputs before and after them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outputs = [compute(inputs).detach()]
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        compute(inputs).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.stack([*outputs, compute(inputs).detach()])
