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
