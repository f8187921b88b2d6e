"""Tokenize texts: token ids from the tokenizer or the cache, character spans, counts and special tokens."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import regex

from bertkit.data.table import CHUNK_ROWS, as_column, iter_chunks, select_values
from bertkit.utils.arrays import Ragged, RaggedWriter, compute_offsets, concat_ranges, iter_batches, map_array
from bertkit.utils.cache import cache_or_write
from bertkit.utils.reporting import track_progress
from bertkit.utils.text import replace_surrogates

# ---- character spans
#
# White space belongs to no token, though many tokenizers count the space before a word as part of it. All
# other characters that the model reads belong to a token. Three kinds of tokenizers report spans that leave
# some out: a composed letter (NFC, NFKC) has the span of its first character; with `Whitespace` before
# `ByteLevel`, the span of each word begins one character late; and characters that the vocabulary lacks may
# have no token.

# Unicode has no white space above U+3000, the ideographic space.
WHITE_SPACE_CODES = [code for code in range(0x3000 + 1) if chr(code).isspace()]
# Normalization may remove control characters, marks, and the replacement character U+FFFD, which therefore
# belong to a token only as parts of a grapheme.
VISIBLE = regex.compile(r"(?V1)[[\p{L}\p{N}\p{S}]--\uFFFD]")
WORD = regex.compile(r"[\p{L}\p{M}\p{N}]")
# A character that continues the grapheme of the character before it, or is continued by any character.
_CONTINUES = "".join(
    rf"\p{{Grapheme_Cluster_Break={name}}}"
    for name in ("Extend", "ZWJ", "SpacingMark", "V", "T", "Regional_Indicator")
)
_IS_CONTINUED = r"\p{Grapheme_Cluster_Break=Prepend}\p{Grapheme_Cluster_Break=L}"
LONG_GRAPHEME = regex.compile(rf"(?s)(?=.[{_CONTINUES}]|[{_IS_CONTINUED}].)\X")


@dataclass(frozen=True)
class _Characters:
    """The characters of some texts, with one separator after each text.

    Attributes:
        codes: [characters] code points.
        is_space: [characters] bool, whether a character is white space or a separator.
        text_start: [texts] position of each text.
    """

    joined: str
    codes: np.ndarray
    is_space: np.ndarray
    text_start: np.ndarray

    @classmethod
    def from_texts(cls, texts: Sequence[str]) -> "_Characters":
        joined = "\0".join([*texts, ""])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
        is_space = np.isin(codes, WHITE_SPACE_CODES)
        is_space[ends - 1] = True
        return cls(joined, codes, is_space, np.append(0, ends)[:-1])

    def match(self, pattern: regex.Pattern[str]) -> np.ndarray:
        """Return whether each character matches a pattern [characters]."""
        is_match = np.zeros(int(self.codes.max(initial=0)) + 1, bool)
        distinct = np.flatnonzero(np.bincount(self.codes))
        is_match[distinct] = [bool(pattern.match(chr(code))) for code in distinct]
        return is_match[self.codes]

    def find_grapheme_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the start and the end of the grapheme around each position [characters + 1].

        Both are the position itself where a grapheme begins.
        """
        start = np.arange(len(self.codes) + 1)
        stop = start.copy()
        for match in LONG_GRAPHEME.finditer(self.joined):
            first, end = match.span()
            start[first + 1 : end] = first
            stop[first + 1 : end] = end
        return start, stop

    def strip(self, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return spans without white space at their ends; a span of white space becomes empty."""
        start = np.minimum(_find_next(~self.is_space)[start], stop)
        return start, np.maximum(_find_previous_end(~self.is_space)[stop], start)


def _find_next(mask: np.ndarray) -> np.ndarray:
    """Return the first position of True at or after each position [characters + 1]."""
    positions = np.append(np.where(mask, np.arange(len(mask)), len(mask)), len(mask))
    return np.minimum.accumulate(positions[::-1])[::-1]


def _find_previous_end(mask: np.ndarray) -> np.ndarray:
    """Return the end of the last True before each position [characters + 1]; 0 if there is none."""
    return np.maximum.accumulate(np.append(0, np.where(mask, np.arange(1, len(mask) + 1), 0)))


def correct_spans(spans: np.ndarray, num_tokens: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return spans without white space, in which each character that the model reads has a token.

    A character without a token belongs to the token before it, if it continues its grapheme or its word, and
    otherwise to the token that directly follows.

    Args:
        spans: [tokens, 2] start and stop of each token in its text, as the tokenizer reports them.
        num_tokens: [texts] number of tokens of each text.
    """
    characters = _Characters.from_texts(texts)
    shift = np.repeat(characters.text_start, num_tokens)
    start, stop = characters.strip(spans[:, 0] + shift, spans[:, 1] + shift)
    is_taken = characters.is_space | _mark_covered(start, stop, len(characters.codes))
    if not is_taken.all():
        grapheme_start, grapheme_stop = characters.find_grapheme_bounds()
        # Extend tokens by the rest of their last grapheme and of their word, up to the next token.
        tokens = np.flatnonzero((stop > start) & ~is_taken[stop])
        limit = _find_next(is_taken)[stop[tokens]]
        end = np.minimum(grapheme_stop[stop[tokens]], limit)
        is_word = characters.match(WORD)
        continues = is_word[end - 1] & is_word[end]
        end[continues] = np.minimum(_find_next(~is_word)[end], limit)[continues]
        stop[tokens] = end
        # Extend tokens by the visible characters before them, back to the token before. An empty token takes
        # all characters, because it was certainly made from some of them.
        is_taken |= _mark_covered(start, stop, len(is_taken))
        tokens = np.flatnonzero((start > 0) & ~is_taken[start - 1])
        previous_stop = np.append(0, np.maximum.accumulate(stop))[tokens]
        earliest = np.maximum(_find_previous_end(is_taken)[start[tokens]], previous_stop)
        first_visible = _find_next(characters.match(VISIBLE))[earliest]
        begin = np.maximum(np.minimum(first_visible, grapheme_start[start[tokens]]), earliest)
        begin = np.where(start[tokens] == stop[tokens], earliest, begin)
        start[tokens] = np.minimum(begin, start[tokens])
    # An empty token must not end after the start of a later one, because spans are searched by their bounds.
    next_start = np.minimum.accumulate(start[::-1])[::-1]
    is_empty = start == stop
    start, stop = (np.where(is_empty, next_start, bound) for bound in (start, stop))
    return np.stack([start - shift, stop - shift], 1).astype(spans.dtype)


def _mark_covered(start: np.ndarray, stop: np.ndarray, size: int) -> np.ndarray:
    """Return whether each character is in a span [size]."""
    changes = np.bincount(start, minlength=size + 1) - np.bincount(stop, minlength=size + 1)
    return np.cumsum(changes)[:-1] > 0


def widen_to_graphemes(
    start: np.ndarray, stop: np.ndarray, num_tokens: np.ndarray, texts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return spans that begin and end at the bounds of graphemes, without white space.

    `start` and `stop` [tokens] are positions in the text of each token, and `num_tokens` is [texts].
    """
    if all(map(str.isascii, texts)):
        return start, stop
    characters = _Characters.from_texts(texts)
    shift = np.repeat(characters.text_start, num_tokens)
    shifted_start, shifted_stop = start + shift, stop + shift
    grapheme_start, grapheme_stop = characters.find_grapheme_bounds()
    has_characters = stop > start
    new_start, new_stop = characters.strip(grapheme_start[shifted_start], grapheme_stop[shifted_stop])
    return np.where(has_characters, new_start - shift, start), np.where(
        has_characters, new_stop - shift, stop
    )


# ---- tokens that are shared between runs

Texts = Sequence[str]
Spans = np.ndarray  # [tokens, 2] start and stop of each token in its text, in characters


@dataclass
class StoredTokens:
    """The tokens of all texts that one tokenizer has encoded.

    Attributes:
        hashes: [n] hash of each text, sorted.
        position: [n] index of the text with this hash in `ids`.
        spans: The characters of the tokens; [0, 2] if they are not computed.
    """

    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    position: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    ids: Ragged = field(default_factory=lambda: Ragged(np.zeros(0, np.uint16), np.zeros(1, np.int64)))
    spans: Spans = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    def find(self, hashes: np.ndarray) -> np.ndarray:
        """Return [texts] the index of each text in `ids`, or -1."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        index = np.searchsorted(self.hashes, hashes).clip(max=len(self.hashes) - 1)
        return np.where(self.hashes[index] == hashes, self.position[index], -1)

    def add(self, hashes: np.ndarray, ids: Ragged, spans: Spans) -> None:
        """Add texts that `find` does not find."""
        position = np.concatenate([self.position, len(self.ids) + np.arange(len(hashes))])
        all_hashes = np.concatenate([self.hashes, hashes])
        order = np.argsort(all_hashes)
        self.hashes, self.position = all_hashes[order], position[order]
        lengths = np.concatenate([self.ids.lengths, ids.lengths])
        values = np.concatenate([self.ids.values.astype(ids.values.dtype), ids.values])
        self.ids = Ragged(values, compute_offsets(lengths))
        self.spans = np.concatenate([self.spans, spans])

    def select(self, index: np.ndarray) -> tuple[Ragged, Spans]:
        """Return the tokens of the texts at these indices."""
        starts, stops = self.ids.offsets[index], self.ids.offsets[index + 1]
        tokens = concat_ranges(starts, stops)
        spans = self.spans[tokens] if len(self.spans) else self.spans
        return Ragged(self.ids.values[tokens], compute_offsets(stops - starts)), spans


# By tokenizer, and whether spans are computed; None outside of `share_tokens`.
_stored_tokens: ContextVar[dict[str, StoredTokens] | None] = ContextVar("stored_tokens", default=None)


@contextmanager
def share_tokens() -> Iterator[None]:
    """Keep the tokens of all texts that are encoded in the block, and use them again for equal texts."""
    token = _stored_tokens.set({})
    try:
        yield
    finally:
        _stored_tokens.reset(token)


# ---- encoding

T = TypeVar("T")
TokenIds = np.ndarray  # [length] ids of a text, or of a part of a text, without special tokens
SPANS_FILE = "spans.bin"
NO_SPANS = np.empty((0, 2), np.int32)
# A batch for the tokenizer ends at one of these limits, which bound the memory of the tokenizer.
MAX_BATCH_TEXTS = 4096
MAX_BATCH_CHARS = 400_000


@dataclass(frozen=True)
class TokenizedTexts:
    """Tokens of `n` texts with their character offsets, without special tokens.

    Attributes:
        ids: Token ids of each text.
        start: [tokens] index of the first character of each token in its text; see `correct_spans`.
        stop: [tokens] index of the character after each token in its text.
        text_offsets: [n] position of each text in the concatenation of all texts, with one character between
            texts.
    """

    ids: Ragged
    start: np.ndarray
    stop: np.ndarray
    text_offsets: np.ndarray

    def slice_texts(self, start: int, stop: int) -> "TokenizedTexts":
        """Return the tokens of consecutive texts."""
        tokens = slice(self.ids.offsets[start], self.ids.offsets[min(stop, len(self.ids))])
        text_offsets = self.text_offsets[start:stop]
        return TokenizedTexts(
            self.ids.slice_sequences(start, stop), self.start[tokens], self.stop[tokens],
            text_offsets - text_offsets[0],
        )  # fmt: skip

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
        order = np.argsort(text, kind="stable")
        first, last = np.full((2, len(text)), -1, np.int64)
        for first_text in range(0, len(self.ids), CHUNK_ROWS):
            bounds = np.searchsorted(text[order], [first_text, first_text + CHUNK_ROWS])
            spans = order[slice(*bounds)]
            if not len(spans):
                continue
            # The texts of a part are treated as one long text, so a single binary search handles all spans.
            # It needs sorted token bounds. They are made monotonic, because normalization may reorder
            # characters.
            part = self.slice_texts(first_text, first_text + CHUNK_ROWS)
            shift = np.repeat(part.text_offsets, part.ids.lengths)
            token_starts = part.start + shift
            sorted_stops = np.maximum.accumulate(part.stop + shift)
            sorted_starts = np.minimum.accumulate(token_starts[::-1])[::-1]
            text_offset = part.text_offsets[text[spans] - first_text]
            span_start, span_stop = start[spans] + text_offset, stop[spans] + text_offset
            first_token = np.searchsorted(sorted_stops, span_start, side="right")
            last_token = np.searchsorted(sorted_starts, span_stop, side="left") - 1
            token_starts = np.append(token_starts, np.iinfo(np.int64).max)  # for spans after the last token
            has_tokens = (token_starts[first_token] < span_stop) & (span_stop > span_start)
            shift_of_part = self.ids.offsets[first_text]
            first[spans] = np.where(has_tokens, first_token + shift_of_part, -1)
            last[spans] = np.where(has_tokens, last_token + shift_of_part, -1)
        return first, last


def encode(texts: Texts, tokenizer: Any, cache: bool = True) -> Ragged:
    """Return the token ids of each text, not truncated and without special tokens.

    Within `share_tokens`, texts that were encoded before are not encoded again.

    Args:
        texts: [n] texts.
        cache: Whether to store the result in the cache and to reuse it for the same texts. The token ids are
            then memory-mapped.
    """
    return _encode(texts, tokenizer, cache, with_spans=False)[0]


def encode_with_offsets(texts: Texts, tokenizer: Any, cache: bool = True) -> TokenizedTexts:
    """Return the tokens of each text with their character offsets; see `encode`."""
    ids, spans = _encode(texts, tokenizer, cache, with_spans=True)
    text_lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    text_offsets = np.concatenate([[0], np.cumsum(text_lengths + 1)])[:-1]
    return TokenizedTexts(ids, spans[:, 0], spans[:, 1], text_offsets)


def _encode(texts: Texts, tokenizer: Any, cache: bool, with_spans: bool) -> tuple[Ragged, Spans]:
    """Return the token ids of each text, and the spans of the tokens (empty if not requested)."""
    encode_texts = partial(
        _encode_with_cache if cache else _encode_in_memory, tokenizer=tokenizer, with_spans=with_spans
    )
    if (stored_by_tokenizer := _stored_tokens.get()) is None:
        return encode_texts(texts)
    key = _digest_tokenizer(tokenizer).hexdigest() + ("-spans" if with_spans else "")
    stored = stored_by_tokenizer.setdefault(key, StoredTokens())
    hashes = as_column(texts).hashes
    new_hashes, first = np.unique(hashes, return_index=True)
    is_missing = stored.find(new_hashes) < 0
    if is_missing.any():
        order = np.argsort(first[is_missing])  # in the order of the texts
        missing = first[is_missing][order]
        stored.add(new_hashes[is_missing][order], *encode_texts(select_values(texts, missing)))
    return stored.select(stored.find(hashes))


def _encode_in_memory(texts: Texts, tokenizer: Any, with_spans: bool) -> tuple[Ragged, Spans]:
    batches = list(encode_batches(texts, tokenizer, with_spans))
    empty_ids, empty_lengths = np.empty(0, get_token_dtype(tokenizer)), np.empty(0, np.int64)
    input_ids = np.concatenate([empty_ids, *(batch.input_ids for batch in batches)])
    lengths = np.concatenate([empty_lengths, *(batch.lengths for batch in batches)])
    spans = np.concatenate([NO_SPANS, *(batch.spans for batch in batches)])
    return Ragged(input_ids, compute_offsets(lengths)), spans


def _encode_with_cache(texts: Texts, tokenizer: Any, with_spans: bool) -> tuple[Ragged, Spans]:
    def write(folder: Path) -> None:
        with (
            RaggedWriter(folder, get_token_dtype(tokenizer)) as writer,
            (folder / SPANS_FILE).open("wb") if with_spans else nullcontext() as spans_file,
        ):
            for batch in encode_batches(texts, tokenizer, with_spans):
                writer.add(batch.input_ids, batch.lengths)
                if spans_file:
                    spans_file.write(batch.spans.data)

    digest = _digest_tokenizer(tokenizer)
    digest.update(np.ascontiguousarray(as_column(texts).hashes).data)
    kind = "tokens-with-spans" if with_spans else "tokens"
    folder = cache_or_write(kind, digest.hexdigest(), write, "the tokens")
    spans = map_array(folder / SPANS_FILE, "int32").reshape(-1, 2) if with_spans else NO_SPANS
    return Ragged.load(folder), spans


def _digest_tokenizer(tokenizer: Any) -> blake2b:
    return blake2b(tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)


# ---- batches


@dataclass(frozen=True)
class EncodedBatch:
    """A batch of `n` tokenized texts.

    Attributes:
        input_ids: [tokens] token ids of all texts, concatenated.
        spans: [tokens, 2] start and stop of each token in its text, in characters; empty unless requested.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    spans: np.ndarray


_dtypes: WeakKeyDictionary[Any, tuple[int, np.dtype]] = WeakKeyDictionary()


def get_token_dtype(tokenizer: Any) -> np.dtype:
    """Return the smallest dtype that can hold the token ids.

    It is stored for each tokenizer, because copying the vocabulary takes longer than tokenizing a text.
    """
    vocab_size = tokenizer.backend_tokenizer.get_vocab_size()  # changes if tokens are added
    known_size, dtype = _dtypes.get(tokenizer, (None, None))
    if dtype is None or known_size != vocab_size:
        dtype = np.dtype(np.uint16 if max(tokenizer.get_vocab().values()) < 1 << 16 else np.uint32)
        _dtypes[tokenizer] = vocab_size, dtype
    return dtype


def encode_batches(
    texts: Sequence[str], tokenizer: Any, with_offsets: bool = False
) -> Iterator[EncodedBatch]:
    """Tokenize texts in batches of limited size, and show the progress."""
    texts_in_order = chain.from_iterable(iter_chunks(texts))
    batches = iter_batches(texts_in_order, MAX_BATCH_CHARS, MAX_BATCH_TEXTS)
    encoded = tokenize_batches(((batch, None) for batch in batches), tokenizer, with_offsets)
    for part, _, encodings in track_progress(encoded, len(texts), "tokenizing", lambda item: len(item[0])):
        batch = flatten_encodings(encodings, get_token_dtype(tokenizer), with_offsets)
        if with_offsets:
            batch = replace(batch, spans=correct_spans(batch.spans, batch.lengths, part))
        yield batch


def tokenize_batches(
    batches: Iterable[tuple[list[str], T]], tokenizer: Any, with_offsets: bool = False
) -> Iterator[tuple[list[str], T, list[Any]]]:
    """Tokenize batches of texts, without special tokens.

    Three threads run in parallel: one reads, one tokenizes, and one uses the result. The tokenizer releases
    the global interpreter lock, so it can use all other cores. Each result is a batch of texts, the data that
    came with it, and the encodings of the tokenizers library.
    """
    backend = tokenizer.backend_tokenizer
    encode_batch = backend.encode_batch if with_offsets else backend.encode_batch_fast

    def tokenize() -> Iterator[tuple[list[str], T, list[Any]]]:
        for texts, data in prefetch(batches):
            valid = list(map(replace_surrogates, texts))
            yield texts, data, encode_batch(valid, add_special_tokens=False)

    return prefetch(tokenize())


def flatten_encodings(encodings: Sequence[Any], dtype: np.dtype, with_offsets: bool = False) -> EncodedBatch:
    """Return the tokens of a batch of encodings."""
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    all_ids = chain.from_iterable(encoding.ids for encoding in encodings)
    input_ids = np.fromiter(all_ids, dtype, lengths.sum())
    spans = NO_SPANS
    if with_offsets:
        bounds = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
        spans = np.fromiter(bounds, np.int32, 2 * len(input_ids)).reshape(-1, 2)
    return EncodedBatch(input_ids, lengths, spans)


def prefetch(items: Iterable[T], count: int = 2) -> Iterator[T]:
    """Yield the items in order while a thread computes up to `count` further items.

    Errors of the thread are raised here.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        pending = deque(pool.submit(next, source, end) for _ in range(count))
        while (item := pending.popleft().result()) is not end:
            pending.append(pool.submit(next, source, end))
            yield item  # type: ignore[misc]


# ---- [UNK] tokens


def count_unk_tokens(ids: Ragged, tokenizer: Any) -> np.ndarray:
    """Return [n] the number of [UNK] tokens in each text."""
    if tokenizer.unk_token_id is None:
        return np.zeros(len(ids), np.int64)
    counts = [np.zeros(0, np.int64)]
    for part in ids.iter_parts():
        positions = np.flatnonzero(part.values == tokenizer.unk_token_id)
        text_index = np.searchsorted(part.offsets, positions, side="right") - 1
        counts.append(np.bincount(text_index, minlength=len(part)))
    return np.concatenate(counts)


def compute_unk_fraction(columns: Sequence[Ragged], tokenizer: Any) -> float:
    """Return the fraction of all tokens that are [UNK]; 0 if there are no tokens."""
    total = sum(len(ids.values) for ids in columns)
    unknown = sum(int(count_unk_tokens(ids, tokenizer).sum()) for ids in columns)
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

    def fill(self, texts: Sequence[TokenIds]) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids`, both [length], of a text or a pair."""
        parts = [texts[~slot] if slot < 0 else np.array([slot]) for slot in self.slots]
        return np.concatenate(parts), np.repeat(self.token_type_ids, [len(part) for part in parts])

    def mark(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the flags of the tokens of a text or a pair [length] bool; False for special tokens."""
        return np.concatenate([texts[~slot] if slot < 0 else np.zeros(1, bool) for slot in self.slots])


# ---- statistics of examples


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
    def from_texts(
        cls, columns: Sequence[Texts], tokenizer: Any, with_offsets: bool = False
    ) -> "TokenCounts":
        """Count the tokens of one or two text columns; training reuses the cached encodings.

        They are cached as training encodes them, with or without character offsets.
        """
        ids = [_encode(column, tokenizer, True, with_offsets)[0] for column in columns]
        return cls._combine(ids, [_count_tokens(column, tokenizer) for column in ids], tokenizer)

    @classmethod
    def from_questions(cls, questions: Texts, contexts: Texts, tokenizer: Any) -> "TokenCounts":
        """Count the tokens of questions with their contexts; each distinct context is encoded only once."""
        context_index = {text: index for index, text in enumerate(dict.fromkeys(contexts))}
        ids = [encode(questions, tokenizer), encode_with_offsets(list(context_index), tokenizer).ids]
        question_counts, context_counts = (_count_tokens(column, tokenizer) for column in ids)
        index = np.fromiter(map(context_index.__getitem__, contexts), np.int64, len(contexts))
        return cls._combine(ids, [question_counts, context_counts[:, index]], tokenizer)

    @classmethod
    def from_choices(cls, contexts: Texts, endings: Sequence[Texts], tokenizer: Any) -> "TokenCounts":
        """Count the tokens of each context with its longest ending, and [UNK] tokens in all endings."""
        ids = [encode(contexts, tokenizer), encode(list(chain.from_iterable(endings)), tokenizer)]
        context_counts, (lengths, unk_counts) = (_count_tokens(column, tokenizer) for column in ids)
        first_endings = np.cumsum([0, *map(len, endings[:-1])])
        ending_counts = np.stack(
            [np.maximum.reduceat(lengths, first_endings), np.add.reduceat(unk_counts, first_endings)]
        )
        return cls._combine(ids, [context_counts, ending_counts], tokenizer)

    @classmethod
    def _combine(
        cls, columns: Sequence[Ragged], counts: Sequence[np.ndarray], tokenizer: Any
    ) -> "TokenCounts":
        """Add up the counts of the columns; `counts` are [2, n] results of `_count_tokens`."""
        template = SequenceTemplate.from_tokenizer(tokenizer, pair=len(columns) == 2)
        lengths, unk_counts = np.sum(counts, axis=0)
        return cls(
            lengths + template.num_special_tokens, unk_counts, compute_unk_fraction(columns, tokenizer)
        )


def _count_tokens(ids: Ragged, tokenizer: Any) -> np.ndarray:
    """Return [2, n] the numbers of tokens and of [UNK] tokens of each text, without special tokens."""
    return np.stack([ids.lengths, count_unk_tokens(ids, tokenizer)])
