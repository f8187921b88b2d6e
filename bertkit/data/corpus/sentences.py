"""A text cut into sentences, in any language and in time that grows with its length alone."""

from collections.abc import Iterable, Iterator

import regex
from sentencex import segment

from bertkit.data.unicode import is_korean, is_mostly

KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
CHINESE_OR_JAPANESE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]+")
CJK_LETTER = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
PART_CHARACTERS = (
    50_000  # characters cut at a time: brackets and quotes that never close take the square of them
)
MAX_SENTENCE_CHARACTERS = (
    10_000  # characters of a sentence; what has no sentence end for longer is cut at white space
)
SENTENCE_PART = regex.compile(
    rf"(?s)\S(?:.{{0,{MAX_SENTENCE_CHARACTERS - 2}}}\S)?(?!\S)|\S{{{MAX_SENTENCE_CHARACTERS}}}"
)


def detect_language(text: str) -> str:
    """The language whose rules cut the text; the English ones also for languages of other scripts."""
    if text.isascii() or not CJK_LETTER.search(text):
        return "en"
    if is_korean([text]):
        return "ko"
    if is_mostly([text], CHINESE_OR_JAPANESE):
        return "ja" if KANA.search(text) else "zh"
    return "en"


def split_sentences(text: str, language: str | None = None) -> Iterable[str]:
    """The sentences of a text, without white space around, none longer than `LONGEST` characters.

    Args:
        text: one or several paragraphs.
        language: its code; None: as `language_of` the text.
    """
    language = language or detect_language(text)
    if len(text) > MAX_SENTENCE_CHARACTERS:
        return _cut_in_parts(text, language)
    return [sentence for part in segment(language, text) if (sentence := part.strip())]


def _cut_in_parts(text: str, language: str) -> Iterator[str]:
    rest = ""
    for start in range(0, len(text), PART_CHARACTERS):
        *whole, rest = segment(language, rest + text[start : start + PART_CHARACTERS])  # the last may go on
        for sentence in whole:
            yield from split_long_sentence(sentence)
        if len(rest) > MAX_SENTENCE_CHARACTERS:
            at = rest.rfind(" ") + 1 or len(rest)
            yield from split_long_sentence(rest[:at])
            rest = rest[at:]
    yield from split_long_sentence(rest)


def split_long_sentence(sentence: str) -> list[str]:
    """The sentence without white space around, or its parts where it is longer than `LONGEST`."""
    sentence = sentence.strip()
    if len(sentence) > MAX_SENTENCE_CHARACTERS:
        return SENTENCE_PART.findall(sentence)
    return [sentence] if sentence else []
