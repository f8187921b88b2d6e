"""How many pieces texts have before anything is cut, and how many of them the vocabulary does not know."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.data.located import locate
from bertkit.data.ragged import Ragged
from bertkit.data.sequences import Template, encode


@dataclass(frozen=True)
class PieceCounts:
    """Of `n` examples.

    Attributes:
        lengths: [n] pieces of each, special ones included.
        unknown: [n] how many of them the vocabulary does not know.
        unknown_share: of the pieces of all texts, as training counts it: each text once.
    """

    lengths: np.ndarray
    unknown: np.ndarray
    unknown_share: float

    @classmethod
    def of(cls, columns: Sequence[Sequence[str]], tokenizer: Any) -> "PieceCounts":
        """Of one column of texts, or two, encoded as for training and kept in the cache for it."""
        return cls._gathered([Part.of(encode(column, tokenizer), tokenizer) for column in columns], tokenizer)

    @classmethod
    def of_located(cls, texts: Sequence[str], tokenizer: Any) -> "PieceCounts":
        """Of texts whose pieces are encoded with their places."""
        return cls._gathered([Part.of(locate(texts, tokenizer).ids, tokenizer)], tokenizer)

    @classmethod
    def of_questions(cls, questions: Sequence[str], contexts: Sequence[str], tokenizer: Any) -> "PieceCounts":
        """Of questions with their paragraphs, which are encoded once however many questions they have."""
        number = {text: at for at, text in enumerate(dict.fromkeys(contexts))}
        asked = Part.of(encode(questions, tokenizer), tokenizer)
        read = Part.of(locate(list(number), tokenizer).ids, tokenizer)
        chosen = np.fromiter(map(number.__getitem__, contexts), np.int64, len(contexts))
        return cls._gathered([asked, read.select(chosen)], tokenizer)

    @classmethod
    def of_choices(
        cls, contexts: Sequence[str], endings: Sequence[Sequence[str]], tokenizer: Any
    ) -> "PieceCounts":
        """Of contexts, each with its longest ending; unknown pieces are those of all endings."""
        flat = Part.of(encode([ending for some in endings for ending in some], tokenizer), tokenizer)
        first = np.cumsum([0, *map(len, endings[:-1])])
        last = Part(
            np.maximum.reduceat(flat.lengths, first), np.add.reduceat(flat.unknown, first), flat.total
        )
        return cls._gathered([Part.of(encode(contexts, tokenizer), tokenizer), last], tokenizer)

    @classmethod
    def _gathered(cls, parts: Sequence["Part"], tokenizer: Any) -> "PieceCounts":
        special = Template.of(tokenizer, pair=len(parts) == 2).special
        lengths = np.sum([part.lengths for part in parts], axis=0)
        unknown = np.sum([part.unknown for part in parts], axis=0)
        pieces, strange = np.sum([part.total for part in parts], axis=0)
        return cls(lengths + special, unknown, float(strange) / max(1, int(pieces)))


@dataclass(frozen=True)
class Part:
    """One of the texts of `n` examples.

    Attributes:
        lengths, unknown: [n] as in `PieceCounts`, without special pieces.
        total: pieces of all texts, and how many are unknown, each text once.
    """

    lengths: np.ndarray
    unknown: np.ndarray
    total: tuple[int, int]

    @classmethod
    def of(cls, ids: Ragged, tokenizer: Any) -> "Part":
        """Of texts in pieces."""
        unknown = unknown_in(ids, tokenizer)
        return cls(ids.lengths, unknown, (int(ids.lengths.sum()), int(unknown.sum())))

    def select(self, which: np.ndarray) -> "Part":
        """Of examples that have these of the texts."""
        return replace(self, lengths=self.lengths[which], unknown=self.unknown[which])


def unknown_in(ids: Ragged, tokenizer: Any) -> np.ndarray:
    """[n] how many pieces of each text the vocabulary does not know."""
    if tokenizer.unk_token_id is None:
        return np.zeros(len(ids), np.int64)
    before = np.concatenate([[0], np.cumsum(ids.values == tokenizer.unk_token_id)])
    return before[ids.offsets[1:]] - before[ids.offsets[:-1]]
