"""How many pieces texts have before anything is cut, and how many of them the vocabulary does not know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.data.offsets import encode_with_offsets
from bertkit.data.tokenization import SequenceTemplate, encode
from bertkit.utils.ragged import Ragged


@dataclass(frozen=True)
class TokenCounts:
    """Of `n` examples.

    Attributes:
        lengths: [n] pieces of each, special ones included.
        unknown: [n] how many of them the vocabulary does not know.
        unknown_share: of the pieces of all texts, as training counts it: each text once.
    """

    lengths: np.ndarray
    unk_counts: np.ndarray
    unk_fraction: float

    @classmethod
    def from_texts(cls, columns: Sequence[Sequence[str]], tokenizer: Any) -> "TokenCounts":
        """Of one column of texts, or two, encoded as for training and kept in the cache for it."""
        return cls._gathered(
            [ColumnTokenCounts.from_input_ids(encode(column, tokenizer), tokenizer) for column in columns],
            tokenizer,
        )

    @classmethod
    def from_texts_with_offsets(cls, texts: Sequence[str], tokenizer: Any) -> "TokenCounts":
        """Of texts whose pieces are encoded with their places."""
        return cls._gathered(
            [ColumnTokenCounts.from_input_ids(encode_with_offsets(texts, tokenizer).ids, tokenizer)],
            tokenizer,
        )

    @classmethod
    def from_questions(
        cls, questions: Sequence[str], contexts: Sequence[str], tokenizer: Any
    ) -> "TokenCounts":
        """Of questions with their paragraphs, which are encoded once however many questions they have."""
        number = {text: at for at, text in enumerate(dict.fromkeys(contexts))}
        asked = ColumnTokenCounts.from_input_ids(encode(questions, tokenizer), tokenizer)
        read = ColumnTokenCounts.from_input_ids(encode_with_offsets(list(number), tokenizer).ids, tokenizer)
        chosen = np.fromiter(map(number.__getitem__, contexts), np.int64, len(contexts))
        return cls._gathered([asked, read.select(chosen)], tokenizer)

    @classmethod
    def from_choices(
        cls, contexts: Sequence[str], endings: Sequence[Sequence[str]], tokenizer: Any
    ) -> "TokenCounts":
        """Of contexts, each with its longest ending; unknown pieces are those of all endings."""
        flat = ColumnTokenCounts.from_input_ids(
            encode([ending for some in endings for ending in some], tokenizer), tokenizer
        )
        first = np.cumsum([0, *map(len, endings[:-1])])
        last = ColumnTokenCounts(
            np.maximum.reduceat(flat.lengths, first), np.add.reduceat(flat.unk_counts, first), flat.totals
        )
        return cls._gathered(
            [ColumnTokenCounts.from_input_ids(encode(contexts, tokenizer), tokenizer), last], tokenizer
        )

    @classmethod
    def _gathered(cls, parts: Sequence["ColumnTokenCounts"], tokenizer: Any) -> "TokenCounts":
        special = SequenceTemplate.from_tokenizer(tokenizer, pair=len(parts) == 2).num_special_tokens
        lengths = np.sum([part.lengths for part in parts], axis=0)
        unknown = np.sum([part.unk_counts for part in parts], axis=0)
        pieces, strange = np.sum([part.totals for part in parts], axis=0)
        return cls(lengths + special, unknown, float(strange) / max(1, int(pieces)))


@dataclass(frozen=True)
class ColumnTokenCounts:
    """One of the texts of `n` examples.

    Attributes:
        lengths, unknown: [n] as in `PieceCounts`, without special pieces.
        total: pieces of all texts, and how many are unknown, each text once.
    """

    lengths: np.ndarray
    unk_counts: np.ndarray
    totals: tuple[int, int]

    @classmethod
    def from_input_ids(cls, ids: Ragged, tokenizer: Any) -> "ColumnTokenCounts":
        """Of texts in pieces."""
        unknown = count_unk_tokens(ids, tokenizer)
        return cls(ids.lengths, unknown, (int(ids.lengths.sum()), int(unknown.sum())))

    def select(self, indices: np.ndarray) -> "ColumnTokenCounts":
        """Of examples that have these of the texts."""
        return replace(self, lengths=self.lengths[indices], unk_counts=self.unk_counts[indices])


def count_unk_tokens(ids: Ragged, tokenizer: Any) -> np.ndarray:
    """[n] how many pieces of each text the vocabulary does not know."""
    if tokenizer.unk_token_id is None:
        return np.zeros(len(ids), np.int64)
    before = np.concatenate([[0], np.cumsum(ids.values == tokenizer.unk_token_id)])
    return before[ids.offsets[1:]] - before[ids.offsets[:-1]]
