"""Compare the rows per second of transformers' pipeline and of bertkit on a finished run of classify.

    python benchmarks/predict_speed.py RUN --data DATA/SST-2/dev.tsv --out predict.md

All use the same model in one process: the pipeline row by row, the pipeline with batches of 32 in the order
of the rows, and bertkit with the rows in the same order. Reading the rows is not timed. The report goes to
standard output.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from transformers import pipeline

import bertkit
from bertkit.data.readers.files import read_file
from bertkit.utils.reporting import silence_libraries
from harness import compute_median_ratio, format_report, list_rounds, publish
from ner_data import time_alternating

BATCH_SIZE = 32
ROW_BY_ROW = "pipeline, row by row"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a finished run of classify on single texts")
    parser.add_argument("--data", type=Path, required=True, help="rows in any format that training reads")
    parser.add_argument("--column", default="sentence", help="the column of the texts (default: sentence)")
    parser.add_argument("--rows", type=int, default=500, help="number of rows, from the first row")
    parser.add_argument("--rounds", type=int, default=3, help="passes over the rows, in turn")
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    return parser.parse_args(argv)


def list_calls(run: str, texts: list[str]) -> dict[str, Callable[[], object]]:
    """Return row name -> function to time."""
    pipe = pipeline("text-classification", run, top_k=None)
    predictor = bertkit.load(run)
    rows = [{"text": text} for text in texts]
    return {
        ROW_BY_ROW: lambda: [pipe(text, truncation=True) for text in texts],
        f"pipeline, batches of {BATCH_SIZE}": lambda: pipe(texts, batch_size=BATCH_SIZE, truncation=True),
        "bertkit": lambda: list(predictor.predict(rows)),
    }


def format_table(seconds: dict[str, list[float]], rows: int) -> list[str]:
    """Return the rows per second, the speedup over the pipeline row by row, and every round."""
    lines = ["| | rows/s | speedup |", "|---|---:|---:|"]
    for name, runs in seconds.items():
        ratio = compute_median_ratio(seconds[ROW_BY_ROW], runs)
        lines.append(f"| {name} | {rows / statistics.median(runs):,.1f} | {ratio:.2f} |")
    shown = {name: [f"{run:.2f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def main() -> None:
    """Time everything and report."""
    args = parse_args()
    texts = list(read_file(args.data)[args.column][: args.rows])
    with silence_libraries():
        seconds = time_alternating(list_calls(args.run, texts), args.rounds)
    about = (
        f"{len(texts):,} rows of {args.data.name}, medians of {args.rounds} rounds. The speedup is the "
        "median of the ratios per round."
    )
    own = f"python benchmarks/predict_speed.py RUN --data {args.data.name} --rounds {args.rounds}"
    publish(format_report("Speed of predicting", about, format_table(seconds, len(texts)), [own]), args.out)


if __name__ == "__main__":
    main()
