"""CoNLL files: one word per line with columns of fields, and a blank line after each sentence.

A file is read in blocks that end at blank lines. All lines of a file share one format, which is detected
first.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.readers.layouts import (
    DOCSTART,
    LAYOUT_LINES,
    NO_WORD,
    WordLayout,
    describe_layout,
    find_word_layout,
)
from bertkit.data.readers.text_files import CR_LINE_ENDS, EMPTY_FILE
from bertkit.data.table import Rows
from bertkit.errors import UserError, format_count

WHITESPACE = " \t\r\v\f"  # of blank lines; other white space (U+00A0, U+3000 or U+2028) may be a word
FORMAT_HINT = (
    "write one word per line, with TABs or spaces between its columns, and a blank line between sentences"
)


@dataclass(frozen=True)
class Block:
    """Lines of a file that end at a blank line or at the end of the file.

    Attributes:
        first_line: Index of the first line in the file.
        is_docstart: [n] whether a line starts a document.
        is_break: [n] whether a line ends a sentence: blank lines and -DOCSTART- lines.
        is_candidate: [n] whether a line may hold a word: all lines but breaks and `NO_WORD`.
        has_hash: [n] whether a candidate begins with `#`.
    """

    lines: list[str]
    first_line: int
    is_docstart: np.ndarray
    is_break: np.ndarray
    is_candidate: np.ndarray
    has_hash: np.ndarray

    @classmethod
    def from_text(cls, text: str, first_line: int) -> "Block":
        """Split a text into lines."""
        lines = text.split("\n")  # not splitlines(): a word may be U+2028
        is_docstart = _mark_prefix(lines, DOCSTART, text)
        is_blank = ~np.fromiter(map(bool, map(str.strip, lines, repeat(WHITESPACE))), bool, len(lines))
        is_break = is_blank | is_docstart
        is_candidate = ~is_break & ~_mark_prefix(lines, NO_WORD, text)
        has_hash = _mark_prefix(lines, "#", text) & is_candidate
        return cls(lines, first_line, is_docstart, is_break, is_candidate, has_hash)

    def split_fields(self, separator: str) -> tuple[list[str], np.ndarray]:
        """Return the lines with one separator between fields, and [n] the number of fields of each line."""
        lines = self.lines
        if separator == " ":  # single spaces between fields, and none at either end
            text = "\n".join(map(str.strip, lines, repeat(" ")))
            lines = (re.sub(" {2,}", " ", text) if "  " in text else text).split("\n")
        return lines, _map_lines(str.count, lines, separator) + 1


@dataclass(frozen=True)
class ConllFormat:
    """What holds for all lines of a file: `width` is the number of fields of a word's line."""

    separator: str
    width: int
    has_documents: bool


def detect_format(path: Path, open_blocks: Callable[[], Iterator[Block]]) -> ConllFormat:
    """Return the format of a file, whose blocks are read several times."""
    first_separator, _, _ = _count_lines([next(open_blocks())], "\t")
    separator, widths, has_documents = _count_lines(open_blocks(), first_separator)
    if not widths:
        problem = f"the file has no words; {FORMAT_HINT}" if has_documents else EMPTY_FILE
        raise UserError(f"{path}: {problem}")
    if separator != first_separator:
        _, widths, _ = _count_lines(open_blocks(), separator)
    # The most frequent number of fields; of equally frequent ones, the largest, because a missing field is
    # more likely than an additional one.
    width = max(widths, key=lambda width: (widths[width], width))
    return ConllFormat(separator, width, has_documents)


def _count_lines(blocks: Iterable[Block], separator: str) -> tuple[str, Counter[int], bool]:
    """Count the typical lines; if there are none, the lines that begin with `#` and may be comments.

    Returns:
        The probable separator (TAB if at least half of the lines have one, else a space), the numbers of
        lines by number of fields, given `separator`, and whether there are documents.
    """
    has_documents, num_with_tabs = False, [0, 0]
    widths: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for block in blocks:
        has_documents |= bool(block.is_docstart.any())
        _, num_fields = block.split_fields(separator)
        has_tab = num_fields > 1 if separator == "\t" else _map_lines(str.count, block.lines, "\t") > 0
        for index, lines in enumerate((block.is_candidate & ~block.has_hash, block.has_hash)):
            num_with_tabs[index] += int(has_tab[lines].sum())
            distinct, counts = np.unique(num_fields[lines], return_counts=True)
            widths[index].update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
    index = 0 if widths[0] else 1
    has_tabs = 2 * num_with_tabs[index] >= widths[index].total()
    return "\t" if has_tabs else " ", widths[index], has_documents


