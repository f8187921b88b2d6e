"""Features: tokenized examples as a map-style dataset for training and scoring."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.computed_columns import FlattenedColumn
from bertkit.data.rows import Rows
from bertkit.data.stored_logits import TEACHER_LOGITS, StoredLogits
from bertkit.data.tokenization import SequenceTemplate, compute_unk_fraction, encode
from bertkit.data.truncation import LongTextStrategy, TokenRanges, truncate
from bertkit.utils.ragged import Ragged, compute_offsets

if TYPE_CHECKING:
    import torch

UNLABELED, UNLABELED_NUMBER = -100, float("nan")  # labels of unlabeled examples: ids, and numbers


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
        warnings: Problems of the training labels, for the user.
        teacher_logits: Logits that another model predicts for the examples; None if the labels are the only
            targets.
    """

    sequence_offsets: np.ndarray
    labels: np.ndarray | None
    num_truncated: int = 0
    max_untruncated_length: int = 0
    unk_fraction: float = 0.0
    warnings: Sequence[str] = ()
    teacher_logits: StoredLogits | None = None

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
        if self.teacher_logits is not None:
            item[TEACHER_LOGITS] = self.teacher_logits[index]
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
class TextFeatures(Features):
    """Features whose sequences are built from the tokens of one or two columns of texts, on demand.

    A sequence consists of special tokens and ranges of tokens, so the memory does not depend on its length.

    Attributes:
        template: Special tokens around one or two texts.
        columns: Token ids of the texts of each column.
        ranges: The ranges of tokens that each sequence contains.
    """

    template: SequenceTemplate
    columns: Sequence[Ragged]
    ranges: TokenRanges

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of one sequence, both [length]."""
        texts: list[np.ndarray] = []
        bounds = zip(
            self.ranges.column,
            self.ranges.start[number].tolist(),
            self.ranges.stop[number].tolist(),
            strict=True,
        )
        for column, start, stop in bounds:
            tokens = self.columns[column].values[start:stop]
            if column < len(texts):  # the second range of a text
                texts[column] = np.concatenate([texts[column], tokens])
            else:
                texts.append(tokens)
        return self.template.fill(texts)

    @cached_property
    def sequence_lengths(self) -> np.ndarray:  # type: ignore[override]
        """[sequences] number of tokens of each sequence."""
        return (self.ranges.stop - self.ranges.start).sum(1) + self.template.num_special_tokens

    @cached_property
    def token_offsets(self) -> np.ndarray:
        """[sequences + 1] index of the first token of each sequence, in the tokens of all sequences."""
        return compute_offsets(self.sequence_lengths)


def build_features(
    texts: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any, max_length: int,
    long_texts: LongTextStrategy = "head", cache: bool = True,
) -> TextFeatures:  # fmt: skip
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
    starts = np.stack([ids.offsets[:-1] for ids in columns], 1)
    stops = np.stack([ids.offsets[1:] for ids in columns], 1)
    max_tokens = max_length - SequenceTemplate.from_tokenizer(tokenizer, len(columns) == 2).num_special_tokens
    counts, ranges = truncate(starts, stops, max_tokens, long_texts)
    is_truncated = (stops - starts).sum(1) > max_tokens
    return _assemble_features(
        columns, starts, stops, ranges, tokenizer, labels=labels, sequence_offsets=compute_offsets(counts),
        num_truncated=0 if long_texts == "windows" else int(is_truncated.sum()),
    )  # fmt: skip


def build_choice_features(
    contexts: Sequence[str], endings: Sequence[Sequence[str]], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, cache: bool = True,
) -> TextFeatures:  # fmt: skip
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
    flat_endings = FlattenedColumn(endings)
    ending_ids, counts = encode(flat_endings, tokenizer, cache), flat_endings.counts
    row = np.repeat(np.arange(len(counts)), counts)  # of each ending
    starts = np.stack([context_ids.offsets[row], ending_ids.offsets[:-1]], 1)
    stops = np.stack([context_ids.offsets[row + 1], ending_ids.offsets[1:]], 1)
    max_tokens = max_length - SequenceTemplate.from_tokenizer(tokenizer, pair=True).num_special_tokens
    _, ranges = truncate(starts, stops, max_tokens, "head")
    is_truncated = (stops - starts).sum(1) > max_tokens
    return _assemble_features(
        [context_ids, ending_ids], starts, stops, ranges, tokenizer, labels=labels,
        sequence_offsets=compute_offsets(counts), num_truncated=len(np.unique(row[is_truncated])),
    )  # fmt: skip


def _assemble_features(
    columns: Sequence[Ragged], starts: np.ndarray, stops: np.ndarray, ranges: TokenRanges, tokenizer: Any,
    **attributes: Any,
) -> TextFeatures:  # fmt: skip
    """Return features with these ranges, and with statistics of the texts before truncation.

    Args:
        columns: The encoded text columns.
        starts: [texts, columns] first token of each text or pair before truncation.
        stops: [texts, columns] end of each text or pair before truncation.
        ranges: The ranges after truncation.
        tokenizer: Fast tokenizer.
        **attributes: Other attributes of the features.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=len(columns) == 2)
    longest = int((stops - starts).sum(1).max(initial=0))
    return TextFeatures(
        template=template, columns=columns, ranges=ranges,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=compute_unk_fraction(columns, tokenizer), **attributes,
    )  # fmt: skip


def update_with_tokens(digest: blake2b, features: Features) -> None:
    """Add the `input_ids` and `token_type_ids` of all sequences to a digest, for the key of a cache.

    The boundaries of the sequences are not added.
    """
    for number in range(len(features.sequence_lengths)):
        for array in features.get_sequence(number):
            digest.update(np.ascontiguousarray(array).data)
