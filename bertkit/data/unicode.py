"""In which scripts texts are written, by the letters they hold."""

from collections import Counter
from collections.abc import Iterable

import regex

from bertkit.data.alphabet import count_characters

SCRIPTS = [
    "Latin", "Hangul", "Han", "Hiragana", "Katakana", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Gurmukhi", "Gujarati", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao",
    "Khmer", "Myanmar", "Tibetan", "Georgian", "Armenian", "Ethiopic", "Mongolian",
]  # fmt: skip
OTHER = "other"
SCRIPT = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
LETTER = regex.compile(r"\p{L}")


def measure_scripts(texts: Iterable[str]) -> dict[str, float]:
    """Script -> its share of the letters, the largest first; each different letter is looked at once."""
    counts: Counter[str] = Counter()
    for character, count in count_characters(texts).items():
        if LETTER.match(character):
            found = SCRIPT.match(character)
            counts[found.lastgroup if found and found.lastgroup else OTHER] += count
    return {name: count / counts.total() for name, count in counts.most_common()}


LETTERS = regex.compile(r"\p{L}+")
HANGUL = regex.compile(r"\p{Hangul}+")


def is_korean(texts: Iterable[str]) -> bool:
    """Return whether most letters of the texts are Hangul."""
    return is_mostly(texts, HANGUL)


def is_mostly(texts: Iterable[str], letters: regex.Pattern[str]) -> bool:
    """Return whether more than half of the letters match `letters`, a pattern of runs of letters."""
    counts = [(_count_matched(letters, text), _count_matched(LETTERS, text)) for text in texts]
    return 2 * sum(matched for matched, _ in counts) > sum(total for _, total in counts)


def _count_matched(pattern: regex.Pattern[str], text: str) -> int:
    return sum(map(len, pattern.findall(text)))
