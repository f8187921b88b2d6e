"""Measure how well `bertkit label-issues` finds labels of SST-2 that were flipped at random.

    python benchmarks/label_issues.py --data-dir DATA --seeds 3 --compare 5 --out label_issues.md

Some labels of a random sample of the training rows are flipped. Models of five folds predict each row, and
their probabilities are averaged over the seeds. Then `bertkit label-issues` lists labels. With --compare,
models are trained on the noisy rows, and on these rows without the listed ones (`--label-fixes`). Both are
scored on the validation rows of SST-2, with a paired t-test over seeds. Progress goes to standard error, the
report to standard output. Finished runs in --work are kept, so an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.commands.label_issues import compute_self_confidence
from bertkit.data.sources import load_dataset
from bertkit.data.split import assign_folds
from bertkit.data.table import Rows
from docs_page import format_table
from harness import describe_machine, publish

NUM_FOLDS = 5
LABELS = ("negative", "positive")
COLUMNS = ["listed", "precision", "recall", "other rows listed"]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--noise", type=float, default=0.05, help="fraction of the labels to flip")
    parser.add_argument("--seeds", type=int, default=1, help="models of each fold")
    parser.add_argument("--compare", type=int, default=0, help="number of seeds of the comparison")
    parser.add_argument("--epochs", type=float, help="by default, as bertkit chooses")
    parser.add_argument("--work", type=Path, default=Path("label_issues_benchmark"))
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file as well")
    return parser.parse_args(argv)


def write_rows(path: Path, texts: Sequence[str], labels: Sequence[str], rows: Iterable[int]) -> str:
    """Write rows as CSV, and return the path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows((texts[row], labels[row]) for row in rows)
    return str(path)


def train(folder: Path, args: argparse.Namespace, seed: int, **settings: Any) -> dict[str, Any]:
    """Train unless the run is finished, and return its metrics."""
    if not (folder / "metrics.json").exists():
        if args.epochs:
            settings["epochs"] = args.epochs
        bertkit.classify(model=args.model, output_dir=str(folder), overwrite=True, seed=seed, **settings)
        print(f"{folder} is finished", file=sys.stderr, flush=True)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text("utf-8"))
    return metrics


