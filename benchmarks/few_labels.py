"""Compare training methods of `bertkit classify` and SetFit on few labeled rows per class.

    python benchmarks/few_labels.py --data-dir DATA --shots 8 64 --draws 10
    python benchmarks/few_labels.py --work rotten_tomatoes --methods contrastive --adapted runs/adapted

Each draw samples rows per class by seed. All methods train on these rows, and are scored on the same other
rows. bertkit selects the epoch with the best score on the rows that it is scored on. Only fine-tuning has
several epochs, so this favors fine-tuning. With `--adapted`, the contrastive method also starts from this
run, whose pre-training was continued on the text of the dataset. The table has mean accuracies with 95 %
intervals (t distribution, over the draws), the difference to `contrastive` on the same draws, and the seconds
of a run. `setfit` is left out if it is not installed. Progress goes to standard error, the table to standard
output.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from docs_page import format_table
from harness import OUT_HELP, describe_machine, publish

COLUMNS = ["accuracy", "95 % interval", "contrastive minus this", "95 % interval", "seconds"]
REFERENCE, ADAPTED = "contrastive", "contrastive, continued pre-training"


@dataclass(frozen=True)
class Dataset:
    """A dataset of single texts, and the maximum sequence length."""

    title: str
    text: str
    max_length: int


DATASETS = {
    "sst2": Dataset("SST-2", "sentence", 64),
    "rotten_tomatoes": Dataset("Rotten Tomatoes", "text", 64),
    "imdb": Dataset("IMDB, 64 tokens", "text", 64),
    "cola": Dataset("CoLA", "sentence", 64),
}


class Draw(NamedTuple):
    """The rows of a draw, with the keys `text` and `label`."""

    train: list[dict[str, str]]
    test: list[dict[str, str]]
    max_length: int
    seed: int


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument(
        "--work", nargs="+", choices=list(DATASETS), default=["sst2", "rotten_tomatoes", "imdb"]
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list_available_methods())
    parser.add_argument("--shots", nargs="+", type=int, default=[8, 64], help="training rows per class")
    parser.add_argument("--draws", type=int, default=10, help="number of seeds: 0, 1, ...")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--adapted", help="a run of continued pre-training to start from as well")
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    args = parser.parse_args(argv)
    args.models = dict.fromkeys(args.methods, args.model) | ({ADAPTED: args.adapted} if args.adapted else {})
    return args


def list_available_methods() -> list[str]:
    """Return the methods whose libraries are installed."""
    has_setfit = importlib.util.find_spec("setfit") is not None
    return [name for name in METHODS if name != "setfit" or has_setfit]


@functools.cache
def load_splits(name: str, data_dir: str | None) -> Any:
    """Return the splits of a dataset."""
    from bertkit.data.sources import load_dataset

    return load_dataset(name, "classify", data_dir).splits


def draw_rows(name: str, shots: int, seed: int, args: argparse.Namespace) -> Draw:
    """Return training rows, and rows of the validation split (or other training rows) to score."""
    from bertkit.data.split import sample_per_class, to_membership

    splits = load_splits(name, args.data_dir)
    train, test = splits["train"], splits.get("validation")
    if test is None:  # the same rows for each draw
        order = np.random.default_rng(0).permutation(len(train))
        test, train = train.select(order[: args.test_rows]), train.select(np.sort(order[args.test_rows :]))
    labels = sorted(set(train["label"]))
    membership = to_membership(np.array([labels.index(label) for label in train["label"]]), len(labels))
    sampled = sample_per_class(train, membership, labels, shots, seed)
    rows = [
        [{"text": row[DATASETS[name].text], "label": str(row["label"])} for row in part]
        for part in (sampled, list(test)[: args.test_rows])
    ]
    return Draw(rows[0], rows[1], DATASETS[name].max_length, seed)


def train_with_bertkit(**settings: Any) -> Callable[[Draw, str, Path], float]:
    """Return a function that trains with these settings, and returns the accuracy."""

    def train(draw: Draw, model: str, folder: Path) -> float:
        import bertkit

        run = bertkit.classify(
            data=draw.train, validation=draw.test, model=model, max_length=draw.max_length, seed=draw.seed,
            problem="binary", output_dir=folder, overwrite=True, **settings,
        )  # fmt: skip
        return float(run.metrics["validation"]["accuracy"])

    return train


def train_with_setfit(draw: Draw, model: str, folder: Path) -> float:
    """Train with SetFit and its defaults, and return the accuracy."""
    from datasets import Dataset as Rows
    from setfit import SetFitModel, Trainer, TrainingArguments

    from bertkit.models.loading import find_model

    classifier = SetFitModel.from_pretrained(str(find_model(model).folder))
    classifier.model_body.max_seq_length = draw.max_length
    arguments = TrainingArguments(
        output_dir=str(folder), seed=draw.seed, report_to="none", save_strategy="no"
    )
    Trainer(model=classifier, args=arguments, train_dataset=Rows.from_list(draw.train)).train()
    predicted = classifier.predict([row["text"] for row in draw.test])
    return float(np.mean([label == row["label"] for label, row in zip(predicted, draw.test, strict=True)]))


METHODS: dict[str, Callable[[Draw, str, Path], float]] = {
    "finetune": train_with_bertkit(),
    "finetune, 4 epochs": train_with_bertkit(epochs=4),
    "finetune, 20 epochs": train_with_bertkit(epochs=20),
    "linear-probe": train_with_bertkit(method="linear-probe"),
    REFERENCE: train_with_bertkit(method="contrastive"),
    "setfit": train_with_setfit,
}


def describe_mean(values: Sequence[float]) -> list[str]:
    """Return the mean and its 95 % interval, in points."""
    from scipy.stats import t

    mean = 100 * statistics.mean(values)
    if len(values) < 2:
        return [f"{mean:.1f}", ""]
    width = 100 * t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return [f"{mean:.1f}", f"{mean - width:.1f} to {mean + width:.1f}"]


def format_row(
    accuracy: Sequence[float], reference: Sequence[float] | None, seconds: Sequence[float]
) -> list[str]:
    """Return the cells of a method; the differences are those of the same draws."""
    differences = [] if reference is None else [b - a for a, b in zip(accuracy, reference, strict=True)]
    compared = describe_mean(differences) if any(differences) else ["", ""]
    return [*describe_mean(accuracy), *compared, f"{statistics.mean(seconds):.0f}"]


def measure(name: str, shots: int, args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the table rows of one dataset and number of rows per class."""
    accuracy: dict[str, list[float]] = {method: [] for method in args.models}
    seconds: dict[str, list[float]] = {method: [] for method in args.models}
    for seed in range(args.draws):
        draw = draw_rows(name, shots, seed, args)
        for method, model in args.models.items():
            train = METHODS[REFERENCE if method == ADAPTED else method]
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                accuracy[method].append(train(draw, model, Path(folder)))
            seconds[method].append(time.perf_counter() - started)
            result = f"{accuracy[method][-1]:.3f} in {seconds[method][-1]:.0f} s"
            print(f"{name}, {shots} rows, seed {seed}, {method}: {result}", file=sys.stderr, flush=True)
    title = f"{DATASETS[name].title}, {shots} rows per class"
    return {
        f"{title}: {method}": format_row(accuracy[method], accuracy.get(REFERENCE), seconds[method])
        for method in args.models
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    rows: dict[str, list[str]] = {}
    for name in args.work:
        for shots in args.shots:
            rows |= measure(name, shots, args)
    publish("\n".join([*format_table(COLUMNS, rows), "", *describe_machine()]) + "\n", args.out)


if __name__ == "__main__":
    main()
