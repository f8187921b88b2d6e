"""Sample training and validation questions from the development file of SQuAD, from different articles.

    python benchmarks/qa_data.py DATA/squad/dev-v1.1.json FOLDER

writes FOLDER/train.json (1,500 questions) and FOLDER/dev.json (400) in the format of SQuAD; --train and
--dev change the numbers. Both versions of SQuAD are split by the same article titles, so that a model can be
trained on both.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

DEV_ARTICLES = {
    "Prime_number", "Rhine", "Scottish_Parliament", "Islamism", "Imperialism", "United_Methodist_Church",
    "French_and_Indian_War", "Force",
}  # fmt: skip


def sample_questions(articles: list[dict[str, Any]], size: int, rng: random.Random) -> list[dict[str, Any]]:
    """Sample `size` questions; return their articles and paragraphs without the other questions."""
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    ids = set(rng.sample([question["id"] for paragraph in paragraphs for question in paragraph["qas"]], size))
    sampled = []
    for article in articles:
        remaining = [
            {"context": paragraph["context"], "qas": questions}
            for paragraph in article["paragraphs"]
            if (questions := [question for question in paragraph["qas"] if question["id"] in ids])
        ]
        sampled.append({"title": article["title"], "paragraphs": remaining})
    return [article for article in sampled if article["paragraphs"]]


def write_splits(source: Path, folder: Path, train: int, dev: int) -> None:
    """Sample `train` training and `dev` validation questions from a SQuAD file, and write them."""
    content = json.loads(source.read_text("utf-8"))
    rng = random.Random(0)
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    for article in content["data"]:
        parts["dev" if article["title"] in DEV_ARTICLES else "train"].append(article)
    folder.mkdir(parents=True, exist_ok=True)
    for (name, articles), size in zip(parts.items(), (train, dev), strict=True):
        squad = {"version": content["version"], "data": sample_questions(articles, size, rng)}
        (folder / f"{name}.json").write_text(json.dumps(squad), "utf-8")


def main() -> None:
    """Sample questions from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1500, help="number of training questions")
    parser.add_argument("--dev", type=int, default=400, help="number of validation questions")
    args = parser.parse_args()
    write_splits(args.source, args.folder, args.train, args.dev)


if __name__ == "__main__":
    main()
