"""Time `bertkit predict` from JSON lines to JSON lines, on one core, for several runs of classify.

    python benchmarks/linear_text_speed.py --data-dir DATA --dataset SST-2 hybrid=RUN int8=EXPORTED

The texts are random rows of a dataset. Each round runs the command once for each run, with all texts and with
a single one; the difference of both durations is the time of the other texts, without the start of the
command. A run with an encoder predicts fewer texts. The table goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs_page import format_table
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import DATASETS, draw_rows

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="NAME=DIR; the first one is compared with the others")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--rows", type=int, default=6_000, help="rows of a linear model")
    parser.add_argument("--encoder-rows", type=int, default=1_000, help="rows of a model with an encoder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def time_predict(run: Path, rows: list[dict[str, str]], scratch: Path) -> float:
    """Return the seconds of one command that predicts the rows on the first core of this process."""
    data, output = scratch / "rows.jsonl", scratch / "predictions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    command = [sys.executable, "-m", "bertkit", "predict", str(run), "--data", str(data), "-o", str(output)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        **dict.fromkeys(THREADS, "1"),
    }
    core = {min(os.sched_getaffinity(0))}
    started = time.perf_counter()
    subprocess.run(
        [*command, "--overwrite"], env=environment, check=True, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    assert len(output.read_text("utf-8").splitlines()) == len(rows)
    return seconds


def main(argv: list[str] | None = None) -> None:
    """Time everything and report."""
    args = parse_args(argv)
    runs = dict(each.split("=", 1) for each in args.runs)
    pairs, _ = draw_rows(args.dataset, args.data_dir, 0, args.rows, 0)
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    starts: dict[str, list[float]] = {name: [] for name in runs}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(args.rounds):
            for name, run in runs.items():
                column = (
                    json.loads((Path(run) / "predictions.jsonl").read_text("utf-8").split("\n")[0])
                    if (Path(run) / "predictions.jsonl").exists()
                    else {}
                )
                key = "sentence" if "sentence" in column else "text"
                count = args.rows if (Path(run) / "words.json").exists() else args.encoder_rows
                rows = [{key: text} for text, _ in pairs[:count]]
                start = time_predict(Path(run), rows[:1], Path(scratch))
                seconds = time_predict(Path(run), rows, Path(scratch)) - start
                starts[name].append(start)
                speeds[name].append((len(rows) - 1) / seconds)
                print(f"{name}: {speeds[name][-1]:,.0f} rows/s, start {start:.1f} s", file=sys.stderr)
    first = next(iter(runs))
    rows_by_name = {}
    for name in runs:
        ratios = [ours / theirs for ours, theirs in zip(speeds[first], speeds[name], strict=True)]
        rows_by_name[name] = [
            f"{statistics.median(speeds[name]):,.0f}", f"{statistics.median(ratios):.1f}",
            f"{statistics.median(starts[name]):.2f}",
        ]  # fmt: skip
    columns = ["rows per second", f"{first} is times as fast", "seconds for a single row"]
    lines = [f"{args.dataset}:", "", *format_table(columns, rows_by_name), "", *describe_machine()]
    publish("\n".join(lines) + "\n", args.out)


if __name__ == "__main__":
    main()
