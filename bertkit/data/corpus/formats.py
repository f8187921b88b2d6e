"""Running text in its forms: a sentence a line, paragraphs, or WikiText; and which of them a text has.

Each form turns lines into sentences, with None where a document ends.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Literal

import regex

from bertkit.data.corpus.sentences import split_long_sentence, split_sentences

TextFormat = Literal["sentences", "prose", "wikitext"]
SentenceStream = Iterator[str | None]
MAX_WRAPPED_LINE = (
    200  # characters: a longer line was not broken to fit a width, so it is a paragraph by itself
)
MAX_PARAGRAPH_LINES = 5_000  # lines of a paragraph that is cut although it goes on
HEADING = regex.compile(r"(= )+([^=\s]|[^=\s].*[^=\s])( =)+")
WIKITEXT_PUNCTUATION = regex.compile(r" @([-,.])@ ")
CHINESE_JAPANESE = r"\p{Han}\p{Hiragana}\p{Katakana}"
CHINESE_JAPANESE_LINE_BREAK = regex.compile(
    rf"(?<=[{CHINESE_JAPANESE}、。，！？：；」』）])\n(?=[{CHINESE_JAPANESE}「『（])"
)
SENTENCE_END = regex.compile(r"[\p{STerm}…:][\p{Pe}\p{Pf}\p{Pi}\"'’”\s]*$")
DETECTION_LINES = 5_000  # lines


def iter_sentences(
    lines: Iterable[str], text_format: TextFormat, separator: str | None = None, language: str | None = None
) -> SentenceStream:
    """The sentences of a text in this form; None ends a document.

    Args:
        lines: of the text, without their ends.
        form: "sentences", "prose" or "wikitext".
        separator: the line between documents; None: a blank line in "sentences", none in "prose".
        language: as in `cut`.
    """
    stripped = (line.strip() for line in lines)
    if text_format == "sentences":
        for line in stripped:
            yield from [None] if line == (separator or "") else split_long_sentence(line)
        return
    for block in (
        iter_wikitext(stripped) if text_format == "wikitext" else iter_paragraphs(stripped, separator)
    ):
        yield from [None] if block is None else split_sentences(block, language)


def iter_paragraphs(lines: Iterable[str], separator: str | None = None) -> SentenceStream:
    """Paragraphs, between blank lines, each in one line; None where the separator stands."""
    held: list[str] = []
    for line in chain(lines, [""]):
        alone = len(line) > MAX_WRAPPED_LINE
        if held and (alone or line in ("", separator) or len(held) == MAX_PARAGRAPH_LINES):
            yield join_lines(held)
            held = []
        if separator and line == separator:
            yield None
        elif alone:
            yield line
        elif line:
            held.append(line)


def join_lines(lines: list[str]) -> str:
    """The lines of a paragraph as one, with blanks between, but not in Chinese and Japanese."""
    text = "\n".join(lines)
    return (text if text.isascii() else CHINESE_JAPANESE_LINE_BREAK.sub("", text)).replace("\n", " ")


def iter_wikitext(lines: Iterable[str]) -> SentenceStream:
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
            yield WIKITEXT_PUNCTUATION.sub(r"\1", line)
        before = line


def _level(line: str) -> int:
    """How many `=` are on each side of a heading; 0 where it is none."""
    match = HEADING.fullmatch(line) if line[:2] == "= " else None
    opening, closing = (len(match.captures(1)), len(match.captures(3))) if match else (0, 0)
    return opening if opening == closing else 0


# ---- which form


def detect_format(sample: Iterable[str]) -> TextFormat:
    """The form that the first lines of a text have.

    A sentence a line only where most lines end as sentences do and hold one, few go on in the next, and
    blank lines leave several together: neither wrapped lines nor the paragraphs of a novel are taken for it.
    """
    lines = [line.strip() for line in islice(sample, DETECTION_LINES)]
    if None in iter_wikitext(lines):
        return "wikitext"
    full = [line for line in lines if line]
    blocks = sum(bool(line) and not before for before, line in pairwise(["", *lines]))
    if blocks < 2 or len(full) < 2 * blocks:
        return "prose"
    ended = sum(bool(SENTENCE_END.search(line)) for line in full)
    broken = sum(_goes_on(line, after) for line, after in pairwise(lines))
    single = sum(len(list(islice(split_sentences(line), 2))) == 1 for line in full)
    as_google = 2 * ended > len(full) and 20 * broken < len(full) and 10 * single > 8 * len(full)
    return "sentences" if as_google else "prose"


def _goes_on(line: str, after: str) -> bool:
    return bool(line) and after[:1].islower() and not SENTENCE_END.search(line)
