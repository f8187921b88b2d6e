"""Split texts into words, join words to texts, and find the characters and the first token of each word."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import regex

from bertkit.data.table import Rows, iter_chunks
from bertkit.data.tokens import encode_with_offsets
from bertkit.data.unicode import UNSPACED_SCRIPTS
from bertkit.errors import UserError, format_count
from bertkit.utils.arrays import Ragged, compute_offsets, get_index_dtype

# Scripts that write words without spaces, or attach particles to words. An entity may end at any character,
# so each character is a word.
CHARACTER_SCRIPTS = UNSPACED_SCRIPTS + r"\p{Hangul}"
WORD_PATTERN = regex.compile(
    rf"(?V1)(?=[{CHARACTER_SCRIPTS}])\X|[[\p{{L}}\p{{M}}\p{{N}}_]--[{CHARACTER_SCRIPTS}]]+|(?!\s)\X"
)
UNSPACED_CHARACTER = regex.compile(rf"[{CHARACTER_SCRIPTS}]")
TYPE_KEYS = ("label", "type", "entity_group", "entity", "tag")  # accepted keys for the type of a span


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, which contain all characters except white space."""
    return WORD_PATTERN.findall(text)


def join_words(words: Sequence[str]) -> str:
    """Join words to a text, without spaces if the words are the characters of the text.

    The words are characters if one of them is a space (KLUE-NER). They are also characters if each has length
    1 and one of them belongs to a script without spaces.
    """
    joined = " ".join(words)
    are_characters = max(map(len, words), default=0) == 1 and UNSPACED_CHARACTER.search(joined)
    return "".join(words) if are_characters or " " in words else joined


@dataclass(frozen=True)
class WordSpans:
    """`n` sentences with the character span of each word.

    Attributes:
        texts: [n] text of each sentence.
        offsets: [n + 1] index of each sentence's first word.
        start: [words] index of each word's first character in its text.
        stop: [words] index after each word's last character in its text.
    """

    texts: Sequence[str]
    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray

    @classmethod
    def from_words(cls, words: Sequence[Sequence[str]], texts: Sequence[str]) -> "WordSpans":
        """Find the character span of each word.

        Args:
            words: [n] words of each sentence.
            texts: [n] text of each sentence. It must be the join of the words, with or without spaces, or the
                words must be the result of `split_words`.
        """
        counts = np.fromiter(map(len, words), np.int64, len(words))
        offsets = compute_offsets(counts)
        lengths = np.fromiter(map(len, chain.from_iterable(words)), np.int64, offsets[-1])
        gaps = [_measure_gap(sentence, text) for sentence, text in zip(words, texts, strict=True)]
        gap_by_word = np.repeat(np.array([gap or 0 for gap in gaps], np.int64), counts)
        word_offsets = compute_offsets(lengths + gap_by_word)
        start = word_offsets[:-1] - np.repeat(word_offsets[offsets[:-1]], counts)
        for row, gap in enumerate(gaps):
            if gap is None:
                matches = WORD_PATTERN.finditer(texts[row])
                start[offsets[row] : offsets[row + 1]] = [match.start() for match in matches]
        return cls(texts, offsets, start, start + lengths)


def matches_text(words: Sequence[str], text: str) -> bool:
    """Return whether `WordSpans.from_words` can find the words in the text."""
    return _measure_gap(words, text) is not None or split_words(text) == words


def _measure_gap(words: Sequence[str], text: str) -> int | None:
    """Return the number of characters between words, or None if the text is not a join of the words."""
    if len(words) > 1 and text == "".join(words):
        return 0
    return 1 if text == " ".join(words) else None


@dataclass(frozen=True)
class WordTokens:
    """Tokenized sentences, without special tokens.

    Attributes:
        ids: Token ids of each sentence.
        word_offsets: [n + 1] index of each sentence's first word.
        first_token: [words] index of each word's first token in the concatenated tokens; -1 for a word
            without tokens, such as a control character that normalization removes.
    """

    ids: Ragged
    word_offsets: np.ndarray
    first_token: np.ndarray


