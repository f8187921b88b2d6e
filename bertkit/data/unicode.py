"""Unicode scripts: character classes for regular expressions, character counts, language detection."""

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import regex

from bertkit.utils.arrays import iter_batches
from bertkit.utils.text import replace_surrogates

# Contents of a bracket expression in a regular expression.
CHINESE_JAPANESE = r"\p{Han}\p{Hiragana}\p{Katakana}"
# Scripts without spaces between words.
UNSPACED_SCRIPTS = rf"{CHINESE_JAPANESE}\p{{Thai}}\p{{Lao}}\p{{Khmer}}\p{{Myanmar}}"

SCRIPTS = [
    "Latin", "Hangul", "Han", "Hiragana", "Katakana", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Gurmukhi", "Gujarati", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao",
    "Khmer", "Myanmar", "Tibetan", "Georgian", "Armenian", "Ethiopic", "Mongolian",
]  # fmt: skip
OTHER_SCRIPT = "other"
SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
LETTER = regex.compile(r"\p{L}")
LETTERS = regex.compile(r"\p{L}+")
HANGUL_LETTERS = regex.compile(r"\p{Hangul}+")
KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
CHINESE_JAPANESE_LETTERS = regex.compile(rf"[{CHINESE_JAPANESE}]+")
CJK_LETTER = regex.compile(rf"[{CHINESE_JAPANESE}\p{{Hangul}}]")

CODE_POINTS = 0x110000
BATCH_CHARACTERS = 1_000_000  # minimum number of characters in a batch of texts


# ---- counts


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Return batches of about `BATCH_CHARACTERS`, in which lone surrogates are replaced."""
    return iter_batches(map(replace_surrogates, texts), BATCH_CHARACTERS)


def count_characters(texts: Iterable[str]) -> dict[str, int]:
    """Return how often each character occurs in the texts."""
    counts = np.zeros(CODE_POINTS, np.int64)
    for batch in batch_texts(texts):
        codes = np.frombuffer("".join(batch).encode("utf-32-le"), np.uint32)
        counts += np.bincount(codes, minlength=CODE_POINTS)
    return {chr(code): int(counts[code]) for code in np.flatnonzero(counts)}


def measure_scripts(texts: Iterable[str]) -> dict[str, float]:
    """Return the fraction of the letters that are in each script; the most frequent script comes first."""
    counts: Counter[str] = Counter()
    for character, count in count_characters(texts).items():
        if LETTER.match(character):
            match = SCRIPT.match(character)
            counts[match.lastgroup if match and match.lastgroup else OTHER_SCRIPT] += count
    return {name: count / counts.total() for name, count in counts.most_common()}


# ---- languages


def is_korean(texts: Iterable[str]) -> bool:
    """Return whether more than half of the letters of the texts are Hangul."""
    return is_mostly(texts, HANGUL_LETTERS)


def is_mostly(texts: Iterable[str], pattern: regex.Pattern[str]) -> bool:
    """Return whether more than half of the letters of the texts match a pattern."""
    counts = [(_count_matched(pattern, text), _count_matched(LETTERS, text)) for text in texts]
    return 2 * sum(matched for matched, _ in counts) > sum(letters for _, letters in counts)


def _count_matched(pattern: regex.Pattern[str], text: str) -> int:
    return sum(map(len, pattern.findall(text)))


def detect_language(text: str) -> str:
    """Return the code of the language whose rules are used to split the text into sentences.

    The code is "zh", "ja", "ko", or "en" for all other languages.
    """
    if text.isascii() or not CJK_LETTER.search(text):
        return "en"
    if is_korean([text]):
        return "ko"
    if is_mostly([text], CHINESE_JAPANESE_LETTERS):
        return "ja" if KANA.search(text) else "zh"
    return "en"
