"""Compare a teacher with its student, with the same student without a teacher, and with an int8 export.

    python benchmarks/distillation.py --data-dir DATA --seeds 3 --write
    python benchmarks/distillation.py --data-dir DATA --work sst2 --unlabeled-rows 20000 --seeds 3

For each dataset and seed, a teacher with all layers is fine-tuned, and distilled into a student with half of
them. The same student is trained twice more on the labels only: once from the layers of the teacher, and
once from the layers of the pre-trained model. The distilled student is exported as an int8 ONNX model.
`--unlabeled-rows N` adds a student that also learns the predictions of the teacher on N random training rows,
without their labels; this needs a dataset whose other training rows the teacher does not use. All
models predict the same rows, one after the other, in one process. Scores are means over the seeds; the
interval and the paired tests resample the rows (bootstrap). The report goes to standard output; --write puts
it into docs/distill.md. With --output-dir, the models are kept, and finished ones are not trained again: this
continues an interrupted benchmark.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish

if TYPE_CHECKING:
    from bertkit.stats.significance import Scorer

PAGE = ROOT / "docs" / "distill.md"
TEACHER, STUDENT, INT8 = "teacher", "student", "student, int8 ONNX"
UNLABELED = "student, unlabeled rows as well"
LABELS_ONLY, WITHOUT_TEACHER = "layers of the teacher, labels only", "layers of the model, labels only"
SYSTEMS = (TEACHER, STUDENT, LABELS_ONLY, WITHOUT_TEACHER, INT8)
COLUMNS = [
    "score",
    "95 % interval",
    "of the teacher",
    "MB",
    "rows/s",
    "times the teacher",
    "p50 ms",
    "p95 ms",
]


@dataclass(frozen=True)
class Dataset:
    """A dataset, its task and its score.

    Attributes:
        title: Name in the report.
        task: Name of the task.
        score: Score that is compared.
        max_train_samples: Number of training rows; None for all.
        max_length: Maximum sequence length.
    """

    title: str
    task: str
    score: str
    max_train_samples: int | None
    max_length: int


DATASETS = {
    "sst2": Dataset("SST-2", "classify", "accuracy", 6000, 64),
    "wnut17": Dataset("WNUT-17", "ner", "f1", None, 128),
}


@dataclass(frozen=True)
class Measurement:
    """What is measured of a model of one seed."""

    scorer: Scorer
    megabytes: float
    rows_per_second: float
    latencies: list[float]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 1, 2, ...")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--rows", type=int, help="number of training rows (default: by dataset)")
    parser.add_argument("--eval-rows", type=int, help="number of predicted rows (default: all)")
    parser.add_argument("--epochs", type=float, help="epochs of all runs (default: bertkit's)")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--unlabeled-rows", type=int, help="rows without labels of a further student")
    parser.add_argument("--latency-rows", type=int, default=200)
    parser.add_argument("--output-dir", type=Path, help="keep the models here, and train only missing ones")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the report to docs/distill.md")
    return parser.parse_args(argv)


def train_models(name: str, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Train and export the models of a seed, and return their directories."""
    import bertkit

    dataset = DATASETS[name]
    epochs = {} if args.epochs is None else {"epochs": args.epochs}
    loss = {key: value for key in ("temperature", "alpha") if (value := getattr(args, key)) is not None}
    folders = {system: folder / str(number) for number, system in enumerate(SYSTEMS)}
    train = getattr(bertkit, dataset.task)
    common = {
        "data": name, "data_dir": args.data_dir and str(args.data_dir), "model": args.model, "seed": seed,
        "max_train_samples": args.rows or dataset.max_train_samples, "max_eval_samples": args.eval_rows,
        "max_length": dataset.max_length, **epochs,
    }  # fmt: skip
    train_missing(folders[TEACHER], train, **common)
    distill = partial(bertkit.distill, folders[TEACHER], num_layers=args.num_layers, **epochs)
    train_missing(folders[STUDENT], distill, **loss)
    train_missing(folders[LABELS_ONLY], distill, alpha=0.0)
    train_missing(folders[WITHOUT_TEACHER], train, **common, num_layers=args.num_layers)
    if args.unlabeled_rows:
        folders[UNLABELED] = folder / "unlabeled"
        train_missing(folders[UNLABELED], distill, **loss, data=sample_training_rows(name, seed, args))
    folders[INT8] = folder / "onnx" / "int8"
    if not folders[INT8].exists():
        bertkit.export(folders[STUDENT], quantize="int8", output_dir=folder / "onnx", overwrite=True)
    return folders


def train_missing(folder: Path, train: Callable[..., Any], **settings: Any) -> None:
    """Train a model unless the directory contains a finished run."""
    from bertkit.run_directory import RunDir

    if not RunDir(folder).read_metrics():
        train(**settings, output_dir=folder, overwrite=True)


def sample_training_rows(name: str, seed: int, args: argparse.Namespace) -> Any:
    """Return random rows of the whole training split, some of which the teacher was trained on."""
    from bertkit.data.sources import load_dataset

    rows = load_dataset(name, DATASETS[name].task, args.data_dir).splits["train"]
    order = np.random.default_rng(seed).permutation(len(rows))
    return list(rows.select(order[: args.unlabeled_rows]))


