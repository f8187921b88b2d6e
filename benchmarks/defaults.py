"""Compare defaults of fine-tuning: settings that differ from them, on small training sets.

    python benchmarks/defaults.py --data-dir DATA --out defaults.md

A cell is a dataset with a number of training rows. In each cell and for each seed, all candidates train on
the same rows (10 % of which select the checkpoint, as in every run without validation rows), and are scored
on the same other rows. A candidate changes one default. Half of the datasets choose: all candidates run
with one seed on the smaller sizes. The quarter with the highest scores, and the two with the lowest log-
loss, then run with all seeds, and so does the combination of the best two. The other datasets confirm: only
the winner runs there, also on more rows. The tables have means over the cells, with 95 % intervals (t
distribution) of the paired differences to the defaults over the datasets. Finished runs are kept in
--work, so the script can be interrupted. Progress goes to standard error, the tables to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from transformers import TrainerCallback

from bertkit.data.sources import find_dataset_spec, load_dataset
from bertkit.run.prepare import RunOptions, prepare
from bertkit.run.resolve_settings import resolve_settings
from bertkit.run.train import train_prepared
from bertkit.tasks import task_definition
from bertkit.training.trainer import BertkitTrainer
from bertkit.utils.reporting import silence_libraries, silence_reports
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish
from text_datasets import DATASETS as TEXT_DATASETS
from text_datasets import draw_rows

SIZES = (64, 500, 2_000)
CHOOSING_SIZES = (64, 500)
ROWS_PER_CLASS = 4  # at least, on average
BATCH_SIZE = 16  # the default for these sizes
DEFAULTS = "defaults"


@dataclass(frozen=True)
class Dataset:
    """A dataset of `text_datasets`, or a known dataset of bertkit, and its settings."""

    name: str
    task: str = "classify"
    classes: int = 2
    settings: Mapping[str, Any] = field(default_factory=dict)


CHOOSING = {
    "SST-2": Dataset("SST-2"),
    "AG News": Dataset("AG News", classes=4),
    "Banking77": Dataset("Banking77", classes=77),
    "emotion": Dataset("emotion", classes=4),
    "MRPC": Dataset("mrpc"),
}
CONFIRMING = {
    "Rotten Tomatoes": Dataset("Rotten Tomatoes"),
    "IMDB": Dataset("IMDB", settings={"max_length": 128}),
    "CLINC150": Dataset("CLINC150", classes=150),
    "irony": Dataset("irony"),
    "NSMC": Dataset("NSMC"),
    "RTE": Dataset("rte"),
    "KLUE-NLI": Dataset("klue-nli", "nli", 3),
    "WNUT-17": Dataset("wnut17", "ner", 1),
    "CODAH": Dataset("codah", "swag", 4),
}
# What each candidate changes. `steps` is the least number of training steps, for which the epochs increase.
CANDIDATES: dict[str, dict[str, Any]] = {
    DEFAULTS: {},
    "four epochs": {"epochs": 4},
    "last checkpoint": {"last": True},
    "pooling of the checkpoint (mean)": {"pooling": "mean"},
    "learning rate x 2": {"learning_rate": 2e-4},
    "checkpoint with the lowest loss": {"metric_for_best_model": "nll"},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "batch size 8": {"batch_size": 8},
    "mean of the weights of each epoch": {"average": True},
    "early stopping on the loss": {"metric_for_best_model": "nll", "epochs": 8, "early_stopping": 2},
    "layer decay 0.9": {"layer_decay": 0.9},
    "no warmup": {"warmup": 0},
    "at least 100 steps": {"steps": 100},
    "at least 400 steps": {"steps": 400},
    "learning rate x 0.5": {"learning_rate": 5e-5},
    "no attention dropout": {"attention_dropout": 0},
}
NOT_FOR = {  # settings that a task does not have
    "ner": {"pooling", "label_smoothing", "metric_for_best_model"},
    "swag": {"metric_for_best_model"},
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", type=Path, default=Path("defaults_benchmark"), help="finished runs")
    parser.add_argument("--model", default="minilm")
    parser.add_argument(
        "--choosing-sizes", nargs="+", type=int, default=list(CHOOSING_SIZES), help="numbers of training rows"
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=list(SIZES), help="those of the datasets that confirm"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds: 0, 1, ...")
    parser.add_argument("--test-rows", type=int, default=600, help="scored rows, at most")
    parser.add_argument(
        "--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), help="with the defaults"
    )
    parser.add_argument("--choosing", nargs="+", choices=CHOOSING, default=list(CHOOSING))
    parser.add_argument("--confirming", nargs="*", choices=CONFIRMING, default=list(CONFIRMING))
    parser.add_argument(
        "--compare",
        choices=CANDIDATES,
        help="only compare the defaults with this candidate, on all cells",
    )
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the tables to docs/design/defaults.md")
    return parser.parse_args(argv)


# ---- runs


class AverageWeights(TrainerCallback):
    """Evaluate and save the mean of the weights after each step of an epoch."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []  # those to continue with
        self.num_steps = 0

    @torch.no_grad()
    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        weights = [weight.detach().clone() for weight in model.parameters()]
        self.sums = [a + b for a, b in zip(self.sums, weights, strict=True)] if self.sums else weights
        self.num_steps += 1

    @torch.no_grad()
    def on_epoch_end(self, *_: Any, model: Any, **__: Any) -> None:
        self.weights = [weight.detach().clone() for weight in model.parameters()]
        for weight, total in zip(model.parameters(), self.sums, strict=True):
            weight.copy_(total / self.num_steps)

    @torch.no_grad()
    def on_epoch_begin(self, *_: Any, model: Any, **__: Any) -> None:
        for weight, saved in zip(model.parameters(), self.weights, strict=False):
            weight.copy_(saved)
        self.sums, self.num_steps = [], 0


