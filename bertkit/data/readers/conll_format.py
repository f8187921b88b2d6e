"""The lines of CoNLL files, and the format that all lines of a file share."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np

from bertkit.data.readers.contents import EMPTY_FILE
from bertkit.errors import UserError

WHITESPACE = " \t\r\v\f"  # of blank lines; other white space (U+00A0, U+3000 or U+2028) may be a word
DOCSTART = "-DOCSTART-"
FORMAT_HINT = (
    "write one word per line, with TABs or spaces between its columns, and a blank line between sentences"
)


@dataclass(frozen=True)
class Block:
    """Lines of a file that end at a blank line or at the end of the file.

    Attributes:
        lines: [n] the lines.
        first_line: Index of the first line in the file.
        is_docstart: [n] whether a line starts a document.
        is_candidate: [n] whether a line may hold a word: all lines but blank lines and -DOCSTART- lines.
        has_hash: [n] whether a candidate begins with `#`.
    """

    lines: list[str]
    first_line: int
    is_docstart: np.ndarray
    is_candidate: np.ndarray
    has_hash: np.ndarray

    @classmethod
    def from_text(cls, text: str, first_line: int) -> "Block":
        """Split a text into lines."""
        lines = text.split("\n")  # not splitlines(): a word may be U+2028
        is_docstart = _mark_prefix(lines, DOCSTART, text)
        is_blank = ~np.fromiter(map(bool, map(str.strip, lines, repeat(WHITESPACE))), bool, len(lines))
        is_candidate = ~is_blank & ~is_docstart
        has_hash = _mark_prefix(lines, "#", text) & is_candidate
        return cls(lines, first_line, is_docstart, is_candidate, has_hash)

    def split_fields(self, separator: str) -> tuple[list[str], np.ndarray]:
        """Return the lines with one separator between fields, and [n] the number of fields of each line."""
        lines = self.lines if separator == "\t" else _collapse_spaces(self.lines)
        return lines, _map_lines(str.count, lines, separator) + 1


@dataclass(frozen=True)
class ConllFormat:
    """What holds for all lines of a file.

    Attributes:
        separator: Character between the fields of a line.
        width: Number of fields of a word's line.
        has_documents: Whether the file has -DOCSTART- lines.
    """

    separator: str
    width: int
    has_documents: bool


@dataclass
class _Counts:
    """Counts over the lines of a file.

    The pairs of counts are those of typical lines, and of lines that begin with `#` and may be comments.

    Attributes:
        separator: The separator that the fields are counted with.
        has_documents: Whether there are -DOCSTART- lines.
        num_lines: Numbers of lines.
        num_with_tabs: Numbers of lines with TABs.
        widths: Numbers of lines by number of fields.
    """

    separator: str
    has_documents: bool = False
    num_lines: list[int] = field(default_factory=lambda: [0, 0])
    num_with_tabs: list[int] = field(default_factory=lambda: [0, 0])
    widths: list[Counter[int]] = field(default_factory=lambda: [Counter(), Counter()])

    def add(self, block: Block) -> None:
        """Count the lines of a block."""
        self.has_documents |= bool(block.is_docstart.any())
        _, num_fields = block.split_fields(self.separator)
        has_tab = num_fields > 1 if self.separator == "\t" else _map_lines(str.count, block.lines, "\t") > 0
        for index, lines in enumerate((block.is_candidate & ~block.has_hash, block.has_hash)):
            self.num_lines[index] += int(lines.sum())
            self.num_with_tabs[index] += int(has_tab[lines].sum())
            widths, counts = np.unique(num_fields[lines], return_counts=True)
            self.widths[index].update(dict(zip(widths.tolist(), counts.tolist(), strict=True)))

    @property
    def _index(self) -> int:
        """Index of the lines that show the format: the typical ones, if there are any."""
        return 0 if self.num_lines[0] else 1

    @property
    def best_separator(self) -> str:
        """TAB if at least half of the lines have one, else a space."""
        return "\t" if 2 * self.num_with_tabs[self._index] >= self.num_lines[self._index] else " "

    @property
    def width(self) -> int:
        """The most frequent number of fields; of equally frequent ones, the largest.

        A missing field is more likely than an additional one.
        """
        widths = self.widths[self._index]
        return max(widths, key=lambda width: (widths[width], width))


def detect_format(path: Path, blocks: Iterable[Block]) -> ConllFormat:
    """Return the format of a file.

    Args:
        path: The file, for errors.
        blocks: All lines; may be iterated over repeatedly.

    Raises:
        UserError: The file has no words.
    """
    first = _Counts("\t")
    first.add(next(iter(blocks)))
    counts = _count(blocks, first.best_separator)
    if not sum(counts.num_lines):
        problem = f"the file has no words; {FORMAT_HINT}" if counts.has_documents else EMPTY_FILE
        raise UserError(f"{path}: {problem}")
    if counts.best_separator != counts.separator:
        counts = _count(blocks, counts.best_separator)
    return ConllFormat(counts.separator, counts.width, counts.has_documents)


def _count(blocks: Iterable[Block], separator: str) -> _Counts:
    counts = _Counts(separator)
    for block in blocks:
        counts.add(block)
    return counts


def iter_blocks(texts: Iterable[str]) -> Iterator[Block]:
    """Yield the blocks of a file, given consecutive parts of its text."""
    first_line = 0
    for text in texts:
        yield (block := Block.from_text(text, first_line))
        first_line += len(block.lines)


@dataclass(frozen=True)
class BlockReader:
    """The blocks of a file, which is read again by each iteration."""

    iter_texts: Callable[[], Iterator[str]]

    def __iter__(self) -> Iterator[Block]:
        return iter_blocks(self.iter_texts())


# ---- operations on all lines


def _map_lines(method: Callable[[str, str], int], lines: list[str], argument: str) -> np.ndarray:
    """Return [lines] int64: the result of `method(line, argument)` for each line."""
    return np.fromiter(map(method, lines, repeat(argument)), np.int64, len(lines))


def _mark_prefix(lines: list[str], prefix: str, text: str) -> np.ndarray:
    """Return [lines] bool: whether each line of a text begins with a prefix."""
    if prefix not in text:
        return np.zeros(len(lines), bool)
    return _map_lines(str.startswith, lines, prefix).astype(bool)


def _collapse_spaces(lines: list[str]) -> list[str]:
    """Return the lines with single spaces between fields and no spaces at either end."""
    text = "\n".join(map(str.strip, lines, repeat(" ")))
    return (re.sub(" {2,}", " ", text) if "  " in text else text).split("\n")
