"""Documents of sentences, from which a model can read the neighbors of a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bertkit.data.columns import find_column
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.utils.ragged import compute_offsets

DOCUMENT_COLUMNS = ["document", "document_id", "doc_id", "doc"]


@dataclass(frozen=True)
class DocumentPosition:
    """The position of a sentence in its document.

    Attributes:
        sentences: Words and text of each sentence of the document. After a split, this includes sentences of
            other splits.
        sentence_index: Index of the sentence among them.
    """

    sentences: Sequence[tuple[Sequence[str], str]]
    sentence_index: int

    def __repr__(self) -> str:
        """Return a short text for fingerprints of rows, which contain the document's words already."""
        return f"{self.sentence_index} of {len(self.sentences)}"


def find_document_column(rows: Rows) -> str | None:
    """Return the column with the document id of each row, or None."""
    columns = (find_column(rows, name) for name in DOCUMENT_COLUMNS)
    return next((column for column in columns if column), None)


def get_document_keys(rows: Rows) -> list[tuple[int, Any]]:
    """Return the file and the document id of each row; empty if the rows have no document boundaries."""
    column = find_document_column(rows)
    return list(zip(rows.file_index.tolist(), rows[column], strict=True)) if column else []


def add_document_positions(rows: Rows) -> Rows:
    """Add the column `context` with the position of each row in its document.

    Consecutive rows of a file with the same document id form a document.

    Raises:
        UserError: The rows have no document boundaries.
    """
    document_keys = get_document_keys(rows)
    if not document_keys:
        raise UserError(
            f"{rows.files[0]}: --context document: cannot find document boundaries; add -DOCSTART- lines or "
            "a column 'document', or pass --context sentence"
        )
    positions: list[DocumentPosition] = []
    for _, group in groupby(range(len(rows)), key=document_keys.__getitem__):
        sentences = [(rows["tokens"][index], rows["text"][index]) for index in group]
        positions += [DocumentPosition(sentences, index) for index in range(len(sentences))]
    return rows.with_column("context", positions)


def collect_sentences(positions: Sequence[DocumentPosition]) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Concatenate the sentences of all documents.

    Args:
        positions: [n] positions of sentences in their documents.

    Returns:
        Words and text of all sentences; the index of each position's sentence [n]; the first sentence and the
        end of each position's document [n, 2]. Both are indices into the list of all sentences.
    """
    documents = {id(position.sentences): position.sentences for position in positions}
    offsets = compute_offsets(np.array([len(document) for document in documents.values()], np.int64))
    index_by_id = {key: index for index, key in enumerate(documents)}
    document = np.array([index_by_id[id(position.sentences)] for position in positions], np.int64)
    rows = offsets[document] + np.array([position.sentence_index for position in positions], np.int64)
    sentences = [sentence for document in documents.values() for sentence in document]
    return sentences, rows, np.stack([offsets[document], offsets[document + 1]], axis=1)