def encode_words(
    words: Sequence[Sequence[str]], texts: Sequence[str], tokenizer: Any, cache: bool = True
) -> WordTokens:
    """Tokenize sentences, and find the first token of each word.

    A text is tokenized as a whole, not word by word, as in `transformers.pipeline()`. The tokens are then the
    same as in any other text, and a token may contain several words.

    Args:
        words: [n] words of each sentence.
        texts: [n] text of each sentence; see `WordSpans.from_words`.
        tokenizer: A fast tokenizer.
        cache: Whether to cache the tokens.
    """
    tokenized = encode_with_offsets(texts, tokenizer, cache)
    dtype = get_index_dtype(len(tokenized.ids.values))
    counts, first_tokens = [np.zeros(0, np.int64)], [np.zeros(0, dtype)]
    first_text = 0
    for part_words, part_texts in zip(iter_chunks(words), iter_chunks(texts), strict=True):
        spans = WordSpans.from_words(part_words, part_texts)
        part = tokenized.slice_texts(first_text, first_text + len(part_texts))
        counts.append(np.diff(spans.offsets))
        text_index = np.repeat(np.arange(len(part_texts)), counts[-1])
        first, _ = part.find_token_ranges(text_index, spans.start, spans.stop)
        first_tokens.append(np.where(first >= 0, first + tokenized.ids.offsets[first_text], -1).astype(dtype))
        first_text += len(part_texts)
    offsets = compute_offsets(np.concatenate(counts))
    return WordTokens(tokenized.ids, offsets, np.concatenate(first_tokens))


# ---- character spans of entities


def convert_spans_to_tags(rows: Rows, index: int, value: Any, text: str, words: Sequence[str]) -> list[str]:
    """Convert character spans to IOB2 tags. A word that overlaps a span belongs to the entity.

    Args:
        rows: The rows, for error messages.
        index: Index of the row, for error messages.
        value: A list of spans, see `parse_span`.
        text: The text of the row.
        words: The words of the text.

    Raises:
        UserError: The value is not a list of spans, or a span exceeds the text, contains no word, or overlaps
            another span.
    """
    tags = ["O"] * len(words)
    spans = WordSpans.from_words([words], [text])
    for start, stop, type in _parse_spans(rows, index, value, text):
        word_indices = np.flatnonzero((spans.start < stop) & (spans.stop > start)).tolist()
        location = f"{rows.format_location(index)}: span {start} to {stop}"
        if not word_indices:
            raise UserError(f"{location}: contains no word; correct or remove the span")
        if any(tags[word] != "O" for word in word_indices):
            raise UserError(
                f"{location}: overlaps another span at {words[word_indices[0]]!r}, and a word has one tag; "
                "remove one of the two spans"
            )
        tags[word_indices[0]] = f"B-{type}"
        for word in word_indices[1:]:
            tags[word] = f"I-{type}"
    return tags


def _parse_spans(rows: Rows, index: int, value: Any, text: str) -> list[tuple[int, int, str]]:
    location = rows.format_location(index)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{location}: spans: expected a list of [start, end, type], found {value!r}")
    spans = []
    for item in value:
        span = parse_span(item)
        if span is None:
            raise UserError(
                f"{location}: cannot parse span {item!r}; for a text write [start, end, type] or objects "
                "with start, end and label, for a list of words write their tags"
            )
        start, stop, _ = span
        if not 0 <= start < stop <= len(text):
            raise UserError(
                f"{location}: span {start} to {stop}: is not inside the text, which has "
                f"{format_count(len(text), 'character')}; correct or remove the span"
            )
        spans.append(span)
    return sorted(spans)


def parse_span(value: Any) -> tuple[int, int, str] | None:
    """Return start, end and type of a span, or None if the value is not a span.

    Args:
        value: A list `[start, end, type]`, or an object with the keys "start", "end" and one of `TYPE_KEYS`.
    """
    if isinstance(value, Mapping):
        type = next((value[key] for key in TYPE_KEYS if key in value), None)
        value = (value.get("start"), value.get("end"), type)
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        return None
    start, stop, type = value
    are_integers = all(isinstance(bound, int) and not isinstance(bound, bool) for bound in (start, stop))
    return (start, stop, type) if are_integers and isinstance(type, str) and type else None


def strip_span(text: str, span: tuple[int, int, str]) -> tuple[int, int]:
    """Return start and end of a span without leading and trailing white space."""
    start, stop, _ = span
    span_text = text[start:stop]
    return stop - len(span_text.lstrip()), start + len(span_text.rstrip())


def extract_entities(
    tags: Sequence[str], words: Sequence[str], text: str, scores: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Return the entities of a sentence with their character spans.

    Args:
        tags: Legal IOB2 tags of the words.
        words: The words of the sentence.
        text: The text of the sentence.
        scores: The probability of each tag, or None. The score of an entity is the mean over its words.
    """
    bounds: list[tuple[int, int]] = []
    for word, tag in enumerate(tags):
        if tag[0] == "B":
            bounds.append((word, word))
        elif tag[0] == "I":
            bounds[-1] = (bounds[-1][0], word)
    if not bounds:
        return []
    spans = WordSpans.from_words([words], [text])
    entities = []
    for first, last in bounds:
        start, end = int(spans.start[first]), int(spans.stop[last])
        entity = {"start": start, "end": end, "label": tags[first][2:], "text": text[start:end]}
        if scores:
            entity["score"] = round(sum(scores[first : last + 1]) / (last + 1 - first), 4)
        entities.append(entity)
    return entities
