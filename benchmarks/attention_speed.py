"""Measure attention by parts beside PyTorch's, with dropout, forth and back.

    python benchmarks/attention_speed.py --rounds 7 --out attention.md

Both in this process, in turn, on random queries, keys and values, as training on a CPU calls them. Memory is
what each keeps for the gradient. Progress goes to standard error, the report to standard output.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from bertkit.modeling.attention import ChunkedAttention
from harness import compute_median_ratio, format_report, publish
from ner_data import time_alternating

DROPOUT = 0.1
SHAPES = [(32, 12, 32, 32), (32, 12, 64, 32), (12, 12, 256, 32), (8, 12, 384, 64)]
Attention = Callable[..., torch.Tensor]


def attend_stock(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The one of PyTorch."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=DROPOUT)


def attend_chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The one of bertkit."""
    found: torch.Tensor = ChunkedAttention.apply(q, k, v, mask, DROPOUT, q.shape[-1] ** -0.5)  # type: ignore[no-untyped-call]
    return found


def make_inputs(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values as models have them, and a mask for a few places of padding."""
    batch, heads, length, width = shape
    parts = [torch.randn(batch, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3)]
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    mask[..., -3:] = False
    return *parts, mask.expand(batch, 1, length, length)


def run_step(attention: Attention, given: tuple[torch.Tensor, ...]) -> None:
    """Forth and back."""
    torch.autograd.backward(attention(*given).sum())


def measure_saved_megabytes(attention: Attention, given: tuple[torch.Tensor, ...]) -> float:
    """MB that are kept for the gradient, beside queries, keys and values."""
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        found = attention(*given)
    theirs = {tensor.untyped_storage().data_ptr() for tensor in given}
    total = sum(size for place, size in sizes.items() if place not in theirs)
    return total / 1e6 if found.requires_grad else 0.0


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="medians are shown")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    args = parser.parse_args()
    lines = [
        "| batch x heads x seq_len x head_dim | PyTorch ms | bertkit ms | times as fast | PyTorch saves, "
        "MB | bertkit saves, MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for shape in SHAPES:
        given = make_inputs(shape)
        calls: dict[str, Callable[[], object]] = {
            "stock": partial(run_step, attend_stock, given),
            "chunked": partial(run_step, attend_chunked, given),
        }  # fmt: skip
        seconds = time_alternating(calls, args.rounds)
        theirs, ours = (1e3 * statistics.median(seconds[name]) for name in calls)
        faster = 1 / compute_median_ratio(seconds["chunked"], seconds["stock"])
        saved = [measure_saved_megabytes(attend, given) for attend in (attend_stock, attend_chunked)]
        sizes = f"{saved[0]:.1f} | {saved[1]:.1f}"
        name = " x ".join(map(str, shape))
        lines.append(f"| {name} | {theirs:.1f} | {ours:.1f} | {faster:.2f} | {sizes} |")
    about = f"fp32, dropout {DROPOUT}, {torch.get_num_threads()} threads, medians of {args.rounds} rounds."
    commands = [f"python benchmarks/attention_speed.py --rounds {args.rounds}"]
    publish(format_report("Attention with dropout on a CPU", about, lines, commands), args.out)


if __name__ == "__main__":
    main()
