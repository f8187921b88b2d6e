"""Tokens, the text they make up, and which piece of the tokenizer carries each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import regex

from bertkit.cache import cached
from bertkit.data.ragged import Ragged
from bertkit.data.sequences import CHUNK, valid

# Words of these scripts stand without blanks between them, or take their particles without one: an
# entity may end at any of their characters, so each is a token.
UNSPACED = r"\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
WORD = regex.compile(rf"(?V1)[{UNSPACED}]\p{{M}}*|[[\p{{L}}\p{{M}}\p{{N}}_]--[{UNSPACED}]]+|(?!\s)\X")
CHARACTER = regex.compile(rf"[{UNSPACED}]")


def words_of(text: str) -> list[str]:
    """The words, marks and signs of a text; every character that is no white space stands in one."""
    return WORD.findall(text)


def text_of(tokens: Sequence[str]) -> str:
    """The text that tokens make up: side by side where they are its characters, else with blanks between.

    They are its characters where the blank is a token itself (KLUE-NER), or where each is one character
    and some are of a script without blanks.
    """
    spaced = " ".join(tokens)
    characters = max(map(len, tokens), default=0) == 1 and CHARACTER.search(spaced)
    return "".join(tokens) if characters or " " in tokens else spaced


@dataclass(frozen=True)
class Sentences:
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
    def of(cls, tokens: Sequence[Sequence[str]], texts: Sequence[str]) -> "Sentences":
        """Find the tokens in their texts, which are `text_of` them, or what `words_of` took them from."""
        counts = np.fromiter(map(len, tokens), np.int64, len(tokens))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        sizes = np.fromiter(map(len, chain.from_iterable(tokens)), np.int64, offsets[-1])
        gaps = [_gap(some, text) for some, text in zip(tokens, texts, strict=True)]
        steps = np.cumsum(sizes + np.repeat(np.array([gap or 0 for gap in gaps], np.int64), counts))
        before = np.concatenate([[0], steps])
        start = before[:-1] - np.repeat(before[offsets[:-1]], counts)
        for row in (row for row, gap in enumerate(gaps) if gap is None):
            start[offsets[row] : offsets[row + 1]] = [match.start() for match in WORD.finditer(texts[row])]
        return cls(texts, offsets, start, start + sizes)


def _gap(tokens: Sequence[str], text: str) -> int | None:
    """How many characters stand between two tokens; None in a text that was not made from them."""
    if len(tokens) > 1 and text == "".join(tokens):
        return 0
    return 1 if text == " ".join(tokens) else None


@dataclass(frozen=True)
class Pieces:
    """Sentences in pieces, without special ones.

    Attributes:
        ids: the pieces of each sentence.
        carrier: [tokens] the first piece of each token, counted over all pieces; -1 where none is left of
            it: control characters, or what normalization takes away.
    """

    ids: Ragged
    carrier: np.ndarray


def encode_words(sentences: Sentences, tokenizer: Any, cache: bool = True) -> Pieces:
    """The pieces of each sentence and of each token; the same sentences are encoded only once.

    The text is encoded as it is, not token by token, so that pieces are those of running text, which
    `transformers.pipeline()` sees too, and the characters of a word need not be pieces of their own.
    """
    if not cache:
        return _encode(sentences, tokenizer)
    digest = blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
    digest.update("\0".join(sentences.texts).encode("utf-8", "surrogatepass"))
    for array in (sentences.offsets, sentences.start, sentences.stop):
        digest.update(array.tobytes())
    made: list[Pieces] = []

    def write(folder: Any) -> None:
        made.append(_encode(sentences, tokenizer))
        made[0].ids.save(folder)
        np.save(folder / "carrier.npy", made[0].carrier)

    folder = cached("words", digest.hexdigest(), write)
    if made:
        return made[0]
    if folder is None:
        return _encode(sentences, tokenizer)
    return Pieces(Ragged.load(folder), np.load(folder / "carrier.npy", mmap_mode="r"))


def _encode(sentences: Sentences, tokenizer: Any) -> Pieces:
    ids: list[list[int]] = []
    places: list[np.ndarray] = []
    for first in range(0, len(sentences.texts), CHUNK):
        chunk = [valid(text) for text in sentences.texts[first : first + CHUNK]]
        encodings = tokenizer.backend_tokenizer.encode_batch(chunk, add_special_tokens=False)
        ids.extend(encoding.ids for encoding in encodings)
        flat = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        places.append(np.fromiter(flat, np.int64).reshape(-1, 2))
    pieces = Ragged.of(ids)
    return Pieces(pieces, _carriers(sentences, pieces, np.concatenate([np.zeros((0, 2), np.int64), *places])))


def _carriers(sentences: Sentences, pieces: Ragged, places: np.ndarray) -> np.ndarray:
    """[tokens] the first piece that shares a character with each token, -1 where there is none.

    All texts are laid out one behind the other, so that one search answers for all tokens.
    """
    sizes = np.fromiter(map(len, sentences.texts), np.int64, len(sentences.texts))
    base = np.concatenate([[0], np.cumsum(sizes + 1)])[:-1]
    shift = np.repeat(base, np.diff(sentences.offsets))
    start, stop = sentences.start + shift, sentences.stop + shift
    begin, end = (places + np.repeat(base, pieces.lengths)[:, None]).T
    end = np.maximum.accumulate(end)
    piece = np.searchsorted(end, start, side="right")
    begin = np.append(begin, np.iinfo(np.int64).max)  # behind the last piece there is none
    return np.where((begin[piece] < stop) & (stop > start), piece, -1)
