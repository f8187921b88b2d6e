"""Measure how fast pre-training examples are built from a corpus: pairs are sampled, padded and masked.

    python benchmarks/examples_speed.py --data TEXTS --out examples.md

Builds epochs as training does, in one thread, with next sentence prediction and whole word masking, but
without the model. TEXTS is a value of `bertkit pretrain-mlm-nsp --data`. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from bertkit.run.prepare import prepare
from bertkit.tasks.pretrain.config import PretrainConfig
from harness import OUT_HELP, format_report, list_rounds, publish

BATCH_SIZE = 64


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="imdb", help="the text (default: imdb)")
    parser.add_argument("--max-length", type=int, default=128, help="maximum tokens per pair (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="number of epochs; the report shows medians")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def time_epochs(args: argparse.Namespace) -> list[tuple[int, float, float]]:
    """Return the tokens of each epoch, and the seconds to sample its pairs and to build its batches."""
    config = PretrainConfig(
        data=args.data, size="tiny", vocab_size=8000, max_length=args.max_length, whole_word_masking=True
    )
    prepared = prepare("pretrain-mlm-nsp", config)
    model = prepared.task.build_model(prepared.model_config, prepared.model_source)
    features = prepared.features["train"].parts[0]  # type: ignore[attr-defined]
    collate = prepared.task.make_collator(prepared.tokenizer, model)
    epochs = []
    for epoch in range(1, args.rounds + 1):
        started = time.perf_counter()
        features.get_plan(epoch)
        sampling_ended = time.perf_counter()
        keys = features.example_keys_for_epoch(epoch, np.arange(len(features)))
        tokens = 0
        for start in range(0, len(keys), BATCH_SIZE):
            batch = collate([features[int(key)] for key in keys[start : start + BATCH_SIZE]])
            tokens += int(batch["attention_mask"].sum())
        epochs.append((tokens, sampling_ended - started, time.perf_counter() - sampling_ended))
    return epochs


def main() -> None:
    """Time the epochs and report."""
    args = parse_args()
    torch.set_num_threads(1)
    epochs = time_epochs(args)
    rates = [tokens / (sampling + building) for tokens, sampling, building in epochs]
    tokens, sampling, building = epochs[int(np.argsort(rates)[len(rates) // 2])]
    lines = [
        "| | |", "|---|---:|",
        f"| tokens per epoch | {tokens:,} |",
        f"| sampling the pairs, s | {sampling:.2f} |",
        f"| building the batches, s | {building:.2f} |",
        f"| tokens/s | {float(np.median(rates)):,.0f} |",
        *list_rounds("tokens/s", {"bertkit": [f"{rate:,.0f}" for rate in rates]}),
    ]  # fmt: skip
    about = (
        f"{args.data}, pairs of at most {args.max_length} tokens, batches of {BATCH_SIZE}, whole words, "
        f"one thread; the median of {args.rounds} epochs."
    )
    own = f"python benchmarks/examples_speed.py --data {args.data} --rounds {args.rounds}"
    publish(format_report("Building pre-training examples", about, lines, [own]), args.out)


if __name__ == "__main__":
    main()