# ---- operations on all lines


def _map_lines(method: Callable[[str, str], int], lines: list[str], argument: str) -> np.ndarray:
    """Return [lines] int64: the result of `method(line, argument)` for each line."""
    return np.fromiter(map(method, lines, repeat(argument)), np.int64, len(lines))


def _mark_prefix(lines: list[str], prefix: str, text: str) -> np.ndarray:
    """Return [lines] bool: whether each line of a text begins with a prefix."""
    if prefix not in text:
        return np.zeros(len(lines), bool)
    return _map_lines(str.startswith, lines, prefix).astype(bool)


BLANK_LINE = re.compile(rf"\n[{WHITESPACE}]*\n")
PART_CHARS = 1 << 18  # the lines and fields of a part need up to 90 times its size in memory
MAX_BLANK_CHARS = 100  # longer blank lines do not end a part of a text
LINE_BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # characters that end a field or a line


def iter_conll(path: Path, iter_texts: Callable[[], Iterator[str]]) -> Iterator[Rows]:
    """Yield one row per sentence, in parts.

    Columns "0", "1", ... hold lists with one field per word of the sentence; in some of `WORD_LAYOUTS` the
    columns have names. If the file has -DOCSTART- lines, column "document" holds the number of the sentence's
    document, from 0; documents without words do not count. The row number is the line number of the first
    word.

    Args:
        iter_texts: Returns an iterator over consecutive parts of the text, which end at blank lines as those
            of `split_at_blank_lines` do. It is called repeatedly.
    """
    found = find_word_layout(next(iter_texts(), "").split("\n")[:LAYOUT_LINES])
    notes: list[str] = []

    def iter_blocks() -> Iterator[Block]:
        first_line = 0
        for text in _convert_parts(iter_texts(), found[0]) if found else iter_texts():
            yield (block := Block.from_text(text, first_line))
            first_line += len(block.lines)

    first, *others = islice(iter_blocks(), 2)
    if "\r" in first.lines[0].rstrip("\r"):
        raise UserError(f"{path}: {CR_LINE_ENDS}")
    open_blocks = iter_blocks if others else partial(iter, [first])
    file_format = detect_format(path, open_blocks)
    names = found[1] if found and len(found[1]) == file_format.width else None
    num_rows = num_starts = 0  # sentences, and -DOCSTART- lines, in the previous blocks
    last_start = last_document = -1  # -DOCSTART- lines before the last word, and number of its document
    for block in open_blocks():
        lines, num_fields, is_word = _find_words(block, file_format)
        word_lines = np.flatnonzero(is_word)
        if _looks_like_csv(lines, num_fields, word_lines, file_format.width):
            other_blocks = (other for other in open_blocks() if other.first_line != block.first_line)
            if not any(_find_words(other, file_format)[2].any() for other in other_blocks):
                raise UserError(
                    f"{path}: looks like CSV, which cannot hold sentences; "
                    f"pass JSON, JSONL or Parquet, or {FORMAT_HINT}"
                )
        unusual = word_lines[num_fields[word_lines] != file_format.width]
        if len(unusual):
            location = f"{path}: line {block.first_line + unusual[0] + 1}"
            expected, found = format_count(file_format.width, "column"), num_fields[unusual[0]]
            raise UserError(f"{location}: expected {expected}, found {found}; {FORMAT_HINT}")
        starts = num_starts + np.cumsum(block.is_docstart)[word_lines]
        num_starts += int(block.is_docstart.sum())
        if not len(word_lines):
            continue
        documents = last_document + np.cumsum(np.diff(starts, prepend=last_start) > 0)
        last_start, last_document = int(starts[-1]), int(documents[-1])
        fields = file_format.separator.join(compress(lines, is_word)).split(file_format.separator)
        rows = _group_sentences(
            path, fields, block, word_lines, names, documents if file_format.has_documents else None
        )
        num_rows += len(rows)
        yield replace(rows, notes=notes)
    if last_document < 0:
        raise UserError(f"{path}: the file has only comments and no words; {FORMAT_HINT}")
    if found:
        notes.append(describe_layout(path, found[0].name, num_rows))


def _convert_parts(texts: Iterator[str], layout: WordLayout) -> Iterator[str]:
    """Convert the lines of consecutive parts of a text; each part keeps its number of lines."""
    sizes: deque[int] = deque()

    def iter_lines() -> Iterator[str]:
        for text in texts:
            lines = text.split("\n")
            sizes.append(len(lines))
            yield from lines

    converted = layout.convert(iter_lines())
    for first in converted:  # the first line of a part, whose size is known when it is read
        yield "\n".join([first, *islice(converted, sizes.popleft() - 1)])


