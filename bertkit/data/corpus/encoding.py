"""Sentences to pieces, many at a time, while the next are read and the last are written.

Reading, the tokenizer and whoever takes the pieces have a thread each: the tokenizer lets go of the
interpreter's lock, so it has the other cores to itself.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
MAX_BATCH_SENTENCES = 4096  # handed to the tokenizer at a time,
MAX_BATCH_CHARS = 400_000  # or fewer, where they have more characters than this
SentenceBatch = tuple[list[str], list[int]]  # sentences, and the number of the document of each


@dataclass(frozen=True)
class EncodedBatch:
    """`n` sentences in pieces.

    Attributes:
        pieces: [tokens] of all of them, one after the other.
        lengths: [n] how many are of each; none is without.
        document: [n] the number of the document that each is of.
        unknown: how many pieces stand for what the vocabulary lacks.
        characters: how many the sentences had.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    document_index: np.ndarray
    num_unk: int
    num_chars: int


def encode_documents(
    documents: Iterable[Iterable[str]], tokenizer: Any, dtype: np.dtype
) -> Iterator[EncodedBatch]:
    """The sentences of all documents in pieces, batch by batch; those without any piece are left out.

    What looks like a special piece in them, a "[SEP]", is text.
    """
    unknown = tokenizer.unk_token_id
    for (sentences, numbers), encodings in prefetch(_encodings(documents, tokenizer.backend_tokenizer)):
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        pieces = np.fromiter(ids, dtype, lengths.sum())
        document = np.array(numbers, np.int64)[lengths > 0]
        missing = 0 if unknown is None else int(np.count_nonzero(pieces == unknown))
        yield EncodedBatch(pieces, lengths[lengths > 0], document, missing, sum(map(len, sentences)))


def _encodings(documents: Iterable[Iterable[str]], backend: Any) -> Iterator[tuple[SentenceBatch, list[Any]]]:
    before, backend.encode_special_tokens = backend.encode_special_tokens, True
    try:
        for batch in prefetch(_batches(documents)):
            yield batch, backend.encode_batch_fast(batch[0], add_special_tokens=False)
    finally:
        backend.encode_special_tokens = before


def _batches(documents: Iterable[Iterable[str]]) -> Iterator[SentenceBatch]:
    sentences: list[str] = []
    numbers: list[int] = []
    size = 0
    for number, document in enumerate(documents):
        for sentence in document:
            sentences.append(sentence)
            numbers.append(number)
            size += len(sentence)
            if size >= MAX_BATCH_CHARS or len(sentences) == MAX_BATCH_SENTENCES:
                yield sentences, numbers
                sentences, numbers, size = [], [], 0
    if sentences:
        yield sentences, numbers


def prefetch(items: Iterable[T], count: int = 2) -> Iterator[T]:
    """The items in their order, up to `count` of them made ahead in a thread; its errors are raised here."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, source, end) for _ in range(count))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, source, end))
            yield item  # type: ignore[misc]
