"""Features of named entity recognition, and the windows into which long sentences are split."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import TextFeatures, TokenRanges
from bertkit.data.language import WordSpans
from bertkit.data.table import CHUNK_ROWS, iter_chunks
from bertkit.data.tokens import SequenceTemplate, compute_unk_fraction, encode_with_offsets
from bertkit.tasks.ner.rows import ContextColumn
from bertkit.utils.arrays import (
    Ragged,
    compute_offsets,
    compute_positions_in_groups,
    concat_ranges,
    get_index_dtype,
    slide_windows,
)


@dataclass(frozen=True, kw_only=True)
class WordFeatures(TextFeatures):
    """Tokenized sentences as `n` sequences, with predictions at the first tokens of the words.

    A sequence is a sentence, or a window of a sentence that exceeds the maximum length. Windows are
    independent examples in training and inference, so a long sentence does not need more memory. The label
    of a word is predicted at its first token.

    Attributes:
        positions: Positions of the predicted tokens in each sequence.
        word_offsets: [sentences + 1] index of each sentence's first word.
        prediction_index: [words] index of each word's prediction; -1 if the word has no tokens.
        labels: [predictions] int label ids, or None.
        window_offsets: [sentences + 1] index of each sentence's first window.
    """

    positions: Ragged
    word_offsets: np.ndarray
    prediction_index: np.ndarray
    window_offsets: np.ndarray

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        item["positions"] = [self.positions[index]]
        if self.labels is not None:
            item["labels"] = self.labels[self.logit_offsets[index] : self.logit_offsets[index + 1]]
        return item

    @property
    def logit_offsets(self) -> np.ndarray:
        """[n + 1] index of each sequence's first prediction."""
        return self.positions.offsets

    @property
    def row_index(self) -> np.ndarray:
        counts = np.diff(self.window_offsets)
        return np.repeat(np.arange(len(counts)), counts)

    @property
    def windowed_fraction(self) -> float:
        return float((np.diff(self.window_offsets) > 1).mean())


def build_word_features(
    words: Sequence[Sequence[str]], texts: Sequence[str], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, context: ContextColumn | None = None, cache: bool = True,
) -> WordFeatures:  # fmt: skip
    """Tokenize sentences, and optionally add the neighboring sentences of their documents.

    Args:
        words: [n] words of each sentence.
        texts: [n] text of each sentence.
        labels: [words] int label ids of the words of all sentences, or None.
        context: [n] position of each sentence in its document, or None to use single sentences. The model
            reads the neighboring sentences, but predicts no labels for their words.
        cache: Whether to cache the tokens.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=False)
    rows, documents = np.arange(len(words)), None
    if context is not None:
        words, texts, rows, documents = context.collect_sentences()
    tokens = encode_words(words, texts, tokenizer, cache)
    offsets, max_tokens = tokens.ids.offsets, max_length - template.num_special_tokens
    windows = build_windows(offsets[rows], offsets[rows + 1], max_tokens)
    if documents is not None:
        document_bounds = np.repeat(offsets[documents], np.diff(windows.window_offsets), axis=0)
        windows = expand_windows(windows, offsets, document_bounds, max_tokens)
    counts, position, index, labels = _assign_predictions(tokens, rows, windows, labels)
    text_position = template.count_special_tokens_before(~0)  # ~0 is the slot of the text
    longest = int(tokens.ids.lengths[rows].max(initial=0))
    return WordFeatures(
        template=template, columns=[tokens.ids], labels=labels,
        ranges=TokenRanges((0,), windows.start[:, None], windows.stop[:, None]),
        sequence_offsets=np.arange(len(windows.start) + 1), window_offsets=windows.window_offsets,
        word_offsets=compute_offsets(np.diff(tokens.word_offsets)[rows]),
        positions=Ragged(position + text_position, compute_offsets(counts)), prediction_index=index,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=compute_unk_fraction([tokens.ids], tokenizer),
    )  # fmt: skip


# ---- tokens of words


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


# ---- predictions


def _assign_predictions(
    tokens: WordTokens, rows: np.ndarray, windows: "Windows", labels: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Assign the first token of each word to the window that predicts it.

    Args:
        rows: [n] index of each row's sentence.
        labels: [words] label ids of the words of all rows, or None.

    Returns:
        [windows] number of predictions of each window; [predictions] index of each predicted token in its
        window; [words] index of each word's prediction, or -1 for a word without tokens; and [predictions]
        label id of the first word of each prediction, or None.
    """
    counts, positions, indices = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], []
    predicted_labels = [] if labels is None else [labels[:0]]
    num_predictions = num_words = 0
    for start in range(0, len(rows), CHUNK_ROWS):
        part_rows = rows[start : start + CHUNK_ROWS]
        words = concat_ranges(tokens.word_offsets[part_rows], tokens.word_offsets[part_rows + 1])
        first_token, part = tokens.first_token[words], windows.select_sentences(start, start + len(part_rows))
        has_tokens = first_token >= 0
        distinct, first_words, token_index = np.unique(
            first_token[has_tokens], return_index=True, return_inverse=True
        )
        bounds = np.searchsorted(distinct, part.predict_start), np.searchsorted(distinct, part.predict_stop)
        predicted = concat_ranges(*bounds)  # indices into `distinct`
        counts.append(bounds[1] - bounds[0])
        position = distinct[predicted] - np.repeat(part.start, counts[-1])
        positions.append(position.astype(np.int32))
        prediction_by_token = np.full(len(distinct), -1)
        prediction_by_token[predicted] = num_predictions + np.arange(len(predicted))
        index = np.full(len(words), -1)
        index[has_tokens] = prediction_by_token[token_index]
        indices.append(index)
        if labels is not None:
            part_labels = labels[num_words : num_words + len(words)]
            predicted_labels.append(part_labels[has_tokens][first_words[predicted]])
        num_predictions += len(predicted)
        num_words += len(words)
    index_dtype = get_index_dtype(num_predictions)
    return (
        np.concatenate(counts),
        np.concatenate(positions),
        np.concatenate([np.zeros(0, index_dtype), *(index.astype(index_dtype) for index in indices)]),
        None if labels is None else np.concatenate(predicted_labels),
    )


