"""Measure how well `bertkit label-issues` finds wrong labels, on public datasets of which the truth is known.

    python benchmarks/label_issues.py --data-dir DATA --out label_issues.md

The labels of random rows of three datasets are exchanged for random other ones. The fourth dataset has real
errors: the tweets of Davidson et al. 2017, "Automated Hate Speech Detection and the Problem of Offensive
Language", with the votes of at least three annotators. The label of a row is the vote of one random
annotator, and it is wrong if the majority voted for another class. DATA/hate-speech has the file
`labeled_data.csv` of https://github.com/t-davidson/hate-speech-and-offensive-language.

`bertkit study` or, with `--by ladder`, `bertkit ladder` predicts each row by models of other folds, and
`bertkit label-issues` lists labels. Finished runs in --work are kept, so an interrupted benchmark resumes.
Progress goes to standard error, the report to standard output, or with --write to docs/label-issues.md.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.data.sources import load_dataset
from bertkit.stats.significance import compute_wilson_interval
from docs_page import format_table, replace_section
from harness import OUT_HELP, ROOT, describe_machine, publish
from label_ranking import DATASETS

NUM_FOLDS, NUM_SEEDS = {"study": 5, "ladder": 3}, 2
PAGE = ROOT / "docs" / "label-issues.md"
SIZES = (20, 50, 100)  # of the first labels, which people review
Texts = list[str]
Labels = Sequence[str]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--noise", type=float, default=0.05, help="fraction of the labels to exchange")
    parser.add_argument("--by", default=["study", "ladder"], nargs="+", choices=("study", "ladder"))
    parser.add_argument("--epochs", type=float, default=2, help="of fine-tuning")
    parser.add_argument("--only", nargs="*", metavar="SET", help=f"some of {', '.join(SETS)}")
    parser.add_argument("--work", type=Path, default=Path("label_issues_benchmark"))
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--write", action="store_true", help="write the report to docs/label-issues.md")
    return parser.parse_args(argv)


# ---- rows with wrong labels


def read_sst2(data_dir: Path) -> tuple[Texts, Labels]:
    rows = load_dataset("sst2", "classify", str(data_dir)).splits["train"]
    return list(map(str, rows["sentence"])), list(map(str, rows["label"]))


def read_pairs(name: str) -> Callable[[Path], tuple[Texts, Labels]]:
    """Return a function that reads the training rows of a dataset of `label_ranking.py`."""

    def read(data_dir: Path) -> tuple[Texts, Labels]:
        folder, read_parts = DATASETS[name]
        texts, labels = zip(*read_parts(data_dir / folder)[0], strict=True)
        return list(texts), labels

    return read


def exchange_labels(
    data: tuple[Texts, Labels], args: argparse.Namespace, rng: np.random.Generator
) -> tuple[Texts, Labels, Labels]:
    """Return texts, labels, of which a fraction is random, and the true labels, of some rows."""
    order = rng.permutation(len(data[0]))[: args.rows].tolist()
    texts, true = [data[0][row] for row in order], [data[1][row] for row in order]
    names = sorted(set(true))
    given = list(true)
    for row in rng.permutation(len(true))[: round(args.noise * len(true))].tolist():
        given[row] = str(rng.choice([name for name in names if name != true[row]]))
    return texts, given, true


def read_votes(args: argparse.Namespace, rng: np.random.Generator) -> tuple[Texts, Labels, Labels]:
    """Return tweets, the vote of a random annotator, and that of the majority."""
    names = ("hate_speech", "offensive_language", "neither")
    with (args.data_dir / "hate-speech" / "labeled_data.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows = [rows[row] for row in rng.permutation(len(rows))[: args.rows].tolist()]
    votes = np.array([[int(row[name]) for name in names] for row in rows])
    given = [names[rng.choice(len(names), p=counts / counts.sum())] for counts in votes]
    return [row["tweet"] for row in rows], given, [names[int(row["class"])] for row in rows]


SETS: dict[str, Callable[[Path], tuple[Texts, Labels]] | None] = {
    "SST-2": read_sst2,
    "AG News": read_pairs("ag_news"),
    "TweetEval emotion": read_pairs("emotion"),
    "hate speech": None,  # has real errors
}


# ---- the study


def find_issues(name: str, by: str, args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the listed labels in their order, and [rows] whether each label is wrong."""
    rng, read = np.random.default_rng(0), SETS[name]
    data = read_votes(args, rng) if read is None else exchange_labels(read(args.data_dir), args, rng)
    texts, given, true = data
    folder = args.work / f"{name.lower().replace(' ', '-')}-{by}"
    if not (folder / "metrics.json").exists():
        print(f"{name}, {by} ...", file=sys.stderr, flush=True)
        path = folder.with_suffix(".jsonl")
        lines = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, given, strict=True)]
        path.write_text("\n".join([*lines, ""]), "utf-8")
        own: dict[str, Any] = {"models": args.model} if by == "ladder" else {"model": args.model}
        own |= {"folds": NUM_FOLDS[by]} | ({"seeds": NUM_SEEDS} if by == "study" else {})
        source = {"resume": True} if folder.exists() else {
            "data": str(path), "max_length": 64, "epochs": args.epochs, **own,
            "problem": "binary" if len(set(given)) == 2 else "multi-class",  # some are named by numbers
        }  # fmt: skip
        getattr(bertkit, by)("classify", output_dir=str(folder), **source)
    listed = [issue["row"] - 1 for issue in bertkit.label_issues(folder).records]
    is_wrong = np.array([label != other for label, other in zip(given, true, strict=True)])
    return np.array(listed), is_wrong


def format_fraction(is_wrong: np.ndarray) -> str:
    """Format a precision with its interval."""
    low, high = compute_wilson_interval(int(is_wrong.sum()), len(is_wrong))
    return f"{is_wrong.mean():.2f} ({low:.2f} to {high:.2f})"


def main(argv: list[str] | None = None) -> None:
    """Run and report."""
    args = parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    rows = {}
    for name, by in itertools.product(args.only or SETS, args.by):
        listed, is_wrong = find_issues(name, by, args)
        recall = is_wrong[listed].sum() / is_wrong.sum()
        first = [format_fraction(is_wrong[listed[:size]]) for size in SIZES]
        all_listed = [str(len(listed)), format_fraction(is_wrong[listed]), f"{recall:.2f}"]
        rows[f"{name}, {by}"] = [f"{len(is_wrong):,}", str(is_wrong.sum()), *first, *all_listed]
    columns = ["rows", "wrong", *(f"first {size}" for size in SIZES), "listed", "precision", "recall"]
    text = "\n".join([*format_table(columns, rows), "", *describe_machine()]) + "\n"
    publish(text, args.out)
    if args.write:
        replace_section("label issues", text, PAGE)


if __name__ == "__main__":
    main()
