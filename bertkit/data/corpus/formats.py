"""Split running text into sentences: one sentence per line, prose, or WikiText.

The lines of a text become a stream of sentences in which None separates documents.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise
from typing import Literal

import regex
from sentencex import segment

from bertkit.data.unicode import CHINESE_JAPANESE, detect_language

TextFormat = Literal["sentences", "prose", "wikitext"]
SentenceStream = Iterator[str | None]
MAX_WRAPPED_LINE = 200  # characters; a longer line was not wrapped, so it is a whole paragraph
MAX_PARAGRAPH_LINES = 5_000  # a longer paragraph is split, to bound memory
DETECTION_LINES = 5_000  # lines from which the format is detected
HEADING = regex.compile(r"(= )+([^=\s]|[^=\s].*[^=\s])( =)+")
WIKITEXT_PUNCTUATION = regex.compile(r" @([-,.])@ ")
CHINESE_JAPANESE_LINE_BREAK = regex.compile(
    rf"(?<=[{CHINESE_JAPANESE}、。，！？：；」』）])\n(?=[{CHINESE_JAPANESE}「『（])"
)
SENTENCE_END = regex.compile(r"[\p{STerm}…:][\p{Pe}\p{Pf}\p{Pi}\"'’”\s]*$")

# The segmenter takes time quadratic in the length of an unclosed quotation. Its input is therefore bounded.
MAX_SEGMENTED_CHARACTERS = 50_000
MAX_SENTENCE_CHARACTERS = 10_000  # a longer sentence is split at white space
SENTENCE_PART = regex.compile(
    rf"(?s)\S(?:.{{0,{MAX_SENTENCE_CHARACTERS - 2}}}\S)?(?!\S)|\S{{{MAX_SENTENCE_CHARACTERS}}}"
)


# ---- formats


def iter_sentences(
    lines: Iterable[str], text_format: TextFormat, separator: str | None = None
) -> SentenceStream:
    """Yield the sentences of a text, and None between documents.

    Args:
        lines: The lines of the text, without line ends.
        text_format: Format of the text.
        separator: Line between two documents. By default it is a blank line in the format "sentences"; prose
            has no separator. WikiText does not use it.
    """
    stripped = (line.strip() for line in lines)
    if text_format == "sentences":
        for line in stripped:
            yield from [None] if line == (separator or "") else split_long_sentence(line)
        return
    is_wikitext = text_format == "wikitext"
    paragraphs = iter_wikitext(stripped) if is_wikitext else iter_paragraphs(stripped, separator)
    for paragraph in paragraphs:
        yield from [None] if paragraph is None else split_sentences(paragraph)


def iter_paragraphs(lines: Iterable[str], separator: str | None = None) -> SentenceStream:
    """Yield the paragraphs, each as one line, and None for each separator; blank lines end paragraphs."""
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        is_unwrapped = len(line) > MAX_WRAPPED_LINE
        is_full = len(paragraph) == MAX_PARAGRAPH_LINES
        if paragraph and (is_unwrapped or is_full or line in ("", separator)):
            yield join_lines(paragraph)
            paragraph = []
        if separator and line == separator:
            yield None
        elif is_unwrapped:
            yield line
        elif line:
            paragraph.append(line)


def join_lines(lines: list[str]) -> str:
    """Join the lines of a paragraph with spaces, except between Chinese or Japanese characters."""
    text = "\n".join(lines)
    return (text if text.isascii() else CHINESE_JAPANESE_LINE_BREAK.sub("", text)).replace("\n", " ")


def iter_wikitext(lines: Iterable[str]) -> SentenceStream:
    """Yield the lines that are paragraphs, and None before each article; headings are left out.

    The heading of an article has one `=` on each side and a blank line before or after it. The same line
    between two lines of text is a formula. Punctuation with spaces (`well @-@ known`, `1 @,@ 000`) is joined
    to the words around it.
    """
    previous = ""
    for line, following in pairwise(chain(lines, [""])):
        level = _heading_level(line)
        if level == 1 and not (previous and following):
            yield None
        elif line and level < 2:
            yield WIKITEXT_PUNCTUATION.sub(r"\1", line)
        previous = line


def _heading_level(line: str) -> int:
    """Return the number of `=` on each side of a heading, or 0 for any other line."""
    match = HEADING.fullmatch(line) if line[:2] == "= " else None
    if match is None:
        return 0
    opening, closing = len(match.captures(1)), len(match.captures(3))
    return opening if opening == closing else 0


# ---- detection


def detect_format(sample: Iterable[str]) -> TextFormat:
    """Return the format of a text, given its first lines.

    The format is "sentences" only if most lines end like a sentence, most hold a single sentence, and hardly
    any continue on the next line. In addition, the groups of lines between blank lines must have two lines on
    average. These conditions exclude wrapped lines and the paragraphs of a novel.
    """
    lines = [line.strip() for line in islice(sample, DETECTION_LINES)]
    if None in iter_wikitext(lines):
        return "wikitext"
    text_lines = [line for line in lines if line]
    num_blocks = sum(bool(line) and not previous for previous, line in pairwise(["", *lines]))
    if num_blocks < 2 or len(text_lines) < 2 * num_blocks:
        return "prose"
    num_ended = sum(bool(SENTENCE_END.search(line)) for line in text_lines)
    num_continued = sum(_continues(line, following) for line, following in pairwise(lines))
    num_single = sum(len(list(islice(split_sentences(line), 2))) == 1 for line in text_lines)
    total = len(text_lines)
    is_sentences = 2 * num_ended > total and 20 * num_continued < total and 10 * num_single > 8 * total
    return "sentences" if is_sentences else "prose"


def _continues(line: str, following: str) -> bool:
    """Return whether the sentence of a line seems to continue on the following line."""
    return bool(line) and following[:1].islower() and not SENTENCE_END.search(line)


# ---- sentences


def split_sentences(text: str) -> Iterable[str]:
    """Split a text of one or several paragraphs into sentences, in time linear in its length.

    Sentences have no white space around them and at most `MAX_SENTENCE_CHARACTERS` characters.
    """
    language = detect_language(text)
    if len(text) > MAX_SENTENCE_CHARACTERS:
        return _split_long_text(text, language)
    stripped = (sentence.strip() for sentence in segment(language, text))
    return [sentence for sentence in stripped if sentence]


def _split_long_text(text: str, language: str) -> Iterator[str]:
    rest = ""
    for start in range(0, len(text), MAX_SEGMENTED_CHARACTERS):
        # The last sentence may continue in the next part.
        *sentences, rest = segment(language, rest + text[start : start + MAX_SEGMENTED_CHARACTERS])
        for sentence in sentences:
            yield from split_long_sentence(sentence)
        if len(rest) > MAX_SENTENCE_CHARACTERS:
            end = rest.rfind(" ") + 1 or len(rest)
            yield from split_long_sentence(rest[:end])
            rest = rest[end:]
    yield from split_long_sentence(rest)


def split_long_sentence(sentence: str) -> list[str]:
    """Return a list of the stripped sentence, or of its parts if it exceeds `MAX_SENTENCE_CHARACTERS`."""
    sentence = sentence.strip()
    if len(sentence) > MAX_SENTENCE_CHARACTERS:
        return SENTENCE_PART.findall(sentence)
    return [sentence] if sentence else []
