"""Measure the macro-F1 of label sets with fitted thresholds, and with the threshold 0.5.

    python benchmarks/label_thresholds.py --data-dir DATA --seeds 5 --write

The labels of a sentence of WNUT-17 are the types of the entities in it, some of which are rare. A model is
trained on the training split for each seed, its thresholds are fitted on the validation split, and both
decisions are scored on the test split. The difference is tested over the seeds with a paired t-test. Progress
goes to standard error, the table to standard output; --write puts it into docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import bertkit
from bertkit.data.sources import load_dataset
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish

PAGE = ROOT / "docs" / "calibrate.md"
COLUMNS = ["macro_f1, 0.5", "macro_f1, fitted", "micro_f1, 0.5", "micro_f1, fitted"]
SCORES = ("macro_f1", "micro_f1")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds: 1, 2, ...")
    parser.add_argument("--rows", type=int, help="rows of each split (default: all)")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the table to docs/calibrate.md")
    return parser.parse_args(argv)


def load_rows(split: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the sentences of a split with the types of their entities."""
    rows = load_dataset("wnut17", "ner", args.data_dir).splits[split]
    return [
        {"text": " ".join(tokens), "label": sorted({tag[2:] for tag in tags if tag != "O"})}
        for tokens, tags in list(zip(rows["tokens"], rows["ner_tags"], strict=True))[: args.rows]
    ]


def measure(seed: int, splits: dict[str, list[dict[str, Any]]], args: argparse.Namespace) -> list[float]:
    """Return the scores with the threshold 0.5 and with fitted thresholds."""
    scores = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        bertkit.classify(
            data=splits["train"], problem="multi-label", model=args.model, output_dir=run, seed=seed,
            epochs=args.epochs, max_length=64,
        )  # fmt: skip
        for name in ("before", "after"):
            evaluation = bertkit.evaluate(run, data=splits["test"], output_dir=Path(folder) / name)
            scores.append([evaluation.metrics["validation"][score] for score in SCORES])
            if name == "before":
                bertkit.calibrate(run, data=splits["validation"], threshold="macro_f1")
    before, after = scores
    return [value for pair in zip(before, after, strict=True) for value in pair]


def format_report(values: list[list[float]], counts: Counter[str], args: argparse.Namespace) -> str:
    """Return the table, the paired test and the command as Markdown."""
    from scipy.stats import ttest_rel

    columns = [list(column) for column in zip(*values, strict=True)]
    rows = {f"seed {seed}": [f"{value:.3f}" for value in row] for seed, row in enumerate(values, 1)}
    rows["mean"] = [f"{statistics.mean(column):.3f}" for column in columns]
    result = ttest_rel(columns[1], columns[0])
    interval = result.confidence_interval(0.95)
    difference = 100 * (statistics.mean(columns[1]) - statistics.mean(columns[0]))
    frequencies = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
    options = f"--seeds {args.seeds} --epochs {args.epochs:g}"
    lines = [
        "`benchmarks/label_thresholds.py` trains on the types of the entities in the sentences of WNUT-17.",
        "It fits the thresholds on the validation split (`--threshold macro_f1`), and scores the test split.",
        f"Training sentences with each label: {frequencies}.",
        "",
        *format_table(COLUMNS, rows),
        "",
        f"Difference in macro_f1: {difference:+.1f} points ({100 * interval.low:+.1f} to "
        f"{100 * interval.high:+.1f}, p = {result.pvalue:.1g}, paired t-test over the seeds).",
        "",
        *describe_machine(),
        "",
        "```sh",
        f"python benchmarks/label_thresholds.py --data-dir DATA {options}",
        "```",
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    splits = {split: load_rows(split, args) for split in ("train", "validation", "test")}
    counts = Counter(label for row in splits["train"] for label in row["label"])
    values = []
    for seed in range(1, args.seeds + 1):
        values.append(measure(seed, splits, args))
        print(f"seed {seed}: {values[-1]}", file=sys.stderr, flush=True)
    text = format_report(values, counts, args)
    publish(text, args.out)
    if args.write:
        replace_section("label thresholds", text, PAGE)


if __name__ == "__main__":
    main()