@cache
def read_rows(name: str, task: str, data_dir: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return all labeled rows of a known dataset, and the settings that name their columns."""
    spec = find_dataset_spec(name)
    assert spec is not None
    columns = {key: value for key, value in spec.defaults.items() if key != "best_metric"}
    splits = load_dataset(name, task, str(data_dir)).splits
    label = columns.get("label_column", columns.get("tag_column"))
    rows = [row for part in splits.values() if label is None or label in part.columns for row in part]
    return rows, columns


def sample(
    dataset: Dataset, size: int, seed: int, args: argparse.Namespace
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return disjoint rows for training and for the scores, and the settings of the dataset."""
    if dataset.name in TEXT_DATASETS:
        parts = draw_rows(dataset.name, args.data_dir, seed, max(SIZES), args.test_rows)
        train, test = ([{"text": text, "label": label} for text, label in part] for part in parts)
        return train[:size], test, dict(dataset.settings)
    rows, columns = read_rows(dataset.name, dataset.task, args.data_dir)
    chosen = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    num_test = min(args.test_rows, len(rows) // 3)
    return chosen[num_test:][:size], chosen[:num_test], {**columns, **dataset.settings}


def run_candidate(
    title: str, dataset: Dataset, size: int, seed: int, candidate: str, args: argparse.Namespace
) -> dict[str, float]:
    """Return the score, ECE, log-loss and seconds of a run, or read those of a finished one."""
    name = f"{title} {size} {seed} {args.test_rows} {candidate}".replace(" ", "-")
    result = args.work / f"{name}.json"
    if result.exists():
        return json.loads(result.read_text("utf-8"))
    train, test, settings = sample(dataset, size, seed, args)
    parts = [candidate] if candidate in CANDIDATES else candidate.split(" & ")
    changes = {key: value for part in parts for key, value in CANDIDATES[part].items()}
    for key in NOT_FOR.get(dataset.task, set()):
        changes.pop(key, None)
    if steps := changes.pop("steps", None):
        changes["epochs"] = max(4.0, float(-(-steps * BATCH_SIZE // round(0.9 * len(train)))))
    is_new_best = BertkitTrainer.is_new_best
    if changes.pop("last", False):
        BertkitTrainer.is_new_best = lambda *_: True  # type: ignore[method-assign]
    callbacks = [AverageWeights()] if changes.pop("average", False) else []
    folder = Path(tempfile.mkdtemp())
    started = time.perf_counter()
    overrides = {
        "data": train, "test": test, "model": args.model, "seed": seed, "output_dir": str(folder / "run"),
        **settings, **changes,
    }  # fmt: skip
    with silence_libraries(), silence_reports():
        config, _ = resolve_settings(dataset.task, task_definition(dataset.task).config, overrides, None)
        prepared = prepare(dataset.task, config, [])
        prepared.options = RunOptions(has_report=False)
        prepared.add_callbacks(callbacks)
        metrics = train_prepared(prepared, folder / "run").metrics
    shutil.rmtree(folder)
    BertkitTrainer.is_new_best = is_new_best  # type: ignore[method-assign]
    scores = metrics["test"]
    record = {
        "score": scores["f1" if dataset.task == "ner" else "accuracy"],
        "ece": scores.get("ece"), "nll": scores.get("nll"), "seconds": time.perf_counter() - started,
    }  # fmt: skip
    print(f"{name}: {record}", file=sys.stderr, flush=True)
    result.write_text(json.dumps(record), "utf-8")
    return record


# ---- halving


@dataclass(frozen=True)
class Cell:
    """A dataset with a number of training rows."""

    title: str
    dataset: Dataset
    size: int


def list_cells(datasets: Mapping[str, Dataset], names: Sequence[str], sizes: Sequence[int]) -> list[Cell]:
    return [
        Cell(name, datasets[name], size)
        for size in sizes
        for name in names
        if size >= ROWS_PER_CLASS * datasets[name].classes
    ]


def run_cells(
    candidates: Sequence[str], cells: Sequence[Cell], seeds: int, args: argparse.Namespace
) -> dict[str, dict[str, np.ndarray]]:
    """Return the scores [cells] of each candidate, as means over the seeds, by name of the score."""
    results: dict[str, dict[str, np.ndarray]] = {}
    for candidate in candidates:
        records = [
            [
                run_candidate(cell.title, cell.dataset, cell.size, seed, candidate, args)
                for seed in range(seeds)
            ]
            for cell in cells
        ]
        results[candidate] = {
            name: np.array(
                [np.mean([np.nan if r[name] is None else r[name] for r in part]) for part in records]
            )
            for name in ("score", "ece", "nll", "seconds")
        }
    return results


def rank(results: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    """Return the candidates from the highest to the lowest mean score, without the defaults."""
    return sorted(set(results) - {DEFAULTS}, key=lambda name: (-results[name]["score"].mean(), name))


def choose(args: argparse.Namespace) -> tuple[list[list[str]], str]:
    """Run the rounds of the halving; return the lines of their tables, and the winner."""
    cells = list_cells(CHOOSING, args.choosing, args.choosing_sizes)
    first = run_cells([DEFAULTS, *(name for name in args.candidates if name != DEFAULTS)], cells, 1, args)
    kept = rank(first)[: len(args.candidates) // 4]
    lowest_losses = sorted(set(first) - {DEFAULTS}, key=lambda name: (np.nanmean(first[name]["nll"]), name))
    kept += [name for name in lowest_losses[:2] if name not in kept]  # for the calibration
    second = run_cells([DEFAULTS, *kept], cells, args.seeds, args)
    best_two = " & ".join(sorted(rank(second)[:2], key=list(CANDIDATES).index))
    second |= run_cells([best_two], cells, args.seeds, args)
    tables = [format_cells(first, cells), format_cells(second, cells)]
    return tables, rank(second)[0]


# ---- tables


def format_difference(values: np.ndarray, cells: Sequence[Cell], scale: float, digits: int) -> str:
    """Return the mean of differences [cells], with its 95 % interval over the datasets."""
    titles = [cell.title for cell in cells]
    by_dataset = [values[[cell.title == title for cell in cells]].mean() for title in dict.fromkeys(titles)]
    means = scale * np.array([value for value in by_dataset if not np.isnan(value)])
    if len(means) < 2:
        return f"{scale * np.nanmean(values):+.{digits}f}"
    low, high = stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means))
    return f"{means.mean():+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def format_cells(results: Mapping[str, Mapping[str, np.ndarray]], cells: Sequence[Cell]) -> list[str]:
    """Return the table of a round: scores by size, and paired differences to the defaults."""
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    columns = [
        *(f"{size:,} rows" for size in sizes), "difference, points", "worst cell, points", "ECE",
        "difference of ECE", "log-loss", "time",
    ]  # fmt: skip
    rows, reference = {}, results[DEFAULTS]
    for name, scores in results.items():
        difference = scores["score"] - reference["score"]
        rows[name] = [
            *(f"{scores['score'][[cell.size == size for cell in cells]].mean():.3f}" for size in sizes),
            "" if name == DEFAULTS else format_difference(difference, cells, 100, 1),
            "" if name == DEFAULTS else f"{100 * difference.min():+.1f}",
            f"{np.nanmean(scores['ece']):.3f}",
            "" if name == DEFAULTS else format_difference(scores["ece"] - reference["ece"], cells, 1, 3),
            f"{np.nanmean(scores['nll']):.3f}",
            f"{(scores['seconds'] / reference['seconds']).mean():.2f}",
        ]
    return format_table(columns, rows)


def format_sets(results: Mapping[str, Mapping[str, np.ndarray]], cells: Sequence[Cell]) -> list[str]:
    """Return the scores of each cell."""
    rows = {
        f"{cell.title}, {cell.size:,}": [f"{scores['score'][index]:.3f}" for scores in results.values()]
        for index, cell in enumerate(cells)
    }
    return format_table(list(results), rows)


def compare(args: argparse.Namespace) -> list[str]:
    """Return the lines of the tables that compare the defaults with those of a candidate."""
    cells = list_cells(CHOOSING | CONFIRMING, [*args.choosing, *args.confirming], args.sizes)
    results = run_cells([args.compare, DEFAULTS], cells, args.seeds, args)
    rows, (before, after) = {}, (results[args.compare], results[DEFAULTS])
    for index, cell in enumerate(cells):
        scores, eces, nlls = (
            [f"{part[key][index]:.3f}".replace("nan", "") for part in (before, after)]
            for key in ("score", "ece", "nll")
        )
        points = 100 * (after["score"] - before["score"])[index]
        times = (after["seconds"] / before["seconds"])[index]
        rows[f"{cell.title}, {cell.size:,} rows"] = [*scores, f"{points:+.1f}", *eces, *nlls, f"{times:.1f}"]
    difference = format_difference(after["score"] - before["score"], cells, 100, 1)
    calibration = format_difference(after["ece"] - before["ece"], cells, 1, 3)
    titles = [args.compare, DEFAULTS]
    columns = [*(f"score: {t}" for t in titles), "points", *(f"ECE: {t}" for t in titles)]
    columns += [*(f"log-loss: {t}" for t in titles), "time"]
    return [
        *format_table(columns, rows), "",
        f"Mean difference over the datasets, with its 95 % interval: {difference} points; of the ECE: "
        f"{calibration}. {args.seeds} seeds.",
    ]  # fmt: skip


def run_benchmark(args: argparse.Namespace) -> str:
    tables, winner = choose(args)
    cells = list_cells(CONFIRMING, args.confirming, args.sizes)
    command = f"python benchmarks/defaults.py --data-dir DATA --seeds {args.seeds}"
    lines = [
        f"All candidates, one seed, {', '.join(args.choosing)}:", "", *tables[0], "",
        f"The better ones, {args.seeds} seeds, the same datasets:", "", *tables[1], "",
    ]  # fmt: skip
    if cells:
        confirmed = run_cells([DEFAULTS, winner], cells, args.seeds, args)
        lines += [
            f"The best one on other datasets ({', '.join(args.confirming)}), {args.seeds} seeds:", "",
            *format_cells(confirmed, cells), "", *format_sets(confirmed, cells), "",
        ]  # fmt: skip
    return "\n".join([*lines, *describe_machine(), "", "```sh", command, "```"]) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    text = "\n".join(compare(args)) + "\n" if args.compare else run_benchmark(args)
    publish(text, args.out)
    if args.write:
        replace_section("defaults.py", text, ROOT / "docs" / "design" / "defaults.md")


if __name__ == "__main__":
    main()
