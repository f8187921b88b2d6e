"""From tokens to features: truncation, windows and features.

The truncation of transformers is not used: it supports neither `head+tail` nor windows, and does not report
how many tokens it has removed. For `head` and `tail` the result equals `truncation="longest_first"` of
transformers. `transformers.pipeline()` and bertkit thus give the same predictions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertkit.data.table import Rows, flatten_lists
from bertkit.data.tokens import SequenceTemplate, compute_unk_fraction, encode
from bertkit.utils.arrays import (
    Ragged,
    RaggedWriter,
    compute_offsets,
    compute_positions_in_groups,
    map_array,
    slide_windows,
)

LongTextStrategy = Literal["head", "tail", "head+tail", "windows"]


# ---- truncation


@dataclass(frozen=True)
class TokenRanges:
    """Ranges of tokens of `n` sequences.

    Attributes:
        column: Index of the text column of each range; the second range of a text follows the first.
        start: [n, ranges] index of the first token of each range, in the tokens of all texts of the column.
        stop: [n, ranges] index after the last token of each range.
    """

    column: tuple[int, ...]
    start: np.ndarray
    stop: np.ndarray


def truncate(
    starts: np.ndarray, stops: np.ndarray, max_tokens: int, long_texts: LongTextStrategy
) -> tuple[np.ndarray, TokenRanges]:
    """Truncate texts or pairs to `max_tokens` tokens, or split them into windows.

    With `head+tail`, a quarter of the tokens come from the start of a text and the others from the end.
    This follows Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1. Windows overlap by
    a quarter.

    Args:
        starts: [n, columns] index of the first token of each text.
        stops: [n, columns] index after the last token of each text.

    Returns:
        [n] number of sequences of each text or pair, which is 1 without windows, and their ranges.
    """
    sizes = _allocate_tokens(stops - starts, max_tokens)
    num_rows, num_columns = sizes.shape
    if long_texts == "windows":
        return _split_into_windows(starts, stops, sizes)
    if long_texts == "head+tail":
        is_whole = sizes == stops - starts
        head = np.where(is_whole, sizes, sizes // 4)
        start = np.stack([starts, stops - (sizes - head)], 2).reshape(num_rows, 2 * num_columns)
        stop = np.stack([starts + head, stops], 2).reshape(num_rows, 2 * num_columns)
        columns = tuple(column for column in range(num_columns) for _ in range(2))
        return np.ones(num_rows, np.int64), TokenRanges(columns, start, stop)
    if long_texts == "head":
        stops = starts + sizes
    else:
        starts = stops - sizes
    return np.ones(num_rows, np.int64), TokenRanges(tuple(range(num_columns)), starts, stops)


def _allocate_tokens(lengths: np.ndarray, max_tokens: int) -> np.ndarray:
    """Return how many tokens each text keeps; the longer text is truncated first, as in `longest_first`.

    `lengths` [n, columns] are the numbers of tokens of the texts.
    """
    if lengths.shape[1] == 1:
        return np.minimum(lengths, max_tokens)
    shorter = np.minimum(lengths.min(1), max_tokens // 2)
    longer = max_tokens - shorter
    first_is_shorter = lengths[:, 0] <= lengths[:, 1]
    sizes = np.stack(
        [np.where(first_is_shorter, shorter, longer), np.where(first_is_shorter, longer, shorter)], 1
    )
    return np.where(lengths.sum(1, keepdims=True) <= max_tokens, lengths, sizes)


def _split_into_windows(
    starts: np.ndarray, stops: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, TokenRanges]:
    """Return overlapping windows of each text or pair; every token is in a window.

    If one text of a pair has fewer windows, its last window is repeated.
    """
    windows = [
        slide_windows(start, stop, size, size - size // 4)
        for start, stop, size in zip(starts.T, stops.T, sizes.T, strict=True)
    ]
    counts = np.max([column_counts for column_counts, _, _ in windows], axis=0)
    number = compute_positions_in_groups(counts)  # of the window in its text or pair
    start, stop = [], []
    for column_counts, window_starts, window_stops in windows:
        first = np.repeat(np.cumsum(column_counts) - column_counts, counts)
        index = first + np.minimum(number, np.repeat(column_counts, counts) - 1)
        start.append(window_starts[index])
        stop.append(window_stops[index])
    return counts, TokenRanges(tuple(range(len(windows))), np.stack(start, 1), np.stack(stop, 1))


# ---- logits of a teacher

TEACHER_LOGITS = "teacher_logits"  # key of an example and of a batch
ORDER_FILE = "order.bin"


@dataclass(frozen=True)
class StoredLogits:
    """Logits of `n` examples; an example has as many as its head outputs, without padding.

    Attributes:
        values: [n] fp32 logits of each example, flattened, in the order in which they were computed.
        positions: [n] index in `values` of each example.
        label_order: Index of each output among those that are stored; None if the order is the same.
    """

    values: Ragged
    positions: np.ndarray
    label_order: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> np.ndarray:
        logits = self.values[self.positions[index]]
        if self.label_order is not None:
            logits = logits.reshape(-1, len(self.label_order))[:, self.label_order].ravel()
        return np.asarray(logits)

    def reorder_labels(self, label_order: np.ndarray) -> "StoredLogits":
        """Return the logits with the outputs in another order."""
        return replace(self, label_order=label_order)

    @staticmethod
    def write(folder: Path, batches: Iterable[tuple[np.ndarray, np.ndarray]], counts: np.ndarray) -> None:
        """Write the logits of one batch after another into a directory, without those that are -inf.

        Args:
            batches: [batch] indices of the examples, in any order, and their [rows, ...] logits, as
                `bertkit.models.forward.compute_logits` returns them.
            counts: [n] number of rows of each example.
        """
        order = []
        with RaggedWriter(folder, np.dtype(np.float32)) as writer:
            for examples, logits in batches:
                is_output = logits != -np.inf
                row_sizes = is_output.reshape(len(logits), -1).sum(1)
                stops = np.cumsum(counts[examples])
                sums = np.concatenate([[0], np.cumsum(row_sizes)])
                writer.add(logits[is_output], sums[stops] - sums[stops - counts[examples]])
                order.append(examples)
        np.concatenate(order).astype(np.int64).tofile(folder / ORDER_FILE)

    @classmethod
    def load(cls, folder: Path) -> "StoredLogits":
        """Open the logits that `write` wrote."""
        order = map_array(folder / ORDER_FILE, "int64")
        return cls(Ragged.load(folder), np.argsort(order, kind="stable"))


# ---- features

WEIGHTS, TARGETS = "weights", "targets"  # keys of an example and of a batch
UNLABELED, UNLABELED_NUMBER = -100, float("nan")  # labels of unlabeled examples: ids, and numbers


@dataclass(frozen=True, kw_only=True)
class Features(ABC):
    """A map-style dataset of `n` examples.

    An example has one sequence, or several: the windows of a long text, or the endings of a context.

    Attributes:
        sequence_offsets: [n + 1] index of the first sequence of each example; at the end, the number of
            sequences.
        labels: [n] or [n, classes] targets; None if the rows are unlabeled.
        max_untruncated_length: Length of the longest sequence before truncation, including special tokens.
        warnings: Problems of the training labels, for the user.
        weights: [n] float32 weight of each example in the loss; None if all count alike.
        targets: [n, classes] float32 probabilities of the labels, which replace `labels` in the loss; None if
            the labels are hard.
        teacher_logits: Logits that another model predicts for the examples; None if the labels are the only
            targets.
    """

    sequence_offsets: np.ndarray
    labels: np.ndarray | None
    num_truncated: int = 0
    max_untruncated_length: int = 0
    unk_fraction: float = 0.0
    warnings: Sequence[str] = ()
    weights: np.ndarray | None = None
    targets: np.ndarray | None = None
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
        if self.weights is not None:
            item[WEIGHTS] = self.weights[index]
        if self.targets is not None:
            item[TARGETS] = self.targets[index]
        if self.teacher_logits is not None:
            item[TEACHER_LOGITS] = self.teacher_logits[index]
        return item

    @property
    def row_index(self) -> np.ndarray:
        """[n] index of the row of each example; by default an example is a row."""
        return np.arange(len(self))

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

    def reduce_logits(self, logits: Any, examples: np.ndarray, batch: dict[str, Any]) -> Any:
        """Reduce the logits of a batch to what scoring needs; by default, keep all of them.

        Args:
            logits: Tensor [predictions, ...] of the fp32 logits of the examples.
            examples: [batch] indices of the examples.
            batch: The collated batch.

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


