"""Split texts into words, join words to texts, and find the characters of each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import regex

from bertkit.data.unicode import UNSPACED_SCRIPTS
from bertkit.utils.arrays import compute_offsets

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
