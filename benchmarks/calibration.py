"""Measure the calibration error and the coverage of prediction sets on rows that nothing was fitted on.

    python benchmarks/calibration.py --data-dir DATA --seeds 3 --write

For each seed, the rows of a dataset are shuffled. A model is trained on the first rows, calibrated on the
next rows, and evaluated on other rows. The coverage of the sets is the mean over 20 random splits of the
evaluated rows: one half determines the margin, and the other half is counted. The last column is the largest
difference between the probabilities of `bertkit predict`, of `transformers.pipeline` and of an exported ONNX
model. Progress goes to standard error, the table to standard output; --write puts it into docs/calibrate.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docs_page import format_table, replace_section
from harness import ROOT, describe_machine, publish

PAGE = ROOT / "docs" / "calibrate.md"
INTRODUCTION = """## Measured

`benchmarks/calibration.py` trains on one part of a dataset, calibrates on another part, and evaluates on a
third part. For the coverage of the sets, it splits the evaluated rows 20 times at random. The last column is
the largest difference between the probabilities of `bertkit predict`, `transformers.pipeline` and the ONNX
export.
"""
COLUMNS = ["accuracy", "ECE before", "ECE after", "highest ECE after", "coverage of 90 % sets", "difference"]
NUM_SPLITS = 20
COMPARED_ROWS = 100


@dataclass(frozen=True)
class Dataset:
    """A dataset, its task, the columns of its texts, and the maximum sequence length."""

    title: str
    task: str
    columns: tuple[str, ...]
    max_length: int


DATASETS = {
    "sst2": Dataset("SST-2", "classify", ("sentence",), 64),
    "imdb": Dataset("IMDB, 128 tokens", "classify", ("text",), 128),
    "mnli": Dataset("MNLI", "nli", ("premise", "hypothesis"), 96),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 1, 2, ...")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train-rows", type=int, default=2000)
    parser.add_argument("--fit-rows", type=int, default=1000, help="rows to calibrate on")
    parser.add_argument("--test-rows", type=int, default=5000)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--out", type=Path, help="write the table to this Markdown file as well")
    parser.add_argument("--write", action="store_true", help="write the table to docs/calibrate.md")
    return parser.parse_args(argv)


def sample_rows(name: str, seed: int, args: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Return disjoint rows to train, calibrate and evaluate on, from the training split of a dataset."""
    from bertkit.data.sources import load_dataset

    rows = load_dataset(name, DATASETS[name].task, args.data_dir).splits["train"]
    sizes = [args.train_rows, args.fit_rows, args.test_rows]
    chosen = np.random.default_rng(seed).permutation(len(rows))[: sum(sizes)]
    return [list(rows.select(part)) for part in np.split(chosen, np.cumsum(sizes)[:-1])]


def measure(name: str, seed: int, args: argparse.Namespace, folder: Path) -> list[float]:
    """Return accuracy, ECE before and after calibration, the coverage of sets, and the largest difference."""
    import bertkit

    dataset, run = DATASETS[name], folder / "run"
    train, fit, test = sample_rows(name, seed, args)
    getattr(bertkit, dataset.task)(
        data=train, validation=test[:200], model=args.model, output_dir=run, seed=seed, epochs=args.epochs,
        max_length=dataset.max_length,
    )  # fmt: skip
    before = bertkit.evaluate(run, data=test[200:], output_dir=folder / "before").metrics["validation"]
    bertkit.calibrate(run, data=fit)
    after = bertkit.evaluate(run, data=test[200:], output_dir=folder / "after").metrics["validation"]
    coverage = measure_coverage(folder / "after" / "predictions.jsonl", seed)
    difference = measure_difference(dataset, run, test[200:][:COMPARED_ROWS], folder / "exported")
    return [after["accuracy"], before["ece"], after["ece"], coverage, difference]


def measure_difference(dataset: Dataset, run: Path, rows: list[dict[str, Any]], exported: Path) -> float:
    """Return the largest difference of a probability in the pipeline or the exported model."""
    from transformers import pipeline

    import bertkit

    bertkit.export(run, output_dir=exported)
    inputs = [{column: row[column] for column in dataset.columns} for row in rows]
    predictions = [bertkit.predict(folder, data=inputs, all_scores=True) for folder in (run, exported)]
    ours, onnx = ([record["probabilities"] for record in records] for records in predictions)
    stock = pipeline("text-classification", str(run), top_k=None)
    texts = [dict(zip(("text", "text_pair"), row.values(), strict=False)) for row in inputs]
    answers = [stock(text, truncation=True, max_length=dataset.max_length) for text in texts]
    theirs = [{answer["label"]: answer["score"] for answer in labels} for labels in answers]
    return max(
        abs(expected[label] - other[label])
        for others in (onnx, theirs)
        for expected, other in zip(ours, others, strict=True)
        for label in expected
    )


def measure_coverage(predictions: Path, seed: int) -> float:
    """Return the mean coverage of prediction sets over random splits of the rows."""
    from bertkit.stats.calibration import find_members, fit_set_margin, score_sets

    records = [json.loads(line) for line in predictions.read_text("utf-8").split("\n")[:-1]]
    labels = list(records[0]["probabilities"])
    logits = np.log([[max(p, 1e-30) for p in record["probabilities"].values()] for record in records])
    gold = np.array([labels.index(record["gold"]) for record in records])
    rng, coverages = np.random.default_rng(seed), []
    for _ in range(NUM_SPLITS):
        fit, test = np.array_split(rng.permutation(len(gold)), 2)
        is_member = find_members(logits[test], fit_set_margin(logits[fit], gold[fit]))
        coverages.append(score_sets(is_member, gold[test])["set_coverage"])
    return statistics.mean(coverages)


def format_cells(values: list[list[float]]) -> list[str]:
    """Format the means over the seeds, and the highest ECE."""
    accuracy, before, after, coverage, difference = zip(*values, strict=True)
    means = [statistics.mean(part) for part in (accuracy, before, after)]
    return [
        *(f"{mean:.3f}" for mean in means),
        f"{max(after):.3f}",
        f"{100 * statistics.mean(coverage):.1f} %",
        f"{max(difference):.0e}",
    ]


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args, rows = parse_args(argv), {}
    for name in args.work:
        values = []
        for seed in range(1, args.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                values.append(measure(name, seed, args, Path(folder)))
            print(f"{name}, seed {seed}: {values[-1]}", file=sys.stderr, flush=True)
        rows[DATASETS[name].title] = format_cells(values)
    command = f"python benchmarks/calibration.py --data-dir DATA --work {' '.join(args.work)}"
    command += f" --seeds {args.seeds} --train-rows {args.train_rows} --fit-rows {args.fit_rows}"
    command += f" --test-rows {args.test_rows} --epochs {args.epochs:g}"
    report = [
        INTRODUCTION,
        *format_table(COLUMNS, rows),
        "",
        *describe_machine(),
        "",
        "```sh",
        command,
        "```",
    ]
    text = "\n".join(report) + "\n"
    publish(text, args.out)
    if args.write:
        replace_section("calibration", text, PAGE)


if __name__ == "__main__":
    main()
