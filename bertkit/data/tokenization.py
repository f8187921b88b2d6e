"""Texts to model inputs: tokenized once, cached by content, cut to length, special pieces around.

The tokenizer's own truncation is not used: it knows neither `head+tail` nor windows, and hides how
much it cut. For `head` and `tail` the result is what the tokenizer would give with
`truncation="longest_first"`, so that `transformers.pipeline()` agrees with bertkit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from bertkit.utils.cache import get_or_create
from bertkit.utils.ragged import Ragged, concat_ranges

LongTextStrategy = Literal["head", "tail", "head+tail", "windows"]
TokenIds = np.ndarray  # [length] ids of one text, or of a part of it, without special pieces
ENCODE_BATCH_TEXTS = 10_000  # texts handed to the tokenizer at a time, which bounds memory


def encode(texts: Sequence[str], tokenizer: Any, cache: bool = True) -> Ragged:
    """Ids of each text, whole and without special pieces; the same texts are encoded only once."""
    if not cache:
        return _encode(texts, tokenizer)
    digest = blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    made: list[Ragged] = []

    def write(folder: Any) -> None:
        made.append(_encode(texts, tokenizer))
        made[0].save(folder)

    folder = get_or_create("pieces", digest.hexdigest(), write)
    if made:
        return made[0]
    return Ragged.load(folder) if folder else _encode(texts, tokenizer)


def _encode(texts: Sequence[str], tokenizer: Any) -> Ragged:
    backend = tokenizer.backend_tokenizer
    sequences: list[list[int]] = []
    for start in range(0, len(texts), ENCODE_BATCH_TEXTS):
        chunk = [replace_surrogates(text) for text in texts[start : start + ENCODE_BATCH_TEXTS]]
        sequences.extend(e.ids for e in backend.encode_batch_fast(chunk, add_special_tokens=False))
    return Ragged.from_sequences(sequences)


def replace_surrogates(text: str) -> str:
    """A text of the same length that the tokenizer takes: JSON can hold half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class SequenceTemplate:
    """The special pieces around one text or a pair, read off the tokenizer itself.

    Attributes:
        slots: for each part, in order: the id of a special piece, or ~0 / ~1 for the first / second text.
        type_ids: the `token_type_ids` of each part.
    """

    slots: tuple[int, ...]
    token_type_ids: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, pair: bool) -> "SequenceTemplate":
        """Encode a probe and keep what is not text: `[CLS] A [SEP]`, `<s> A </s></s> B </s>`, ..."""
        probe = tokenizer.backend_tokenizer.encode("a", *(["a"] if pair else []))
        parts: list[tuple[int, int]] = []
        for piece, sequence, kind in zip(probe.ids, probe.sequence_ids, probe.type_ids, strict=True):
            part = (piece if sequence is None else ~sequence, kind)
            if sequence is None or not parts or parts[-1] != part:
                parts.append(part)
        return cls(tuple(slot for slot, _ in parts), tuple(kind for _, kind in parts))

    @property
    def num_special_tokens(self) -> int:
        """How many special pieces it adds."""
        return sum(slot >= 0 for slot in self.slots)

    def count_special_tokens_before(self, slot: int) -> int:
        """How many special pieces go before a slot, the first of its kind: a text, or a special piece."""
        return sum(other >= 0 for other in self.slots[: self.slots.index(slot)])

    def wrap_ranges(
        self, values: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[Ragged, Ragged, int]:
        """A sequence of one text for each stretch of `values`, and the place of a text's first piece in it.

        Returns:
            `input_ids` and `token_type_ids` of all sequences, and how many special pieces go before.
        """
        place = self.slots.index(~0)
        sizes = np.ones((len(starts), len(self.slots)), np.int64)
        sizes[:, place] = stops - starts
        offsets = np.concatenate([[0], np.cumsum(sizes.sum(1))])
        first, texts = offsets[:-1] + place, concat_ranges(starts, stops)
        ids = np.repeat(np.tile(np.array(self.slots, np.int32), len(starts)), sizes.ravel())
        ids[concat_ranges(first, first + sizes[:, place])] = values[texts]
        kinds = np.repeat(np.tile(np.array(self.token_type_ids, np.int8), len(starts)), sizes.ravel())
        return Ragged(ids, offsets), Ragged(kinds, offsets), place

    def fill(self, texts: Sequence[TokenIds]) -> tuple[np.ndarray, np.ndarray]:
        """`input_ids` and `token_type_ids`, both [length], of one text or pair."""
        parts = [texts[~slot] if slot < 0 else np.array([slot]) for slot in self.slots]
        return np.concatenate(parts), np.repeat(self.token_type_ids, [len(part) for part in parts])


def truncate(
    texts: Sequence[TokenIds], max_tokens: int, long_texts: LongTextStrategy
) -> list[tuple[TokenIds, ...]]:
    """One text or a pair, cut to `budget` pieces: one result, or several for `windows`.

    `head+tail` keeps a quarter of the budget from the front and the rest from the end (Sun et al.
    2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1). Windows overlap by a quarter.
    """
    lengths = [len(text) for text in texts]
    if sum(lengths) <= max_tokens:
        return [tuple(texts)]
    sizes = _shares(lengths, max_tokens)
    if long_texts == "windows":
        return _windows(texts, sizes)
    return [tuple(_kept(text, size, long_texts) for text, size in zip(texts, sizes, strict=True))]


def _shares(lengths: Sequence[int], budget: int) -> list[int]:
    """How many pieces each text keeps: the longer one gives first, as in `longest_first`."""
    if len(lengths) == 1:
        return [budget]
    short, long = sorted(lengths)
    if short > budget // 2:
        short, long = budget // 2, budget - budget // 2
    else:
        long = budget - short
    return [short, long] if lengths[0] <= lengths[1] else [long, short]


def _kept(text: TokenIds, size: int, long: LongTextStrategy) -> TokenIds:
    if len(text) <= size:
        return text
    if long == "tail":
        return text[len(text) - size :]
    head = size if long == "head" else size // 4
    return np.concatenate([text[:head], text[len(text) - (size - head) :]])


def _windows(texts: Sequence[TokenIds], sizes: Sequence[int]) -> list[tuple[TokenIds, ...]]:
    """Overlapping windows in which every piece of every text stands at least once."""
    columns = [_windows_of(text, size) for text, size in zip(texts, sizes, strict=True)]
    count = max(map(len, columns))
    return [tuple(column[min(i, len(column) - 1)] for column in columns) for i in range(count)]


def _windows_of(text: TokenIds, size: int) -> list[TokenIds]:
    if len(text) <= size:
        return [text]
    step = max(1, size - size // 4)
    starts = [*range(0, len(text) - size, step), len(text) - size]
    return [text[start : start + size] for start in starts]
