"""Tokenize texts once, cache the result by content, truncate, and add special tokens.

The truncation of transformers is not used: it supports neither `head+tail` nor windows, and does not report
how many tokens it has removed. For `head` and `tail` the result equals `truncation="longest_first"` of
transformers. `transformers.pipeline()` and bertkit thus give the same predictions.
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
TokenIds = np.ndarray  # [length] ids of a text, or of a part of a text, without special tokens
ENCODE_BATCH_TEXTS = 10_000  # texts per call of the tokenizer; this bounds memory
CHAR_OFFSETS_FILE = "char_offsets.npy"


@dataclass(frozen=True)
class TokenizedTexts:
    """Tokens of `n` texts with their character offsets, without special tokens.

    Attributes:
        ids: Token ids of each text.
        start: [tokens] index of the first character of each token in its text.
        stop: [tokens] index of the character after each token in its text.
        text_offsets: [n] position of each text in the concatenation of all texts, with one character between
            texts.
    """

    ids: Ragged
    start: np.ndarray
    stop: np.ndarray
    text_offsets: np.ndarray

    def find_token_ranges(
        self, text: np.ndarray, start: np.ndarray, stop: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last token that overlap with each character span.

        Args:
            text: [m] index of the text of each span.
            start: [m] index of the first character of each span in its text.
            stop: [m] index of the character after each span in its text.

        Returns:
            [m] first and [m] last token, as indices into the tokens of all texts. Both are -1 for a span
            that overlaps no token, such as one of control characters only.
        """
        # The texts are treated as one long text, so a single binary search handles all spans. It needs sorted
        # token bounds. They are made monotonic, because normalization may reorder characters.
        shift = np.repeat(self.text_offsets, self.ids.lengths)
        token_starts = self.start + shift
        sorted_stops = np.maximum.accumulate(self.stop + shift)
        sorted_starts = np.minimum.accumulate(token_starts[::-1])[::-1]
        start = start + self.text_offsets[text]
        stop = stop + self.text_offsets[text]
        first = np.searchsorted(sorted_stops, start, side="right")
        last = np.searchsorted(sorted_starts, stop, side="left") - 1
        token_starts = np.append(token_starts, np.iinfo(np.int64).max)  # `first` may be the number of tokens
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
    """Return the cached value, or compute and store it. Without a writable cache, only compute it."""
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
    """Return the token ids of each text, and [2, tokens] starts and stops of all tokens."""
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
    """Return [n] the number of [UNK] tokens in each text."""
    if tokenizer.unk_token_id is None:
        return np.zeros(len(ids), np.int64)
    cumulative_counts = np.concatenate([[0], np.cumsum(ids.values == tokenizer.unk_token_id)])
    return cumulative_counts[ids.offsets[1:]] - cumulative_counts[ids.offsets[:-1]]


def compute_unk_fraction(columns: Sequence[Ragged], tokenizer: Any) -> float:
    """Return the fraction of all tokens that are [UNK]; 0 if there are no tokens."""
    total = sum(len(ids.values) for ids in columns)
    unknown = sum(int((ids.values == tokenizer.unk_token_id).sum()) for ids in columns)
    return unknown / max(1, total)


# ---- special tokens


@dataclass(frozen=True)
class SequenceTemplate:
    """Special tokens around one text or a pair, as the tokenizer adds them.

    Attributes:
        slots: Elements of the sequence in order: the id of a special token, ~0 for the first text, or ~1 for
            the second text.
        token_type_ids: Segment id of each slot.
    """

    slots: tuple[int, ...]
    token_type_ids: tuple[int, ...]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, pair: bool) -> "SequenceTemplate":
        """Derive the template (`[CLS] A [SEP]`, `<s> A </s></s> B </s>`, ...) from an encoded example."""
        texts = ["a", "a"] if pair else ["a"]
        encoding = tokenizer.backend_tokenizer.encode(*texts)
        slots: list[tuple[int, int]] = []
        for token_id, text, type_id in zip(
            encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True
        ):
            slot = (token_id if text is None else ~text, type_id)
            is_same_text = text is not None and slots and slots[-1] == slot  # "a" may give several tokens
            if not is_same_text:
                slots.append(slot)
        return cls(tuple(slot for slot, _ in slots), tuple(type_id for _, type_id in slots))

    @property
    def num_special_tokens(self) -> int:
        """Number of special tokens that the template adds."""
        return sum(slot >= 0 for slot in self.slots)

    def count_special_tokens_before(self, slot: int) -> int:
        """Return how many special tokens precede the first occurrence of a slot (see `slots`)."""
        return sum(other >= 0 for other in self.slots[: self.slots.index(slot)])

    def wrap_ranges(
        self, values: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[Ragged, Ragged, int]:
        """Build single-text sequences from ranges of a flat array of token ids.

        Args:
            values: [total] token ids.
            starts: [n] index of the first token of each text.
            stops: [n] index after the last token of each text.

        Returns:
            `input_ids` and `token_type_ids` of all sequences, and the position of the text in each sequence.
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
        """Return `input_ids` and `token_type_ids`, both [length], of a text or a pair."""
        parts = [texts[~slot] if slot < 0 else np.array([slot]) for slot in self.slots]
        return np.concatenate(parts), np.repeat(self.token_type_ids, [len(part) for part in parts])


# ---- long texts


def truncate(
    texts: Sequence[TokenIds], max_tokens: int, long_texts: LongTextStrategy
) -> list[tuple[TokenIds, ...]]:
    """Truncate a text or a pair to `max_tokens` tokens without special tokens, or split it.

    With `head+tail`, a quarter of the tokens come from the start of a text and the others from the end.
    This follows Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?", 5.3.1. Windows overlap by
    a quarter.

    Returns:
        A list with the truncated text or pair; with one element per window if `long_texts` is `windows`.
    """
    lengths = [len(text) for text in texts]
    if sum(lengths) <= max_tokens:
        return [tuple(texts)]
    sizes = _allocate_tokens(lengths, max_tokens)
    if long_texts == "windows":
        return _split_into_windows(texts, sizes)
    return [tuple(_truncate_text(text, size, long_texts) for text, size in zip(texts, sizes, strict=True))]


def _allocate_tokens(lengths: Sequence[int], max_tokens: int) -> list[int]:
    """Return how many tokens each text keeps; the longer text is truncated first, as in `longest_first`."""
    if len(lengths) == 1:
        return [max_tokens]
    shorter = min(lengths)
    shorter = min(shorter, max_tokens // 2)
    longer = max_tokens - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]


def _truncate_text(text: TokenIds, size: int, long_texts: LongTextStrategy) -> TokenIds:
    if len(text) <= size:
        return text
    if long_texts == "tail":
        return text[len(text) - size :]
    head = size if long_texts == "head" else size // 4
    return np.concatenate([text[:head], text[len(text) - (size - head) :]])


def _split_into_windows(texts: Sequence[TokenIds], sizes: Sequence[int]) -> list[tuple[TokenIds, ...]]:
    """Return overlapping windows of a text or a pair; every token is in a window.

    If one text of a pair has fewer windows, its last window is repeated.
    """
    windows_by_text = [_slice_windows(text, size) for text, size in zip(texts, sizes, strict=True)]
    num_windows = max(map(len, windows_by_text))
    padded = [windows + [windows[-1]] * (num_windows - len(windows)) for windows in windows_by_text]
    return list(zip(*padded, strict=True))


def _slice_windows(text: TokenIds, size: int) -> list[TokenIds]:
    _, starts, stops = slide_windows(np.array([0]), np.array([len(text)]), size, size - size // 4)
    return [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
