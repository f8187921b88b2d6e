"""Features of sentences with one prediction per word, and the windows that long sentences are split into."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.features import StoredFeatures
from bertkit.data.ner.documents import DocumentPosition, collect_sentences
from bertkit.data.ner.words import WordSpans, encode_words
from bertkit.data.tokenization import SequenceTemplate
from bertkit.utils.ragged import (
    Ragged,
    concat_ranges,
    offsets_from_lengths,
    position_in_group,
    slide_windows,
)


@dataclass(frozen=True, kw_only=True)
class WordFeatures(StoredFeatures):
    """Tokenized sentences; one feature is a sentence, or a window of a sentence that exceeds max_length.

    Windows are trained on and scored one by one, so a long sentence takes no more memory than a short one.
    Only the first token of a word is predicted.

    Attributes:
        positions: Positions of the predicted tokens in each sequence.
        word_offsets: [sentences + 1] index of each sentence's first word.
        prediction_index: [words] row of logits for each word; -1 if the word has no tokens.
        labels: [predictions] int, or None.
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
    def windowed_fraction(self) -> float:
        """Fraction of the sentences that are split into several windows."""
        return float((np.diff(self.window_offsets) > 1).mean())


def build_word_features(
    words: Sequence[Sequence[str]], texts: Sequence[str], labels: np.ndarray | None, tokenizer: Any,
    max_length: int, document_positions: Sequence[DocumentPosition] | None = None, cache: bool = True,
) -> WordFeatures:  # fmt: skip
    """Tokenize sentences, alone or with the sentences around them in their documents.

    Args:
        words: [n] the words of each sentence.
        texts: [n] the text that contains them.
        labels: [words of all sentences] int, or None.
        tokenizer: A fast tokenizer.
        max_length: Maximum sequence length in tokens, including special tokens.
        document_positions: [n] the position of each sentence in its document. The other sentences of the
            document are then part of the input, without predictions.
        cache: Whether to cache the tokens.
    """
    template = SequenceTemplate.from_tokenizer(tokenizer, pair=False)
    sentences, rows, documents = _collect_inputs(words, texts, document_positions)
    tokens = encode_words(sentences, tokenizer, cache)
    windows = _plan_windows(tokens.ids.offsets, rows, documents, max_length - template.num_special_tokens)
    first, last = sentences.offsets[rows], sentences.offsets[rows + 1]
    predicted, prediction_index = _assign_predictions(tokens.first_token[concat_ranges(first, last)], windows)
    if labels is not None:
        predictions, first_words = np.unique(prediction_index, return_index=True)
        labels = labels[first_words[predictions >= 0]]
    input_ids, token_type_ids, position = template.wrap_ranges(tokens.ids.values, windows.start, windows.stop)
    positions = predicted.values - np.repeat(windows.start, predicted.lengths) + position
    num_unknown = int((tokens.ids.values == tokenizer.unk_token_id).sum())
    longest = int(tokens.ids.lengths[rows].max(initial=0))
    return WordFeatures(
        input_ids=input_ids, token_type_ids=token_type_ids, labels=labels,
        sequence_offsets=np.arange(len(windows.start) + 1), window_offsets=windows.window_offsets,
        word_offsets=offsets_from_lengths(last - first),
        positions=Ragged(positions, predicted.offsets), prediction_index=prediction_index,
        max_untruncated_length=longest + template.num_special_tokens,
        unk_fraction=float(num_unknown) / max(1, len(tokens.ids.values)),
    )  # fmt: skip


def _collect_inputs(
    words: Sequence[Sequence[str]],
    texts: Sequence[str],
    document_positions: Sequence[DocumentPosition] | None,
) -> tuple[WordSpans, np.ndarray, np.ndarray | None]:
    """Return all input sentences, the index of each row among them, and the bounds of its document [n, 2]."""
    if document_positions is None:
        return WordSpans.from_words(words, texts), np.arange(len(words)), None
    sentences, rows, documents = collect_sentences(document_positions)
    spans = WordSpans.from_words([words for words, _ in sentences], [text for _, text in sentences])
    return spans, rows, documents


