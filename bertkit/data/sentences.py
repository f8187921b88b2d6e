"""A text cut into sentences, in any language and in time that grows with its length alone."""

from collections.abc import Iterable, Iterator

import regex
from sentencex import segment

from bertkit.metrics.squad import is_korean, mostly

KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
CHINESE_OR_JAPANESE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]+")
EASTERN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
PART = 50_000  # characters cut at a time: brackets and quotes that never close take the square of them
LONGEST = 10_000  # characters of a sentence; what has no sentence end for longer is cut at white space
LONG = regex.compile(rf"(?s)\S(?:.{{0,{LONGEST - 2}}}\S)?(?!\S)|\S{{{LONGEST}}}")


def language_of(text: str) -> str:
    """The language whose rules cut the text; the English ones also for languages of other scripts."""
    if text.isascii() or not EASTERN.search(text):
        return "en"
    if is_korean([text]):
        return "ko"
    if mostly([text], CHINESE_OR_JAPANESE):
        return "ja" if KANA.search(text) else "zh"
    return "en"


def cut(text: str, language: str | None = None) -> Iterable[str]:
    """The sentences of a text, without white space around, none longer than `LONGEST` characters.

    Args:
        text: one or several paragraphs.
        language: its code; None: as `language_of` the text.
    """
    language = language or language_of(text)
    if len(text) > LONGEST:
        return _cut_in_parts(text, language)
    return [sentence for part in segment(language, text) if (sentence := part.strip())]


def _cut_in_parts(text: str, language: str) -> Iterator[str]:
    rest = ""
    for start in range(0, len(text), PART):
        *whole, rest = segment(language, rest + text[start : start + PART])  # the last may go on
        for sentence in whole:
            yield from bounded(sentence)
        if len(rest) > LONGEST:
            at = rest.rfind(" ") + 1 or len(rest)
            yield from bounded(rest[:at])
            rest = rest[at:]
    yield from bounded(rest)


def bounded(sentence: str) -> list[str]:
    """The sentence without white space around, or its parts where it is longer than `LONGEST`."""
    sentence = sentence.strip()
    if len(sentence) > LONGEST:
        return LONG.findall(sentence)
    return [sentence] if sentence else []
