"""Sentences in their documents: what stands around each of them, whatever split it went to."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bertkit.data.columns import find_column
from bertkit.data.rows import Rows
from bertkit.errors import UserError

DOCUMENT_COLUMNS = ["document", "document_id", "doc_id", "doc"]


@dataclass(frozen=True)
class DocumentPosition:
    """Where a sentence stands in its document, whose sentences are pairs of tokens and text."""

    sentences: Sequence[tuple[Sequence[str], str]]
    sentence_index: int

    def __repr__(self) -> str:  # what a fingerprint sees: the document's text is in its own rows
        return f"{self.sentence_index} of {len(self.sentences)}"


def find_document_column(rows: Rows) -> str | None:
    """The column that tells which document a row is of, where there is one."""
    return next(filter(None, (find_column(rows, name) for name in DOCUMENT_COLUMNS)), None)


def add_document_positions(rows: Rows) -> Rows:
    """The rows with the place of each in its document (`context`): rows of one document stand together.

    Raises:
        UserError: nothing tells where documents begin.
    """
    column = find_document_column(rows)
    if column is None:
        raise UserError(
            f"{rows.files[0]}: --context document: nothing tells where documents begin; it takes -DOCSTART- "
            "lines, or a column 'document'; --context sentence does without"
        )
    names = zip(rows.file_index.tolist(), rows[column], strict=True)
    places: list[DocumentPosition] = []
    for _, group in groupby(range(len(rows)), key=dict(enumerate(names)).__getitem__):
        document = [(rows["tokens"][index], rows["text"][index]) for index in group]
        places += [DocumentPosition(document, number) for number in range(len(document))]
    return rows.with_column("context", places)


def collect_sentences(places: Sequence[DocumentPosition]) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """The sentences of all documents, each row's place among them, and [n, 2] the bounds of its document."""
    documents = {id(place.sentences): place.sentences for place in places}
    before = np.cumsum([0, *map(len, documents.values())])
    numbers = {key: number for number, key in enumerate(documents)}
    at = np.array([numbers[id(place.sentences)] for place in places], np.int64)
    rows = before[at] + np.array([place.sentence_index for place in places], np.int64)
    sentences = [sentence for document in documents.values() for sentence in document]
    return sentences, rows, np.stack([before[at], before[at + 1]], axis=1)
