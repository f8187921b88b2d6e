"""Represent documents as rows, which are split, sampled and deduplicated like any other rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from bertkit.data.corpus.documents import TextOptions, TextSource
from bertkit.data.corpus.store import Corpus, load_corpus
from bertkit.data.readers.text_files import InputFile
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count, format_list
from bertkit.settings.run_settings import WordUnits

MIN_DOCUMENTS = 20  # if there are fewer documents, parts of documents are held out
MIN_SENTENCES = 2  # minimum number of sentences per part, on average


@dataclass(frozen=True)
class CorpusSet:
    """The corpora of a run. Their documents are numbered consecutively over all corpora.

    Attributes:
        entries: The number of the first document of each corpus, and the corpus.
    """

    entries: list[tuple[int, Corpus]] = field(default_factory=list)

    def add_corpus(
        self, text: TextSource, options: TextOptions, tokenizer: Any, split_few: bool,
        word_units: WordUnits = "words",
    ) -> tuple[Rows, list[str]]:  # fmt: skip
        """Load a corpus, add it to the set, and return its documents as rows.

        Args:
            text: The text to read.
            options: How the files are read.
            tokenizer: The tokenizer of the corpus.
            split_few: Whether to apply `split_few_documents`.
            word_units: With "morphemes", the corpus is also split into morphemes.

        Returns:
            One row per document, and notes for the user.

        Raises:
            UserError: A file cannot be read, there is no text, or no text can be held out for validation.
        """
        corpus = load_corpus(text.files, options, tokenizer, word_units)
        notes = list(corpus.notes)
        if split_few:
            corpus, split_notes = split_few_documents(corpus)
            notes += split_notes
            _require_two_documents(corpus, text.files)
        first = sum(len(other.document_offsets) for _, other in self.entries)
        self.entries.append((first, corpus))
        return build_document_rows(corpus, text.files, first), notes

    def __deepcopy__(self, memo: dict[int, Any]) -> "CorpusSet":
        """Return the same object, because a run does not change the corpora, which may be large."""
        return self

    def locate_documents(self, rows: Rows) -> tuple[Corpus, np.ndarray]:
        """Return the corpus of the given rows, and the indices of their documents in this corpus."""
        numbers = np.array(rows["document"])
        first, corpus = next(entry for entry in reversed(self.entries) if entry[0] <= numbers[0])
        return corpus, numbers - first


def _require_two_documents(corpus: Corpus, files: Sequence[InputFile]) -> None:
    num_documents = len(corpus.document_offsets) - 1
    if num_documents != 1:
        return
    num_sentences = len(corpus.sentence_offsets) - 1
    size = "only one sentence" if num_sentences == 1 else f"one document of only {num_sentences} sentences"
    raise UserError(
        f"{format_list(files)}: found {size}, so no text can be held out for validation; add text or pass "
        "--validation FILE"
    )


def build_document_rows(corpus: Corpus, files: Sequence[InputFile], first: int) -> Rows:
    """Return one row per document, with the document number (from `first` on) and a digest of the tokens."""
    numbers = list(range(first, first + len(corpus.document_offsets) - 1))
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].tolist()
    digests = [
        blake2b(corpus.token_ids[start:stop].tobytes(), digest_size=8).hexdigest()
        for start, stop in pairwise(token_offsets)
    ]
    return Rows.from_columns({"document": numbers, "digest": digests}, format_list(files))


def split_few_documents(corpus: Corpus) -> tuple[Corpus, list[str]]:
    """Split the documents of a corpus into parts if there are fewer than `MIN_DOCUMENTS`.

    The `parent_ids` of the returned corpus are the original documents of the parts.
    """
    num_documents = len(corpus.document_offsets) - 1
    if num_documents >= MIN_DOCUMENTS:
        return corpus, []
    num_sentences = int(corpus.document_offsets[-1])
    num_parts = min(MIN_DOCUMENTS, max(1, num_sentences // MIN_SENTENCES))
    boundaries = np.linspace(0, num_sentences, num_parts + 1).astype(np.int64)
    offsets = np.union1d(corpus.document_offsets, boundaries).astype(corpus.document_offsets.dtype)
    subject = "one document" if num_documents == 1 else f"only {num_documents} documents"
    note = f"{subject}: split into {format_count(len(offsets) - 1, 'part')}, of which some are held out"
    parents = np.searchsorted(corpus.document_offsets, offsets[:-1], "right") - 1
    return replace(corpus, document_offsets=offsets, parent_ids=parents), [note]
