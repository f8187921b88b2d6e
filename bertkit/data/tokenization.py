"""Tokenize texts once, cache the result by content, truncate, and add special tokens.

The tokenizer's own truncation is not used. It supports neither `head+tail` nor windows, and does not report
how many tokens it removed. For `head` and `tail` the result equals the tokenizer's
`truncation="longest_first"`, so that `transformers.pipeline()` agrees with bertkit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from bertkit.utils.cache import get_or_create
from bertkit.utils.ragged import Ragged, concat_ranges, slide_windows
from bertkit.utils.text import replace_surrogates

T = TypeVar("T")
LongTextStrategy = Literal["head", "tail", "head+tail", "windows"]
TokenIds = np.ndarray  # [length] ids of one text, or of a part of it, without special tokens
ENCODE_BATCH_TEXTS = 10_000  # texts per call of the tokenizer; this bounds memory
CHAR_OFFSETS_FILE = "char_offsets.npy"


@dataclass(frozen=True)
class TokenizedTexts:
    """Tokens of `n` texts and their characters, without special tokens.

    Attributes:
        ids: Token ids of each text.
        start: [tokens] first character of each token, in its own text.
        stop: [tokens] end of each token, in its own text.
        text_offsets: [n] start of each text when all texts are concatenated with one separator between two.
    """

    ids: Ragged
    start: np.ndarray
    stop: np.ndarray
    text_offsets: np.ndarray

    def find_token_ranges(
        self, text: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last token that share a character with each character span.

        Token indices count the tokens of all texts. The texts are treated as one long text, so that a single
        binary search handles all spans. Token bounds are not always sorted, for example where several tokens
        cover one character or where normalization moved characters. They are made monotonic for the search.

        Args:
            text: [m] text index of each span.
            start: [m] first character of each span.
            stop: [m] end of each span.

        Returns:
            First and last token indices, both [m]; -1 for a span without tokens (control characters).
        """
        shift = np.repeat(self.text_offsets, self.ids.lengths)
        token_starts, token_stops = self.start + shift, np.maximum.accumulate(self.stop + shift)
        sorted_starts = np.minimum.accumulate(token_starts[::-1])[::-1]
        start, stop = start + self.text_offsets[text], stop + self.text_offsets[text]
        first = np.searchsorted(token_stops, start, side="right")
        last = np.searchsorted(sorted_starts, stop, side="left") - 1
        token_starts = np.append(token_starts, np.iinfo(np.int64).max)  # `first` may point past the end
        has_tokens = (token_starts[first] < stop) & (stop > start)
        return np.where(has_tokens, first, -1), np.where(has_tokens, last, -1)


def encode(texts: Sequence[str], tokenizer: Any, cache: bool = True) -> Ragged:
    """Return the token ids of each text, not truncated and without special tokens.

    Args:
        texts: [n] texts.
        tokenizer: Fast tokenizer.
        cache: Whether to store the result in the cache and to reuse it for the same texts.
    """

    def compute() -> Ragged:
        return Ragged.from_sequences(_encode_ids(texts, tokenizer))

    if not cache:
        return compute()
    key = _make_cache_key(texts, tokenizer)
    return _load_or_compute("tokens", key, compute, Ragged.save, Ragged.load)


def encode_with_offsets(texts: Sequence[str], tokenizer: Any, cache: bool = True) -> TokenizedTexts:
    """Return the tokens of each text with their character offsets.

    Args:
        texts: [n] texts.
        tokenizer: Fast tokenizer.
        cache: Whether to store the result in the cache and to reuse it for the same texts.
    """

    def compute() -> tuple[Ragged, np.ndarray]:
        return _encode_ids_and_offsets(texts, tokenizer)

    if cache:
        key = _make_cache_key(texts, tokenizer)
        ids, spans = _load_or_compute("tokens-with-offsets", key, compute, _save_spans, _load_spans)
    else:
        ids, spans = compute()
    text_lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    text_offsets = np.concatenate([[0], np.cumsum(text_lengths + 1)])[:-1]
    return TokenizedTexts(ids, spans[0], spans[1], text_offsets)


