"""Measure how many rows `bertkit predict --rank-for-labeling` saves, by simulated labeling.

    python benchmarks/label_ranking.py --data-dir DATA --seeds 10 --out label_ranking.md
    python benchmarks/label_ranking.py --data-dir DATA --finetune --work ag_news --seeds 3

A simulation starts with random rows of a training set. In each round, the model predicts the other rows, the
first ones in the order of a strategy get their labels, and the model is trained again. The strategies are
`random`, `uncertainty` (the most uncertain rows) and `rank`, the function that the command uses. The model is
logistic regression on the mean vectors of a frozen encoder, which are computed once. With --finetune, each
round runs `bertkit classify` and `bertkit predict --rank-for-labeling`, and `uncertainty` is left out.

The table has the accuracy of random rows, and the number of rows that other strategies need for it. The mean
curve of all seeds is made monotonic (isotonic regression) and interpolated. Intervals are percentiles of a
bootstrap over seeds. Progress goes to standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertkit.commands.label_ranking import rank_rows
from bertkit.data.features import build_features
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.models import loading
from bertkit.models.encoder import FrozenEncoder
from bertkit.stats.calibration import Decisions
from bertkit.stats.linear_probe import fit_linear_layer
from docs_page import format_table
from harness import OUT_HELP, describe_machine, publish

START, STEP = 50, 50  # random rows at the beginning, and rows of a round
MAX_POOL, MAX_TEST = 10_000, 3_000
NUM_RESAMPLES = 2_000
STRATEGIES = ("random", "uncertainty", "rank")
Pairs = list[tuple[str, str]]  # texts with their labels


# ---- data


def read_banking77(folder: Path) -> tuple[Pairs, Pairs]:
    parts = []
    for name in ("train.csv", "test.csv"):
        with (folder / name).open(encoding="utf-8", newline="") as file:
            parts.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    return parts[0], parts[1]


def read_ag_news(folder: Path) -> tuple[Pairs, Pairs]:
    """Divide the test file (class, title, description), which is the only one that is needed."""
    with (folder / "test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(f"{row[1]} {row[2]}", row[0]) for row in csv.reader(file)]
    return split_rows(rows, 2_000)


def read_nsmc(folder: Path) -> tuple[Pairs, Pairs]:
    lines = (folder / "ratings_train.txt").read_text("utf-8").splitlines()[1:]
    rows = [(text, label) for _, text, label in (line.split("\t") for line in lines) if text]
    return split_rows(rows, MAX_TEST)


def read_clinc150(folder: Path) -> tuple[Pairs, Pairs]:
    splits = json.loads((folder / "data_full.json").read_text("utf-8"))
    train, test = ([(text, label) for text, label in splits[name]] for name in ("train", "test"))
    return train, test


def read_emotion(folder: Path) -> tuple[Pairs, Pairs]:
    parts = []
    for split in ("train", "test"):
        texts, labels = (
            (folder / f"{split}_{kind}.txt").read_text("utf-8").splitlines() for kind in ("text", "labels")
        )
        parts.append(list(zip(texts, labels, strict=True)))
    return parts[0], parts[1]


def split_rows(rows: Pairs, num_test: int) -> tuple[Pairs, Pairs]:
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[row] for row in order[num_test:]], [rows[row] for row in order[:num_test]]


# The order and the settings were chosen with the first three.
DATASETS: dict[str, tuple[str, Callable[[Path], tuple[Pairs, Pairs]]]] = {
    "banking77": ("banking77", read_banking77),
    "ag_news": ("ag_news", read_ag_news),
    "nsmc": ("nsmc", read_nsmc),
    "clinc150": ("clinc150", read_clinc150),
    "emotion": ("tweeteval/emotion", read_emotion),
}


def load_pairs(name: str, data_dir: Path, max_pool: int, max_test: int) -> tuple[Pairs, Pairs]:
    """Return rows to choose from and test rows, at most as many as given."""
    folder, read = DATASETS[name]
    limits = (max_pool, max_test)
    parts = []
    for rows, limit in zip(read(data_dir / folder), limits, strict=True):
        kept = np.sort(np.random.default_rng(1).permutation(len(rows))[:limit])
        parts.append([rows[row] for row in kept])
    return parts[0], parts[1]


# ---- simulation with a frozen encoder


@dataclass(frozen=True)
class VectorData:
    """Vectors [n, size] and class ids [n] of the rows to choose from, and of the test rows."""

    pool: np.ndarray
    pool_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def compute_data(pairs: tuple[Pairs, Pairs], model: str, max_length: int) -> VectorData:
    """Compute the mean vectors of texts by a frozen encoder, or read them from the cache."""
    tokenizer = loading.load_tokenizer(loading.find_model(model))
    encoder = FrozenEncoder(model, tokenizer.pad_token_id)
    names = {name: index for index, name in enumerate(sorted({label for _, label in pairs[0]}))}
    arrays = []
    for part in pairs:
        features = build_features([[text for text, _ in part]], None, tokenizer, max_length)
        arrays += [encoder.compute_vectors(features)[:, 0], np.array([names[label] for _, label in part])]
    return VectorData(*arrays)


def simulate(data: VectorData, strategy: str, seed: int, max_rows: int) -> list[float]:
    """Return the accuracy with each number of rows, in steps."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(data.pool))[:START]
    num_classes, accuracy = int(data.pool_labels.max()) + 1, []
    while True:
        layer = fit_linear_layer(data.pool[chosen], TrainingLabels(data.pool_labels[chosen]), num_classes)
        accuracy.append(float((layer.compute_logits(data.test).argmax(1) == data.test_labels).mean()))
        if len(chosen) >= max_rows:
            return accuracy
        rest = np.setdiff1d(np.arange(len(data.pool)), chosen)
        logits = layer.compute_logits(data.pool[rest])
        uncertainty = Decisions.from_classes(logits, None).compute_row_uncertainty()
        if strategy == "random":
            order = rng.permutation(len(rest))
        elif strategy == "uncertainty":
            order = np.argsort(-uncertainty, kind="stable")
        else:
            order = rank_rows(uncertainty, data.pool[rest].__getitem__)
        chosen = np.concatenate([chosen, rest[order[:STEP]]])


