"""Compare a pre-training step in bertkit with one of `transformers.BertForPreTraining`.

    python benchmarks/pretrain_step.py --out pretrain_step.md

Both train the same BERT from the same weights on the same random pairs and masked tokens, with the same
optimizer, each in a separate process. The stock model computes logits for all positions, with its own
attention. bertkit computes logits only for the masked positions, with chunked attention. Progress goes to
standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness import (
    SEED,
    System,
    compute_median_ratio,
    format_commands,
    format_report,
    list_rounds,
    publish,
    run_systems,
)

NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS, VOCAB_SIZE, SEQ_LEN, BATCH_SIZE, MASKED_PER_EXAMPLE = (
    4,
    256,
    4,
    30_522,
    128,
    32,
    20,
)
WARMUP_STEPS = 5  # steps that are not timed
STOCK, BERTKIT = "stock", "bertkit"
Step = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one run; equal losses show that both compute the same."""

    examples_per_second: float
    peak_memory_mb: float
    first_loss: float

    def __str__(self) -> str:
        memory = f"{self.peak_memory_mb:.0f} MB"
        return f"{self.examples_per_second:.1f} examples/s, {memory}, first loss {self.first_loss:.4f}"


def generate_batches(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of random pairs without padding; masked tokens keep their ids, at the same cost."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        ids = torch.randint(5, VOCAB_SIZE, (BATCH_SIZE, SEQ_LEN), generator=generator)
        positions = (
            torch.rand(BATCH_SIZE, SEQ_LEN, generator=generator)
            .argsort(1)[:, :MASKED_PER_EXAMPLE]
            .sort(1)
            .values
        )
        yield {
            "input_ids": ids, "attention_mask": torch.ones_like(ids),
            "token_type_ids": (torch.arange(SEQ_LEN) >= SEQ_LEN // 2).long().expand(BATCH_SIZE, SEQ_LEN),
            "masked_lm_positions": positions, "masked_lm_labels": ids.gather(1, positions),
            "next_sentence_label": torch.randint(0, 2, (BATCH_SIZE,), generator=generator),
        }  # fmt: skip


def build_stock_step(model: Any) -> Step:
    """Return the training step of the stock model, with labels for all positions (-100 if not masked)."""

    def compute_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        positions, token_ids = batch.pop("masked_lm_positions"), batch.pop("masked_lm_labels")
        labels = torch.full_like(batch["input_ids"], -100).scatter(1, positions, token_ids)
        return model(**batch, labels=labels).loss

    return compute_loss


def build_bertkit_step(model: Any) -> Step:
    """Return the training step of bertkit, with the model changes of a session."""
    from bertkit.modeling.attention import enable_chunked_attention
    from bertkit.modeling.dropout import enable_fast_dropout
    from bertkit.modeling.forward import compute_logits
    from bertkit.modeling.losses import PretrainingLoss
    from bertkit.modeling.pretraining import gather_masked_positions

    enable_chunked_attention(gather_masked_positions(model))
    enable_fast_dropout(model)
    loss = PretrainingLoss()

    def compute_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        sums, counts = loss.sum_losses(compute_logits(model, batch), batch), loss.count_items(batch)
        return torch.stack([sums[part] / counts[part] for part in sums]).sum()

    return compute_loss


def measure(kind: str, steps: int, dropout: float) -> Measurements:
    """Train in this process, and return the measurements."""
    from transformers import BertForPreTraining

    from bertkit.modeling.dropout import set_dropout
    from bertkit.modeling.pretraining import build_bert_config
    from bertkit.training.memory import get_peak_memory_mb

    torch.manual_seed(SEED)
    config = build_bert_config(VOCAB_SIZE, (NUM_LAYERS, HIDDEN_SIZE, NUM_HEADS), 0)
    model = BertForPreTraining(config).train()
    set_dropout(model, dropout)
    step = {STOCK: build_stock_step, BERTKIT: build_bertkit_step}[kind](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses, started = [], 0.0
    for number, batch in enumerate(generate_batches(WARMUP_STEPS + steps)):
        started = time.perf_counter() if number == WARMUP_STEPS else started
        loss = step(batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    speed = BATCH_SIZE * steps / (time.perf_counter() - started)
    return Measurements(speed, get_peak_memory_mb(), losses[0])


def describe_system(name: str, kind: str, args: argparse.Namespace) -> System[Measurements]:
    """Describe the runs of one model."""
    options = ["--kind", kind, "--steps", str(args.steps), "--dropout", str(args.dropout)]
    command = [sys.executable, str(Path(__file__).resolve()), *options]
    return System(name, lambda *_: command, lambda printed, _: Measurements(**printed))


def format_table(measurements: dict[str, list[Measurements]]) -> list[str]:
    """Format the medians, the ratios to the stock model, and every round."""
    (_, base), *_ = measurements.items()
    lines = [
        "| | examples/s | speedup | peak MB | fraction of the stock model |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, runs in measurements.items():
        speeds, peaks = (
            [getattr(run, key) for run in runs] for key in ("examples_per_second", "peak_memory_mb")
        )
        speedup = compute_median_ratio(speeds, [run.examples_per_second for run in base])
        memory_ratio = compute_median_ratio(peaks, [run.peak_memory_mb for run in base])
        speed, peak = statistics.median(speeds), statistics.median(peaks)
        row = f"{speed:.1f} | {speedup:.2f} | {peak:.0f} | {memory_ratio:.0%}"
        lines.append(f"| {name} | {row} |")
    rounds = {name: [str(run) for run in runs] for name, runs in measurements.items()}
    return [*lines, *list_rounds("Runs", rounds, separator="; ")]


def main() -> None:
    """Run both in turn and report; with --kind, measure one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps")
    parser.add_argument("--rounds", type=int, default=3, help="runs per model; the report shows medians")
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout; with 0 the losses are equal")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    parser.add_argument("--kind", choices=[STOCK, BERTKIT], help="measure only this one, in this process")
    args = parser.parse_args()
    if args.kind:
        print(json.dumps(vars(measure(args.kind, args.steps, args.dropout))))
        return
    entries = [describe_system("BertForPreTraining", STOCK, args), describe_system("bertkit", BERTKIT, args)]
    measurements = run_systems(entries, Path(), Path(), args.rounds, alternate=True)
    about = (
        f"{NUM_LAYERS} layers, hidden size {HIDDEN_SIZE}, {NUM_HEADS} heads, vocabulary {VOCAB_SIZE:,}; "
        f"batches of {BATCH_SIZE} pairs of {SEQ_LEN} tokens, {MASKED_PER_EXAMPLE} of them masked; dropout "
        f"{args.dropout:g}, fp32; {args.steps} steps, {torch.get_num_threads()} threads, medians of "
        f"{args.rounds} rounds. Memory: the peak of the process."
    )
    own = f"pretrain_step.py --steps {args.steps} --rounds {args.rounds} --dropout {args.dropout:g}"
    commands = format_commands(own, entries)
    publish(format_report("Pre-training step", about, format_table(measurements), commands), args.out)


if __name__ == "__main__":
    main()
