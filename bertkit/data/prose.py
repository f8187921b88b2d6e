"""Running text in its forms: a sentence a line, paragraphs, or WikiText; and which of them a text has.

Each form turns lines into sentences, with None where a document ends.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Literal

import regex

from bertkit.data.sentences import bounded, cut

Form = Literal["sentences", "prose", "wikitext"]
Blocks = Iterator[str | None]
WRAPPED = 200  # characters: a longer line was not broken to fit a width, so it is a paragraph by itself
MANY = 5_000  # lines of a paragraph that is cut although it goes on
HEADING = regex.compile(r"(= )+([^=\s]|[^=\s].*[^=\s])( =)+")
SPACED = regex.compile(r" @([-,.])@ ")
EASTERN = r"\p{Han}\p{Hiragana}\p{Katakana}"
EASTERN_BREAK = regex.compile(rf"(?<=[{EASTERN}、。，！？：；」』）])\n(?=[{EASTERN}「『（])")
ENDED = regex.compile(r"[\p{STerm}…:][\p{Pe}\p{Pf}\p{Pi}\"'’”\s]*$")
JUDGED = 5_000  # lines


def sentences(
    lines: Iterable[str], form: Form, separator: str | None = None, language: str | None = None
) -> Blocks:
    """The sentences of a text in this form; None ends a document.

    Args:
        lines: of the text, without their ends.
        form: "sentences", "prose" or "wikitext".
        separator: the line between documents; None: a blank line in "sentences", none in "prose".
        language: as in `cut`.
    """
    stripped = (line.strip() for line in lines)
    if form == "sentences":
        for line in stripped:
            yield from [None] if line == (separator or "") else bounded(line)
        return
    for block in wikitext(stripped) if form == "wikitext" else paragraphs(stripped, separator):
        yield from [None] if block is None else cut(block, language)


def paragraphs(lines: Iterable[str], separator: str | None = None) -> Blocks:
    """Paragraphs, between blank lines, each in one line; None where the separator stands."""
    held: list[str] = []
    for line in chain(lines, [""]):
        alone = len(line) > WRAPPED
        if held and (alone or line in ("", separator) or len(held) == MANY):
            yield unwrapped(held)
            held = []
        if separator and line == separator:
            yield None
        elif alone:
            yield line
        elif line:
            held.append(line)


def unwrapped(lines: list[str]) -> str:
    """The lines of a paragraph as one, with blanks between, but not in Chinese and Japanese."""
    text = "\n".join(lines)
    return (text if text.isascii() else EASTERN_BREAK.sub("", text)).replace("\n", " ")


def wikitext(lines: Iterable[str]) -> Blocks:
    """The lines that are paragraphs; None before each article. Headings, also of sections, are left out.

    A heading of an article has one `=` a side, and a blank line before it or behind: between two lines it is
    a formula.
    What WikiText takes apart, as in `well @-@ known` and `1 @,@ 000`, is put together again.
    """
    before = ""
    for line, after in pairwise(chain(lines, [""])):
        level = _level(line)
        if level == 1 and not (before and after):
            yield None
        elif line and level < 2:
            yield SPACED.sub(r"\1", line)
        before = line


def _level(line: str) -> int:
    """How many `=` are on each side of a heading; 0 where it is none."""
    match = HEADING.fullmatch(line) if line[:2] == "= " else None
    opening, closing = (len(match.captures(1)), len(match.captures(3))) if match else (0, 0)
    return opening if opening == closing else 0


# ---- which form


def form_of(sample: Iterable[str]) -> Form:
    """The form that the first lines of a text have.

    A sentence a line only where most lines end as sentences do and hold one, few go on in the next, and
    blank lines leave several together: neither wrapped lines nor the paragraphs of a novel are taken for it.
    """
    lines = [line.strip() for line in islice(sample, JUDGED)]
    if None in wikitext(lines):
        return "wikitext"
    full = [line for line in lines if line]
    blocks = sum(bool(line) and not before for before, line in pairwise(["", *lines]))
    if blocks < 2 or len(full) < 2 * blocks:
        return "prose"
    ended = sum(bool(ENDED.search(line)) for line in full)
    broken = sum(_goes_on(line, after) for line, after in pairwise(lines))
    single = sum(len(list(islice(cut(line), 2))) == 1 for line in full)
    as_google = 2 * ended > len(full) and 20 * broken < len(full) and 10 * single > 8 * len(full)
    return "sentences" if as_google else "prose"


def _goes_on(line: str, after: str) -> bool:
    return bool(line) and after[:1].islower() and not ENDED.search(line)
