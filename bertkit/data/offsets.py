"""Texts in pieces, and the characters that each piece stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from bertkit.data.tokenization import ENCODE_BATCH_TEXTS, replace_surrogates
from bertkit.utils.cache import get_or_create
from bertkit.utils.ragged import Ragged


@dataclass(frozen=True)
class TokenizedTexts:
    """`n` texts in pieces, without special ones.

    Attributes:
        ids: the pieces of each text.
        start, stop: [pieces] the characters of each piece, in its own text.
        base: [n] where each text begins when all are laid out on one line, a place between two.
    """

    ids: Ragged
    start: np.ndarray
    stop: np.ndarray
    text_offsets: np.ndarray

    def find_token_ranges(
        self, text: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last piece, counted over all, that share a character with each stretch.

        All texts are laid out one behind the other, so that one search answers for all stretches. Pieces
        of one character, and such as normalization moved, need not stand in order: bounds are made so.

        Args:
            text, start, stop: [m] the text of each stretch, and its characters in it.

        Returns:
            [m] and [m]; -1 where no piece is left of a stretch: control characters, say.
        """
        shift = np.repeat(self.text_offsets, self.ids.lengths)
        begin, end = self.start + shift, np.maximum.accumulate(self.stop + shift)
        low = np.minimum.accumulate(begin[::-1])[::-1]
        start, stop = start + self.text_offsets[text], stop + self.text_offsets[text]
        first = np.searchsorted(end, start, side="right")
        last = np.searchsorted(low, stop, side="left") - 1
        begin = np.append(begin, np.iinfo(np.int64).max)  # behind the last piece there is none
        there = (begin[first] < stop) & (stop > start)
        return np.where(there, first, -1), np.where(there, last, -1)


def encode_with_offsets(texts: Sequence[str], tokenizer: Any, cache: bool = True) -> TokenizedTexts:
    """The pieces of each text with their characters; the same texts are encoded only once."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    base = np.concatenate([[0], np.cumsum(sizes + 1)])[:-1]
    made: list[tuple[Ragged, np.ndarray]] = []

    def write(folder: Any) -> None:
        made.append(_encode(texts, tokenizer))
        made[0][0].save(folder)
        np.save(folder / "places.npy", made[0][1])

    folder = get_or_create("places", _key(texts, tokenizer), write) if cache else None
    if made:
        ids, places = made[0]
    elif folder is not None:
        ids, places = Ragged.load(folder), np.load(folder / "places.npy", mmap_mode="r")
    else:
        ids, places = _encode(texts, tokenizer)
    return TokenizedTexts(ids, places[0], places[1], base)


def _key(texts: Sequence[str], tokenizer: Any) -> str:
    digest = blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _encode(texts: Sequence[str], tokenizer: Any) -> tuple[Ragged, np.ndarray]:
    """The pieces of each text, and [2, pieces] where each begins and ends."""
    ids: list[list[int]] = []
    places = [np.zeros((0, 2), np.int32)]
    for first in range(0, len(texts), ENCODE_BATCH_TEXTS):
        chunk = [replace_surrogates(text) for text in texts[first : first + ENCODE_BATCH_TEXTS]]
        encodings = tokenizer.backend_tokenizer.encode_batch(chunk, add_special_tokens=False)
        ids.extend(encoding.ids for encoding in encodings)
        flat = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        places.append(np.fromiter(flat, np.int32).reshape(-1, 2))
    return Ragged.from_sequences(ids), np.ascontiguousarray(np.concatenate(places).T)
