"""Documents filled into chunks of about as many pieces as an example holds, all documents at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

STRETCH = 1024  # sentences that are filled one after the other; a longer document is several such stretches

Spans = tuple[np.ndarray, np.ndarray]  # [n] where each begins, [n] where it stops


class Text(Protocol):
    """What is needed of a corpus."""

    @property
    def sentences(self) -> np.ndarray:
        """[n + 1] the first piece of each sentence, and the end."""

    @property
    def documents(self) -> np.ndarray:
        """[m + 1] the first sentence of each document, and the end."""

    @property
    def origins(self) -> np.ndarray | None:
        """[m] numbers, in order, that are the same where documents are stretches of one; None: none are."""


@dataclass(frozen=True)
class Documents:
    """The chosen `n` documents that have pieces.

    Attributes:
        sentences: the first piece of each sentence of the whole corpus, and the end.
        first, stop: [n] int64 the sentences of each document.
        origin: [n] the same number where they are stretches of one.
        before: [n + 1] how many sentences the chosen documents before it have.
    """

    sentences: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    origin: np.ndarray
    before: np.ndarray

    @classmethod
    def of(cls, corpus: Text, chosen: np.ndarray) -> "Documents":
        """The documents of a corpus by their sorted numbers."""
        sentences = np.asarray(corpus.sentences)
        first, stop = (corpus.documents[chosen + end].astype(np.int64) for end in (0, 1))
        full = sentences[stop] > sentences[first]
        first, stop = first[full], stop[full]
        origin = (chosen if corpus.origins is None else corpus.origins[chosen])[full]
        return cls(sentences, first, stop, origin, np.concatenate([[0], np.cumsum(stop - first)]))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def single(self) -> bool:
        """Whether all are of one document."""
        return len(self) > 0 and bool(self.origin[0] == self.origin[-1])

    def counted(self, sentence: np.ndarray) -> np.ndarray:
        """How many sentences of the chosen documents stand before these."""
        document = np.searchsorted(self.first, sentence, "right") - 1
        return self.before[document] + np.minimum(sentence, self.stop[document]) - self.first[document]

    def pieces(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """How many pieces stretches of sentences have."""
        return self.begin(stop) - self.begin(first)

    def begin(self, sentence: np.ndarray) -> np.ndarray:
        """The first piece; int64, since sums of uint64 and int64 are floating."""
        return self.sentences[sentence].astype(np.int64)

    def filled(self, first: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """Where sentences from `first` on have at least so many pieces, or the corpus ends."""
        stop = self._search(self.begin(first) + pieces, "left")
        return np.maximum(stop, first + 1)

    def fitting(self, start: np.ndarray, pieces: np.ndarray) -> np.ndarray:
        """Where whole sentences of so many pieces stop; of a sentence that is longer, as many as fit."""
        stop = self.begin(self._search(start + pieces, "right") - 1)
        return np.where(stop > start, stop, start + pieces)

    def stretches(self) -> Spans:
        """The sentences of each stretch; those of a document are about equally long."""
        counts = -(-(self.stop - self.first) // STRETCH)
        ends = np.cumsum(counts)
        number = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
        first, size, count = (
            np.repeat(each, counts) for each in (self.first, self.stop - self.first, counts)
        )
        return first + number * size // count, first + (number + 1) * size // count

    def _search(self, pieces: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """In the type of the sentences, since a search in any other would copy all of them."""
        wanted = np.minimum(pieces, int(self.sentences[-1])).astype(self.sentences.dtype)
        return np.searchsorted(self.sentences, wanted, side)


@dataclass(frozen=True)
class Targets:
    """How long chunks should be: `capacity`, or now and then anything from 2 pieces on."""

    capacity: int
    short_seq_prob: float

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count] pieces."""
        short = rng.random(count) < self.short_seq_prob
        return np.where(short, rng.integers(2, self.capacity, count, endpoint=True), self.capacity)


def fill(
    spans: Spans,
    stops: Callable[[np.ndarray, np.ndarray], np.ndarray],
    targets: Targets,
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
        target = targets.draw(len(at), rng)
        stop = np.minimum(stops(at, target), end)
        rounds.append((at, stop, target))
        left = stop < end
        at, end = stop[left], end[left]
    begin, stop, target = (np.concatenate(each) for each in zip(*rounds, strict=True))
    order = np.argsort(begin, kind="stable")
    return begin[order], stop[order], target[order]


@dataclass(frozen=True)
class Parts:
    """The `n` stretches of sentences from which pairs are made: together the chosen documents, in order.

    Attributes:
        first, stop: [n] the sentences of each.
        target: [n] how many pieces a pair with it should have.
        chunk: [n] two parts of one chunk have the same number.
        document: [n] the number among the chosen.
    """

    first: np.ndarray
    stop: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    document: np.ndarray


def parts(documents: Documents, targets: Targets, rng: np.random.Generator) -> Parts:
    """Chunks split in two at a random sentence; a chunk of one sentence is one part."""
    first, stop, target = fill(documents.stretches(), documents.filled, targets, rng)
    middle = first + rng.integers(1, np.maximum(stop - first, 2))
    starts, stops = np.stack([first, middle], 1).ravel(), np.stack([middle, stop], 1).ravel()
    full = np.flatnonzero(documents.pieces(starts, stops))
    starts, chunk = starts[full], full // 2
    document = np.searchsorted(documents.first, starts, "right") - 1
    return Parts(starts, stops[full], target[chunk], chunk, document)