def split_at_blank_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a text so that each of them ends at a blank line.

    A part does not contain the last line break of its blank line. CRLF becomes LF.
    """
    rest, carriage_return, is_first = "", "", True
    parts = (text[start : start + PART_CHARS] for text in texts for start in range(0, len(text), PART_CHARS))
    for part in parts:
        text = carriage_return + part
        carriage_return = "\r" if text.endswith("\r") else ""  # the next text may begin with its "\n"
        start = max(0, len(rest) - MAX_BLANK_CHARS)  # `rest` has no blank line before it
        rest += text.removesuffix("\r").replace("\r\n", "\n")
        end = rest.rfind("\n\n", start) + 2
        if end < 2:
            end = max((match.end() for match in BLANK_LINE.finditer(rest, start)), default=0)
        if end:
            yield rest[: end - 1]
            rest, is_first = rest[end:], False
    rest += carriage_return
    if rest or is_first:
        yield rest


def format_conll(columns: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Yield each of `n` sentences as TAB-separated lines, followed by a blank line.

    TABs and line breaks within words are written as spaces. A column is a list of `n` sentences, and a
    sentence is a list of fields; the first column holds the words.
    """
    for fields in zip(*columns, strict=True):
        lines = (
            LINE_BREAKS.sub(" ", word) + "\t" + "\t".join(other_fields) + "\n"
            for word, *other_fields in zip(*fields, strict=True)
        )
        yield "".join(lines) + "\n"


# ---- the words of a block


def _find_words(block: Block, file_format: ConllFormat) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Find the lines of a block that hold words: all candidates that are not comments.

    A line that begins with `#` may be a comment or a `#hashtag`. A comment has an unusual number of fields,
    or it has a space in the first of several fields. It precedes a sentence: no word is directly above it, or
    above the comments above it.

    Returns:
        [n] all lines, with one separator between fields, [n] number of fields of each line, and [n] whether a
        line holds a word.
    """
    lines, num_fields = block.split_fields(file_format.separator)
    has_unusual_width = num_fields != file_format.width
    may_be_comment = block.has_hash & has_unusual_width
    for index in np.flatnonzero(block.has_hash & ~has_unusual_width):
        first_field, tab, _ = lines[index].partition("\t")
        may_be_comment[index] = bool(tab) and " " in first_field
    # The nearest line above that cannot be a comment; -1 if there is none.
    line_above = np.maximum.accumulate(np.where(may_be_comment, -1, np.arange(len(lines))))
    is_comment = may_be_comment & ((line_above < 0) | ~block.is_candidate[line_above])
    return lines, num_fields, block.is_candidate & ~is_comment


def _looks_like_csv(lines: list[str], num_fields: np.ndarray, word_lines: np.ndarray, width: int) -> bool:
    """Return whether the words are one block of lines with commas, as in a CSV file."""
    if not len(word_lines):
        return False
    first_line = lines[word_lines[0]]
    is_one_block = word_lines[-1] - word_lines[0] + 1 == len(word_lines) > 1
    if not is_one_block or "," not in first_line or "\t" in first_line:
        return False
    if (num_fields[word_lines] != width).any():
        return True
    return width == 1 and len({lines[index].count(",") for index in word_lines}) == 1


def _group_sentences(
    path: Path,
    fields: list[str],
    block: Block,
    word_lines: np.ndarray,
    names: Sequence[str] | None,
    documents: np.ndarray | None,
) -> Rows:
    """Return one row per sentence of a block.

    Args:
        fields: The fields of all words, word by word.
        word_lines: [words] index of the line of each word in the block.
        names: Names of the columns; None for their numbers.
        documents: [words] number of each word's document, or None.
    """
    starts = np.flatnonzero(np.diff(np.cumsum(block.is_break)[word_lines], prepend=-1) > 0)
    stops = [*starts[1:].tolist(), len(word_lines)]
    width = len(fields) // len(word_lines)
    columns: dict[str, list[Any]] = {}
    for index in range(width):
        column = fields[index::width]
        name = names[index] if names else str(index)
        columns[name] = [column[start:stop] for start, stop in zip(starts.tolist(), stops, strict=True)]
    if documents is not None:
        columns["document"] = documents[starts].tolist()
    return replace(
        Rows.from_columns(columns, str(path)),
        row_numbers=block.first_line + word_lines[starts] + 1,
        line_numbered_files=frozenset([str(path)]),
    )
