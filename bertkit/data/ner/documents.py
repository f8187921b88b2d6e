"""Documents of sentences, from which a model can read the neighbors of a sentence."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertkit.data.column_types import (
    Column,
    as_column,
    combine_hashes,
    hash_values,
    number_groups,
    select_values,
)
from bertkit.data.columns import find_column
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.utils.ragged import compute_offsets, concat_ranges

DOCUMENT_COLUMNS = ["document", "document_id", "doc_id", "doc"]


@dataclass(frozen=True)
class DocumentPosition:
    """The position of a sentence in its document.

    Attributes:
        sentence_index: Index of the sentence.
        num_sentences: Number of sentences of the document.
    """

    sentence_index: int
    num_sentences: int

    def __repr__(self) -> str:
        """Return a short text for fingerprints of rows, which contain the document's words already."""
        return f"{self.sentence_index} of {self.num_sentences}"


class ContextColumn(Column):
    """The positions of sentences in their documents, with the sentences of all documents.

    After a split, the documents include sentences of other splits.

    Args:
        words: [sentences] words of each sentence of all documents.
        texts: [sentences] text of each sentence of all documents.
        sentence: [n] index of each row's sentence.
        documents: [n, 2] first sentence and end of each row's document.
    """

    def __init__(
        self,
        words: Sequence[Sequence[str]],
        texts: Sequence[str],
        sentence: np.ndarray,
        documents: np.ndarray,
    ) -> None:
        self.words, self.texts = words, texts
        self.sentence, self.documents = sentence, documents

    @classmethod
    def from_sentences(cls, words: Sequence[Sequence[str]], texts: Sequence[str]) -> "ContextColumn":
        """Return the positions of sentences that are documents of their own."""
        sentence = np.arange(len(texts))
        return cls(words, texts, sentence, np.stack([sentence, sentence + 1], 1))

    def __len__(self) -> int:
        return len(self.sentence)

    def select(self, index: np.ndarray) -> "ContextColumn":
        """Return a column with the positions at `index`."""
        return ContextColumn(self.words, self.texts, self.sentence[index], self.documents[index])

    def read(self, start: int, stop: int) -> list[DocumentPosition]:
        """Return the positions of a range."""
        return self.take(np.arange(start, stop))

    def take(self, indices: np.ndarray) -> list[DocumentPosition]:
        """Return the positions at `indices`, in that order."""
        return list(itertools.starmap(DocumentPosition, self._positions[indices].tolist()))

    @property
    def _positions(self) -> np.ndarray:
        """[n, 2] index of each sentence in its document, and number of sentences of the document."""
        start, stop = self.documents.T
        return np.stack([self.sentence - start, stop - start], 1)

    @cached_property
    def hashes(self) -> np.ndarray:
        """[n] uint64 hash of each position."""
        distinct, inverse = np.unique(self._positions, axis=0, return_inverse=True)
        return hash_values(itertools.starmap(DocumentPosition, distinct.tolist()))[inverse.reshape(-1)]

    def collect_sentences(self) -> "DocumentSentences":
        """Return the sentences of the documents that the rows belong to."""
        document, first_rows = number_groups(self.documents[:, 0])
        starts, stops = self.documents[first_rows].T
        offsets = compute_offsets(stops - starts)
        indices = concat_ranges(starts, stops)
        return DocumentSentences(
            words=select_values(self.words, indices),
            texts=select_values(self.texts, indices),
            rows=offsets[document] + self.sentence - self.documents[:, 0],
            documents=np.stack([offsets[document], offsets[document + 1]], 1),
        )


@dataclass(frozen=True)
class DocumentSentences:
    """All sentences of some documents.

    Attributes:
        words: [sentences] words of each sentence.
        texts: [sentences] text of each sentence.
        rows: [n] index of each row's sentence.
        documents: [n, 2] first sentence and end of each row's document.
    """

    words: Sequence[Sequence[str]]
    texts: Sequence[str]
    rows: np.ndarray
    documents: np.ndarray


def find_document_column(rows: Rows) -> str | None:
    """Return the column with the document id of each row, or None."""
    columns = (find_column(rows, name) for name in DOCUMENT_COLUMNS)
    return next((column for column in columns if column), None)


def get_document_keys(rows: Rows) -> np.ndarray | None:
    """Return [n] a key of the file and the document id of each row; None without document boundaries."""
    column = find_document_column(rows)
    if column is None:
        return None
    return combine_hashes([rows.file_index.astype(np.uint64), as_column(rows[column]).hashes])


def add_document_positions(rows: Rows) -> Rows:
    """Add the column `context` with the position of each row in its document.

    Consecutive rows of a file with the same document id form a document.

    Raises:
        UserError: The rows have no document boundaries.
    """
    keys = get_document_keys(rows)
    if keys is None:
        raise UserError(
            f"{rows.files[0]}: --context document: cannot find document boundaries; add -DOCSTART- lines or "
            "a column 'document', or pass --context sentence"
        )
    is_first = np.ones(len(keys), bool)
    is_first[1:] = keys[1:] != keys[:-1]
    bounds = np.append(np.flatnonzero(is_first), len(keys))
    document = np.cumsum(is_first) - 1
    documents = np.stack([bounds[document], bounds[document + 1]], 1)
    context = ContextColumn(rows["tokens"], rows["text"], np.arange(len(keys)), documents)
    return rows.with_column("context", context)