def _load_or_compute(
    kind: str, key: str, compute: Callable[[], T], save: Callable[[T, Path], None], load: Callable[[Path], T]
) -> T:
    """Return the cached value, or compute and store it; works without a writable cache."""
    results: list[T] = []

    def write(folder: Path) -> None:
        results.append(compute())
        save(results[0], folder)

    folder = get_or_create(kind, key, write)
    if results:
        return results[0]
    return load(folder) if folder else compute()


def _make_cache_key(texts: Sequence[str], tokenizer: Any) -> str:
    """Return a digest of the tokenizer and of all texts."""
    digest = blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _save_spans(encoded: tuple[Ragged, np.ndarray], folder: Path) -> None:
    encoded[0].save(folder)
    np.save(folder / CHAR_OFFSETS_FILE, encoded[1])


def _load_spans(folder: Path) -> tuple[Ragged, np.ndarray]:
    return Ragged.load(folder), np.load(folder / CHAR_OFFSETS_FILE, mmap_mode="r")


def _encode_ids(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    ids: list[list[int]] = []
    for start in range(0, len(texts), ENCODE_BATCH_TEXTS):
        batch = [replace_surrogates(text) for text in texts[start : start + ENCODE_BATCH_TEXTS]]
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        ids.extend(encoding.ids for encoding in encodings)
    return ids


def _encode_ids_and_offsets(texts: Sequence[str], tokenizer: Any) -> tuple[Ragged, np.ndarray]:
    """Return the token ids of each text, and [2, tokens] where each token starts and stops."""
    ids: list[list[int]] = []
    spans = [np.zeros((0, 2), np.int32)]
    for start in range(0, len(texts), ENCODE_BATCH_TEXTS):
        batch = [replace_surrogates(text) for text in texts[start : start + ENCODE_BATCH_TEXTS]]
        encodings = tokenizer.backend_tokenizer.encode_batch(batch, add_special_tokens=False)
        ids.extend(encoding.ids for encoding in encodings)
        flat = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        spans.append(np.fromiter(flat, np.int32).reshape(-1, 2))
    return Ragged.from_sequences(ids), np.ascontiguousarray(np.concatenate(spans).T)


# ---- [UNK] tokens


def count_unk_tokens(ids: Ragged, tokenizer: Any) -> np.ndarray:
    """Return the number of [UNK] tokens in each text [n]."""
    if tokenizer.unk_token_id is None:
        return np.zeros(len(ids), np.int64)
    before = np.concatenate([[0], np.cumsum(ids.values == tokenizer.unk_token_id)])
    return before[ids.offsets[1:]] - before[ids.offsets[:-1]]


def compute_unk_fraction(columns: Sequence[Ragged], tokenizer: Any) -> float:
    """Return the fraction of all tokens that are [UNK]; 0 where there are no tokens."""
    total = sum(len(ids.values) for ids in columns)
    unknown = sum(int((ids.values == tokenizer.unk_token_id).sum()) for ids in columns)
    return unknown / max(1, total)


# ---- special tokens


@dataclass(frozen=True)
class SequenceTemplate:
    """Special tokens around one text or a pair, as the tokenizer adds them.

    Attributes:
        slots: The id of a special token, or ~0 / ~1 for the first / second text, in order.
        token_type_ids: `token_type_ids` of each slot.
    """

    slots: tuple[int, ...]
    token_type_ids: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, pair: bool) -> "SequenceTemplate":
        """Read the special tokens off an encoded probe: `[CLS] A [SEP]`, `<s> A </s></s> B </s>`, ..."""
        probe = tokenizer.backend_tokenizer.encode("a", *(["a"] if pair else []))
        slots: list[tuple[int, int]] = []
        for token_id, sequence, type_id in zip(probe.ids, probe.sequence_ids, probe.type_ids, strict=True):
            slot = (token_id if sequence is None else ~sequence, type_id)
            is_same_text = sequence is not None and slots and slots[-1] == slot  # "a" may give several tokens
            if not is_same_text:
                slots.append(slot)
        return cls(tuple(slot for slot, _ in slots), tuple(type_id for _, type_id in slots))

    @property
    def num_special_tokens(self) -> int:
        """Return how many special tokens the template adds."""
        return sum(slot >= 0 for slot in self.slots)

    def count_special_tokens_before(self, slot: int) -> int:
        """Return how many special tokens precede the first occurrence of a slot (~0, ~1 or a token id)."""
        return sum(other >= 0 for other in self.slots[: self.slots.index(slot)])

    def wrap_ranges(
        self, values: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[Ragged, Ragged, int]:
        """Build a single-text sequence from each range of a flat array of token ids.

        Args:
            values: [total] token ids.
            starts: [n] first token of each sequence.
            stops: [n] end of each sequence.

        Returns:
            `input_ids` and `token_type_ids` of all sequences, and how many special tokens precede the text.
        """
        text_slot = self.slots.index(~0)
        sizes = np.ones((len(starts), len(self.slots)), np.int64)
        sizes[:, text_slot] = stops - starts
        offsets = np.concatenate([[0], np.cumsum(sizes.sum(1))])
        first = offsets[:-1] + text_slot
        input_ids = np.repeat(np.tile(np.array(self.slots, np.int32), len(starts)), sizes.ravel())
        input_ids[concat_ranges(first, first + sizes[:, text_slot])] = values[concat_ranges(starts, stops)]
        type_ids = np.repeat(np.tile(np.array(self.token_type_ids, np.int8), len(starts)), sizes.ravel())
        return Ragged(input_ids, offsets), Ragged(type_ids, offsets), text_slot

    def fill(self, texts: Sequence[TokenIds]) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids`, both [length], of one text or pair."""
        parts = [texts[~slot] if slot < 0 else np.array([slot]) for slot in self.slots]
        return np.concatenate(parts), np.repeat(self.token_type_ids, [len(part) for part in parts])


# ---- long texts


def truncate(
    texts: Sequence[TokenIds], max_tokens: int, long_texts: LongTextStrategy
) -> list[tuple[TokenIds, ...]]:
    """Shorten one text or a pair to `max_tokens` tokens in total.

    `head+tail` keeps a quarter of the tokens from the start and the rest from the end (Sun et al. 2019, "How
    to Fine-Tune BERT for Text Classification?", 5.3.1). Windows overlap by a quarter.

    Returns:
        One shortened text or pair, or several for `windows`.
    """
    lengths = [len(text) for text in texts]
    if sum(lengths) <= max_tokens:
        return [tuple(texts)]
    sizes = _allocate_tokens(lengths, max_tokens)
    if long_texts == "windows":
        return _split_into_windows(texts, sizes)
    return [tuple(_shorten(text, size, long_texts) for text, size in zip(texts, sizes, strict=True))]


def _allocate_tokens(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Return the tokens that each text keeps; the longer one is shortened first, as in `longest_first`."""
    if len(lengths) == 1:
        return [max_tokens]
    shorter = min(lengths)
    if shorter > max_tokens // 2:
        shorter = max_tokens // 2
    longer = max_tokens - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]


def _shorten(text: TokenIds, size: int, long_texts: LongTextStrategy) -> TokenIds:
    if len(text) <= size:
        return text
    if long_texts == "tail":
        return text[len(text) - size :]
    head = size if long_texts == "head" else size // 4
    return np.concatenate([text[:head], text[len(text) - (size - head) :]])


def _split_into_windows(texts: Sequence[TokenIds], sizes: Sequence[int]) -> list[tuple[TokenIds, ...]]:
    """Return overlapping windows that contain every token; a shorter text repeats its last window."""
    columns = [_slice_windows(text, size) for text, size in zip(texts, sizes, strict=True)]
    count = max(map(len, columns))
    return [tuple(column[min(i, len(column) - 1)] for column in columns) for i in range(count)]


def _slice_windows(text: TokenIds, size: int) -> list[TokenIds]:
    _, starts, stops = slide_windows(np.array([0]), np.array([len(text)]), size, size - size // 4)
    return [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
