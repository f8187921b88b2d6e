"""Measure how good the model is that `bertkit ladder classify` recommends, on rows that no fold contains.

    python benchmarks/ladder_regret.py --data-dir DATA --out regret.md

A cell is a dataset with a number of rows. `bertkit ladder` trains all candidates on these rows; the models of
its folds then predict the same other rows, the test rows. The score of a candidate is the mean accuracy of
its folds on them. The regret of a recommendation is the score of the best candidate there minus that of
the recommended one, in points, with a 95 % bootstrap interval over the test rows. Finished ladders in --work
are kept, so the script can be interrupted. Progress goes to standard error, the table to standard output, or
with --write to docs/ladder.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import DATASETS, draw_rows

SIZES = (64, 500)
ROWS_PER_CLASS = 4  # at least, on average
NUM_RESAMPLES = 2_000
COLUMNS = ["recommended", "score", "best on the test rows", "score", "regret", "95 % interval"]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", type=Path, default=Path("ladder_regret"), help="folder of the ladders")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES), help="numbers of rows")
    parser.add_argument("--test-rows", type=int, default=1_000)
    parser.add_argument("--margin", type=float, default=1.0)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--models", default="minilm")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the table to docs/ladder.md")
    return parser.parse_args(argv)


def run_ladder(dataset: str, size: int, args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the recommendation, and [test rows] the mean over the folds of whether each candidate is right.

    None if there are too few rows per class.
    """
    settings = (args.models, args.margin, args.max_length)
    about = "" if settings == ("minilm", 1.0, 128) else f" {args.models} {args.margin:g} {args.max_length}"
    name = f"{dataset} {size} {args.test_rows}{about}".replace(" ", "-").replace("/", "-")
    result = args.work / f"{name}.json"
    if not result.exists():
        train, test = draw_rows(dataset, args.data_dir, 0, size, args.test_rows)
        if size < ROWS_PER_CLASS * len({label for _, label in test}):
            return None
        parts = [[{"text": text, "label": label} for text, label in part] for part in (train, test)]
        folder = args.work / name
        started = time.perf_counter()
        source: dict[str, Any] = {"data": parts[0]}
        ladder = bertkit.ladder(
            "classify", **source, models=args.models, max_length=args.max_length, margin=args.margin,
            output_dir=str(folder), overwrite=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        right = {}
        for candidate in ladder.metrics["candidates"]:
            runs = sorted((folder / "candidates").glob(f"{candidate['name']}-fold*"))
            if not runs:
                continue  # a baseline
            hits = [
                [
                    record["predicted"] == gold
                    for record, (_, gold) in zip(bertkit.predict(run, data=parts[1]), test, strict=True)
                ]
                for run in runs
            ]
            right[candidate["name"]] = np.mean(hits, axis=0).tolist()
        record = {"recommended": ladder.metrics["recommended"], "right": right, "seconds": seconds}
        result.write_text(json.dumps(record), "utf-8")
        print(f"{dataset}, {size}: {record['recommended']}, {seconds:.0f} s", file=sys.stderr, flush=True)
    content: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return content


def compute_regret(right: Mapping[str, np.ndarray], recommended: str) -> tuple[str, float, float, float]:
    """Return the best candidate on the test rows, and the regret in points with its interval."""
    scores = {name: values.mean() for name, values in right.items()}
    best = max(scores, key=lambda name: scores[name])
    difference = right[best] - right[recommended]
    rng, num_rows = np.random.default_rng(0), len(difference)
    means = [difference[rng.integers(num_rows, size=num_rows)].mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return best, 100 * float(difference.mean()), 100 * float(low), 100 * float(high)


def run_benchmark(args: argparse.Namespace) -> str:
    rows, regrets = {}, []
    for size in args.sizes:
        for dataset in args.datasets:
            content = run_ladder(dataset, size, args)
            if content is None:
                continue
            right = {name: np.array(values) for name, values in content["right"].items()}
            recommended = content["recommended"]
            best, regret, low, high = compute_regret(right, recommended)
            regrets.append(regret)
            rows[f"{dataset}, {size:,} rows"] = [
                recommended, f"{right[recommended].mean():.3f}", best, f"{right[best].mean():.3f}",
                f"{regret:.1f}", f"{low:.1f} to {high:.1f}",
            ]  # fmt: skip
    mean = f"Mean regret of {len(regrets)} cells: {np.mean(regrets):.1f} points; highest: {max(regrets):.1f}."
    command = "python benchmarks/ladder_regret.py --data-dir DATA"
    return "\n".join(
        [*format_table(COLUMNS, rows), "", mean, "", *describe_machine(), "", "```sh", command, "```", ""]
    )


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    text = run_benchmark(args)
    publish(text, args.out)
    if args.write:
        replace_section("ladder_regret.py", text, ROOT / "docs" / "ladder.md")


if __name__ == "__main__":
    main()
