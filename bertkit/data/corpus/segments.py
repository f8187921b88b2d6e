"""Pack the sentences of documents into chunks of about the maximum length, for all documents at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

# The chunks of one span are filled one after the other, and all spans in parallel. To get enough spans, a
# long document is divided into several.
MAX_SPAN_SENTENCES = 1024

Spans = tuple[np.ndarray, np.ndarray]  # [n] starts, [n] stops


class CorpusLike(Protocol):
    """The attributes of a corpus that determine its examples."""

    @property
    def sentence_offsets(self) -> np.ndarray:
        """[n + 1] index of the first token of each sentence; at the end, the number of tokens."""

    @property
    def document_offsets(self) -> np.ndarray:
        """[m + 1] index of the first sentence of each document; at the end, the number of sentences."""

    @property
    def parent_ids(self) -> np.ndarray | None:
        """[m] index of the original document, ascending, if documents are parts of others; else None."""


@dataclass(frozen=True)
class SelectedDocuments:
    """The `n` selected documents that have tokens.

    Attributes:
        sentence_offsets: `sentence_offsets` of the whole corpus.
        start: [n] int64 first sentence of each document.
        stop: [n] int64 sentence after the last one of each document.
        parent_ids: [n] index of the original document.
        cumulative_sentences: [n + 1] number of sentences in the preceding documents of the selection; at the
            end, in all of them.
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
        start = corpus.document_offsets[document_ids].astype(np.int64)
        stop = corpus.document_offsets[document_ids + 1].astype(np.int64)
        parent_ids = document_ids if corpus.parent_ids is None else corpus.parent_ids[document_ids]
        has_tokens = offsets[stop] > offsets[start]
        start, stop, parent_ids = start[has_tokens], stop[has_tokens], parent_ids[has_tokens]
        return cls(offsets, start, stop, parent_ids, np.concatenate([[0], np.cumsum(stop - start)]))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_single_document(self) -> bool:
        """Whether all selected documents are parts of one original document."""
        return len(self) > 0 and bool(self.parent_ids[0] == self.parent_ids[-1])

    def count_sentences_before(self, sentence: np.ndarray) -> np.ndarray:
        """Return how many sentences of the selected documents precede each of the given sentences."""
        document = np.searchsorted(self.start, sentence, "right") - 1
        num_in_document = np.minimum(sentence, self.stop[document]) - self.start[document]
        return self.cumulative_sentences[document] + num_in_document

    def count_tokens(self, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the number of tokens in spans of sentences."""
        return self.find_token_starts(stop) - self.find_token_starts(start)

    def find_token_starts(self, sentence: np.ndarray) -> np.ndarray:
        """Return the index of the first token of each given sentence."""
        # int64, because the sum of uint64 and int64 is a float
        return self.sentence_offsets[sentence].astype(np.int64)

    def find_sentence_stops(self, start: np.ndarray, min_tokens: np.ndarray) -> np.ndarray:
        """Return the ends of the shortest spans of whole sentences with at least `min_tokens` tokens.

        Spans start at the sentences `start` and end at the end of the corpus at the latest.
        """
        stop = self._search_offsets(self.find_token_starts(start) + min_tokens, "left")
        return np.maximum(stop, start + 1)

    def find_token_stops(self, start: np.ndarray, max_tokens: np.ndarray) -> np.ndarray:
        """Return the ends of the longest spans with at most `max_tokens` tokens that end with a sentence.

        Spans start at the tokens `start`. If the first sentence is longer, the span ends within it.
        """
        stop = self.find_token_starts(self._search_offsets(start + max_tokens, "right") - 1)
        return np.where(stop > start, stop, start + max_tokens)

    def split_into_spans(self) -> Spans:
        """Divide each document into spans of similar sizes, of at most `MAX_SPAN_SENTENCES` sentences."""
        num_sentences = self.stop - self.start
        num_spans = -(-num_sentences // MAX_SPAN_SENTENCES)  # rounded up
        first_spans = np.cumsum(num_spans) - num_spans
        index = np.arange(num_spans.sum()) - np.repeat(first_spans, num_spans)  # index in the document
        start, size, count = (
            np.repeat(values, num_spans) for values in (self.start, num_sentences, num_spans)
        )
        return start + index * size // count, start + (index + 1) * size // count

    def _search_offsets(self, tokens: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """Search the sentence offsets for token indices."""
        # A search for values of another dtype would copy all offsets.
        values = np.minimum(tokens, int(self.sentence_offsets[-1])).astype(self.sentence_offsets.dtype)
        return np.searchsorted(self.sentence_offsets, values, side)


@dataclass(frozen=True)
class TargetLengths:
    """Distribution of the target lengths of chunks in tokens.

    A target length is `max_num_tokens`, or, with probability `short_seq_prob`, uniform between 2 and that.
    """

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
    """Divide spans into chunks.

    Each round takes the next chunk of every unfinished span.

    Args:
        spans: Spans of sentences or of tokens.
        find_stops: Returns the ends of chunks with the given starts and target lengths. A chunk ends with its
            span at the latest.
        targets: Distribution of the target lengths.
        rng: Source of randomness.

    Returns:
        Starts, stops and target lengths of the chunks, all in corpus order.
    """
    start, span_stop = spans
    rounds = [(start[:0], start[:0], start[:0])]
    while len(start):
        target = targets.sample(len(start), rng)
        stop = np.minimum(find_stops(start, target), span_stop)
        rounds.append((start, stop, target))
        is_unfinished = stop < span_stop
        start, span_stop = stop[is_unfinished], span_stop[is_unfinished]
    start, stop, target = (np.concatenate(values) for values in zip(*rounds, strict=True))
    order = np.argsort(start, kind="stable")
    return start[order], stop[order], target[order]


@dataclass(frozen=True)
class Segments:
    """The `n` consecutive spans of sentences from which pairs are built; they cover the selected documents.

    Attributes:
        start: [n] first sentence of each segment.
        stop: [n] sentence after the last one of each segment.
        target_length: [n] target length of a pair with this segment, in tokens.
        chunk_ids: [n] id of the chunk; both segments of a chunk have the same id.
        document_ids: [n] index of the document in the selection.
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
        documents.split_into_spans(), documents.find_sentence_stops, targets, rng
    )
    middle = start + rng.integers(1, np.maximum(stop - start, 2))
    starts, stops = np.stack([start, middle], 1).ravel(), np.stack([middle, stop], 1).ravel()
    non_empty = np.flatnonzero(documents.count_tokens(starts, stops))
    starts, chunk = starts[non_empty], non_empty // 2
    document = np.searchsorted(documents.start, starts, "right") - 1
    return Segments(starts, stops[non_empty], target[chunk], chunk, document)
