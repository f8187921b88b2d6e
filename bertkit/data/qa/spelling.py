"""Which stretches of texts are spelt alike, without cutting any of them out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.tokenization import TokenizedTexts

BASE = 0x9E3779B97F4A7C15  # any large odd number
BASE_INVERSE = pow(BASE, -1, 2**64)
TEXTS_PER_BLOCK = 256  # texts at a time: eight bytes a character are needed for a while


@dataclass(frozen=True)
class RollingHash:
    """Sums of characters times powers of `BASE`, modulo 2**64, at the bounds of pieces (Karp and Rabin 1987).

    Attributes:
        begin, end: [pieces] the sum of all characters before a piece begins, and before it ends.
        scale: [pieces] `BASE` to the power of minus the place where the piece begins.
    """

    start_hash: np.ndarray
    end_hash: np.ndarray
    start_scale: np.ndarray

    def hash_spans(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """A number for the text from one piece to another: the same text has the same wherever it stands.

        Two texts that are not the same have the same number once in 2**64 times. Pieces that are not there
        give any number.
        """
        begin, scale = self.start_hash.take(first, mode="clip"), self.start_scale.take(first, mode="clip")
        return (self.end_hash.take(last, mode="clip") - begin) * scale


def build_rolling_hash(texts: Sequence[str], located: TokenizedTexts) -> RollingHash:
    """How the pieces of some texts are spelt."""
    offsets, base = located.ids.offsets, located.text_offsets
    sums = np.zeros((3, offsets[-1]), np.uint64)
    for first in range(0, len(texts), TEXTS_PER_BLOCK):
        some = texts[first : first + TEXTS_PER_BLOCK]
        line = np.frombuffer("\0".join(some).encode("utf-32-le", "surrogatepass"), np.uint32)
        before = np.zeros(len(line) + 1, np.uint64)
        np.cumsum(line * _powers(BASE, len(line)), out=before[1:])
        bounds = offsets[first : first + len(some) + 1]
        pieces = slice(bounds[0], bounds[-1])
        shift = np.repeat(base[first : first + len(some)] - base[first], np.diff(bounds))
        start, stop = located.start[pieces] + shift, located.stop[pieces] + shift
        sums[:, pieces] = before[start], before[stop], _powers(BASE_INVERSE, len(line) + 1)[start]
    return RollingHash(*sums)


def _powers(base: int, size: int) -> np.ndarray:
    """[size] 1, base, base**2 ..., modulo 2**64."""
    factors = np.full(size, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)
