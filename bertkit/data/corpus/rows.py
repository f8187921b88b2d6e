"""The documents of a corpus as rows, so that they are split, drawn and told apart as any rows are."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from bertkit.data.corpus.documents import TextOptions
from bertkit.data.corpus.source import TextSource
from bertkit.data.corpus.store import Corpus, load_corpus
from bertkit.data.readers.text_files import TextFile
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.utils.reporting import Reporter

MIN_DOCUMENTS = 20  # documents: too few to set whole ones aside
MIN_SENTENCES = 2  # sentences of a stretch


@dataclass(frozen=True)
class CorpusSet:
    """The corpora of a run, their documents numbered one after the other.

    Attributes:
        begun: the number of each corpus's first document, and the corpus.
    """

    entries: list[tuple[int, Corpus]] = field(default_factory=list)

    def read_rows(
        self, text: TextSource, options: TextOptions, tokenizer: Any, reporter: Reporter, split_few: bool
    ) -> tuple[Rows, list[str]]:
        """A row a document, and notes; where there are `few`, a row a stretch of one, see `cut_few`."""
        corpus = load_corpus(text.files, options, tokenizer, reporter)
        notes = list(corpus.notes)
        if split_few:
            corpus, more = split_few_documents(corpus)
            notes += more
            _require_two(corpus, text.files)
        first = sum(len(other.document_offsets) for _, other in self.entries)
        self.entries.append((first, corpus))
        return build_document_rows(corpus, text.files, first), notes

    def locate_documents(self, rows: Rows) -> tuple[Corpus, np.ndarray]:
        """The corpus of these rows, and the numbers of their documents in it."""
        numbers = np.array(rows["document"])
        first, corpus = next(found for found in reversed(self.entries) if found[0] <= numbers[0])
        return corpus, numbers - first


def _require_two(corpus: Corpus, files: Sequence[TextFile]) -> None:
    if len(corpus.document_offsets) == 2:
        sentences = len(corpus.sentence_offsets) - 1
        held = "only one sentence" if sentences == 1 else f"one document of only {sentences} sentences"
        raise UserError(
            f"{format_list(files)}: holds {held}, so nothing can be set aside for validation; give more text, or "
            "--validation FILE"
        )


def build_document_rows(corpus: Corpus, files: Sequence[TextFile], first: int) -> Rows:
    """A row a document: its number, counted from `first`, and a digest of its pieces."""
    numbers = list(range(first, first + len(corpus.document_offsets) - 1))
    begins = corpus.sentence_offsets[corpus.document_offsets].tolist()
    digests = [
        blake2b(corpus.token_ids[start:stop].tobytes(), digest_size=8).hexdigest()
        for start, stop in pairwise(begins)
    ]
    return Rows.from_columns({"document": numbers, "digest": digests}, format_list(files))


def split_few_documents(corpus: Corpus) -> tuple[Corpus, list[str]]:
    """A corpus of few documents with stretches of them in their place, so that some can be set aside.

    Which document each is of goes with them.
    """
    there = len(corpus.document_offsets) - 1
    if there >= MIN_DOCUMENTS:
        return corpus, []
    sentences = int(corpus.document_offsets[-1])
    cuts = np.linspace(0, sentences, min(MIN_DOCUMENTS, max(1, sentences // MIN_SENTENCES)) + 1).astype(
        np.int64
    )
    documents = np.union1d(corpus.document_offsets, cuts).astype(corpus.document_offsets.dtype)
    what = "one document" if there == 1 else f"only {there} documents"
    stretches = format_count(len(documents) - 1, "stretch", "stretches")
    note = f"{what}: cut into {stretches}, of which whole ones are set aside"
    origins = np.searchsorted(corpus.document_offsets, documents[:-1], "right") - 1
    return replace(corpus, document_offsets=documents, parent_ids=origins), [note]