def measure(run: Path, rows: Any, num_latencies: int) -> Measurement:
    """Score a model, and measure its size and its speed."""
    import bertkit

    predictor = bertkit.load(run)
    predictor.compute_outputs(rows.select(range(min(len(rows), 32))))  # warm up
    started = time.perf_counter()
    outputs = predictor.compute_outputs(rows)
    rows_per_second = len(rows) / (time.perf_counter() - started)
    latencies = []
    for index in range(min(len(rows), num_latencies)):
        row = rows.select([index])
        started = time.perf_counter()
        predictor.compute_outputs(row)
        latencies.append(1000 * (time.perf_counter() - started))
    scorer = predictor.task.evaluate(outputs).scorer
    files = [path for pattern in ("*.safetensors", "*.onnx*") for path in run.glob(pattern)]
    return Measurement(scorer, sum(path.stat().st_size for path in files) / 1e6, rows_per_second, latencies)


def measure_seed(runs: Mapping[str, Path], num_latencies: int) -> dict[str, Measurement]:
    """Measure the models of a seed on the validation rows of the teacher."""
    from bertkit.run.load_data import reload_run_data

    rows = reload_run_data(runs[TEACHER])[1]["validation"]
    return {system: measure(run, rows, num_latencies) for system, run in runs.items()}


def average_scorers(scorers: Sequence[Scorer]) -> Scorer:
    """Return a scorer of the mean scores over seeds; it resamples the same rows for all of them."""
    from bertkit.stats.significance import Scorer

    def score(rows: Any) -> dict[str, float]:
        scores = [scorer.score(rows) for scorer in scorers]
        return {name: statistics.mean(part[name] for part in scores) for name in scores[0]}

    return Scorer(score, scorers[0].size)


def format_dataset(name: str, seeds: Sequence[Mapping[str, Measurement]]) -> list[str]:
    """Return the table of a dataset and the paired tests as Markdown."""
    from bertkit.stats.significance import bootstrap

    score = DATASETS[name].score
    systems = list(seeds[0])
    scorers = {system: average_scorers([seed[system].scorer for seed in seeds]) for system in systems}
    values = {system: scorer.score_all()[score] for system, scorer in scorers.items()}
    speeds = {system: statistics.median(seed[system].rows_per_second for seed in seeds) for system in systems}
    rows = {}
    for system in systems:
        low, high = bootstrap(scorers[system])[score]
        latencies = sorted(value for seed in seeds for value in seed[system].latencies)
        rows[system] = [
            f"{values[system]:.3f}", f"{low:.3f} to {high:.3f}", f"{values[system] / values[TEACHER]:.1%}",
            f"{seeds[0][system].megabytes:.1f}", f"{speeds[system]:,.0f}",
            f"{speeds[system] / speeds[TEACHER]:.2f}", f"{latencies[len(latencies) // 2]:.1f}",
            f"{latencies[int(0.95 * len(latencies))]:.1f}",
        ]  # fmt: skip
    lines = [f"{DATASETS[name].title}, {score}:", "", *format_table(COLUMNS, rows), ""]
    for student in [system for system in (STUDENT, UNLABELED) if system in systems]:
        lines += [
            compare_students(scorers, score, student, other) for other in (LABELS_ONLY, WITHOUT_TEACHER)
        ]
    return [*lines, ""]


def compare_students(scorers: Mapping[str, Scorer], score: str, student: str, other: str) -> str:
    """Return a line with the paired difference of two students."""
    from bertkit.stats.significance import compare_scorers

    result = compare_scorers(scorers[other], scorers[student])[score]
    low, high = (100 * bound for bound in result.interval)
    return (
        f"- {student} minus {other}: {100 * result.difference:+.1f} points ({low:+.1f} to {high:+.1f}, "
        f"p = {result.p:.2g})"
    )


def format_report(name: str, seeds: Sequence[Mapping[str, Measurement]], args: argparse.Namespace) -> str:
    """Return the table of a dataset, the machine and the command as Markdown."""
    names = ("seeds", "num_layers", "rows", "eval_rows", "epochs", "temperature", "alpha", "unlabeled_rows")
    options = [
        f"--{key.replace('_', '-')} {getattr(args, key):g}" for key in names if getattr(args, key) is not None
    ]
    command = f"python benchmarks/distillation.py --data-dir DATA --work {name} {' '.join(options)}"
    about = f"`{args.model}`, {args.num_layers} layers for the student; means over {args.seeds} seeds."
    lines = [about, "", *format_dataset(name, seeds), *describe_machine(), "", "```sh", command, "```"]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.output_dir or Path(temporary)
        seeds = range(1, args.seeds + 1)
        runs = {
            name: [train_models(name, seed, folder / name / str(seed), args) for seed in seeds]
            for name in args.work
        }
        results = {
            name: [measure_seed(models, args.latency_rows) for models in runs[name]] for name in args.work
        }
    for name, measured in results.items():
        for seed, measurements in zip(seeds, measured, strict=True):
            scores = {system: one.scorer.score_all() for system, one in measurements.items()}
            print(f"{name}, seed {seed}: {scores}", file=sys.stderr, flush=True)
    reports = {name: format_report(name, measured, args) for name, measured in results.items()}
    publish("\n".join(reports.values()), args.out)
    if args.write:
        for name, text in reports.items():
            replace_section(f"distillation {name}", text, PAGE)


if __name__ == "__main__":
    main()
