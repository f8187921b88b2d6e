"""Features: tokenized examples as a map-style dataset for training and scoring."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.rows import Rows
from bertkit.data.tokenization import (
    LongTextStrategy,
    SequenceTemplate,
    compute_unk_fraction,
    encode,
    truncate,
)
from bertkit.utils.ragged import Ragged

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Features(ABC):
    """A map-style dataset of `n` examples.

    An example has one sequence, or several: the windows of a long text, or the endings of a context.

    Attributes:
        sequence_offsets: [n + 1] index of the first sequence of each example; at the end, the number of
            sequences.
        labels: [n] or [n, classes] targets; None if the rows are unlabeled.
        num_truncated: Number of truncated examples.
        max_untruncated_length: Length of the longest sequence before truncation, including special tokens.
        unk_fraction: Fraction of the tokens that are [UNK].
    """

    sequence_offsets: np.ndarray
    labels: np.ndarray | None
    num_truncated: int = 0
    max_untruncated_length: int = 0
    unk_fraction: float = 0.0

    @abstractmethod
    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of one sequence, both [length]."""

    @property
    @abstractmethod
    def sequence_lengths(self) -> np.ndarray:
        """[sequences] number of tokens of each sequence."""

    def __len__(self) -> int:
        return len(self.sequence_offsets) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        sequences = range(self.sequence_offsets[index], self.sequence_offsets[index + 1])
        input_ids, type_ids = zip(*map(self.get_sequence, sequences), strict=True)
        item: dict[str, Any] = {"input_ids": list(input_ids), "token_type_ids": list(type_ids)}
        if self.labels is not None:
            item["labels"] = self.labels[index]
        return item

    @property
    def windowed_fraction(self) -> float:
        """Fraction of the examples that have several sequences (the windows of a long text)."""
        return float((np.diff(self.sequence_offsets) > 1).mean())

    def describe_issues(self, rows: Rows) -> list[str]:
        """Return notes on problems in the training rows."""
        return []

    @property
    def lengths(self) -> np.ndarray:
        """[n] total number of tokens of the sequences of each example."""
        return np.add.reduceat(self.sequence_lengths, self.sequence_offsets[:-1])

    @property
    def length_keys(self) -> np.ndarray:
        """[n] keys for length-grouped sampling: length of the longest sequence, then number of sequences.

        A batch is padded to its longest sequence. If examples were grouped by total length, a batch would mix
        long and short sequences.
        """
        counts = np.diff(self.sequence_offsets)
        longest = np.maximum.reduceat(self.sequence_lengths, self.sequence_offsets[:-1])
        return longest * (counts.max() + 1) + counts

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] index of the first row of logits of each example; by default an example has one row."""
        return np.arange(len(self) + 1)

    def reduce_logits(
        self, logits: "torch.Tensor", examples: np.ndarray, batch: "dict[str, torch.Tensor]"
    ) -> "torch.Tensor":
        """Reduce the logits of a batch to what scoring needs; by default, keep all of them.

        Args:
            logits: [predictions, ...] fp32 logits of the examples.
            examples: [batch] indices of the examples.
            batch: Inputs of the model.

        Returns:
            One row for each prediction.
        """
        return logits

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        """Return the `length_keys` of an epoch; by default all epochs have the same examples."""
        return self.length_keys

    def batch_size_for(self, tokens: int) -> int | None:
        """Return the batch size for a budget of `tokens`; None for examples of varying lengths.

        Only features that sample examples of a maximum length return a batch size.
        """
        return None

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """Return the dataset keys of the given examples in an epoch; by default these are the indices."""
        return examples


@dataclass(frozen=True, kw_only=True)
class StoredFeatures(Features):
    """Features that store complete sequences, instead of building them on demand.

    Attributes:
        input_ids: Token ids of all sequences, including special tokens.
        token_type_ids: Segment ids of all sequences.
    """

    input_ids: Ragged
    token_type_ids: Ragged

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of one sequence, both [length]."""
        return self.input_ids[number], self.token_type_ids[number]

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[sequences] number of tokens of each sequence."""
        return self.input_ids.lengths


def build_features(
    texts: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any, max_length: int,
    long_texts: LongTextStrategy = "head", cache: bool = True,
) -> StoredFeatures:  # fmt: skip
    """Build features from one text column, or from two text columns of pairs.

    Args:
        texts: One or two columns of `n` texts.
        labels: [n] or [n, classes] targets, or None.
        tokenizer: Fast tokenizer.
        max_length: Maximum sequence length in tokens, including special tokens.
        long_texts: How longer texts are handled.
        cache: Whether to cache the encoded texts.
    """
    columns = [encode(column, tokenizer, cache) for column in texts]
    examples = ([[column[row] for column in columns]] for row in range(len(columns[0])))
    return _assemble_features(examples, columns, labels, tokenizer, max_length, long_texts)


def build_choice_features(
    contexts: Sequence[str], endings: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, cache: bool = True,
) -> StoredFeatures:  # fmt: skip
    """Build features of multiple-choice examples; each pair of context and ending is a sequence.

    Args:
        contexts: [n] texts.
        endings: [n] lists of endings; the number of endings may vary.
        labels: [n] index of the correct ending, or None.
        tokenizer: Fast tokenizer.
        max_length: Maximum sequence length in tokens, including special tokens.
        cache: Whether to cache the encoded texts.
    """
    context_ids = encode(contexts, tokenizer, cache)
    ending_ids = encode([ending for row_endings in endings for ending in row_endings], tokenizer, cache)
    stops = np.cumsum([len(row_endings) for row_endings in endings])
    examples = (
        [[context_ids[row], ending_ids[number]] for number in range(stop - len(endings[row]), stop)]
        for row, stop in enumerate(stops)
    )
    return _assemble_features(examples, [context_ids, ending_ids], labels, tokenizer, max_length, "head")


def _assemble_features(
    examples: Iterable[list[list[np.ndarray]]], columns: list[Ragged], labels: np.ndarray | None,
    tokenizer: Any, max_length: int, long_texts: LongTextStrategy,
) -> StoredFeatures:  # fmt: skip
    """Truncate the texts or pairs of each example, and add special tokens.

    Args:
        examples: One or more texts or pairs of each example, as token ids.
        columns: The encoded text columns, for the fraction of [UNK] tokens.
        labels: [n] or [n, classes] targets, or None.
        tokenizer: Fast tokenizer.
        max_length: Maximum sequence length in tokens, including special tokens.
        long_texts: How longer texts are handled.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=len(columns) == 2)
    sequences: list[tuple[Any, Any]] = []
    sequence_offsets, num_truncated, longest = [0], 0, 0
    for pairs in examples:
        max_tokens = max_length - template.num_special_tokens
        windows_of_pairs = [truncate(pair, max_tokens, long_texts) for pair in pairs]
        lengths = [sum(map(len, pair)) for pair in pairs]
        kept_lengths = [sum(map(len, windows[0])) for windows in windows_of_pairs]
        num_truncated += kept_lengths < lengths and long_texts != "windows"
        longest = max(longest, *lengths)
        sequences.extend(template.fill(window) for windows in windows_of_pairs for window in windows)
        sequence_offsets.append(len(sequences))
    return StoredFeatures(
        input_ids=Ragged.from_sequences([input_ids for input_ids, _ in sequences]),
        token_type_ids=Ragged.from_sequences([type_ids for _, type_ids in sequences], np.int8),
        sequence_offsets=np.array(sequence_offsets),
        labels=labels,
        num_truncated=num_truncated,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=compute_unk_fraction(columns, tokenizer),
    )
