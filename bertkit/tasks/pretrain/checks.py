"""The data checks of `pretrain-mlm-nsp`, which do not tokenize the whole text."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from bertkit.data.corpus.documents import DocumentLocation, TextOptions, TextSource, iter_located_documents
from bertkit.data.corpus.examples import MAX_SINGLE_SENTENCE_FRACTION
from bertkit.data.corpus.store import Corpus
from bertkit.data.readers.text_files import FileNotes, InputFile
from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows
from bertkit.models.loading import ModelSource, find_model
from bertkit.models.scratch import find_tokenizer
from bertkit.tasks.checks import Finding, TaskChecks, format_fraction, locate_rows
from bertkit.tasks.pretrain.config import check_scratch_settings
from bertkit.tasks.pretrain.task import split_few_documents

PREVIEW_CHARS = 1_000  # only the beginning of a document is kept, since a corpus may not fit into memory
SMALL_CORPUS_CHARS = 1_000_000  # smaller training texts cause a warning


class CorpusChecks(TaskChecks):
    """The checks of `pretrain-mlm-nsp`."""

    def load_examples(self) -> LoadedDataset:
        """Load documents without tokenizing them, since the tokenizer may not exist yet."""
        check_scratch_settings(self.task.config)
        return self.task.load_splits(self.task.find_sources(), load_document_rows)

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            sentences, characters = np.array(rows["sentences"]), sum(rows["characters"])
            # The digest of a part of a document is the digest of the document with a number.
            num_documents = len({digest.partition("-")[0] for digest in rows["digest"]})
            size = f"{num_documents:,} documents, {sentences.sum():,} sentences, {characters:,} characters"
            is_small = split == "train" and characters < SMALL_CORPUS_CHARS
            yield Finding(
                "warning" if is_small else "note", "little-text" if is_small else "size",
                f"the {split} text: {size}",
                "too little to pre-train a model from scratch; train one further with --model"
                if is_small else "",
                len(rows),
            )  # fmt: skip
            single = (sentences == 1).nonzero()[0]
            if self.task.config.has_pairs and len(single) > MAX_SINGLE_SENTENCE_FRACTION * len(rows):
                yield Finding(
                    "warning", "one-sentence",
                    f"{format_fraction(len(single), len(rows))} {split} documents have one sentence, so "
                    "nothing follows it",
                    "separate documents by blank lines or --document-separator and sentences by lines "
                    "(--text-format), or use --objective mlm",
                    len(single), locate_rows(rows, single),
                )  # fmt: skip

    def resolve_tokenizer(self, is_model_requested: bool) -> ModelSource | None:
        config = self.task.config
        if config.model:
            return find_model(config.model, needs_weights=False)
        return find_tokenizer(config.tokenizer) if config.tokenizer else None


def load_document_rows(text: TextSource, options: TextOptions, split_few: bool) -> tuple[Rows, list[str]]:
    """Return one row per document, and notes on the files.

    The columns are `digest`, the numbers of `sentences` and `characters`, and the beginning of the document
    as `text`. With `split_few`, few documents are split into parts; see `split_few_documents`.
    """
    notes = FileNotes()
    columns: dict[str, list[Any]] = {"digest": [], "sentences": [], "characters": [], "text": []}
    locations: list[DocumentLocation] = []
    for location, document in iter_located_documents(text.files, options, notes):
        digest, sentences, characters, preview = blake2b(digest_size=8), 0, 0, ""
        for sentence in document:
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")
            sentences += 1
            characters += len(sentence)
            if len(preview) < PREVIEW_CHARS:
                preview += f"{sentence[:PREVIEW_CHARS]} "
        values = (digest.hexdigest(), sentences, characters, preview[:PREVIEW_CHARS])
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        locations.append(location)
    files: dict[InputFile, int] = {}
    for location in locations:
        files.setdefault(location.file, len(files))
    rows = Rows(
        columns, tuple(map(str, files)),
        file_index=np.array([files[location.file] for location in locations], np.int32),
        row_numbers=np.array([location.number for location in locations]),
        line_numbered_files=frozenset(str(location.file) for location in locations if location.is_line),
    )  # fmt: skip
    split_notes: list[str] = []
    if split_few:
        rows, split_notes = _split_document_rows(rows)
    return rows, [*notes.format_lines(), *split_notes]


def _split_document_rows(rows: Rows) -> tuple[Rows, list[str]]:
    """Split document rows at sentences as `split_few_documents` splits a tokenized corpus."""
    num_sentences = np.array(rows["sentences"])
    # Only the sentence numbers matter here, so the corpus has no tokens.
    empty = np.zeros(1, np.int64)
    corpus, notes = split_few_documents(Corpus(empty, empty, np.concatenate([[0], np.cumsum(num_sentences)])))
    if corpus.parent_ids is None:
        return rows, notes
    parts = rows.select(corpus.parent_ids)
    part_sentences = np.diff(corpus.document_offsets)
    fractions = part_sentences / num_sentences[corpus.parent_ids]
    columns = {
        "digest": [f"{digest}-{index}" for index, digest in enumerate(parts["digest"])],
        "sentences": part_sentences.tolist(),
        "characters": (np.array(parts["characters"]) * fractions).astype(int).tolist(),
    }
    for name, values in columns.items():
        parts = parts.with_column(name, values)
    return parts, notes
