"""Measure the padding of batches that are random, grouped by length, or limited by a token budget.

    BERTKIT_DATA_DIR=DATA python benchmarks/padding.py --model minilm --out padding.md

Each sampler plans an epoch of real data, without training, and the padding of its batches is counted. The
token budget is the size of a batch of `--batch-size` examples of the maximum length. The report goes to
standard output.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.features import Features
from bertkit.run.prepare import prepare
from bertkit.tasks import task_class
from bertkit.training.samplers import LengthGroupedBatchSampler, TokenBudgetBatchSampler
from harness import OUT_HELP, SEED, format_report, publish

DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "SST-2": ("classify", {"data": "sst2", "max_length": 128}),
    "SQuAD v1, windows of 384": ("qa", {"squad": "v1", "max_length": 384}),
    "IMDB, truncated at 256": ("classify", {"data": "imdb", "max_length": 256}),
}
HEADINGS = (
    "data", "batches of", "padding, %", "batches", "examples per batch", "maximum size", "s per epoch",
)  # fmt: skip


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm", help="model whose tokenizer is used (default: minilm)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples per batch (default: 32)")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def prepare_training_features(task: str, model: str, settings: dict[str, Any]) -> Features:
    """Return the training features as a run would build them."""
    config = task_class(task).definition.config(model=model, seed=SEED, **settings)
    return prepare(task, config).features["train"]


def list_batch_orders(features: Features, size: int, tokens: int) -> dict[str, Callable[[], list[list[int]]]]:
    """Return name -> function that plans the batches of an epoch."""

    def shuffle() -> list[list[int]]:
        order = np.random.default_rng(SEED).permutation(len(features)).tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]

    return {
        f"{size} examples at random": shuffle,
        f"{size} examples of similar length": lambda: list(
            LengthGroupedBatchSampler(features, size, seed=SEED)
        ),
        f"{tokens:,} tokens": lambda: list(TokenBudgetBatchSampler(features, tokens, seed=SEED)),
    }


def format_row(data: str, name: str, plan_epoch: Callable[[], list[list[int]]], features: Features) -> str:
    """Plan an epoch, and format its statistics as a table row."""
    longest = np.maximum.reduceat(features.sequence_lengths, features.sequence_offsets[:-1])
    sequences = np.diff(features.sequence_offsets)
    started = time.perf_counter()
    epoch = plan_epoch()
    seconds = time.perf_counter() - started
    sizes = [int(longest[batch].max() * sequences[batch].sum()) for batch in epoch]
    padding = 1 - features.sequence_lengths.sum() / sum(sizes)
    few, many = np.percentile([len(batch) for batch in epoch], [1, 99]).astype(int)
    examples = str(few) if few == many else f"{few} to {many}"
    measurements = (f"{100 * padding:.1f}", f"{len(epoch):,}", examples, f"{max(sizes):,}", f"{seconds:.2f}")
    return "| " + " | ".join([data, name, *measurements]) + " |"


def main() -> None:
    """Plan an epoch of each dataset with each sampler, and report."""
    args = parse_args()
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|" + "---:|" * (len(HEADINGS) - 2)]
    for data, (task, settings) in DATASETS.items():
        features = prepare_training_features(task, args.model, settings)
        size, tokens = args.batch_size, args.batch_size * settings["max_length"]
        for name, plan_epoch in list_batch_orders(features, size, tokens).items():
            lines.append(format_row(data, name, plan_epoch, features))
    about = (
        "The complete training splits. The size of a batch is the number of its sequences times the longest "
        "length. A token budget is the size of a batch of examples of the maximum length. The range of "
        "examples per batch covers 98% of the batches."
    )
    flags = f"--model {args.model} --batch-size {args.batch_size}"
    own = f"BERTKIT_DATA_DIR=DATA python benchmarks/padding.py {flags}"
    publish(format_report("Padding", about, lines, [own]), args.out)


if __name__ == "__main__":
    main()
