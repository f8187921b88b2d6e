"""Column files, as the CoNLL shared tasks have them: a token a line, a blank line after a sentence.

Files of millions of lines are usual, so that all lines are asked at once (`map` over a method of
`str`, numpy over the answers) and cut by one `split`; only comments and sentences are looked at singly.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, repeat
from pathlib import Path

import numpy as np

from bertkit.data.readers.contents import EMPTY_FILE
from bertkit.data.rows import Rows
from bertkit.errors import UserError

WHITESPACE = " \t\r\v\f"  # only these end a sentence: U+00A0, U+3000 or U+2028 may be a token
DOCSTART = "-DOCSTART-"
LINE_BREAKS = re.compile(r"[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # of a field or, to some readers, a line
FORMAT_HINT = (
    "a line is a token with its columns, TABs or blanks between them, and a blank line ends a sentence"
)


def parse_conll(path: Path, text: str) -> Rows:
    """A row a sentence: columns "0", "1", ... hold lists of its tokens' fields, in order.

    Where the file has -DOCSTART- lines, "document" is the number of the sentence's document, from 0.
    A row's number is the line of its first token; its other tokens follow line by line.

    Raises:
        UserError: no tokens, or a line with another number of fields than most.
    """
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines(): a token may be U+2028
    if "\r" in lines[0].rstrip("\r"):
        raise UserError(f"{path}: its lines end in CR alone; save it with LF, as tr '\\r' '\\n' does")
    opens = _ask(str.startswith, lines, DOCSTART).astype(bool)
    plain = np.fromiter(map(bool, map(str.strip, lines, repeat(WHITESPACE))), bool, len(lines)) & ~opens
    if not plain.any():
        raise UserError(f"{path}: {'the file has no tokens' if opens.any() else EMPTY_FILE}")
    marked = _ask(str.startswith, lines, "#").astype(bool) & plain
    typical = plain & ~marked if (plain & ~marked).any() else plain
    mark = "\t" if (_ask(str.count, lines, "\t")[typical] > 0).mean() >= 0.5 else " "
    lines = lines if mark == "\t" else _singly_parted(lines)
    fields = _ask(str.count, lines, mark) + 1
    width = _most(fields[typical])
    tokens = plain & ~_comments(lines, marked, plain, fields != width)
    at = np.flatnonzero(tokens)
    _check(path, lines, at, fields[at], width)
    return _sentences(path, mark.join(compress(lines, tokens)).split(mark), at, opens)


def format_conll(columns: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Sentences as TAB-separated columns with an empty line after each, part by part.

    White space inside a token that would end its field or its line is written as a blank.

    Args:
        columns: each [n] sentences of fields: the tokens, and what stands beside them.
    """
    for fields in zip(*columns, strict=True):
        yield (
            "".join(
                LINE_BREAKS.sub(" ", token) + "\t" + "\t".join(rest) + "\n"
                for token, *rest in zip(*fields, strict=True)
            )
            + "\n"
        )


def _ask(method: Callable[[str, str], int], lines: list[str], argument: str) -> np.ndarray:
    """[n] int64: the method's answer for each line."""
    return np.fromiter(map(method, lines, repeat(argument)), np.int64, len(lines))


def _singly_parted(lines: list[str]) -> list[str]:
    """The lines with one blank between fields and none around them."""
    text = "\n".join(map(str.strip, lines, repeat(" ")))
    return (re.sub(" {2,}", " ", text) if "  " in text else text).split("\n")


def _most(fields: np.ndarray) -> int:
    """The most frequent number, and of several the largest: a field is sooner forgotten than made up."""
    counts = np.bincount(fields)
    return len(counts) - 1 - int(counts[::-1].argmax())


def _comments(lines: list[str], marked: np.ndarray, plain: np.ndarray, unlike: np.ndarray) -> np.ndarray:
    """[n] bool: the lines with a `#` in front that are no tokens, judged by their fields and their place.

    `#hashtag` is a token. A comment has another number of fields (`unlike`) or a blank in the first of
    several, and stands before a sentence, under nothing but a blank line, an opening or a comment.
    """
    maybe = marked & unlike
    for index in np.flatnonzero(marked & ~unlike):
        first, tab, _ = lines[index].partition("\t")
        maybe[index] = bool(tab) and " " in first
    above = np.maximum.accumulate(np.where(maybe, -1, np.arange(len(lines))))
    return maybe & ((above < 0) | ~plain[above])


def _check(path: Path, lines: list[str], at: np.ndarray, fields: np.ndarray, width: int) -> None:
    """Raise a `UserError` where no line is a token, one has other fields, or all are rows of a CSV file."""
    if not len(at):
        raise UserError(f"{path}: the file has comments and no tokens; {FORMAT_HINT}")
    whole = at[-1] - at[0] + 1 == len(at) > 1 and "," in lines[at[0]] and "\t" not in lines[at[0]]
    unlike = np.flatnonzero(fields != width)
    if whole and (len(unlike) or (width == 1 and len({lines[index].count(",") for index in at}) == 1)):
        raise UserError(
            f"{path}: looks like CSV, which is not read here, unlike JSON, JSONL and Parquet; {FORMAT_HINT}"
        )
    for index in unlike[:1]:
        there = f"{fields[index]} column{'s' if fields[index] > 1 else ''} where the file has {width}"
        raise UserError(f"{path}: line {at[index] + 1}: {there}; {FORMAT_HINT}")


def _sentences(path: Path, fields: list[str], at: np.ndarray, opens: np.ndarray) -> Rows:
    """The fields of all tokens by sentence; `at` [tokens] are their lines, a gap in it ends a sentence."""
    starts = np.flatnonzero(np.diff(at, prepend=-2) > 1)
    ends = [*starts[1:].tolist(), len(at)]
    width = len(fields) // len(at)
    columns = {}
    for number in range(width):
        column = fields[number::width]
        columns[str(number)] = [column[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
    if opens.any():
        columns["document"] = np.unique(np.cumsum(opens)[at[starts]], return_inverse=True)[1].tolist()
    return replace(
        Rows.from_columns(columns, str(path)),
        row_numbers=at[starts] + 1,
        line_numbered_files=frozenset([str(path)]),
    )