# ---- windows


@dataclass(frozen=True)
class Windows:
    """The windows of `n` sentences.

    Token indices refer to the concatenated tokens of all sentences. Each token is predicted in exactly one
    window. In the overlap of two windows, a token is predicted in the window whose nearest edge is farther
    away.

    Attributes:
        start: [windows] first token that the model reads.
        stop: [windows] end of the tokens that the model reads.
        predict_start: [windows] first token that the window predicts.
        predict_stop: [windows] end of the tokens that the window predicts.
        window_offsets: [n + 1] index of each sentence's first window.
    """

    start: np.ndarray
    stop: np.ndarray
    predict_start: np.ndarray
    predict_stop: np.ndarray
    window_offsets: np.ndarray

    def select_sentences(self, start: int, stop: int) -> "Windows":
        """Return the windows of consecutive sentences."""
        offsets = self.window_offsets[start : stop + 1]
        windows = slice(offsets[0], offsets[-1])
        return Windows(
            self.start[windows], self.stop[windows], self.predict_start[windows], self.predict_stop[windows],
            offsets - offsets[0],
        )  # fmt: skip


def build_windows(start: np.ndarray, stop: np.ndarray, max_tokens: int) -> Windows:
    """Build one window for each sentence, or several overlapping windows for a long sentence.

    The windows of a long sentence have `max_tokens` tokens. Consecutive windows overlap by a quarter, and the
    last two windows possibly by more.

    Args:
        start: [n] first token of each sentence.
        stop: [n] end of each sentence.
    """
    stride = max(1, max_tokens - max_tokens // 4)
    counts, window_start, window_stop = slide_windows(start, stop, max_tokens, stride)
    is_first = compute_positions_in_groups(counts) == 0
    is_last = np.append(is_first[1:], True)
    # The middle of each window's overlap with the previous window; the first window has none.
    overlap_middle = np.append(0, (window_start[1:] + window_stop[:-1]) // 2)
    predict_start = np.where(is_first, window_start, overlap_middle)
    predict_stop = np.where(is_last, window_stop, np.append(predict_start[1:], 0))
    return Windows(window_start, window_stop, predict_start, predict_stop, compute_offsets(counts))


def expand_windows(
    windows: Windows, sentence_offsets: np.ndarray, document_bounds: np.ndarray, max_tokens: int
) -> Windows:
    """Expand windows by all neighboring sentences that fit as a whole (Devlin et al. 2018, 5.3).

    Each side gets half of the free tokens of a window, and also the tokens that the other side does not use.
    The windows of a split sentence have no free tokens.

    Args:
        sentence_offsets: [sentences + 1] first token of each sentence of all documents.
        document_bounds: [windows, 2] first token and end of each window's document.
    """
    free = np.maximum(0, max_tokens - (windows.stop - windows.start))
    document_start, document_stop = document_bounds[:, 0], document_bounds[:, 1]
    start = _expand_left(windows.start, free // 2, sentence_offsets, document_start)
    # The end of the last sentence that is completely within the rest of the free tokens.
    target = np.minimum(windows.stop + free - (windows.start - start), document_stop)
    stop = sentence_offsets[np.searchsorted(sentence_offsets, target, side="right") - 1]
    start = _expand_left(windows.start, free - (stop - windows.stop), sentence_offsets, document_start)
    return Windows(
        np.where(free > 0, start, windows.start), np.where(free > 0, stop, windows.stop),
        windows.predict_start, windows.predict_stop, windows.window_offsets,
    )  # fmt: skip


def _expand_left(
    start: np.ndarray, free: np.ndarray, sentence_offsets: np.ndarray, document_start: np.ndarray
) -> np.ndarray:
    """Return the start of the first sentence that is completely within `free` tokens before `start`."""
    target = np.maximum(start - free, document_start)
    return sentence_offsets[np.searchsorted(sentence_offsets, target, side="left")]
