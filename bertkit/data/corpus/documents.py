"""Read text files as a stream of documents; each document is a stream of sentences.

The sentences of a document must be consumed before the next document is requested. Only the current paragraph
is in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from bertkit.data.corpus.formats import SentenceStream, TextFormat, detect_format, iter_sentences
from bertkit.data.readers.contents import EMPTY_FILE
from bertkit.data.readers.decoding import Decoding
from bertkit.data.readers.files import detect_row_format, read_text_column
from bertkit.data.readers.text_files import FileNotes, InputFile, read_text, split_lines
from bertkit.errors import UserError, format_list
from bertkit.hub.files import require_available
from bertkit.text_config import TextConfig

if TYPE_CHECKING:
    from bertkit.data.corpus.source import TextSource

T = TypeVar("T")
DocumentStream = Iterator[Iterator[str]]
SKIP_BYTES_HINT = "drop such bytes with --encoding-errors skip"
DETECTION_ROWS = 1_000  # rows from which the text format is detected
ROWS_NOTE = "each row is a document"
WIKITEXT_ROWS_NOTE = "rows are lines of WikiText; each ' = Title = ' starts a document, headings are left out"
FORMAT_NOTES: dict[TextFormat, str] = {
    "sentences": "one sentence per line, blank lines between documents (detected: nearly every line is one "
    "sentence); pass --text-format prose if this is wrong",
    "prose": "prose, each file is a document; pass --text-format sentences or --document-separator if lines "
    "or blank lines separate sentences or documents",
    "wikitext": "WikiText, each ' = Title = ' starts a document, headings are left out; pass --text-format "
    "prose if this is wrong",
}


class DocumentLocation(NamedTuple):
    """Where a document begins.

    Attributes:
        file: The file.
        number: Number of a line or of a row, from 1.
        is_line: Whether `number` is a line number.
    """

    file: InputFile
    number: int
    is_line: bool


@dataclass(frozen=True)
class TextOptions:
    """How text files are read.

    Attributes:
        text_format: Format of running text; None to detect it for each file.
        document_separator: Line between two documents; None for the separator of the text format.
        text_column: Column of the texts in files of rows; None to detect it for each file.
        decoding: How bytes become text.
    """

    text_format: TextFormat | None = None
    document_separator: str | None = None
    text_column: str | None = None
    decoding: Decoding = field(default_factory=Decoding)

    @classmethod
    def from_config(
        cls, config: TextConfig, source: "TextSource", text_format: TextFormat | None = None
    ) -> "TextOptions":
        """Return the options from the settings; column and encoding are those of the source."""
        decoding = Decoding(source.encoding, config.encoding_errors, SKIP_BYTES_HINT)
        return cls(text_format, config.document_separator, source.column, decoding)


def iter_documents(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> DocumentStream:
    """Yield the sentences of each document.

    Args:
        files: Text files, read in this order.
        options: How the files are read.
        notes: Receives notes on how each file was read and on what was left out.

    Raises:
        UserError: A file cannot be read or is not text.
    """
    return (sentences for _, sentences in iter_located_documents(files, options, notes))


def iter_located_documents(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[tuple[DocumentLocation, Iterator[str]]]:
    """Yield the location and the sentences of each document.

    The location is the row or line after the end of the previous document.
    """
    require_available(files)
    notes, is_empty = notes or FileNotes(), True
    for path in files:
        has_rows, items, sentences = _open_sentences(path, options, notes)
        previous_end = 0
        for first in sentences:
            if first is not None:
                is_empty = False
                # None separates documents; `rest` ends at the next None or at the end of the file
                rest = iter(partial(next, sentences, None), None)
                yield DocumentLocation(path, previous_end + 1, not has_rows), chain([first], rest)
            previous_end = items.count
    if is_empty:
        raise _no_text_error(files, options)


class _CountedIterable(Generic[T]):
    """Iterable that counts the items it has yielded."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items, self.count = items, 0

    def __iter__(self) -> Iterator[T]:
        for self.count, item in enumerate(self.items, start=1):  # noqa: B020
            yield item