@dataclass(frozen=True)
class LabeledRows:
    """What the evaluation of rows reads of their features; see `Features`."""

    size: int
    labels: np.ndarray | None
    targets: np.ndarray | None = None
    num_truncated: int = 0  # texts are read as a whole
    max_untruncated_length: int = 0
    warnings: Sequence[str] = ()

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] index of the first row of logits of each example: each row has one."""
        return np.arange(self.size + 1)

    def __len__(self) -> int:
        return self.size


@dataclass(frozen=True, kw_only=True)
class TextFeatures(Features):
    """Features whose sequences are built from the tokens of one or two columns of texts, on demand.

    A sequence consists of special tokens and ranges of tokens, so the memory does not depend on its length.

    Attributes:
        columns: Token ids of the texts of each column.
        ranges: The ranges of tokens that each sequence contains.
    """

    template: SequenceTemplate
    columns: Sequence[Ragged]
    ranges: TokenRanges

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
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
        max_length: Maximum sequence length in tokens, including special tokens.
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
        max_length: Maximum sequence length in tokens, including special tokens.
    """
    context_ids = encode(contexts, tokenizer, cache)
    ending_ids = encode(flatten_lists(endings), tokenizer, cache)
    counts = np.fromiter(map(len, endings), np.int64, len(endings))
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

    `starts` and `stops`, both [texts, columns], are the tokens of each text or pair before truncation.
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
