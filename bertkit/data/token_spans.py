"""Correct the character spans that tokenizers report for their tokens.

White space belongs to no token, though many tokenizers count the space before a word as part of it. All other
characters that the model reads belong to a token. Three kinds of tokenizers report spans that leave some out:
a composed letter (NFC, NFKC) has the span of its first character; with `Whitespace` before `ByteLevel`, the
span of each word begins one character late; and characters that the vocabulary lacks may have no token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex

# Unicode has no white space above U+3000, the ideographic space.
WHITE_SPACE_CODES = [code for code in range(0x3000 + 1) if chr(code).isspace()]
# Normalization may remove control characters, marks, and the replacement character U+FFFD, which therefore
# belong to a token only as parts of a grapheme.
VISIBLE = regex.compile(r"(?V1)[[\p{L}\p{N}\p{S}]--\uFFFD]")
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]")
# A character that continues the grapheme of the character before it, or is continued by any character.
_CONTINUES = "".join(
    rf"\p{{Grapheme_Cluster_Break={name}}}"
    for name in ("Extend", "ZWJ", "SpacingMark", "V", "T", "Regional_Indicator")
)
_IS_CONTINUED = r"\p{Grapheme_Cluster_Break=Prepend}\p{Grapheme_Cluster_Break=L}"
LONG_GRAPHEME = regex.compile(rf"(?s)(?=.[{_CONTINUES}]|[{_IS_CONTINUED}].)\X")


@dataclass(frozen=True)
class _Characters:
    """The characters of some texts, with one separator after each text.

    Attributes:
        joined: The texts and separators.
        codes: [characters] code points.
        is_space: [characters] bool, whether a character is white space or a separator.
        text_start: [texts] position of each text.
    """

    joined: str
    codes: np.ndarray
    is_space: np.ndarray
    text_start: np.ndarray

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> "_Characters":
        joined = "\0".join([*texts, ""])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        is_space = np.isin(codes, WHITE_SPACE_CODES)
        is_space[ends - 1] = True
        return cls(joined, codes, is_space, np.append(0, ends)[:-1])

    def match(self, pattern: regex.Pattern[str]) -> np.ndarray:
        """Return whether each character matches a pattern [characters]."""
        is_match = np.zeros(int(self.codes.max(initial=0)) + 1, bool)
        distinct = np.flatnonzero(np.bincount(self.codes))
        is_match[distinct] = [bool(pattern.match(chr(code))) for code in distinct]
        return is_match[self.codes]

    def find_grapheme_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and the end of the grapheme around each position [characters + 1].

        Both are the position itself where a grapheme begins.
        """
        start = np.arange(len(self.codes) + 1)
        stop = start.copy()
        for match in LONG_GRAPHEME.finditer(self.joined):
            first, end = match.span()
            start[first + 1 : end] = first
            stop[first + 1 : end] = end
        return start, stop

    def strip(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return spans without white space at their ends; a span of white space becomes empty."""
        start = np.minimum(_find_next(~self.is_space)[start], stop)
        return start, np.maximum(_find_previous_end(~self.is_space)[stop], start)


def _find_next(mask: np.ndarray) -> np.ndarray:
    """Return the first position of True at or after each position [characters + 1]."""
    positions = np.append(np.where(mask, np.arange(len(mask)), len(mask)), len(mask))
    return np.minimum.accumulate(positions[::-1])[::-1]


def _find_previous_end(mask: np.ndarray) -> np.ndarray:
    """Return the end of the last True before each position [characters + 1]; 0 if there is none."""
    return np.maximum.accumulate(np.append(0, np.where(mask, np.arange(1, len(mask) + 1), 0)))


def correct_spans(spans: np.ndarray, num_tokens: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return spans without white space, in which each character that the model reads has a token.

    A character without a token belongs to the token before it, if it continues its grapheme or its word, and
    otherwise to the token that directly follows.

    Args:
        spans: [tokens, 2] start and stop of each token in its text, as the tokenizer reports them.
        num_tokens: [texts] number of tokens of each text.
        texts: The texts.
    """
    characters = _Characters.from_texts(texts)
    shift = np.repeat(characters.text_start, num_tokens)
    start, stop = characters.strip(spans[:, 0] + shift, spans[:, 1] + shift)
    is_taken = characters.is_space | _mark_covered(start, stop, len(characters.codes))
    if not is_taken.all():
        grapheme_start, grapheme_stop = characters.find_grapheme_bounds()
        stop = _extend_stops(start, stop, is_taken, grapheme_stop, characters)
        is_taken |= _mark_covered(start, stop, len(is_taken))
        start = _extend_starts(start, stop, is_taken, grapheme_start, characters)
    # An empty token must not end after the start of a later one, because spans are searched by their bounds.
    next_start = np.minimum.accumulate(start[::-1])[::-1]
    is_empty = start == stop
    start, stop = (np.where(is_empty, next_start, bound) for bound in (start, stop))
    return np.stack([start - shift, stop - shift], 1).astype(spans.dtype)


def _mark_covered(start: np.ndarray, stop: np.ndarray, size: int) -> np.ndarray:
    """Return whether each character is in a span [size]."""
    changes = np.bincount(start, minlength=size + 1) - np.bincount(stop, minlength=size + 1)
    return np.cumsum(changes)[:-1] > 0


def _extend_stops(
    start: np.ndarray, stop: np.ndarray, is_taken: np.ndarray, grapheme_stop: np.ndarray,
    characters: _Characters,
) -> np.ndarray:  # fmt: skip
    """Extend tokens by the rest of their last grapheme and of their word, up to the next token."""
    tokens = np.flatnonzero((stop > start) & ~is_taken[stop])
    limit = _find_next(is_taken)[stop[tokens]]
    end = np.minimum(grapheme_stop[stop[tokens]], limit)
    is_word = characters.match(WORD)
    continues = is_word[end - 1] & is_word[end]
    end[continues] = np.minimum(_find_next(~is_word)[end], limit)[continues]
    extended = stop.copy()
    extended[tokens] = end
    return extended


def _extend_starts(
    start: np.ndarray, stop: np.ndarray, is_taken: np.ndarray, grapheme_start: np.ndarray,
    characters: _Characters,
) -> np.ndarray:  # fmt: skip
    """Extend tokens by the visible characters before them, back to the token before.

    An empty token takes all characters, because it was certainly made from some of them.
    """
    tokens = np.flatnonzero((start > 0) & ~is_taken[start - 1])
    previous_stop = np.append(0, np.maximum.accumulate(stop))[tokens]
    earliest = np.maximum(_find_previous_end(is_taken)[start[tokens]], previous_stop)
    first_visible = _find_next(characters.match(VISIBLE))[earliest]
    begin = np.maximum(np.minimum(first_visible, grapheme_start[start[tokens]]), earliest)
    begin = np.where(start[tokens] == stop[tokens], earliest, begin)
    extended = start.copy()
    extended[tokens] = np.minimum(begin, start[tokens])
    return extended


def widen_to_graphemes(
    start: np.ndarray, stop: np.ndarray, num_tokens: np.ndarray, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return spans that begin and end at the bounds of graphemes, without white space.

    Args:
        start: [tokens] start of each token in its text.
        stop: [tokens] stop of each token in its text.
        num_tokens: [texts] number of tokens of each text.
        texts: The texts.
    """
    if all(map(str.isascii, texts)):
        return start, stop
    characters = _Characters.from_texts(texts)
    shift = np.repeat(characters.text_start, num_tokens)
    shifted_start, shifted_stop = start + shift, stop + shift
    grapheme_start, grapheme_stop = characters.find_grapheme_bounds()
    has_characters = stop > start
    new_start, new_stop = characters.strip(grapheme_start[shifted_start], grapheme_stop[shifted_stop])
    return np.where(has_characters, new_start - shift, start), np.where(
        has_characters, new_stop - shift, stop
    )
