"""Time `bertkit predict` on many short rows with one process, with `--nproc`, and with `--ray local`.

    python benchmarks/bulk_prediction.py --data-dir DATA hybrid=RUN int8=EXPORTED --rows 1000000

The rows are the sentences of SST-2's training file, again and again, as JSON lines. Each round runs the
command in each way, with all rows and with a single one; the difference of both durations is the time of the
other rows, without the start of the command. The table also says whether all ways write the same bytes. It
goes to standard output.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
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
from text_datasets import draw_rows

PROCESSES = len(os.sched_getaffinity(0))
# the title of each way, its flags, and the threads of a process; None for all cores
WAYS: dict[str, tuple[str, list[str], int | None]] = {
    "thread": ("one process, one thread", [], 1),
    "cores": ("one process, all cores", [], None),
    "nproc": (f"--nproc {PROCESSES}, one thread each", ["--nproc", str(PROCESSES)], 1),
    "ray": ("--ray local, one thread each", ["--ray", "local"], 1),
}
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="NAME=DIR, runs of classify on the column `sentence`")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a linear model")
    parser.add_argument("--encoder-rows", type=int, default=100_000, help="rows of a model with an encoder")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[name for name in WAYS if name != "ray"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def time_predict(run: str, data: Path, flags: list[str], threads: int | None) -> tuple[float, str]:
    """Return the seconds of one command, and a digest of its output."""
    output = data.with_name("predictions.jsonl")
    command = [sys.executable, "-m", "bertkit", "predict", run, "--data", str(data), "-o", str(output)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    for name in THREADS:
        environment.pop(name, None)
        if threads is not None:
            environment[name] = str(threads)
    started = time.perf_counter()
    subprocess.run([*command, "--overwrite", *flags], env=environment, check=True, stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    return seconds, hashlib.sha256(output.read_bytes()).hexdigest()


def write_rows(path: Path, texts: list[str], count: int) -> Path:
    """Write texts as JSON lines, again and again until there are `count` rows."""
    with path.open("w", encoding="utf-8") as file:
        for text in itertools.islice(itertools.cycle(texts), count):
            file.write(json.dumps({"sentence": text}) + "\n")
    return path


def main(argv: list[str] | None = None) -> None:
    """Time everything and report."""
    args = parse_args(argv)
    pairs, _ = draw_rows("SST-2", args.data_dir, 0, 60_000, 0)
    texts = [text for text, _ in pairs]
    ways = {title: (flags, threads) for title, flags, threads in (WAYS[name] for name in args.ways)}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        single = write_rows(Path(scratch) / "single.jsonl", texts, 1)
        for name, run in (each.split("=", 1) for each in args.runs):
            count = args.rows if (Path(run) / "words.json").exists() else args.encoder_rows
            rows = write_rows(Path(scratch) / "rows.jsonl", texts, count)
            speeds: dict[str, list[float]] = {way: [] for way in ways}
            starts: dict[str, list[float]] = {way: [] for way in ways}
            digests: dict[str, str] = {}
            for _ in range(args.rounds):
                for way, (flags, threads) in ways.items():
                    start, _digest = time_predict(run, single, flags, threads)
                    seconds, digests[way] = time_predict(run, rows, flags, threads)
                    starts[way].append(start)
                    speeds[way].append((count - 1) / (seconds - start))
                    print(
                        f"{name}, {way}: {speeds[way][-1]:,.0f} rows/s, start {start:.1f} s", file=sys.stderr
                    )
            first = next(iter(ways))
            table = {}
            for way in ways:
                ratios = [ours / theirs for ours, theirs in zip(speeds[way], speeds[first], strict=True)]
                table[way] = [
                    f"{statistics.median(speeds[way]):,.0f}", f"{statistics.median(ratios):.2f}",
                    f"{min(ratios):.2f} to {max(ratios):.2f}", f"{statistics.median(starts[way]):.1f}",
                    "yes" if digests[way] == digests[first] else "no",
                ]  # fmt: skip
            headings = ["rows per second", f"times {first}", "range", "seconds for one row", "same bytes"]
            lines += [f"{name}, {count:,} rows, medians of {args.rounds} rounds:", ""]
            lines += [*format_table(headings, table), ""]
    publish("\n".join([*lines, *describe_machine()]) + "\n", args.out)


if __name__ == "__main__":
    main()
