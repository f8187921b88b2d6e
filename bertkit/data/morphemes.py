"""Morphemes of Korean texts, found by kiwipiepy, as units of masking and of vocabularies."""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import regex

from bertkit.utils.extras import require_extra
from bertkit.utils.text import replace_surrogates

CLUSTER = regex.compile(r"\X")  # a character with its combining marks, such as the Jamo of a syllable
WHITESPACE = regex.compile(r"\s")


def require_analyzer() -> None:
    """Check that the morphological analyzer is installed.

    Raises:
        UserError: It is not installed.
    """
    require_extra("korean", ["kiwipiepy"], "--word-units morphemes")


def get_analyzer_version() -> str:
    """Return the versions of the analyzer and its model; other versions may find other morphemes."""
    return " ".join(f"{name} {version(name)}" for name in ("kiwipiepy", "kiwipiepy_model"))


@cache
def _load_analyzer() -> Any:
    """Load the analyzer, which takes seconds."""
    require_analyzer()
    from kiwipiepy import Kiwi

    # A name of several words would be one morpheme that contains spaces.
    return Kiwi(load_multi_dict=False)


def find_unit_starts(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the positions of the characters at which the units of each text begin, ascending and without 0.

    A unit is a morpheme, or several morphemes that share a character: the verb stem and the past tense of
    "갔다" share the syllable "갔". A unit also begins after each white space.
    """
    composed = [_compose(replace_surrogates(text)) for text in texts]
    analyses = _load_analyzer().tokenize([text for text, _ in composed])
    return [
        _merge_starts(text, positions, _iter_starts(morphemes))
        for text, (_, positions), morphemes in zip(texts, composed, analyses, strict=True)
    ]


def split_units(texts: Sequence[str]) -> list[list[str]]:
    """Return the parts of each text that begin at the starts of `find_unit_starts`, with trailing spaces."""
    return [
        [text[start:stop] for start, stop in zip([0, *starts], [*starts, len(text)], strict=True)]
        for text, starts in zip(texts, (starts.tolist() for starts in find_unit_starts(texts)), strict=True)
    ]


def find_continuations(texts: Sequence[str], spans: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return whether each token continues the unit of the previous token of its text [tokens].

    No token is split: units that share a token are joined.

    Args:
        texts: The texts.
        spans: [tokens, 2] start and stop of each token in its text, in characters.
        lengths: [n] number of tokens of each text.
    """
    is_continuation = np.zeros(len(spans), bool)
    stops = np.cumsum(lengths)
    for text, starts, first, stop in zip(texts, find_unit_starts(texts), stops - lengths, stops, strict=True):
        is_continuation[first + 1 : stop] = _continues_unit(text, starts, spans[first:stop])
    return is_continuation


def _continues_unit(text: str, starts: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return whether each token after the first continues the unit of the previous token."""
    spaces = [match.start() for match in WHITESPACE.finditer(text)]
    # The tokens of SentencePiece include the space before a word.
    first_characters = spans[1:, 0] + np.isin(spans[1:, 0], spaces)
    last_characters = np.maximum(spans[:-1, 0], spans[:-1, 1] - 1)
    return np.searchsorted(starts, first_characters, "right") <= np.searchsorted(
        starts, last_characters, "right"
    )


def _compose(text: str) -> tuple[str, np.ndarray | None]:
    """Return a text in NFC, which the analyzer expects, and the position of each of its characters in `text`.

    The positions are None if the text does not change.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, None
    parts, positions = [], []
    for match in CLUSTER.finditer(text):
        part = unicodedata.normalize("NFC", match[0])
        parts.append(part)
        is_unchanged = len(part) == len(match[0])
        positions += [match.start() + index * is_unchanged for index in range(len(part))]
    return "".join(parts), np.array(positions)


def _iter_starts(morphemes: Sequence[Any]) -> Iterator[int]:
    """Yield the start of each morpheme that does not share a character with a previous one."""
    stop = 0
    for morpheme in morphemes:
        if morpheme.len and morpheme.start >= stop:
            yield morpheme.start
        stop = max(stop, morpheme.end)


def _merge_starts(text: str, positions: np.ndarray | None, morpheme_starts: Iterator[int]) -> np.ndarray:
    """Return the starts of the morphemes and of the words of a text, without 0."""
    starts = np.fromiter(morpheme_starts, np.int64)
    if positions is not None and len(starts):
        starts = positions[starts]
    after_spaces = np.array([match.end() for match in WHITESPACE.finditer(text)], np.int64)
    merged = np.union1d(starts, after_spaces)
    return merged[merged > 0]
