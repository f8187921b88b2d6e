"""Which parts of documents are followed by their continuation, and what stands after the others."""

import numpy as np

from bertkit.data.corpus.segments import Segments, SelectedDocuments


def sample_positive_pairs(segments: Segments, rng: np.random.Generator) -> np.ndarray:
    """[parts] whether a part is an A whose B is the next part.

    Every part that is neither such an A nor such a B is an A by itself, with a B from elsewhere. Hence a
    third of the parts lead where half of the pairs shall be IsNext.
    """
    count = (len(segments.start) + 1) // 3
    able = np.flatnonzero(positive_pairs(segments, count, rng))
    chosen = np.zeros(len(segments.start), bool)
    chosen[rng.choice(able, min(count, len(able)), replace=False)] = True
    return chosen


def positive_pairs(segments: Segments, count: int, rng: np.random.Generator) -> np.ndarray:
    """[parts] whether a part can be followed by the next one, at least `count` if there are so many.

    The two parts of a chunk belong together. Where these are too few, since long sentences are chunks by
    themselves, all parts of as many documents as needed, drawn at random, are taken two by two.
    """
    together = np.append(segments.chunk_ids[1:] == segments.chunk_ids[:-1], False)
    missing = count - together.sum()
    if missing <= 0:
        return together
    same = np.append(segments.document_ids[1:] == segments.document_ids[:-1], False)
    begins = np.searchsorted(segments.document_ids, segments.document_ids)
    anew = same & ((np.arange(len(begins)) - begins) % 2 == 0)
    documents = int(segments.document_ids[-1]) + 1
    gain = np.bincount(segments.document_ids[anew], minlength=documents)
    gain -= np.bincount(segments.document_ids[together], minlength=documents)
    order = rng.permutation(np.flatnonzero(gain))
    changed = np.zeros(documents, bool)
    changed[order[: 1 + np.searchsorted(np.cumsum(gain[order]), missing)]] = True
    return np.where(changed[segments.document_ids], anew, together)


def excluded_range(documents: SelectedDocuments, segments: Segments) -> np.ndarray:
    """[parts, 2] where a B may not begin that shall not be next: sentences of the chosen documents, counted.

    Anywhere in the document that the part is of; if that is the only one, in the part and its continuation.
    """
    if not documents.is_single_document:
        own = documents.parent_ids[segments.document_ids]
        ends = (np.searchsorted(documents.parent_ids, own, side) for side in ("left", "right"))
        return np.stack([documents.cumulative_sentences[end] for end in ends], 1)
    rest = np.maximum(1, segments.target_length - documents.count_tokens(segments.start, segments.stop))
    stop = documents.find_stop_reaching(segments.stop, rest)
    return np.stack(
        [documents.count_sentences_before(segments.start), documents.count_sentences_before(stop)], 1
    )


def sample_negative(
    documents: SelectedDocuments, excluded: np.ndarray, num_tokens: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Begin and stop of sentences that are not near and have about so many pieces.

    Every sentence that is not near is as likely to be the first. They stop at the latest where their
    document does, or where what is near begins.
    """
    begin, end = excluded.T
    first = rng.integers(0, documents.cumulative_sentences[-1] - (end - begin))
    behind = first >= begin
    first = np.where(behind, first + end - begin, first)
    document = np.searchsorted(documents.cumulative_sentences, first, "right") - 1
    shift = documents.start[document] - documents.cumulative_sentences[document]
    last = documents.stop[document]
    last = np.where(behind, last, np.minimum(last, begin + shift))
    first = first + shift
    return first, np.minimum(documents.find_stop_reaching(first, np.maximum(1, num_tokens)), last)
