"""Compare bertkit's attention with PyTorch's, with dropout, forward and backward.

    python benchmarks/attention_speed.py --rounds 7 --out attention.md

Both run in turn in this process, on random queries, keys and values with the shapes of training on a CPU. The
memory is that of the tensors saved for the backward pass. Progress goes to standard error, the report to
standard output.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit.models.cpu import attend_with_dropout
from harness import OUT_HELP, compute_median_ratio, format_report, publish
from ner_data import time_alternating

DROPOUT = 0.1
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHAPES = [(32, 12, 13, 32), (32, 12, 32, 32), (32, 12, 64, 32), (12, 12, 256, 32), (8, 12, 384, 64)]
COLUMNS = (
    "batch x heads x seq_len x head_dim", "format", "PyTorch ms", "bertkit ms", "times as fast",
    "PyTorch saves, MB", "bertkit saves, MB",
)  # fmt: skip
Attention = Callable[..., torch.Tensor]


def attend_stock(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention with PyTorch."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=DROPOUT)


def attend_fast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention with bertkit."""
    return attend_with_dropout(q, k, v, mask, DROPOUT, q.shape[-1] ** -0.5)


def make_inputs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return random queries, keys and values, and a mask `[batch, 1, 1, seq_len]` with padding.

    Args:
        shape: batch, heads, seq_len, head_dim.
        dtype: Number format.
    """
    batch, heads, seq_len, head_dim = shape
    tensors = [
        torch.randn(batch, seq_len, heads, head_dim).to(dtype).transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]
    mask = torch.ones(batch, 1, 1, seq_len, dtype=torch.bool)
    mask[..., -3:] = False
    return *tensors, mask


def run_step(attention: Attention, inputs: tuple[torch.Tensor, ...]) -> None:
    """Run a forward and a backward pass."""
    torch.autograd.backward(attention(*inputs).sum())


def measure_saved_megabytes(attention: Attention, inputs: tuple[torch.Tensor, ...]) -> float:
    """Return the MB saved for the backward pass, except queries, keys and values."""
    sizes: dict[int, int] = {}

    def record(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = attention(*inputs)
    input_storages = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    total = sum(size for address, size in sizes.items() if address not in input_storages)
    return total / 1e6 if output.requires_grad else 0.0


def compare(shape: tuple[int, int, int, int], format_name: str, rounds: int) -> list[str]:
    """Return the cells of a row: medians in ms, the speedup, and the memory of both in MB."""
    inputs = make_inputs(shape, FORMATS[format_name])
    calls: dict[str, Callable[[], object]] = {
        "stock": partial(run_step, attend_stock, inputs),
        "bertkit": partial(run_step, attend_fast, inputs),
    }
    seconds = time_alternating(calls, rounds)
    medians = [f"{1e3 * statistics.median(seconds[name]):.1f}" for name in calls]
    speedup = 1 / compute_median_ratio(seconds["bertkit"], seconds["stock"])
    saved = [f"{measure_saved_megabytes(attend, inputs):.1f}" for attend in (attend_stock, attend_fast)]
    return [" x ".join(map(str, shape)), format_name, *medians, f"{speedup:.2f}", *saved]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="medians are shown")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def main() -> None:
    """Run and report."""
    args = parse_args()
    lines = [f"| {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * (len(COLUMNS) - 2)}"]
    for shape, format_name in product(SHAPES, FORMATS):
        lines.append(f"| {' | '.join(compare(shape, format_name, args.rounds))} |")
    about = f"Dropout {DROPOUT}, {torch.get_num_threads()} threads, medians of {args.rounds} rounds."
    commands = [f"python benchmarks/attention_speed.py --rounds {args.rounds}"]
    publish(format_report("Attention with dropout on a CPU", about, lines, commands), args.out)


if __name__ == "__main__":
    main()
