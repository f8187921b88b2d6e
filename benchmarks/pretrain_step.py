"""Compare a step of pre-training in bertkit with one of `transformers.BertForPreTraining`.

    python benchmarks/pretrain_step.py --out pretrain_step.md

Both train a BERT of the same shape, from the same weights, on the same random pairs with the same masked
tokens, with the same optimizer, each in a process of its own. The stock model takes labels for all places and
its own attention; bertkit's computes the vocabulary at the masked places, and attends by parts. Progress goes
to standard error, the table to standard output.
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
    """What one run measured; the losses tell that both compute the same."""

    examples_per_second: float
    peak_memory_mb: float
    first_loss: float

    def __str__(self) -> str:
        memory = f"{self.peak_memory_mb:.0f} MB"
        return f"{self.examples_per_second:.1f} examples/s, {memory}, first loss {self.first_loss:.4f}"


def generate_batches(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Pairs without padding, `MASKED` places of each to predict; [MASK] would change no arithmetic."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        ids = torch.randint(5, VOCAB_SIZE, (BATCH_SIZE, SEQ_LEN), generator=generator)
        places = (
            torch.rand(BATCH_SIZE, SEQ_LEN, generator=generator)
            .argsort(1)[:, :MASKED_PER_EXAMPLE]
            .sort(1)
            .values
        )
        yield {
            "input_ids": ids, "attention_mask": torch.ones_like(ids),
            "token_type_ids": (torch.arange(SEQ_LEN) >= SEQ_LEN // 2).long().expand(BATCH_SIZE, SEQ_LEN),
            "masked_lm_positions": places, "masked_lm_labels": ids.gather(1, places),
            "next_sentence_label": torch.randint(0, 2, (BATCH_SIZE,), generator=generator),
        }  # fmt: skip


def build_stock_step(model: Any) -> Step:
    """All places have labels, -100 where nothing is predicted."""

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        places, words = batch.pop("masked_lm_positions"), batch.pop("masked_lm_labels")
        labels = torch.full_like(batch["input_ids"], -100).scatter(1, places, words)
        return model(**batch, labels=labels).loss

    return loss


def build_bertkit_step(model: Any) -> Step:
    """As a session makes it."""
    from bertkit.modeling.attention import enable_chunked_attention
    from bertkit.modeling.dropout import enable_fast_dropout
    from bertkit.modeling.forward import compute_logits
    from bertkit.modeling.losses import PretrainingLoss
    from bertkit.modeling.pretraining import gather_masked_positions

    enable_chunked_attention(gather_masked_positions(model))
    enable_fast_dropout(model)
    rule = PretrainingLoss()

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        sums, counts = rule.sum_losses(compute_logits(model, batch), batch), rule.count_items(batch)
        return torch.stack([sums[part] / counts[part] for part in sums]).sum()

    return loss


def measure(kind: str, steps: int, dropout: float) -> Measurements:
    """Train in this process."""
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
    """One row."""
    options = ["--kind", kind, "--steps", str(args.steps), "--dropout", str(args.dropout)]
    command = [sys.executable, str(Path(__file__).resolve()), *options]
    return System(name, lambda *_: command, lambda printed, _: Measurements(**printed))


def format_table(measurements: dict[str, list[Measurements]]) -> list[str]:
    """Medians, ratios to the stock model, and every round."""
    (_, base), *_ = measurements.items()
    lines = ["| | examples/s | times as fast | peak MB | of the stock model's |", "|---|---:|---:|---:|---:|"]
    for name, runs in measurements.items():
        speeds, peaks = (
            [getattr(run, key) for run in runs] for key in ("examples_per_second", "peak_memory_mb")
        )
        faster = compute_median_ratio(speeds, [run.examples_per_second for run in base])
        memory_ratio = compute_median_ratio(peaks, [run.peak_memory_mb for run in base])
        speed, peak = statistics.median(speeds), statistics.median(peaks)
        row = f"{speed:.1f} | {faster:.2f} | {peak:.0f} | {memory_ratio:.0%}"
        lines.append(f"| {name} | {row} |")
    rounds = {name: [str(run) for run in runs] for name, runs in measurements.items()}
    return [*lines, *list_rounds("Runs", rounds, separator="; ")]


def main() -> None:
    """Run both in turn and report, or be one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="that are timed")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, medians are shown")
    parser.add_argument("--dropout", type=float, default=0.1, help="0 shows that the losses are equal")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    parser.add_argument(
        "--kind", choices=[STOCK, BERTKIT], help="measure this one, here, and print its measurements"
    )
    args = parser.parse_args()
    if args.kind:
        print(json.dumps(vars(measure(args.kind, args.steps, args.dropout))))
        return
    entries = [describe_system("BertForPreTraining", STOCK, args), describe_system("bertkit", BERTKIT, args)]
    measurements = run_systems(entries, Path(), Path(), args.rounds, alternate=True)
    about = (
        f"{NUM_LAYERS} layers, {HIDDEN_SIZE} wide, {NUM_HEADS} heads, {VOCAB_SIZE:,} tokens; {BATCH_SIZE} "
        f"pairs of {SEQ_LEN} "
        f"tokens, {MASKED_PER_EXAMPLE} of each to predict, dropout {args.dropout:g}, fp32; {args.steps} "
        f"steps, "
        f"{torch.get_num_threads()} threads, medians of {args.rounds} rounds. Memory: the process's peak."
    )
    own = f"pretrain_step.py --steps {args.steps} --rounds {args.rounds} --dropout {args.dropout:g}"
    commands = format_commands(own, entries)
    publish(format_report("A step of pre-training", about, format_table(measurements), commands), args.out)


if __name__ == "__main__":
    main()
