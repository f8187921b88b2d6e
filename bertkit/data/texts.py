"""Texts to documents of sentences, as a stream: files of any kind, or texts one by one.

A document must be read to its end before the next; nothing is held but what is being cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from bertkit.data.contents import EMPTY
from bertkit.data.prose import Blocks, Form, form_of, sentences
from bertkit.data.sequences import valid
from bertkit.data.text_files import Decoding, Notes, TextFile, lines, text
from bertkit.data.text_rows import kind_of, texts
from bertkit.errors import UserError, listed
from bertkit.hub_files import require_there
from bertkit.text_config import TextConfig

T = TypeVar("T")
Documents = Iterator[Iterator[str]]
ROWS_JUDGED = 1_000
ROWS = "a row a document"
LINES_IN_ROWS = "rows that are lines of WikiText, a document from each ' = Title = ' on, headings left out"
WHY: dict[Form, str] = {
    "sentences": "a sentence a line, a blank line between documents (nearly each line is one sentence); "
    "--form prose if it is otherwise",
    "prose": "running text, a file a document (lines and blank lines tell no sentences or documents); "
    "--form sentences or --document-separator if they do",
    "wikitext": "WikiText, a document from each ' = Title = ' on, headings left out; --form prose if not",
}


class Place(NamedTuple):
    """Where a document begins: a row of a file of rows, else a line."""

    file: TextFile
    number: int
    by_line: bool


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

    form: Form | None = None
    document_separator: str | None = None
    text_column: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    language: str | None = None

    @classmethod
    def of(cls, config: TextConfig, column: str | None, form: Form | None = None) -> "TextOptions":
        """As the settings say it, with the column that was found."""
        decoding = Decoding(config.encoding, config.on_bad_bytes)
        return cls(form, config.document_separator, column, decoding)


def documents(files: Sequence[TextFile], options: TextOptions, notes: Notes | None = None) -> Documents:
    """The sentences of each document of the files.

    Args:
        files: read in this order; each is known by its content.
        options: what is known of them.
        notes: told how each was read, and what was left out.

    Raises:
        UserError: a file that cannot be read, or is no text.
    """
    return (sentences for _, sentences in documents_at(files, options, notes))


def documents_at(
    files: Sequence[TextFile], options: TextOptions, notes: Notes | None = None
) -> Iterator[tuple[Place, Iterator[str]]]:
    """The same with where each begins: behind the row, or the line, with which the one before it ended."""
    require_there(files)
    told, found = notes or Notes(), False
    for path in files:
        of_rows, source, blocks = _of_file(path, options, told)
        ended = 0
        for first in blocks:
            if first is not None:
                found = True
                rest = iter(partial(next, blocks, None), None)
                yield Place(path, ended + 1, not of_rows), chain([first], rest)
            ended = source.number
    if not found:
        raise _no_text(files, options)


def documents_of(texts: Iterable[str], options: TextOptions) -> Documents:
    """The sentences of each text, which is a document by itself unless the form says otherwise."""
    return split(_of_texts(map(valid, texts), options.form or "prose", options))


def split(blocks: Blocks) -> Documents:
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


def _of_file(path: TextFile, options: TextOptions, notes: Notes) -> tuple[bool, _Counted[str], Blocks]:
    """Whether it is a file of rows, its rows or lines, which are read as the sentences made of them are."""
    kind = kind_of(path, options.text_column, options.decoding)
    named = options.form or ("prose" if options.document_separator else None)
    if kind:
        read = partial(texts, path, kind, options.text_column, options.decoding)
        form = named or _form_of_rows(read())
        notes.say(path, LINES_IN_ROWS if form == "wikitext" else ROWS)
        rows = _Counted(read(notes))
        return True, rows, _of_texts(rows, form, options)
    form = named or form_of(lines(islice(text(path, options.decoding), 1)))
    if not named:
        notes.say(path, WHY[form])
    read_lines = _Counted(lines(text(path, options.decoding, notes)))
    return False, read_lines, sentences(read_lines, form, options.document_separator, options.language)


def _form_of_rows(texts: Iterable[str]) -> Form:
    form = form_of(_in_lines(islice(texts, ROWS_JUDGED)))
    return form if form == "wikitext" else "prose"


def _of_texts(texts: Iterable[str], form: Form, options: TextOptions) -> Blocks:
    separator, language = options.document_separator, options.language
    if form == "wikitext":
        return sentences(_in_lines(texts), form, separator, language)
    each = (sentences(one.split("\n"), form, separator, language) for one in texts)
    return chain.from_iterable(chain(blocks, [None]) for blocks in each)


def _in_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of all texts, each of which begins a line of its own."""
    return chain.from_iterable(one.removesuffix("\n").split("\n") for one in texts)


def _no_text(files: Sequence[TextFile], options: TextOptions) -> UserError:
    """Why there is none: the same of all files, or of each some other."""
    causes: dict[str, list[TextFile]] = {}
    for path in files:
        causes.setdefault(_why_none(path, options), []).append(path)
    return UserError("; ".join(f"{listed(paths)}: no text in there: {why}" for why, paths in causes.items()))


def _why_none(path: TextFile, options: TextOptions) -> str:
    kind = kind_of(path, options.text_column, options.decoding)
    if kind:
        rows = sum(1 for _ in texts(path, kind, options.text_column, options.decoding))
        column = f"in column {options.text_column!r}" if options.text_column else "where texts should be"
        empty = f"its rows ({rows:,}) have nothing {column}; --text-column names another"
        return empty if rows else "it has no rows"
    return "it holds only blanks" if any(text(path, options.decoding)) else EMPTY


def uncut(files: Sequence[TextFile], options: TextOptions, notes: Notes | None = None) -> Iterator[str]:
    """The texts of the files as they are: rows where they are files of rows, else lines but for separators.

    Raises:
        UserError: as `documents` does.
    """
    require_there(files)
    whole = _as_they_are(files, options, notes)
    for one in whole:
        yield one
        if one and not one.isspace():
            break
    else:
        raise _no_text(files, options)
    yield from whole


def _as_they_are(files: Sequence[TextFile], options: TextOptions, notes: Notes | None) -> Iterator[str]:
    for path in files:
        kind = kind_of(path, options.text_column, options.decoding)
        if kind:
            yield from texts(path, kind, options.text_column, options.decoding, notes)
        else:
            read = lines(text(path, options.decoding, notes))
            separator = options.document_separator
            yield from (line for line in read if line.strip() != separator) if separator else read
