"""Which pieces of an example are to be predicted, and what stands in their place."""

from dataclasses import dataclass

import numpy as np

from bertkit.masking.hashing import hashed_bits, hashed_uniform
from bertkit.masking.words import WordSpans
from bertkit.utils.ragged import concat_ranges

# Streams of `draws`; those below are left to whatever draws the examples themselves.
ORDER_STREAM, ACTION_STREAM, TOKEN_STREAM = 16, 17, 18
UNUSED, MASK, RANDOM, KEPT = range(4)  # what was done to a piece
MISSING_WORD_SIZE = np.iinfo(np.int32).max  # the size of a word that is not there: it never fits


@dataclass(frozen=True)
class MaskedBatch:
    """A batch to predict from. P is `max_predictions_per_seq`, whatever the batch holds.

    Attributes:
        input_ids: [B, L] a copy with replacements.
        masked_lm_positions: [B, P] int64, ascending; 0 where unused.
        masked_lm_labels: [B, P] int64, the pieces as they were; -100 where unused.
        action: [B, P] int8, what was done: UNUSED, MASK, RANDOM or KEPT.
    """

    input_ids: np.ndarray
    masked_lm_positions: np.ndarray
    masked_lm_labels: np.ndarray
    actions: np.ndarray


@dataclass(frozen=True)
class TokenMasker:
    """How pieces are chosen and replaced (Devlin et al. 2018, 3.1; google's rules for whole words).

    Of n pieces, special ones not counted, round(n * mlm_probability) are chosen (a half goes to the even
    number, as Python rounds), at most `max_predictions_per_seq`. Words come in random order; one that would
    push the number above that is passed over. Where each word of an example is longer, the number is raised
    to the shortest, so that something is predicted; nothing is where that is above
    `max_predictions_per_seq`. Piece by piece is the same with words of one piece.

    Attributes:
        random_ids: the pieces a random one is drawn from: all but the special ones.
        continues: [vocabulary] bool, `words.continues`; None: piece by piece.
        mask_share, random_share: of the chosen pieces; the rest stays as it is.
    """

    mask_token_id: int
    random_token_ids: np.ndarray
    is_continuation: np.ndarray | None
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    max_predictions_per_seq: int = 20
    seed: int = 42

    def __call__(self, input_ids: np.ndarray, special: np.ndarray, key: np.ndarray) -> MaskedBatch:
        """Mask a batch: the same pieces under the same key get the same, whatever the batch or padding.

        Args:
            input_ids: [B, L].
            special: [B, L] bool, special pieces and padding, which are never chosen.
            key: [B] int64, see `draws`.
        """
        batch, length = input_ids.shape
        places = self._choose(WordSpans.from_batch(input_ids, special, self.is_continuation), key)
        row = places // length
        slot = row * self.max_predictions_per_seq + _ranks(np.bincount(row, minlength=batch))
        labels = input_ids.ravel()[places]
        replaced, action = self._replace(labels, key, slot)
        masked = input_ids.copy()
        masked.ravel()[places] = replaced
        shape = (batch, self.max_predictions_per_seq)
        positions = _filled(places - row * length, slot, np.zeros(shape, np.int64))
        labels = _filled(labels, slot, np.full(shape, -100, np.int64))
        return MaskedBatch(masked, positions, labels, _filled(action, slot, np.full(shape, UNUSED, np.int8)))

    def _choose(self, words: WordSpans, key: np.ndarray) -> np.ndarray:
        """[chosen] places in ascending order."""
        there = np.arange(words.word_counts.max(initial=0)) < words.word_counts[:, None]
        order = _shuffled(hashed_bits(self.seed, key, there.shape[1], ORDER_STREAM))
        size = _filled(words.sizes, there, np.full(there.shape, MISSING_WORD_SIZE, np.int32))
        shortest = size.min(axis=1, initial=MISSING_WORD_SIZE)
        wanted = np.rint(words.token_counts * self.mlm_probability).astype(np.int32)
        limit = np.minimum(np.maximum(wanted, shortest), self.max_predictions_per_seq)
        taken = select_greedily(np.take_along_axis(size, order, axis=1), limit)
        first = np.cumsum(words.word_counts) - words.word_counts
        chosen = np.sort((order + first[:, None])[taken])
        return concat_ranges(words.starts[chosen], words.starts[chosen] + words.sizes[chosen])

    def _replace(
        self, labels: np.ndarray, key: np.ndarray, slot: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """[chosen] what stands in the place of each piece, and what was done."""
        most = self.max_predictions_per_seq
        share = hashed_uniform(self.seed, key, most, ACTION_STREAM).ravel()[slot]
        piece = hashed_uniform(self.seed, key, most, TOKEN_STREAM).ravel()[slot]
        random = self.random_token_ids[(piece * len(self.random_token_ids)).astype(np.int64)]
        masks, randoms = (
            share < self.mask_replace_prob,
            share < self.mask_replace_prob + self.random_replace_prob,
        )
        action = np.where(masks, MASK, np.where(randoms, RANDOM, KEPT))
        return np.where(masks, self.mask_token_id, np.where(randoms, random, labels)), action


def select_greedily(sizes: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """[B, W] bool: the words that are taken when each in turn is, if it still fits.

    In rounds: all words up to the first that does not fit are taken at once; those too long for what is
    left then, which it is one of, are out; and so on.

    Args:
        size: [B, W] of the words in their order.
        limit: [B] the most that all words taken may have.
    """
    taken, row, left = np.zeros(sizes.shape, bool), np.arange(len(sizes)), limit[:, None]
    rest = np.where(sizes <= left, sizes, 0)  # 0: taken or out
    while len(row):
        total = np.cumsum(rest, axis=1, dtype=rest.dtype)
        fits = total <= left
        taken[row] |= fits & (rest > 0)
        left = left - np.where(fits, total, 0).max(axis=1, initial=0, keepdims=True)
        rest *= ~fits & (rest <= left)
        more = rest.any(axis=1)
        row, rest, left = row[more], rest[more], left[more]
    return taken


def _shuffled(random: np.ndarray) -> np.ndarray:
    """[B, W] the numbers of the columns of each row in the order of its random bits, [B, W] uint64.

    A number takes the lower half of its bits: sorting integers is faster than sorting by a key.
    """
    lower = np.uint64(2**32 - 1)
    keys = random & ~lower | np.arange(random.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & lower).astype(np.int64)


def _ranks(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... counts[0] - 1, 0, 1, ...: the number of each thing in its row."""
    return concat_ranges(np.zeros_like(counts), counts)


def _filled(values: np.ndarray, where: np.ndarray, into: np.ndarray) -> np.ndarray:
    """`into` with the values put in, one after the other: where a mask says, or at flat places."""
    into.ravel()[where.ravel()] = values
    return into