def make_noisy_labels(train_rows: Rows, args: argparse.Namespace) -> tuple[list[str], list[str], np.ndarray]:
    """Return texts, labels, and [rows] whether the label is flipped."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(train_rows))[: args.rows]).tolist()
    is_flipped = np.zeros(args.rows, bool)
    is_flipped[rng.permutation(args.rows)[: round(args.noise * args.rows)]] = True
    labels = [str(train_rows["label"][row]) for row in rows]
    flipped = [
        LABELS[1 - LABELS.index(label)] if flip else label
        for label, flip in zip(labels, is_flipped, strict=True)
    ]
    return [str(train_rows["sentence"][row]) for row in rows], flipped, is_flipped


def predict_folds(texts: list[str], labels: list[str], args: argparse.Namespace) -> np.ndarray:
    """Return [rows] the out-of-fold probability of "positive", as the mean over the seeds."""
    _, groups = np.unique(np.array(texts), return_inverse=True)
    folds = assign_folds(groups, np.array([LABELS.index(label) for label in labels]), NUM_FOLDS, seed=0)
    probabilities = np.zeros(len(texts))
    for fold in range(NUM_FOLDS):
        inside = np.flatnonzero(folds == fold)
        data = write_rows(args.work / f"train{fold}.csv", texts, labels, np.flatnonzero(folds != fold))
        test = write_rows(args.work / f"test{fold}.csv", texts, labels, inside)
        for seed in range(args.seeds):
            folder = args.work / "folds" / f"fold{fold}-seed{seed}"
            train(folder, args, seed, data=data, test=test)
            lines = (folder / "predictions-test.jsonl").read_text("utf-8").split("\n")[:-1]
            values = [json.loads(line)["probabilities"][LABELS[1]] for line in lines]
            probabilities[inside] += np.array(values) / args.seeds
    return probabilities


def write_study(texts: list[str], labels: list[str], probabilities: np.ndarray, work: Path) -> Path:
    """Write the files of a study that label-issues reads."""
    study = work / "study"
    shutil.rmtree(study, ignore_errors=True)
    (study / "folds" / "fold0-seed0").mkdir(parents=True)
    data = write_rows(work / "train.csv", texts, labels, range(len(texts)))
    recipe = {"task": "classify", "settings": {"data": data}}
    (study / "folds" / "fold0-seed0" / "run.yaml").write_text(json.dumps(recipe))
    with (study / "out_of_fold.jsonl").open("w", encoding="utf-8") as file:
        for row, (text, positive) in enumerate(zip(texts, probabilities.tolist(), strict=True)):
            by_label = dict(zip(LABELS, (1 - positive, positive), strict=True))
            file.write(json.dumps({"id": row, "text": text, "probabilities": by_label}) + "\n")
    return study


def format_listed(listed: np.ndarray, is_flipped: np.ndarray) -> list[str]:
    """Format how many of the listed rows are flipped, and the reverse.

    Args:
        listed: Indices of the rows.
        is_flipped: [rows] bool.
    """
    is_listed = np.isin(np.arange(len(is_flipped)), listed)
    values = is_flipped[is_listed].mean(), is_listed[is_flipped].mean(), is_listed[~is_flipped].mean()
    return [str(is_listed.sum()), *(f"{value:.3f}" for value in values)]


def format_least_confident(
    labels: list[str], positive: np.ndarray, is_flipped: np.ndarray
) -> dict[str, list[str]]:
    """Return the cells of the table for the rows with the lowest probabilities of their labels."""
    given = np.array([LABELS.index(label) for label in labels])
    probabilities = np.stack([1 - positive, positive], axis=1)
    order = np.argsort(compute_self_confidence(given, probabilities), kind="stable")
    return {f"the first {size}": format_listed(order[:size], is_flipped) for size in (50, 100, 150, 200)}


def compare_training(study: Path, args: argparse.Namespace) -> list[str]:
    """Return lines with the validation accuracy with and without the listed rows."""
    from scipy.stats import ttest_rel

    fixes = args.work / "label_fixes.jsonl"
    with fixes.open("w", encoding="utf-8") as file:
        for line in (study / "label_issues.jsonl").read_text("utf-8").split("\n")[:-1]:
            issue = json.loads(line)
            fix = {key: issue[key] for key in ("file", "row", "text")}
            file.write(json.dumps({**fix, "action": "drop", "from": issue["given"], "to": None}) + "\n")
    scores: dict[str, list[float]] = {"noisy": [], "without the listed rows": []}
    validation = write_validation_rows(args)
    for seed in range(args.compare):
        for name, path in (("noisy", None), ("without the listed rows", str(fixes))):
            folder = args.work / f"{name.replace(' ', '-')}-seed{seed}"
            settings = {"data": str(args.work / "train.csv"), "validation": validation, "label_fixes": path}
            metrics = train(folder, args, seed, **settings)
            scores[name].append(100 * metrics["validation"]["accuracy"])
    noisy, dropped = scores.values()
    result = ttest_rel(dropped, noisy)
    interval = result.confidence_interval(0.95)
    difference = np.mean(dropped) - np.mean(noisy)
    lines = [f"- {name}: {', '.join(f'{value:.1f}' for value in values)}" for name, values in scores.items()]
    return [
        *lines, "",
        f"Difference in accuracy on the validation rows: {difference:+.2f} points "
        f"({interval.low:+.2f} to {interval.high:+.2f}, p = {result.pvalue:.2f}).",
    ]  # fmt: skip


def write_validation_rows(args: argparse.Namespace) -> str:
    """Write the validation rows of SST-2 with the columns of the noisy rows, and return the path."""
    rows = load_dataset("sst2", "classify", args.data_dir).splits["validation"]
    texts, labels = list(rows["sentence"]), list(map(str, rows["label"]))
    return write_rows(args.work / "validation.csv", texts, labels, range(len(texts)))


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    train_rows = load_dataset("sst2", "classify", args.data_dir).splits["train"]
    texts, labels, is_flipped = make_noisy_labels(train_rows, args)
    positive = predict_folds(texts, labels, args)
    study = write_study(texts, labels, positive, args.work)
    listed = np.array([issue["row"] - 1 for issue in bertkit.label_issues(study).records])
    rows = {"bertkit label-issues": format_listed(listed, is_flipped)}
    rows |= format_least_confident(labels, positive, is_flipped)
    is_right = (positive > 0.5) == np.array([label == LABELS[1] for label in labels])
    accuracy = (is_right != is_flipped).mean()
    lines = [*format_table(COLUMNS, rows), "", f"Accuracy on the labels before the flips: {accuracy:.3f}."]
    if args.compare:
        lines += ["", *compare_training(study, args)]
    publish("\n".join([*lines, "", *describe_machine()]) + "\n", args.out)


if __name__ == "__main__":
    main()