def _open_sentences(
    path: InputFile, options: TextOptions, notes: FileNotes
) -> tuple[bool, _CountedIterable[str], SentenceStream]:
    """Open a file.

    Returns:
        Whether the file has rows, the iterable of its rows or lines, and the stream of its sentences. The
        rows or lines are read and counted lazily, as the sentences are consumed.
    """
    row_format = detect_row_format(path, options.text_column, options.decoding)
    text_format = options.text_format or ("prose" if options.document_separator else None)
    if row_format:
        read_texts = partial(read_text_column, path, row_format, options.text_column, options.decoding)
        text_format = text_format or _detect_row_text_format(read_texts())
        notes.add(path, WIKITEXT_ROWS_NOTE if text_format == "wikitext" else ROWS_NOTE)
        rows = _CountedIterable(read_texts(notes))
        return True, rows, _iter_row_sentences(rows, text_format, options.document_separator)
    if text_format is None:
        text_format = detect_format(split_lines(islice(read_text(path, options.decoding), 1)))
        notes.add(path, FORMAT_NOTES[text_format])
    lines = _CountedIterable(split_lines(read_text(path, options.decoding, notes)))
    return False, lines, iter_sentences(lines, text_format, options.document_separator)


def _detect_row_text_format(texts: Iterable[str]) -> TextFormat:
    text_format = detect_format(_iter_lines(islice(texts, DETECTION_ROWS)))
    return text_format if text_format == "wikitext" else "prose"


def _iter_row_sentences(
    texts: Iterable[str], text_format: TextFormat, separator: str | None
) -> SentenceStream:
    if text_format == "wikitext":
        return iter_sentences(_iter_lines(texts), text_format, separator)
    documents = (iter_sentences(text.split("\n"), text_format, separator) for text in texts)
    return chain.from_iterable(chain(sentences, [None]) for sentences in documents)


def _iter_lines(texts: Iterable[str]) -> Iterator[str]:
    """Return an iterator over the lines of all texts."""
    return chain.from_iterable(text.removesuffix("\n").split("\n") for text in texts)


# ---- errors for files without text


def _no_text_error(files: Sequence[InputFile], options: TextOptions) -> UserError:
    """Return the error for files without text, which are grouped by reason."""
    files_by_reason: dict[str, list[InputFile]] = {}
    for path in files:
        files_by_reason.setdefault(_explain_no_text(path, options), []).append(path)
    reasons = (f"{format_list(paths)}: no text: {reason}" for reason, paths in files_by_reason.items())
    return UserError("; ".join(reasons))


def _explain_no_text(path: InputFile, options: TextOptions) -> str:
    row_format = detect_row_format(path, options.text_column, options.decoding)
    if not row_format:
        has_characters = any(read_text(path, options.decoding))
        return "the file holds only white space; pass another file" if has_characters else EMPTY_FILE
    rows = sum(1 for _ in read_text_column(path, row_format, options.text_column, options.decoding))
    if not rows:
        return "the file has no rows; pass another file"
    column = f"in column {options.text_column!r}" if options.text_column else "in the text column"
    return f"all {rows:,} rows are empty {column}; pass another --text-column"


# ---- texts for tokenizer training


def iter_raw_texts(
    files: Sequence[InputFile], options: TextOptions, notes: FileNotes | None = None
) -> Iterator[str]:
    """Yield texts without splitting them into sentences.

    In a file of rows, each row is a text. In other files, each line is a text, except document separators.

    Raises:
        UserError: As in `iter_documents`.
    """
    require_available(files)
    texts = chain.from_iterable(_open_raw_texts(path, options, notes) for path in files)
    for text in texts:  # until the first text that is not only white space; without one, raise an error
        yield text
        if text and not text.isspace():
            break
    else:
        raise _no_text_error(files, options)
    yield from texts


def _open_raw_texts(path: InputFile, options: TextOptions, notes: FileNotes | None) -> Iterator[str]:
    row_format = detect_row_format(path, options.text_column, options.decoding)
    if row_format:
        return read_text_column(path, row_format, options.text_column, options.decoding, notes)
    lines, separator = split_lines(read_text(path, options.decoding, notes)), options.document_separator
    return (line for line in lines if line.strip() != separator) if separator else lines
