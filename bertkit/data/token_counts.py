"""Count the tokens and the [UNK] tokens of examples before truncation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.data.tokens import SequenceTemplate, count_unk_tokens, encode, encode_with_offsets
from bertkit.utils.arrays import Ragged


@dataclass(frozen=True)
class TokenCounts:
    """Token counts of `n` examples.

    Attributes:
        lengths: [n] number of tokens of each example, including special tokens.
        unk_counts: [n] number of [UNK] tokens of each example.
        unk_fraction: Fraction of the tokens of all texts that are [UNK]. As in training, the context of
            several questions is counted only once.
    """

    lengths: np.ndarray
    unk_counts: np.ndarray
    unk_fraction: float

    @classmethod
    def from_texts(cls, columns: Sequence[Sequence[str]], tokenizer: Any) -> "TokenCounts":
        """Count the tokens of one or two text columns; training reuses the cached encodings."""
        counts = [
            ColumnTokenCounts.from_input_ids(encode(column, tokenizer), tokenizer) for column in columns
        ]
        return cls._combine(counts, tokenizer)

    @classmethod
    def from_texts_with_offsets(cls, texts: Sequence[str], tokenizer: Any) -> "TokenCounts":
        """Count the tokens of texts that training encodes with character offsets."""
        ids = encode_with_offsets(texts, tokenizer).ids
        return cls._combine([ColumnTokenCounts.from_input_ids(ids, tokenizer)], tokenizer)

    @classmethod
    def from_questions(
        cls, questions: Sequence[str], contexts: Sequence[str], tokenizer: Any
    ) -> "TokenCounts":
        """Count the tokens of questions with their contexts; each distinct context is encoded only once."""
        context_index = {text: index for index, text in enumerate(dict.fromkeys(contexts))}
        question_counts = ColumnTokenCounts.from_input_ids(encode(questions, tokenizer), tokenizer)
        context_ids = encode_with_offsets(list(context_index), tokenizer).ids
        context_counts = ColumnTokenCounts.from_input_ids(context_ids, tokenizer)
        indices = np.fromiter(map(context_index.__getitem__, contexts), np.int64, len(contexts))
        return cls._combine([question_counts, context_counts.select(indices)], tokenizer)

    @classmethod
    def from_choices(
        cls, contexts: Sequence[str], endings: Sequence[Sequence[str]], tokenizer: Any
    ) -> "TokenCounts":
        """Count the tokens of each context with its longest ending, and [UNK] tokens in all endings."""
        all_endings = [ending for row_endings in endings for ending in row_endings]
        counts_by_ending = ColumnTokenCounts.from_input_ids(encode(all_endings, tokenizer), tokenizer)
        first_endings = np.cumsum([0, *map(len, endings[:-1])])
        ending_counts = ColumnTokenCounts(
            np.maximum.reduceat(counts_by_ending.lengths, first_endings),
            np.add.reduceat(counts_by_ending.unk_counts, first_endings),
            counts_by_ending.totals,
        )
        context_counts = ColumnTokenCounts.from_input_ids(encode(contexts, tokenizer), tokenizer)
        return cls._combine([context_counts, ending_counts], tokenizer)

    @classmethod
    def _combine(cls, columns: Sequence["ColumnTokenCounts"], tokenizer: Any) -> "TokenCounts":
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=len(columns) == 2)
        lengths = np.sum([column.lengths for column in columns], axis=0)
        unk_counts = np.sum([column.unk_counts for column in columns], axis=0)
        num_tokens, num_unk = np.sum([column.totals for column in columns], axis=0)
        return cls(
            lengths + template.num_special_tokens, unk_counts, float(num_unk) / max(1, int(num_tokens))
        )


@dataclass(frozen=True)
class ColumnTokenCounts:
    """Token counts of one text column of `n` examples.

    Attributes:
        lengths: [n] number of tokens of each text, without special tokens.
        unk_counts: [n] number of [UNK] tokens of each text.
        totals: Number of tokens and of [UNK] tokens of all texts; a text of several examples is counted once.
    """

    lengths: np.ndarray
    unk_counts: np.ndarray
    totals: tuple[int, int]

    @classmethod
    def from_input_ids(cls, ids: Ragged, tokenizer: Any) -> "ColumnTokenCounts":
        """Count the tokens of encoded texts."""
        unk_counts = count_unk_tokens(ids, tokenizer)
        return cls(ids.lengths, unk_counts, (int(ids.lengths.sum()), int(unk_counts.sum())))

    def select(self, indices: np.ndarray) -> "ColumnTokenCounts":
        """Return the counts of the texts at `indices`, which may repeat; the totals remain unchanged."""
        return replace(self, lengths=self.lengths[indices], unk_counts=self.unk_counts[indices])
