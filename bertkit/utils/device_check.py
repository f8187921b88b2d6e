"""A check that a device computes what the CPU computes, because kernels for MPS have been wrong before.

Known cases are the training of BERT (PyTorch issue 82707), padded batches of BERT (170837), and causal
attention in half precision, which saw later tokens (195910).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE, NUM_STEPS = 4, 40, 64, 3
TOLERANCE, HALF_TOLERANCE = 2e-3, 5e-2


def find_wrong_computations(device: "torch.device") -> list[str]:
    """Compare results of a device with those of the CPU; the comparison takes about a second.

    Returns:
        Names of the computations whose results differ; empty if all are equal up to rounding.
    """
    computations: dict[str, tuple[Callable[[torch.device], torch.Tensor], float]] = {
        "attention with padding": (_attend_padded, TOLERANCE),
        "causal attention in half precision": (_attend_causally, HALF_TOLERANCE),
        "training a Transformer": (_train_encoder, TOLERANCE),
        "training an LSTM": (_train_lstm, TOLERANCE),
    }
    return [name for name, (compute, limit) in computations.items() if not _is_equal(compute, device, limit)]


def _is_equal(
    compute: "Callable[[torch.device], torch.Tensor]", device: "torch.device", limit: float
) -> bool:
    """Return whether a computation has the same result on a device as on the CPU."""
    import torch

    with _fixed_seed():
        expected = compute(torch.device("cpu"))
    try:
        with _fixed_seed():
            result = compute(device).cpu()
    except (RuntimeError, NotImplementedError):
        return False
    return torch.allclose(result, expected, rtol=0.0, atol=limit)  # False for NaN


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Seed the CPU, which makes all random numbers, and restore its state at the end of the block."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _make_attention_inputs(device: "torch.device", dtype: "torch.dtype") -> "tuple[torch.Tensor, ...]":
    import torch

    shape = (3, BATCH_SIZE, 4, SEQ_LEN, HIDDEN_SIZE)
    return torch.randn(shape).to(device, dtype).unbind()


def _attend_padded(device: "torch.device") -> "torch.Tensor":
    """Attend to sequences of different lengths, in fp32."""
    import torch

    query, key, value = _make_attention_inputs(device, torch.float32)
    lengths = torch.arange(1, BATCH_SIZE + 1, device=device) * (SEQ_LEN // BATCH_SIZE)
    mask = torch.arange(SEQ_LEN, device=device) < lengths[:, None]
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask[:, None, None])


def _attend_causally(device: "torch.device") -> "torch.Tensor":
    """Attend to earlier tokens only, in bf16 and in fp16."""
    import torch

    attend, outputs = torch.nn.functional.scaled_dot_product_attention, []
    for dtype in (torch.bfloat16, torch.float16):
        query, key, value = _make_attention_inputs(device, dtype)
        outputs.append(attend(query, key, value, is_causal=True).float())
    return torch.stack(outputs)


def _train(model: Any, inputs: "torch.Tensor", compute: "Callable[[Any], torch.Tensor]") -> "torch.Tensor":
    """Train a model for some steps, and return its outputs before and after them."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outputs = [compute(inputs).detach()]
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        compute(inputs).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.stack([*outputs, compute(inputs).detach()])


def _train_encoder(device: "torch.device") -> "torch.Tensor":
    """Train a small encoder on padded sequences."""
    import torch
    from torch import nn

    embedding = nn.Embedding(100, HIDDEN_SIZE)
    layer = nn.TransformerEncoderLayer(HIDDEN_SIZE, 4, 128, 0.0, "gelu", batch_first=True)
    model = nn.ModuleList([embedding, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)]).to(device)
    ids = torch.randint(1, 100, (BATCH_SIZE, SEQ_LEN))
    is_padding = torch.arange(SEQ_LEN) >= torch.arange(1, BATCH_SIZE + 1)[:, None] * (SEQ_LEN // BATCH_SIZE)
    is_padding = is_padding.to(device)

    def compute(inputs: torch.Tensor) -> torch.Tensor:
        states = model[1](model[0](inputs), src_key_padding_mask=is_padding)
        return states[:, 0]

    return _train(model, ids.to(device), compute)


def _train_lstm(device: "torch.device") -> "torch.Tensor":
    """Train a small bidirectional LSTM."""
    import torch
    from torch import nn

    model = nn.LSTM(HIDDEN_SIZE, 32, bidirectional=True, batch_first=True)
    inputs = torch.randn(BATCH_SIZE, SEQ_LEN, HIDDEN_SIZE)
    return _train(model.to(device), inputs.to(device), lambda batch: model(batch)[0])