def _assign_predictions(first_token: np.ndarray, windows: "Windows") -> tuple[Ragged, np.ndarray]:
    """Assign the first token of each word to the window that predicts it.

    Args:
        first_token: [words] index of each word's first token, or -1.
        windows: The windows of all sentences.

    Returns:
        The tokens that each window predicts, and the prediction of each word [words], or -1.
    """
    tokens = np.unique(first_token[first_token >= 0])
    low = np.searchsorted(tokens, windows.predict_start)
    high = np.searchsorted(tokens, windows.predict_stop)
    predicted = tokens[concat_ranges(low, high)]
    prediction_by_token = np.full(tokens.max(initial=-1) + 2, -1)  # words without tokens index the last entry
    prediction_by_token[predicted] = np.arange(len(predicted))
    return Ragged(predicted, offsets_from_lengths(high - low)), prediction_by_token[first_token]


# ---- windows


@dataclass(frozen=True)
class Windows:
    """The windows of `n` sentences; positions are token indices over all sentences.

    Each token is predicted in exactly one window. Where windows overlap, it is the one that has more context
    on the token's poorer side.

    Attributes:
        start: [windows] first token that is read.
        stop: [windows] end of the tokens that are read.
        predict_start: [windows] first token that is predicted.
        predict_stop: [windows] end of the tokens that are predicted.
        window_offsets: [n + 1] index of each sentence's first window.
    """

    start: np.ndarray
    stop: np.ndarray
    predict_start: np.ndarray
    predict_stop: np.ndarray
    window_offsets: np.ndarray


def _plan_windows(
    offsets: np.ndarray, rows: np.ndarray, documents: np.ndarray | None, budget: int
) -> Windows:
    """Plan the windows of the rows.

    Args:
        offsets: [sentences + 1] index of each sentence's first token.
        rows: [n] the sentence of each row.
        documents: [n, 2] the sentences of each row's document, or None.
        budget: Maximum tokens of a window, without special tokens.
    """
    windows = build_windows(offsets[rows], offsets[rows + 1], budget)
    if documents is None:
        return windows
    document_bounds = np.repeat(offsets[documents], np.diff(windows.window_offsets), axis=0)
    return expand_windows(windows, offsets, document_bounds, budget)


def build_windows(start: np.ndarray, stop: np.ndarray, budget: int) -> Windows:
    """Build one window per sentence, or several of `budget` tokens that overlap by a quarter.

    Args:
        start: [n] first token of each sentence.
        stop: [n] end of each sentence.
        budget: Maximum tokens of a window, without special tokens.
    """
    step = max(1, budget - budget // 4)
    counts, left, right = slide_windows(start, stop, budget, step)
    is_first = position_in_group(counts) == 0
    is_last = np.append(is_first[1:], True)
    overlap_middle = np.concatenate(
        [[0], (left[1:] + right[:-1]) // 2]
    )  # of the overlap with the window before
    predict_start = np.where(is_first, left, overlap_middle)
    predict_stop = np.where(is_last, right, np.append(predict_start[1:], 0))
    return Windows(left, right, predict_start, predict_stop, offsets_from_lengths(counts))


def expand_windows(
    windows: Windows, sentence_offsets: np.ndarray, document_bounds: np.ndarray, budget: int
) -> Windows:
    """Expand windows by the whole sentences before and after that fit, as in Devlin et al. 2018, 5.3.

    Each side gets half of the free tokens, and what the other side leaves unused. The windows of a sentence
    that is split have no free tokens.

    Args:
        windows: Windows of single sentences.
        sentence_offsets: [sentences + 1] first token of each sentence, those of other splits included.
        document_bounds: [windows, 2] first token and end of each window's document.
        budget: Maximum tokens of a window, without special tokens.
    """
    free = np.maximum(0, budget - (windows.stop - windows.start))
    first, end = document_bounds[:, 0], document_bounds[:, 1]
    start = _expand_left(windows.start, free // 2, sentence_offsets, first)
    stop = _expand_right(windows.stop, free - (windows.start - start), sentence_offsets, end)
    start = _expand_left(windows.start, free - (stop - windows.stop), sentence_offsets, first)
    has_room = windows.stop - windows.start < budget
    return Windows(
        np.where(has_room, start, windows.start), np.where(has_room, stop, windows.stop),
        windows.predict_start, windows.predict_stop, windows.window_offsets,
    )  # fmt: skip


def _expand_left(start: np.ndarray, room: np.ndarray, sentences: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the start of the first whole sentence within `room` tokens before `start`."""
    target = np.maximum(start - room, first)
    return sentences[np.searchsorted(sentences, target, side="left")]


def _expand_right(stop: np.ndarray, room: np.ndarray, sentences: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the end of the last whole sentence within `room` tokens after `stop`."""
    target = np.minimum(stop + room, end)
    return sentences[np.searchsorted(sentences, target, side="right") - 1]
