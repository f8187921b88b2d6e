"""Texts to documents of sentences, as a stream: files of any kind, or texts one by one.

A document must be read to its end before the next; nothing is held but what is being cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from bertkit.data.corpus.formats import SentenceStream, TextFormat, detect_format, iter_sentences
from bertkit.data.readers.contents import EMPTY_FILE
from bertkit.data.readers.files import detect_row_format, read_text_column
from bertkit.data.readers.text_files import Decoding, FileNotes, TextFile, read_text, split_lines
from bertkit.errors import UserError, format_list
from bertkit.hub.files import require_available
from bertkit.text_config import TextConfig
from bertkit.utils.text import replace_surrogates

T = TypeVar("T")
DocumentStream = Iterator[Iterator[str]]
DETECTION_ROWS = 1_000
ROWS_NOTE = "a row a document"
WIKITEXT_ROWS_NOTE = (
    "rows that are lines of WikiText, a document from each ' = Title = ' on, headings left out"
)
FORMAT_NOTES: dict[TextFormat, str] = {
    "sentences": "a sentence a line, a blank line between documents (nearly each line is one sentence); "
    "--text-format prose if it is otherwise",
    "prose": "running text, a file a document (lines and blank lines tell no sentences or documents); "
    "--text-format sentences or --document-separator if they do",
    "wikitext": "WikiText, a document from each ' = Title = ' on, headings left out; --text-format prose if not",
}


class DocumentLocation(NamedTuple):
    """Where a document begins: a row of a file of rows, else a line."""

    file: TextFile
    number: int
    is_line: bool


@dataclass(frozen=True)
class TextOptions:
    """What the user says of the texts; all that is not said is judged by content.

    Attributes:
        form: of running text; None: seen file by file.
        document_separator: a line between two documents.
        text_column: the column of the texts in files of rows, where a row is a document.
        decoding: from bytes to text.
        language: the code of the language whose rules cut sentences; None: seen paragraph by paragraph.
    """

    text_format: TextFormat | None = None
    document_separator: str | None = None
    text_column: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    language: str | None = None

    @classmethod
    def from_config(
        cls, config: TextConfig, column: str | None, text_format: TextFormat | None = None
    ) -> "TextOptions":
        """As the settings say it, with the column that was found."""
        decoding = Decoding(config.encoding, config.encoding_errors)
        return cls(text_format, config.document_separator, column, decoding)


def iter_documents(
    files: Sequence[TextFile], options: TextOptions, notes: FileNotes | None = None
) -> DocumentStream:
    """The sentences of each document of the files.

    Args:
        files: read in this order; each is known by its content.
        options: what is known of them.
        notes: told how each was read, and what was left out.

    Raises:
        UserError: a file that cannot be read, or is no text.
    """
    return (sentences for _, sentences in iter_located_documents(files, options, notes))


def iter_located_documents(
    files: Sequence[TextFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[tuple[DocumentLocation, Iterator[str]]]:
    """The same with where each begins: behind the row, or the line, with which the one before it ended."""
    require_available(files)
    told, found = notes or FileNotes(), False
    for path in files:
        of_rows, source, blocks = _of_file(path, options, told)
        ended = 0
        for first in blocks:
            if first is not None:
                found = True
                rest = iter(partial(next, blocks, None), None)
                yield DocumentLocation(path, ended + 1, not of_rows), chain([first], rest)
            ended = source.number
    if not found:
        raise _no_text(files, options)


def split_texts(texts: Iterable[str], options: TextOptions) -> DocumentStream:
    """The sentences of each text, which is a document by itself unless the form says otherwise."""
    return group_sentences(_of_texts(map(replace_surrogates, texts), options.text_format or "prose", options))


def group_sentences(blocks: SentenceStream) -> DocumentStream:
    """What stands between those that are None, where there is anything."""
    for first in blocks:
        if first is not None:
            yield chain([first], iter(partial(next, blocks, None), None))


class _Counted(Generic[T]):
    """Items as they are asked for, and how many there were so far."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items, self.number = items, 0

    def __iter__(self) -> Iterator[T]:
        for self.number, item in enumerate(self.items, start=1):  # noqa: B020
            yield item


