"""Characters, scripts, languages and words of texts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex

from bertkit.utils.arrays import compute_offsets, iter_batches
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
    num_matched = num_letters = 0
    for text in texts:
        num_matched += sum(map(len, pattern.findall(text)))
        num_letters += sum(map(len, LETTERS.findall(text)))
    return 2 * num_matched > num_letters


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


# ---- words

# Scripts that write words without spaces, or attach particles to words. An entity may end at any character,
# so each character is a word.
CHARACTER_SCRIPTS = UNSPACED_SCRIPTS + r"\p{Hangul}"
WORD_PATTERN = regex.compile(
    rf"(?V1)(?=[{CHARACTER_SCRIPTS}])\X|[[\p{{L}}\p{{M}}\p{{N}}_]--[{CHARACTER_SCRIPTS}]]+|(?!\s)\X"
)
UNSPACED_CHARACTER = regex.compile(rf"[{CHARACTER_SCRIPTS}]")


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, which contain all characters except white space."""
    return WORD_PATTERN.findall(text)


def join_words(words: Sequence[str]) -> str:
    """Join words to a text, without spaces if the words are the characters of the text.

    The words are characters if one of them is a space (KLUE-NER). They are also characters if each has length
    1 and one of them belongs to a script without spaces.
    """
    joined = " ".join(words)
    are_characters = max(map(len, words), default=0) == 1 and UNSPACED_CHARACTER.search(joined)
    return "".join(words) if are_characters or " " in words else joined


@dataclass(frozen=True)
class WordSpans:
    """`n` sentences with the character span of each word.

    Attributes:
        texts: [n] text of each sentence.
        offsets: [n + 1] index of each sentence's first word.
        start: [words] index of each word's first character in its text.
        stop: [words] index after each word's last character in its text.
    """

    texts: Sequence[str]
    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @classmethod
    def from_words(cls, words: Sequence[Sequence[str]], texts: Sequence[str]) -> "WordSpans":
        """Find the character span of each word.

        Args:
            words: [n] words of each sentence.
            texts: [n] text of each sentence. It must be the join of the words, with or without spaces, or the
                words must be the result of `split_words`.
        """
        counts = np.fromiter(map(len, words), np.int64, len(words))
        offsets = compute_offsets(counts)
        lengths = np.fromiter(map(len, chain.from_iterable(words)), np.int64, offsets[-1])
        gaps = [_measure_gap(sentence, text) for sentence, text in zip(words, texts, strict=True)]
        gap_by_word = np.repeat(np.array([gap or 0 for gap in gaps], np.int64), counts)
        word_offsets = compute_offsets(lengths + gap_by_word)
        start = word_offsets[:-1] - np.repeat(word_offsets[offsets[:-1]], counts)
        for row, gap in enumerate(gaps):
            if gap is None:
                matches = WORD_PATTERN.finditer(texts[row])
                start[offsets[row] : offsets[row + 1]] = [match.start() for match in matches]
        return cls(texts, offsets, start, start + lengths)


def matches_text(words: Sequence[str], text: str) -> bool:
    """Return whether `WordSpans.from_words` can find the words in the text."""
    return _measure_gap(words, text) is not None or split_words(text) == words


def _measure_gap(words: Sequence[str], text: str) -> int | None:
    """Return the number of characters between words, or None if the text is not a join of the words."""
    if len(words) > 1 and text == "".join(words):
        return 0
    return 1 if text == " ".join(words) else None
