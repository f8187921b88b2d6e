"""Which parts of documents are followed by their continuation, and what stands after the others."""

import numpy as np

from bertkit.masking.chunks import Documents, Parts


def chosen_leads(parts: Parts, rng: np.random.Generator) -> np.ndarray:
    """[parts] whether a part is an A whose B is the next part.

    Every part that is neither such an A nor such a B is an A by itself, with a B from elsewhere. Hence a
    third of the parts lead where half of the pairs shall be IsNext.
    """
    count = (len(parts.first) + 1) // 3
    able = np.flatnonzero(leads(parts, count, rng))
    chosen = np.zeros(len(parts.first), bool)
    chosen[rng.choice(able, min(count, len(able)), replace=False)] = True
    return chosen


def leads(parts: Parts, count: int, rng: np.random.Generator) -> np.ndarray:
    """[parts] whether a part can be followed by the next one, at least `count` if there are so many.

    The two parts of a chunk belong together. Where these are too few, since long sentences are chunks by
    themselves, all parts of as many documents as needed, drawn at random, are taken two by two.
    """
    together = np.append(parts.chunk[1:] == parts.chunk[:-1], False)
    missing = count - together.sum()
    if missing <= 0:
        return together
    same = np.append(parts.document[1:] == parts.document[:-1], False)
    begins = np.searchsorted(parts.document, parts.document)
    anew = same & ((np.arange(len(begins)) - begins) % 2 == 0)
    documents = int(parts.document[-1]) + 1
    gain = np.bincount(parts.document[anew], minlength=documents)
    gain -= np.bincount(parts.document[together], minlength=documents)
    order = rng.permutation(np.flatnonzero(gain))
    changed = np.zeros(documents, bool)
    changed[order[: 1 + np.searchsorted(np.cumsum(gain[order]), missing)]] = True
    return np.where(changed[parts.document], anew, together)


def near(documents: Documents, parts: Parts) -> np.ndarray:
    """[parts, 2] where a B may not begin that shall not be next: sentences of the chosen documents, counted.

    Anywhere in the document that the part is of; if that is the only one, in the part and its continuation.
    """
    if not documents.single:
        own = documents.origin[parts.document]
        ends = (np.searchsorted(documents.origin, own, side) for side in ("left", "right"))
        return np.stack([documents.before[end] for end in ends], 1)
    rest = np.maximum(1, parts.target - documents.pieces(parts.first, parts.stop))
    stop = documents.filled(parts.stop, rest)
    return np.stack([documents.counted(parts.first), documents.counted(stop)], 1)


def elsewhere(
    documents: Documents, near: np.ndarray, pieces: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Begin and stop of sentences that are not near and have about so many pieces.

    Every sentence that is not near is as likely to be the first. They stop at the latest where their
    document does, or where what is near begins.
    """
    begin, end = near.T
    first = rng.integers(0, documents.before[-1] - (end - begin))
    behind = first >= begin
    first = np.where(behind, first + end - begin, first)
    document = np.searchsorted(documents.before, first, "right") - 1
    shift = documents.first[document] - documents.before[document]
    last = documents.stop[document]
    last = np.where(behind, last, np.minimum(last, begin + shift))
    first = first + shift
    return first, np.minimum(documents.filled(first, np.maximum(1, pieces)), last)
