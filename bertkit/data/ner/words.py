"""Tokens, the text they make up, and which piece of the tokenizer carries each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import regex

from bertkit.data.offsets import encode_with_offsets
from bertkit.data.unicode import UNSPACED_SCRIPTS
from bertkit.utils.ragged import Ragged

# Words of these scripts stand without blanks between them, or take their particles without one: an
# entity may end at any of their characters, so each is a token.
CHARACTER_SCRIPTS = UNSPACED_SCRIPTS + r"\p{Hangul}"
WORD_PATTERN = regex.compile(
    rf"(?V1)[{CHARACTER_SCRIPTS}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}_]--[{CHARACTER_SCRIPTS}]]+|(?!\s)\X"
)
UNSPACED_CHARACTER = regex.compile(rf"[{CHARACTER_SCRIPTS}]")


def split_words(text: str) -> list[str]:
    """The words, marks and signs of a text; every character that is no white space stands in one."""
    return WORD_PATTERN.findall(text)


def join_words(tokens: Sequence[str]) -> str:
    """The text that tokens make up: side by side where they are its characters, else with blanks between.

    They are its characters where the blank is a token itself (KLUE-NER), or where each is one character
    and some are of a script without blanks.
    """
    spaced = " ".join(tokens)
    characters = max(map(len, tokens), default=0) == 1 and UNSPACED_CHARACTER.search(spaced)
    return "".join(tokens) if characters or " " in tokens else spaced


@dataclass(frozen=True)
class WordSpans:
    """`n` sentences and where their tokens stand in their texts.

    Attributes:
        texts: [n].
        offsets: [n + 1] the first token of each sentence, counted over all tokens.
        start, stop: [tokens] the characters of each token in its text.
    """

    texts: Sequence[str]
    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @classmethod
    def from_words(cls, tokens: Sequence[Sequence[str]], texts: Sequence[str]) -> "WordSpans":
        """Find the tokens in their texts, which are `text_of` them, or what `words_of` took them from."""
        counts = np.fromiter(map(len, tokens), np.int64, len(tokens))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        sizes = np.fromiter(map(len, chain.from_iterable(tokens)), np.int64, offsets[-1])
        gaps = [_gap(some, text) for some, text in zip(tokens, texts, strict=True)]
        steps = np.cumsum(sizes + np.repeat(np.array([gap or 0 for gap in gaps], np.int64), counts))
        before = np.concatenate([[0], steps])
        start = before[:-1] - np.repeat(before[offsets[:-1]], counts)
        for row in (row for row, gap in enumerate(gaps) if gap is None):
            start[offsets[row] : offsets[row + 1]] = [
                match.start() for match in WORD_PATTERN.finditer(texts[row])
            ]
        return cls(texts, offsets, start, start + sizes)


def matches_text(tokens: Sequence[str], text: str) -> bool:
    """Whether the tokens are found in a text as `Sentences` finds them."""
    return _gap(tokens, text) is not None or split_words(text) == tokens


def _gap(tokens: Sequence[str], text: str) -> int | None:
    """How many characters stand between two tokens; None in a text that was not made from them."""
    if len(tokens) > 1 and text == "".join(tokens):
        return 0
    return 1 if text == " ".join(tokens) else None


@dataclass(frozen=True)
class WordTokens:
    """Sentences in pieces, without special ones.

    Attributes:
        ids: the pieces of each sentence.
        carrier: [tokens] the first piece of each token, counted over all pieces; -1 where none is left of
            it: control characters, or what normalization takes away.
    """

    ids: Ragged
    first_token: np.ndarray


def encode_words(sentences: WordSpans, tokenizer: Any, cache: bool = True) -> WordTokens:
    """The pieces of each sentence and of each token; the same sentences are encoded only once.

    The text is encoded as it is, not token by token, so that pieces are those of running text, which
    `transformers.pipeline()` sees too, and the characters of a word need not be pieces of their own.
    """
    located = encode_with_offsets(sentences.texts, tokenizer, cache)
    text = np.repeat(np.arange(len(sentences.texts)), np.diff(sentences.offsets))
    return WordTokens(located.ids, located.find_token_ranges(text, sentences.start, sentences.stop)[0])
