"""Documents filled into chunks of about as many pieces as an example holds, all documents at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

MAX_SPAN_SENTENCES = (
    1024  # sentences that are filled one after the other; a longer document is several such stretches
)

Spans = tuple[np.ndarray, np.ndarray]  # [n] where each begins, [n] where it stops


class CorpusLike(Protocol):
    """What is needed of a corpus."""

    @property
    def sentence_offsets(self) -> np.ndarray:
        """[n + 1] the first piece of each sentence, and the end."""

    @property
    def document_offsets(self) -> np.ndarray:
        """[m + 1] the first sentence of each document, and the end."""

    @property
    def parent_ids(self) -> np.ndarray | None:
        """[m] numbers, in order, that are the same where documents are stretches of one; None: none are."""


@dataclass(frozen=True)
class SelectedDocuments:
    """The chosen `n` documents that have pieces.

    Attributes:
        sentences: the first piece of each sentence of the whole corpus, and the end.
        first, stop: [n] int64 the sentences of each document.
        origin: [n] the same number where they are stretches of one.
        before: [n + 1] how many sentences the chosen documents before it have.
    """

    sentence_offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    parent_ids: np.ndarray
    cumulative_sentences: np.ndarray

    @classmethod
    def from_corpus(cls, corpus: CorpusLike, document_ids: np.ndarray) -> "SelectedDocuments":
        """The documents of a corpus by their sorted numbers."""
        sentences = np.asarray(corpus.sentence_offsets)
        first, stop = (corpus.document_offsets[document_ids + end].astype(np.int64) for end in (0, 1))
        full = sentences[stop] > sentences[first]
        first, stop = first[full], stop[full]
        origin = (document_ids if corpus.parent_ids is None else corpus.parent_ids[document_ids])[full]
        return cls(sentences, first, stop, origin, np.concatenate([[0], np.cumsum(stop - first)]))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def is_single_document(self) -> bool:
        """Whether all are of one document."""
        return len(self) > 0 and bool(self.parent_ids[0] == self.parent_ids[-1])

    def count_sentences_before(self, sentence: np.ndarray) -> np.ndarray:
        """How many sentences of the chosen documents stand before these."""
        document = np.searchsorted(self.start, sentence, "right") - 1
        return (
            self.cumulative_sentences[document]
            + np.minimum(sentence, self.stop[document])
            - self.start[document]
        )

    def count_tokens(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many pieces stretches of sentences have."""
        return self.find_token_starts(stop) - self.find_token_starts(first)

    def find_token_starts(self, sentence: np.ndarray) -> np.ndarray:
        """The first piece; int64, since sums of uint64 and int64 are floating."""
        return self.sentence_offsets[sentence].astype(np.int64)

    def find_stop_reaching(self, first: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Where sentences from `first` on have at least so many pieces, or the corpus ends."""
        stop = self._search(self.find_token_starts(first) + num_tokens, "left")
        return np.maximum(stop, first + 1)

    def find_stop_fitting(self, start: np.ndarray, num_tokens: np.ndarray) -> np.ndarray:
        """Where whole sentences of so many pieces stop; of a sentence that is longer, as many as fit."""
        stop = self.find_token_starts(self._search(start + num_tokens, "right") - 1)
        return np.where(stop > start, stop, start + num_tokens)

    def split_into_spans(self) -> Spans:
        """The sentences of each stretch; those of a document are about equally long."""
        counts = -(-(self.stop - self.start) // MAX_SPAN_SENTENCES)
        ends = np.cumsum(counts)
        number = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
        first, size, count = (
            np.repeat(each, counts) for each in (self.start, self.stop - self.start, counts)
        )
        return first + number * size // count, first + (number + 1) * size // count

    def _search(self, pieces: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """In the type of the sentences, since a search in any other would copy all of them."""
        wanted = np.minimum(pieces, int(self.sentence_offsets[-1])).astype(self.sentence_offsets.dtype)
        return np.searchsorted(self.sentence_offsets, wanted, side)


@dataclass(frozen=True)
class TargetLengths:
    """How long chunks should be: `capacity`, or now and then anything from 2 pieces on."""

    max_num_tokens: int
    short_seq_prob: float

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count] pieces."""
        short = rng.random(count) < self.short_seq_prob
        return np.where(
            short, rng.integers(2, self.max_num_tokens, count, endpoint=True), self.max_num_tokens
        )


def fill_chunks(
    spans: Spans,
    find_stops: Callable[[np.ndarray, np.ndarray], np.ndarray],
    targets: TargetLengths,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin, stop and target of the chunks that the spans are cut into, in their order.

    Each round makes the next chunk of every span that is not used up.

    Args:
        spans: of sentences or of pieces.
        stops: where chunks with these beginnings and targets stop, if the span does not stop before.
    """
    at, end = spans
    rounds = [(at[:0], at[:0], at[:0])]
    while len(at):
        target = targets.sample(len(at), rng)
        stop = np.minimum(find_stops(at, target), end)
        rounds.append((at, stop, target))
        left = stop < end
        at, end = stop[left], end[left]
    begin, stop, target = (np.concatenate(each) for each in zip(*rounds, strict=True))
    order = np.argsort(begin, kind="stable")
    return begin[order], stop[order], target[order]


@dataclass(frozen=True)
class Segments:
    """The `n` stretches of sentences from which pairs are made: together the chosen documents, in order.

    Attributes:
        first, stop: [n] the sentences of each.
        target: [n] how many pieces a pair with it should have.
        chunk: [n] two parts of one chunk have the same number.
        document: [n] the number among the chosen.
    """

    start: np.ndarray
    stop: np.ndarray
    target_length: np.ndarray
    chunk_ids: np.ndarray
    document_ids: np.ndarray


def split_into_segments(
    documents: SelectedDocuments, targets: TargetLengths, rng: np.random.Generator
) -> Segments:
    """Chunks split in two at a random sentence; a chunk of one sentence is one part."""
    first, stop, target = fill_chunks(
        documents.split_into_spans(), documents.find_stop_reaching, targets, rng
    )
    middle = first + rng.integers(1, np.maximum(stop - first, 2))
    starts, stops = np.stack([first, middle], 1).ravel(), np.stack([middle, stop], 1).ravel()
    full = np.flatnonzero(documents.count_tokens(starts, stops))
    starts, chunk = starts[full], full // 2
    document = np.searchsorted(documents.start, starts, "right") - 1
    return Segments(starts, stops[full], target[chunk], chunk, document)
