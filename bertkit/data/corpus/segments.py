"""Pack the sentences of documents into chunks of about the maximum length, for all documents at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

# Chunks of a span are filled one after the other, so a long document is divided into several spans.
MAX_SPAN_SENTENCES = 1024

Spans = tuple[np.ndarray, np.ndarray]  # [n] starts, [n] stops


class CorpusLike(Protocol):
    """The attributes of a corpus that examples are planned from."""

    @property
    def sentence_offsets(self) -> np.ndarray:
        """[n + 1] first token of each sentence, and the end."""

    @property
    def document_offsets(self) -> np.ndarray:
        """[m + 1] first sentence of each document, and the end."""

    @property
    def parent_ids(self) -> np.ndarray | None:
        """[m] ascending; parts of one original document have the same number. None: documents are whole."""


@dataclass(frozen=True)
class SelectedDocuments:
    """The `n` selected documents that have tokens.

    Attributes:
        sentence_offsets: First token of each sentence of the whole corpus, and the end.
        start: [n] int64 first sentence of each document.
        stop: [n] int64 sentence after the last one of each document.
        parent_ids: [n] number of the original document.
        cumulative_sentences: [n + 1] number of sentences in the selected documents before each.
    """

    sentence_offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    parent_ids: np.ndarray
    cumulative_sentences: np.ndarray

    @classmethod
    def from_corpus(cls, corpus: CorpusLike, document_ids: np.ndarray) -> "SelectedDocuments":
        """Select documents of a corpus by their sorted indices."""
        offsets = np.asarray(corpus.sentence_offsets)
        start, stop = (corpus.document_offsets[document_ids + end].astype(np.int64) for end in (0, 1))
        parents = document_ids if corpus.parent_ids is None else corpus.parent_ids[document_ids]
        has_tokens = offsets[stop] > offsets[start]
        start, stop, parents = start[has_tokens], stop[has_tokens], parents[has_tokens]
        return cls(offsets, start, stop, parents, np.concatenate([[0], np.cumsum(stop - start)]))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_single_document(self) -> bool:
        """Whether all selected documents are parts of one original document."""
        return len(self) > 0 and bool(self.parent_ids[0] == self.parent_ids[-1])

    def count_sentences_before(self, sentence: np.ndarray) -> np.ndarray:
        """Return how many sentences of the selected documents come before the given sentences."""
        document = np.searchsorted(self.start, sentence, "right") - 1
        within = np.minimum(sentence, self.stop[document]) - self.start[document]
        return self.cumulative_sentences[document] + within

    def count_tokens(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the number of tokens in spans of sentences."""
        return self.find_token_starts(stop) - self.find_token_starts(start)

    def find_token_starts(self, sentence: np.ndarray) -> np.ndarray:
        """Return the first token of sentences, as int64: a sum of uint64 and int64 would be a float."""
        return self.sentence_offsets[sentence].astype(np.int64)

    def find_stop_reaching(self, start: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Return where sentences from `start` on have at least `num_tokens` tokens, or the corpus ends."""
        stop = self._search(self.find_token_starts(start) + num_tokens, "left")
        return np.maximum(stop, start + 1)

    def find_stop_fitting(self, start: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Return the token at which whole sentences of at most `num_tokens` tokens end.

        A longer sentence is truncated to `num_tokens` tokens.
        """
        stop = self.find_token_starts(self._search(start + num_tokens, "right") - 1)
        return np.where(stop > start, stop, start + num_tokens)

    def split_into_spans(self) -> Spans:
        """Return spans of at most `MAX_SPAN_SENTENCES` sentences; those of a document have similar sizes."""
        num_spans = -(-(self.stop - self.start) // MAX_SPAN_SENTENCES)
        ends = np.cumsum(num_spans)
        index = np.arange(num_spans.sum()) - np.repeat(ends - num_spans, num_spans)
        start, size, count = (
            np.repeat(values, num_spans) for values in (self.start, self.stop - self.start, num_spans)
        )
        return start + index * size // count, start + (index + 1) * size // count

    def _search(self, tokens: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """Search the sentence offsets in their own type; a search in any other would copy all of them."""
        values = np.minimum(tokens, int(self.sentence_offsets[-1])).astype(self.sentence_offsets.dtype)
        return np.searchsorted(self.sentence_offsets, values, side)


@dataclass(frozen=True)
class TargetLengths:
    """Target lengths of chunks in tokens: `max_num_tokens`, or with `short_seq_prob` any length from 2 on."""

    max_num_tokens: int
    short_seq_prob: float

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return [count] target lengths."""
        is_short = rng.random(count) < self.short_seq_prob
        short = rng.integers(2, self.max_num_tokens, count, endpoint=True)
        return np.where(is_short, short, self.max_num_tokens)


def fill_chunks(
    spans: Spans,
    find_stops: Callable[[np.ndarray, np.ndarray], np.ndarray],
    targets: TargetLengths,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide spans into chunks and return the starts, stops and target lengths in corpus order.

    Each round takes the next chunk of every span that is not used up.

    Args:
        spans: Spans of sentences or of tokens.
        find_stops: Returns where chunks with given starts and targets stop, unless their span ends first.
        targets: Samples target lengths.
        rng: Source of randomness.
    """
    start, end = spans
    rounds = [(start[:0], start[:0], start[:0])]
    while len(start):
        target = targets.sample(len(start), rng)
        stop = np.minimum(find_stops(start, target), end)
        rounds.append((start, stop, target))
        is_unfinished = stop < end
        start, end = stop[is_unfinished], end[is_unfinished]
    start, stop, target = (np.concatenate(values) for values in zip(*rounds, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], stop[order], target[order]


@dataclass(frozen=True)
class Segments:
    """The `n` spans of sentences that pairs are made of; together, in order, the selected documents.

    Attributes:
        start: [n] first sentence.
        stop: [n] sentence after the last one.
        target_length: [n] target length of a pair with this segment, in tokens.
        chunk_ids: [n] number of the chunk; both segments of a chunk have the same one.
        document_ids: [n] index of the document among the selected ones.
    """

    start: np.ndarray
    stop: np.ndarray
    target_length: np.ndarray
    chunk_ids: np.ndarray
    document_ids: np.ndarray


def split_into_segments(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> Segments:
    """Split each chunk at a random sentence into two segments; a chunk of one sentence is one segment."""
    start, stop, target = fill_chunks(
        documents.split_into_spans(), documents.find_stop_reaching, targets, rng
    )
    middle = start + rng.integers(1, np.maximum(stop - start, 2))
    starts, stops = np.stack([start, middle], 1).ravel(), np.stack([middle, stop], 1).ravel()
    non_empty = np.flatnonzero(documents.count_tokens(starts, stops))
    starts, chunk = starts[non_empty], non_empty // 2
    document = np.searchsorted(documents.start, starts, "right") - 1
    return Segments(starts, stops[non_empty], target[chunk], chunk, document)
