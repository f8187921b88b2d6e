"""The documents of a corpus as rows, so that they are split, drawn and told apart as any rows are."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from bertkit.data.corpus import Corpus, corpus_of
from bertkit.data.rows import Rows
from bertkit.data.text_files import TextFile
from bertkit.data.text_source import TextSource
from bertkit.data.texts import TextOptions
from bertkit.errors import UserError, counted, listed
from bertkit.reporter import Reporter

FEW = 20  # documents: too few to set whole ones aside
LEAST = 2  # sentences of a stretch


@dataclass(frozen=True)
class Corpora:
    """The corpora of a run, their documents numbered one after the other.

    Attributes:
        begun: the number of each corpus's first document, and the corpus.
    """

    begun: list[tuple[int, Corpus]] = field(default_factory=list)

    def read(
        self, text: TextSource, options: TextOptions, tokenizer: Any, reporter: Reporter, few: bool
    ) -> tuple[Rows, list[str]]:
        """A row a document, and notes; where there are `few`, a row a stretch of one, see `cut_few`."""
        corpus = corpus_of(text.files, options, tokenizer, reporter)
        notes = list(corpus.notes)
        if few:
            corpus, more = cut_few(corpus)
            notes += more
            _require_two(corpus, text.files)
        first = sum(len(other.documents) for _, other in self.begun)
        self.begun.append((first, corpus))
        return rows_of(corpus, text.files, first), notes

    def of(self, rows: Rows) -> tuple[Corpus, np.ndarray]:
        """The corpus of these rows, and the numbers of their documents in it."""
        numbers = np.array(rows["document"])
        first, corpus = next(found for found in reversed(self.begun) if found[0] <= numbers[0])
        return corpus, numbers - first


def _require_two(corpus: Corpus, files: Sequence[TextFile]) -> None:
    if len(corpus.documents) == 2:
        sentences = len(corpus.sentences) - 1
        held = "only one sentence" if sentences == 1 else f"one document of only {sentences} sentences"
        raise UserError(
            f"{listed(files)}: holds {held}, so nothing can be set aside for validation; give more text, or "
            "--validation FILE"
        )


def rows_of(corpus: Corpus, files: Sequence[TextFile], first: int) -> Rows:
    """A row a document: its number, counted from `first`, and a digest of its pieces."""
    numbers = list(range(first, first + len(corpus.documents) - 1))
    begins = corpus.sentences[corpus.documents].tolist()
    digests = [
        blake2b(corpus.pieces[start:stop].tobytes(), digest_size=8).hexdigest()
        for start, stop in pairwise(begins)
    ]
    return Rows.of({"document": numbers, "digest": digests}, listed(files))


def cut_few(corpus: Corpus) -> tuple[Corpus, list[str]]:
    """A corpus of few documents with stretches of them in their place, so that some can be set aside.

    Which document each is of goes with them.
    """
    there = len(corpus.documents) - 1
    if there >= FEW:
        return corpus, []
    sentences = int(corpus.documents[-1])
    cuts = np.linspace(0, sentences, min(FEW, max(1, sentences // LEAST)) + 1).astype(np.int64)
    documents = np.union1d(corpus.documents, cuts).astype(corpus.documents.dtype)
    what = "one document" if there == 1 else f"only {there} documents"
    stretches = counted(len(documents) - 1, "stretch", "stretches")
    note = f"{what}: cut into {stretches}, of which whole ones are set aside"
    origins = np.searchsorted(corpus.documents, documents[:-1], "right") - 1
    return replace(corpus, documents=documents, origins=origins), [note]
