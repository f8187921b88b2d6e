"""Write CSV files of any size with film reviews that consist of real sentences."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from harness import SEED

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
Reviews = Mapping[str, Sequence[Sequence[str]]]  # label -> reviews, each a list of sentences


def read_reviews() -> Reviews:
    """Return the reviews of IMDB from the package that contains them.

    Raises:
        SystemExit: the package is not installed.
    """
    from bertkit.data.sources import load_registry

    entry = load_registry()["imdb"]
    package = entry["package"]
    reviews: dict[str, list[list[str]]] = {label: [] for label in entry["labels"]}
    with find_package_file(package).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if package["row_filter"].items() <= row.items():
                label = entry["labels"][int(row["label"])]
                reviews[label].append(SENTENCE_END.split(" ".join(row["text"].split())))
    return reviews


def find_package_file(package: Mapping[str, Any]) -> Path:
    """Find the data file of a package without importing the package, which would load the data."""
    spec = importlib.util.find_spec(package["module"])
    if spec is None or spec.origin is None:
        raise SystemExit(f"package {package['module']}: not installed; pip install 'bertkit[offline]'")
    return Path(spec.origin).parent / package["file"]


def generate_rows(reviews: Reviews) -> Iterator[str]:
    """Generate an endless sequence of different rows of a CSV file; each call gives the same sequence.

    A row has the label and the number of sentences of a random review. Its sentences come from random reviews
    with this label.
    """
    rng, seen = np.random.default_rng(SEED), set()
    labels = list(reviews)
    sentences = [[sentence for review in reviews[label] for sentence in review] for label in labels]
    while True:
        number = int(rng.integers(len(labels)))
        pool, group = sentences[number], reviews[labels[number]]
        size = len(group[int(rng.integers(len(group)))])
        text = " ".join(pool[position] for position in rng.integers(len(pool), size=size))
        if hash(text) not in seen:
            seen.add(hash(text))
            quoted = text.replace('"', '""')
            yield f'"{quoted}",{labels[number]}\n'


def limit_bytes(rows: Iterable[str], size: int) -> Iterator[str]:
    """Yield rows until they have at least this number of bytes."""
    for row in rows:
        if size <= 0:
            return
        yield row
        size -= len(row.encode())


def write_csv(path: Path, rows: Iterable[str]) -> None:
    """Write a header and these rows."""
    from bertkit.utils.files import write_chunks

    path.parent.mkdir(parents=True, exist_ok=True)
    write_chunks(path, chain(["text,label\n"], rows))
