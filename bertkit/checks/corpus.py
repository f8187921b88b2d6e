"""Checks of running text before it is tokenized."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.checks.base import Finding, TaskChecks, format_fraction, locate_rows
from bertkit.data.corpus.documents import DocumentLocation, TextOptions, iter_located_documents
from bertkit.data.corpus.pairs import MAX_SINGLE_SENTENCE_FRACTION
from bertkit.data.corpus.rows import MIN_DOCUMENTS, split_few_documents
from bertkit.data.corpus.source import TextSource
from bertkit.data.corpus.store import Corpus
from bertkit.data.loading import LoadedDataset
from bertkit.data.readers.text_files import FileNotes
from bertkit.data.rows import Rows
from bertkit.tasks.pretrain_config import check_scratch_settings

if TYPE_CHECKING:
    from bertkit.modeling.loading import ModelSource
    from bertkit.utils.reporting import Reporter

PREVIEW_CHARS = 1_000  # characters of a document that are kept for the checks
SMALL_CORPUS_CHARS = 1_000_000  # smaller training texts are reported


class CorpusChecks(TaskChecks):
    """The checks of `pretrain-mlm-nsp`."""

    def load_examples(self, reporter: "Reporter") -> LoadedDataset:
        """Load documents without tokenizing them, since the tokenizer may not exist yet."""
        check_scratch_settings(self.task.config)
        sources = self.task.find_sources()
        train = sources["train"]
        splits, notes = {}, list(train.notes)
        for split, source in sources.items():
            split_documents = split == "train" and "validation" not in sources
            options = self.task.build_text_options(source)
            splits[split], split_notes = load_document_rows(source, options, split_documents)
            notes += split_notes
        return LoadedDataset(train.name, train.location, splits, notes=notes)

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Report the amount of text, and find documents of one sentence."""
        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            yield from check_corpus(split, rows, self.task.config.has_pairs)

    def resolve_tokenizer(self, is_explicit: bool, reporter: "Reporter") -> "ModelSource | None":
        """Return the model or tokenizer that the settings name; a new tokenizer fits its text anyway."""
        from bertkit.modeling.loading import find_model
        from bertkit.modeling.scratch import find_tokenizer

        config = self.task.config
        if config.model:
            return find_model(config.model, needs_weights=False)
        return find_tokenizer(config.tokenizer) if config.tokenizer else None


def load_document_rows(
    text: TextSource, options: TextOptions, split_documents: bool
) -> tuple[Rows, list[str]]:
    """Return one row per document, and notes on the files.

    The columns are `digest`, `sentences`, `characters`, and the beginning of the document as `text`.

    Args:
        text: the files.
        options: how to find documents and sentences in them.
        split_documents: whether few documents are split into sections, as in training.
    """
    notes = FileNotes()
    columns: dict[str, list[Any]] = {"digest": [], "sentences": [], "characters": [], "text": []}
    locations: list[DocumentLocation] = []
    for location, document in iter_located_documents(text.files, options, notes):
        digest, sentences, characters, preview = blake2b(digest_size=8), 0, 0, ""
        for sentence in document:
            digest.update(sentence.encode("utf-8", "surrogatepass") + b"\n")
            sentences, characters = sentences + 1, characters + len(sentence)
            if len(preview) < PREVIEW_CHARS:
                preview += f"{sentence[:PREVIEW_CHARS]} "
        values = (digest.hexdigest(), sentences, characters, preview[:PREVIEW_CHARS])
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
        locations.append(location)
    rows = _locate_documents(columns, locations)
    split_notes: list[str] = []
    if split_documents and len(rows) < MIN_DOCUMENTS:
        rows, split_notes = _split_into_sections(rows)
    return rows, [*notes.format_lines(), *split_notes]


def _locate_documents(columns: dict[str, list[Any]], locations: Sequence[DocumentLocation]) -> Rows:
    """Return documents as rows that know their files, and their rows or lines."""
    files = {file: index for index, file in enumerate(dict.fromkeys(place.file for place in locations))}
    line_numbered = frozenset(str(location.file) for location in locations if location.is_line)
    file_index = np.array([files[location.file] for location in locations], np.int32)
    numbers = np.array([location.number for location in locations])
    return Rows(columns, tuple(map(str, files)), file_index, numbers, line_numbered)


def _split_into_sections(rows: Rows) -> tuple[Rows, list[str]]:
    """Split documents at sentences as `split_few_documents` does."""
    empty, sizes = np.zeros(1, np.int64), np.array(rows["sentences"])
    corpus, notes = split_few_documents(Corpus(empty, empty, np.concatenate([[0], np.cumsum(sizes)])))
    if corpus.parent_ids is None:
        return rows, notes
    sentences, sections = np.diff(corpus.document_offsets), rows.select(corpus.parent_ids)
    fractions = sentences / sizes[corpus.parent_ids]
    values = {
        "digest": [f"{digest}-{number}" for number, digest in enumerate(sections["digest"])],
        "sentences": sentences.tolist(),
        "characters": (np.array(sections["characters"]) * fractions).astype(int).tolist(),
    }
    for name, column in values.items():
        sections = sections.with_column(name, column)
    return sections, notes


def check_corpus(split: str, rows: Rows, has_pairs: bool) -> Iterator[Finding]:
    """Report the amount of text, and find documents that make no pair.

    Args:
        split: the name of the split.
        rows: its documents.
        has_pairs: whether an example has two texts.
    """
    sentences, characters = np.array(rows["sentences"]), sum(rows["characters"])
    # The digest of a section is that of its document with a number.
    documents = len({digest.partition("-")[0] for digest in rows["digest"]})
    size = f"{documents:,} documents, {sentences.sum():,} sentences, {characters:,} characters"
    is_small = split == "train" and characters < SMALL_CORPUS_CHARS
    yield Finding(
        "warning" if is_small else "note", "little-text" if is_small else "size",
        f"the {split} text: {size}",
        "too little to pre-train a model from scratch; train one further with --model" if is_small else "",
        len(rows),
    )  # fmt: skip
    single = (sentences == 1).nonzero()[0]
    if has_pairs and len(single) > MAX_SINGLE_SENTENCE_FRACTION * len(rows):
        yield Finding(
            "warning", "one-sentence",
            f"{format_fraction(len(single), len(rows))} {split} documents have one sentence, so "
            "nothing follows it",
            "separate documents by blank lines or --document-separator and sentences by lines "
            "(--text-format), or use --objective mlm",
            len(single), locate_rows(rows, single),
        )  # fmt: skip
