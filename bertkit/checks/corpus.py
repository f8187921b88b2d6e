"""Running text before it is cut into pieces: its documents as rows, and what is wrong with them."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from bertkit.checks.findings import Finding, format_fraction, locate_rows
from bertkit.data.corpus.documents import DocumentLocation, TextOptions, iter_located_documents
from bertkit.data.corpus.pairs import MAX_SINGLE_SENTENCE_FRACTION
from bertkit.data.corpus.rows import MIN_DOCUMENTS, split_few_documents
from bertkit.data.corpus.source import TextSource
from bertkit.data.corpus.store import Corpus
from bertkit.data.readers.text_files import FileNotes
from bertkit.data.rows import Rows

PREVIEW_CHARS = 1_000  # characters of a document that are kept to look at
SMALL_CORPUS_CHARS = 1_000_000  # characters: less than this teaches a model little


def load_document_rows(
    text: TextSource, options: TextOptions, split_documents: bool
) -> tuple[Rows, list[str]]:
    """A row a document (`digest`, `sentences`, `characters`, and its beginning as `text`), and notes.

    Where there are `few`, a row a stretch of one, as training cuts them.
    """
    notes, columns = FileNotes(), {name: [] for name in ("digest", "sentences", "characters", "text")}  # type: ignore[var-annotated]
    begins: list[DocumentLocation] = []
    for place, document in iter_located_documents(text.files, options, notes):
        digest, sentences, characters, opening = blake2b(digest_size=8), 0, 0, ""
        for sentence in document:
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")
            sentences, characters = sentences + 1, characters + len(sentence)
            opening += f"{sentence[:PREVIEW_CHARS]} " if len(opening) < PREVIEW_CHARS else ""
        values = (digest.hexdigest(), sentences, characters, opening[:PREVIEW_CHARS])
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        begins.append(place)
    rows = _placed(columns, begins)
    more: list[str] = []
    if split_documents and len(rows) < MIN_DOCUMENTS:
        rows, more = _in_stretches(rows)
    return rows, [*notes.format_lines(), *more]


def _placed(columns: dict[str, list[Any]], begins: Sequence[DocumentLocation]) -> Rows:
    """The documents as rows that know their files and rows or lines."""
    files = {file: number for number, file in enumerate(dict.fromkeys(place.file for place in begins))}
    by_line = frozenset(str(place.file) for place in begins if place.is_line)
    file_of = np.array([files[place.file] for place in begins], np.int32)
    numbers = np.array([place.number for place in begins])
    return Rows(columns, tuple(map(str, files)), file_of, numbers, by_line)


def _in_stretches(rows: Rows) -> tuple[Rows, list[str]]:
    """The documents cut as `cut_few` cuts them, by their sentences."""
    none, sizes = np.zeros(1, np.int64), np.array(rows["sentences"])
    corpus, notes = split_few_documents(Corpus(none, none, np.concatenate([[0], np.cumsum(sizes)])))
    if corpus.parent_ids is None:
        return rows, notes
    sentences, stretches = np.diff(corpus.document_offsets), rows.select(corpus.parent_ids)
    shares = (np.array(stretches["characters"]) * sentences / sizes[corpus.parent_ids]).astype(int)
    digests = [f"{digest}-{number}" for number, digest in enumerate(stretches["digest"])]
    cut = {"digest": digests, "sentences": sentences.tolist(), "characters": shares.tolist()}
    for name, values in cut.items():
        stretches = stretches.with_column(name, values)
    return stretches, notes


def check_corpus(split: str, rows: Rows, has_pairs: bool) -> Iterator[Finding]:
    """How much text there is, and documents that make no pair.

    Args:
        pairs: whether an example has two texts.
    """
    sentences, characters = np.array(rows["sentences"]), sum(rows["characters"])
    documents = len(
        {digest.partition("-")[0] for digest in rows["digest"]}
    )  # a stretch has its number behind
    size = f"{documents:,} documents, {sentences.sum():,} sentences, {characters:,} characters"
    little = split == "train" and characters < SMALL_CORPUS_CHARS
    yield Finding(
        "warning" if little else "note", "little-text" if little else "size", f"the {split} text: {size}",
        "too little to learn a language from; go on from a model with --model" if little else "", len(rows),
    )  # fmt: skip
    single = (sentences == 1).nonzero()[0]
    if has_pairs and len(single) > MAX_SINGLE_SENTENCE_FRACTION * len(rows):
        yield Finding(
            "warning", "one-sentence",
            f"{format_fraction(len(single), len(rows))} {split} documents have one sentence, so nothing follows it",
            "part documents by blank lines or --document-separator, sentences by lines (--text-format); or take "
            "--objective mlm",
            len(single), locate_rows(rows, single),
        )  # fmt: skip
