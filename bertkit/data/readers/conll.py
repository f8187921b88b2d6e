"""Read and write CoNLL files: one word per line, and a blank line after each sentence.

Files of millions of lines are common. Python loops over lines are therefore avoided: `map` applies a method
of `str` to all lines, and numpy evaluates the results. Only comments and sentences are handled in loops.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, repeat
from pathlib import Path

import numpy as np

from bertkit.data.readers.contents import EMPTY_FILE
from bertkit.data.readers.delimited import CR_LINE_ENDS
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count

WHITESPACE = " \t\r\v\f"  # of blank lines; other white space (U+00A0, U+3000 or U+2028) may be a word
DOCSTART = "-DOCSTART-"
LINE_BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # characters that end a field or a line
FORMAT_HINT = (
    "write one word per line, with TABs or spaces between its columns, and a blank line between sentences"
)


def parse_conll(path: Path, text: str) -> Rows:
    """Return one row per sentence.

    Columns "0", "1", ... hold lists with one field per word of the sentence. If the file has -DOCSTART-
    lines, column "document" holds the index of the sentence's document. The row number is the line number of
    the first word.

    Raises:
        UserError: The file has no words, or the number of fields of a line differs from that of most lines.
    """
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines(): a word may be U+2028
    if "\r" in lines[0].rstrip("\r"):
        raise UserError(f"{path}: {CR_LINE_ENDS}")
    is_docstart = _map_lines(str.startswith, lines, DOCSTART).astype(bool)
    is_blank = ~np.fromiter(map(bool, map(str.strip, lines, repeat(WHITESPACE))), bool, len(lines))
    is_candidate = ~is_blank & ~is_docstart
    if not is_candidate.any():
        raise UserError(
            f"{path}: {f'the file has no words; {FORMAT_HINT}' if is_docstart.any() else EMPTY_FILE}"
        )
    has_hash = _map_lines(str.startswith, lines, "#").astype(bool) & is_candidate
    is_typical = is_candidate & ~has_hash
    if not is_typical.any():
        is_typical = is_candidate
    has_tabs = (_map_lines(str.count, lines, "\t")[is_typical] > 0).mean() >= 0.5
    separator = "\t" if has_tabs else " "
    if not has_tabs:
        lines = _collapse_spaces(lines)
    num_fields = _map_lines(str.count, lines, separator) + 1
    width = _find_most_frequent(num_fields[is_typical])
    is_word = is_candidate & ~_find_comments(lines, has_hash, is_candidate, num_fields != width)
    word_lines = np.flatnonzero(is_word)
    _validate(path, lines, word_lines, num_fields[word_lines], width)
    fields = separator.join(compress(lines, is_word)).split(separator)
    return _group_sentences(path, fields, word_lines, is_docstart)


def format_conll(columns: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Yield each of `n` sentences as TAB-separated lines, followed by a blank line.

    TABs and line breaks within words are written as spaces.

    Args:
        columns: The columns of the file; the first one holds the words. A column is a list of `n` sentences,
            and a sentence is a list of fields.
    """
    for fields in zip(*columns, strict=True):
        lines = (
            LINE_BREAKS.sub(" ", word) + "\t" + "\t".join(other_fields) + "\n"
            for word, *other_fields in zip(*fields, strict=True)
        )
        yield "".join(lines) + "\n"


def _map_lines(method: Callable[[str, str], int], lines: list[str], argument: str) -> np.ndarray:
    """Return [lines] int64: the result of `method(line, argument)` for each line."""
    return np.fromiter(map(method, lines, repeat(argument)), np.int64, len(lines))


def _collapse_spaces(lines: list[str]) -> list[str]:
    """Return the lines with single spaces between fields and no spaces at either end."""
    text = "\n".join(map(str.strip, lines, repeat(" ")))
    return (re.sub(" {2,}", " ", text) if "  " in text else text).split("\n")


def _find_most_frequent(num_fields: np.ndarray) -> int:
    """Return the most frequent value; of equally frequent values, return the largest."""
    # A missing field is more likely than an additional one.
    counts = np.bincount(num_fields)
    return len(counts) - 1 - int(counts[::-1].argmax())


def _find_comments(
    lines: list[str], has_hash: np.ndarray, is_candidate: np.ndarray, has_unusual_width: np.ndarray
) -> np.ndarray:
    """Return [lines] bool: whether a line that begins with `#` is a comment; it may also be a `#hashtag`.

    A comment has an unusual number of fields, or it has a space in the first of several fields. It precedes
    a sentence: no word is directly above it, or above the comments above it.
    """
    may_be_comment = has_hash & has_unusual_width
    for index in np.flatnonzero(has_hash & ~has_unusual_width):
        first_field, tab, _ = lines[index].partition("\t")
        may_be_comment[index] = bool(tab) and " " in first_field
    # The nearest line above that cannot be a comment; -1 if there is none.
    line_above = np.maximum.accumulate(np.where(may_be_comment, -1, np.arange(len(lines))))
    return may_be_comment & ((line_above < 0) | ~is_candidate[line_above])


def _validate(
    path: Path, lines: list[str], word_lines: np.ndarray, num_fields: np.ndarray, width: int
) -> None:
    """Raise a `UserError` if there are no words, the file looks like CSV, or some lines lack fields."""
    if not len(word_lines):
        raise UserError(f"{path}: the file has only comments and no words; {FORMAT_HINT}")
    unusual_words = np.flatnonzero(num_fields != width)
    if _looks_like_csv(lines, word_lines, width, len(unusual_words) > 0):
        raise UserError(
            f"{path}: looks like CSV, which cannot hold sentences; "
            f"pass JSON, JSONL or Parquet, or {FORMAT_HINT}"
        )
    if len(unusual_words):
        index = unusual_words[0]
        location = f"{path}: line {word_lines[index] + 1}"
        expected = format_count(width, "column")
        raise UserError(f"{location}: expected {expected}, found {num_fields[index]}; {FORMAT_HINT}")


def _looks_like_csv(lines: list[str], word_lines: np.ndarray, width: int, is_uneven: bool) -> bool:
    """Return whether the words are one block of lines with commas, as in a CSV file."""
    first_line = lines[word_lines[0]]
    is_one_block = word_lines[-1] - word_lines[0] + 1 == len(word_lines) > 1
    if not is_one_block or "," not in first_line or "\t" in first_line:
        return False
    if is_uneven:  # lines have different numbers of fields
        return True
    return width == 1 and len({lines[index].count(",") for index in word_lines}) == 1


def _group_sentences(path: Path, fields: list[str], word_lines: np.ndarray, is_docstart: np.ndarray) -> Rows:
    """Return one row per sentence.

    Args:
        path: The file.
        fields: The fields of all words, word by word.
        word_lines: [words] index of the line of each word. A gap between two lines separates sentences.
        is_docstart: [lines] whether a line starts a document.
    """
    starts = np.flatnonzero(np.diff(word_lines, prepend=-2) > 1)
    stops = [*starts[1:].tolist(), len(word_lines)]
    width = len(fields) // len(word_lines)
    columns = {}
    for index in range(width):
        column = fields[index::width]
        columns[str(index)] = [column[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True)]
    if is_docstart.any():
        documents = np.cumsum(is_docstart)[word_lines[starts]]
        columns["document"] = np.unique(documents, return_inverse=True)[1].tolist()  # consecutive from 0
    return replace(
        Rows.from_columns(columns, str(path)),
        row_numbers=word_lines[starts] + 1,
        line_numbered_files=frozenset([str(path)]),
    )