def _of_file(
    path: TextFile, options: TextOptions, notes: FileNotes
) -> tuple[bool, _Counted[str], SentenceStream]:
    """Whether it is a file of rows, its rows or lines, which are read as the sentences made of them are."""
    kind = detect_row_format(path, options.text_column, options.decoding)
    named = options.text_format or ("prose" if options.document_separator else None)
    if kind:
        read = partial(read_text_column, path, kind, options.text_column, options.decoding)
        form = named or _form_of_rows(read())
        notes.add(path, WIKITEXT_ROWS_NOTE if form == "wikitext" else ROWS_NOTE)
        rows = _Counted(read(notes))
        return True, rows, _of_texts(rows, form, options)
    form = named or detect_format(split_lines(islice(read_text(path, options.decoding), 1)))
    if not named:
        notes.add(path, FORMAT_NOTES[form])
    read_lines = _Counted(split_lines(read_text(path, options.decoding, notes)))
    return False, read_lines, iter_sentences(read_lines, form, options.document_separator, options.language)


def _form_of_rows(texts: Iterable[str]) -> TextFormat:
    form = detect_format(_in_lines(islice(texts, DETECTION_ROWS)))
    return form if form == "wikitext" else "prose"


def _of_texts(texts: Iterable[str], form: TextFormat, options: TextOptions) -> SentenceStream:
    separator, language = options.document_separator, options.language
    if form == "wikitext":
        return iter_sentences(_in_lines(texts), form, separator, language)
    each = (iter_sentences(one.split("\n"), form, separator, language) for one in texts)
    return chain.from_iterable(chain(blocks, [None]) for blocks in each)


def _in_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of all texts, each of which begins a line of its own."""
    return chain.from_iterable(one.removesuffix("\n").split("\n") for one in texts)


def _no_text(files: Sequence[TextFile], options: TextOptions) -> UserError:
    """Why there is none: the same of all files, or of each some other."""
    causes: dict[str, list[TextFile]] = {}
    for path in files:
        causes.setdefault(_why_none(path, options), []).append(path)
    return UserError(
        "; ".join(f"{format_list(paths)}: no text in there: {why}" for why, paths in causes.items())
    )


def _why_none(path: TextFile, options: TextOptions) -> str:
    kind = detect_row_format(path, options.text_column, options.decoding)
    if kind:
        rows = sum(1 for _ in read_text_column(path, kind, options.text_column, options.decoding))
        column = f"in column {options.text_column!r}" if options.text_column else "where texts should be"
        empty = f"its rows ({rows:,}) have nothing {column}; --text-column names another"
        return empty if rows else "it has no rows"
    return "it holds only blanks" if any(read_text(path, options.decoding)) else EMPTY_FILE


def iter_raw_texts(
    files: Sequence[TextFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[str]:
    """The texts of the files as they are: rows where they are files of rows, else lines but for separators.

    Raises:
        UserError: as `documents` does.
    """
    require_available(files)
    whole = _as_they_are(files, options, notes)
    for one in whole:
        yield one
        if one and not one.isspace():
            break
    else:
        raise _no_text(files, options)
    yield from whole


def _as_they_are(files: Sequence[TextFile], options: TextOptions, notes: FileNotes | None) -> Iterator[str]:
    for path in files:
        kind = detect_row_format(path, options.text_column, options.decoding)
        if kind:
            yield from read_text_column(path, kind, options.text_column, options.decoding, notes)
        else:
            read = split_lines(read_text(path, options.decoding, notes))
            separator = options.document_separator
            yield from (line for line in read if line.strip() != separator) if separator else read