# ---- simulation with the commands


def run_command(*arguments: object) -> dict[str, object]:
    """Run bertkit, and return its JSON output."""
    process = subprocess.run(
        [sys.executable, "-m", "bertkit", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stderr[-4000:])
    result: dict[str, object] = json.loads(process.stdout)
    return result


def write_table(path: Path, rows: Pairs) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def finetune(
    pairs: tuple[Pairs, Pairs], strategy: str, seed: int, max_rows: int, args: argparse.Namespace
) -> list[float]:
    """Return the accuracy of fine-tuned models in steps; of random rows, only with `max_rows` rows."""
    pool, test = pairs
    num_validation = len(test) // 10  # they select the epoch; the others are scored once
    order = np.random.default_rng(seed).permutation(len(pool)).tolist()
    labels, accuracy = dict(pool), []
    start = START if strategy == "rank" else max_rows  # random rows need no model that chooses them
    chosen, rest = [pool[row] for row in order[:start]], [pool[row] for row in order[start:]]
    while True:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            metrics = run_command(
                "classify", "--data", write_table(folder / "train.csv", chosen),
                "--validation", write_table(folder / "validation.csv", test[:num_validation]),
                "--test", write_table(folder / "test.csv", test[num_validation:]),
                "--model", args.model, "--max-length", args.max_length, "--epochs", args.epochs,
                "--seed", seed, "--problem", "multi-class", "-o", folder / "run",
            )  # fmt: skip
            accuracy.append(float(metrics["test"]["accuracy"]))  # type: ignore[index]
            report(f"fine-tuned, {strategy}, seed {seed}: {accuracy[-1]:.3f} with {len(chosen)} rows")
            if len(chosen) >= max_rows:
                return accuracy
            if strategy == "rank":
                data = write_table(folder / "pool.csv", [(text, "") for text, _ in rest])
                ranked = folder / "ranked.csv"
                run_command("predict", folder / "run", "--data", data, "--rank-for-labeling", "-o", ranked)
                with ranked.open(encoding="utf-8", newline="") as file:
                    texts = [row["text"] for row in csv.DictReader(file)]
                rest = [(text, labels[text]) for text in texts]
        chosen, rest = chosen + rest[:STEP], rest[STEP:]


# ---- results


def interpolate_rows(curve: np.ndarray, target: float) -> float:
    """Return the number of rows at which a mean curve [sizes] reaches an accuracy; infinite if never."""
    from sklearn.isotonic import IsotonicRegression

    sizes = START + STEP * np.arange(len(curve))
    monotonic = IsotonicRegression().fit_transform(sizes, curve)
    if monotonic[-1] < target:
        return float("inf")
    end = int(np.argmax(monotonic >= target))
    if end == 0:
        return float(sizes[0])
    low, high = monotonic[end - 1], monotonic[end]
    return float(sizes[end - 1] + STEP * (target - low) / (high - low))


def count_rows(reference: np.ndarray, curves: np.ndarray) -> tuple[float, float, float]:
    """Return the rows that reach the reference [seeds], and the bounds of the 95 % interval.

    The curves [seeds, sizes] are of the same seeds.
    """
    rng, num_seeds = np.random.default_rng(0), len(curves)
    samples = rng.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
    resampled = [interpolate_rows(curves[rows].mean(0), reference[rows].mean()) for rows in samples]
    low, high = np.quantile(resampled, [0.025, 0.975], method="nearest")
    return interpolate_rows(curves.mean(0), reference.mean()), float(low), float(high)


def format_rows(counts: tuple[float, float, float], max_rows: int) -> str:
    value, low, high = (f"{count:.0f}" if np.isfinite(count) else f"> {max_rows}" for count in counts)
    return f"{value} ({low} to {high})"


def format_results(accuracy: Mapping[str, np.ndarray]) -> list[str]:
    """Return the cells of a dataset, from the accuracies [seeds, sizes] of each strategy."""
    reference = accuracy["random"][:, -1]
    cells = [f"{100 * reference.mean():.1f}"]
    for strategy, curves in accuracy.items():
        if strategy != "random":
            counts = count_rows(reference, curves)
            max_rows = START + STEP * (curves.shape[1] - 1)
            cells += [format_rows(counts, max_rows), f"{100 * curves[:, -1].mean():.1f}"]
    return cells


def report(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--work", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--max-length", type=int, default=64, help="tokens of a text")
    parser.add_argument("--rows", type=int, default=500, help="random rows whose accuracy is the target")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--pool", type=int, default=MAX_POOL, help="rows to choose from, at most")
    parser.add_argument("--test-rows", type=int, default=MAX_TEST)
    parser.add_argument("--finetune", action="store_true", help="run the commands, not a linear layer")
    parser.add_argument("--epochs", type=float, default=10, help="with --finetune")
    parser.add_argument("--ranked-rows", type=int, help="stop earlier with the strategy `rank`")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


def measure(name: str, args: argparse.Namespace) -> list[str]:
    """Return the cells of a dataset."""
    pairs = load_pairs(name, Path(args.data_dir), args.pool, args.test_rows)
    ranked_rows = args.ranked_rows or args.rows
    accuracy: dict[str, np.ndarray] = {}
    data = None if args.finetune else compute_data(pairs, args.model, args.max_length)
    for strategy in STRATEGIES:
        max_rows = ranked_rows if strategy == "rank" else args.rows
        if data is not None:
            curves = [simulate(data, strategy, seed, max_rows) for seed in range(args.seeds)]
        elif strategy == "uncertainty":
            continue
        else:
            curves = [finetune(pairs, strategy, seed, max_rows, args) for seed in range(args.seeds)]
        accuracy[strategy] = np.array(curves)
        means = " ".join(f"{100 * mean:.1f}" for mean in accuracy[strategy].mean(0))
        report(f"{name}, {strategy}: {means}")
    return format_results(accuracy)


def main(argv: Sequence[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    warnings.filterwarnings("ignore", message="The number of unique classes")  # of the first rows
    rows = {name: measure(name, args) for name in args.work}
    compared = [name for name in STRATEGIES[1:] if not args.finetune or name != "uncertainty"]
    columns = [f"accuracy of {args.rows} random rows"]
    for name in compared:
        columns += [f"{name}: rows for it", f"{name}: accuracy at the end"]
    publish("\n".join([*format_table(columns, rows), "", *describe_machine()]) + "\n", args.out)


if __name__ == "__main__":
    main()
