"""Features: the map-style data set that training and scoring read."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.data.rows import Rows
from bertkit.data.tokenization import LongTextStrategy, SequenceTemplate, encode, truncate
from bertkit.utils.ragged import Ragged


@dataclass(frozen=True, kw_only=True)
class Features(ABC):
    """`n` examples, each of one sequence, or of several: the windows of a long text, or its choices.

    Attributes:
        first: [n + 1] the first sequence of each example.
        labels: [n] or [n, classes] targets, or None where there are none.
        truncated: how many examples lost pieces.
        longest: pieces of the longest example before it was cut, special ones included.
        unknown: share of the pieces that the vocabulary does not know.
    """

    sequence_offsets: np.ndarray
    labels: np.ndarray | None
    num_truncated: int = 0
    max_untruncated_length: int = 0
    unk_fraction: float = 0.0

    @abstractmethod
    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """`input_ids` and `token_type_ids` of one sequence, both [length]."""

    @property
    @abstractmethod
    def sequence_lengths(self) -> np.ndarray:
        """[sequences] pieces of each."""

    def __len__(self) -> int:
        return len(self.sequence_offsets) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        numbers = range(self.sequence_offsets[index], self.sequence_offsets[index + 1])
        ids, kinds = zip(*map(self.get_sequence, numbers), strict=True)
        item: dict[str, Any] = {"input_ids": list(ids), "token_type_ids": list(kinds)}
        if self.labels is not None:
            item["labels"] = self.labels[index]
        return item

    @property
    def windowed_fraction(self) -> float:
        """Share of the examples that have several sequences: the windows of a long text."""
        return float((np.diff(self.sequence_offsets) > 1).mean())

    def describe_issues(self, rows: Rows) -> list[str]:
        """What the user should know of how the training rows came out; it may name some of them."""
        return []

    @property
    def lengths(self) -> np.ndarray:
        """[n] pieces of each example, all its sequences together."""
        return np.add.reduceat(self.sequence_lengths, self.sequence_offsets[:-1])

    @property
    def length_keys(self) -> np.ndarray:
        """[n] by which examples are alike: their longest sequence, then how many they have.

        A batch is padded to its longest sequence, so the sum would put unlike ones together.
        """
        counts = np.diff(self.sequence_offsets)
        return (
            np.maximum.reduceat(self.sequence_lengths, self.sequence_offsets[:-1]) * (counts.max() + 1)
            + counts
        )

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] the first row of logits of each example: here one row an example."""
        return np.arange(len(self) + 1)

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """What scoring keeps of a batch's logits, a row each: here all of them.

        Args:
            logits: [decisions, ...] fp32, of the decisions of `examples`.
            batch: what the model was given.
        """
        return logits

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        """`sizes`, where the examples are drawn anew in every epoch those of this one."""
        return self.length_keys

    def batch_size_for(self, tokens: int) -> int | None:
        """Where examples are drawn anew to fill a length, how many a batch of so many pieces takes.

        None: they are the same in every epoch, of any lengths.
        """
        return None

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """By what the examples of an epoch are asked for: here their numbers, in every epoch the same."""
        return examples


@dataclass(frozen=True, kw_only=True)
class StoredFeatures(Features):
    """Features whose sequences are kept whole.

    Attributes:
        input_ids, token_type_ids: the sequences of all examples, one after the other.
    """

    input_ids: Ragged
    token_type_ids: Ragged

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """As stored."""
        return self.input_ids[number], self.token_type_ids[number]

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[sequences]."""
        return self.input_ids.lengths


def build_features(
    texts: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any, max_length: int,
    long_texts: LongTextStrategy = "head", cache: bool = True,
) -> StoredFeatures:  # fmt: skip
    """Features of one text column, or two.

    Args:
        texts: one or two columns of `n` texts.
        labels: [n] or [n, classes], or None.
        max_length: longest sequence in pieces, special ones included.
        long: what becomes of longer ones.
    """
    columns = [encode(column, tokenizer, cache) for column in texts]
    examples = ([[column[row] for column in columns]] for row in range(len(columns[0])))
    return _assembled(examples, columns, labels, tokenizer, max_length, long_texts)


def build_choice_features(
    contexts: Sequence[str], endings: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, cache: bool = True,
) -> StoredFeatures:  # fmt: skip
    """Features with a sequence, context and ending, for each ending of an example.

    Args:
        contexts: [n] texts.
        endings: [n] lists of texts, of any lengths.
        labels: [n] the number of the right ending, or None.
    """
    first = encode(contexts, tokenizer, cache)
    second = encode([ending for some in endings for ending in some], tokenizer, cache)
    stops = np.cumsum([len(some) for some in endings])
    examples = (
        [[first[row], second[number]] for number in range(stop - len(endings[row]), stop)]
        for row, stop in enumerate(stops)
    )
    return _assembled(examples, [first, second], labels, tokenizer, max_length, "head")


def _assembled(
    examples: Iterable[list[list[np.ndarray]]], columns: list[Ragged], labels: np.ndarray | None,
    tokenizer: Any, max_length: int, long: LongTextStrategy,
) -> StoredFeatures:  # fmt: skip
    """Cut each text or pair of each example, and put the special pieces around."""
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=len(columns) == 2)
    sequences: list[tuple[Any, Any]] = []
    first, truncated, longest = [0], 0, 0
    for pairs in examples:
        parts = [truncate(pair, max_length - template.num_special_tokens, long) for pair in pairs]
        whole = [sum(map(len, pair)) for pair in pairs]
        kept = [sum(map(len, part[0])) for part in parts]
        truncated += kept < whole and long != "windows"
        longest = max(longest, *whole)
        sequences.extend(template.fill(window) for part in parts for window in part)
        first.append(len(sequences))
    total = sum(len(column.values) for column in columns)
    unknown = sum(int((column.values == tokenizer.unk_token_id).sum()) for column in columns)
    return StoredFeatures(
        input_ids=Ragged.from_sequences([ids for ids, _ in sequences]),
        token_type_ids=Ragged.from_sequences([kinds for _, kinds in sequences], np.int8),
        sequence_offsets=np.array(first), labels=labels, num_truncated=truncated, max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=unknown / max(1, total),
    )  # fmt: skip
