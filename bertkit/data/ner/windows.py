"""What each sequence reads of sentences in pieces, and which of the pieces it decides.

All numbers count pieces of all sentences one behind the other. Each piece is decided exactly once: in a
sentence longer than the model by the window in which it has the most context on its poorer side.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Windows:
    """The sequences of `n` sentences.

    Attributes:
        start, stop: [sequences] the stretch of pieces that is read.
        own, own_stop: [sequences] the stretch in it that is decided.
        first: [n + 1] the first sequence of each sentence.
    """

    start: np.ndarray
    stop: np.ndarray
    predict_start: np.ndarray
    predict_stop: np.ndarray
    window_offsets: np.ndarray


def build_windows(start: np.ndarray, stop: np.ndarray, budget: int) -> Windows:
    """One window of each sentence, or several of `budget` pieces that overlap by a quarter.

    Args:
        start, stop: [n] the pieces of each sentence.
        budget: the most pieces of a sequence, special ones not counted.
    """
    step = max(1, budget - budget // 4)
    counts = 1 + np.maximum(0, -(-(stop - start - budget) // step))
    first = np.concatenate([[0], np.cumsum(counts)])
    number = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    begin, end = np.repeat(start, counts), np.repeat(stop, counts)
    left = np.maximum(begin, np.minimum(begin + number * step, end - budget))
    right = np.minimum(left + budget, end)
    middle = np.concatenate([[0], (left[1:] + right[:-1]) // 2])  # of the overlap with the window before
    own = np.where(number == 0, begin, middle)
    own_stop = np.append(own[1:], 0)
    last = np.append(number[1:] == 0, True)
    return Windows(left, right, own, np.where(last, end, own_stop), first)


def expand_windows(alone: Windows, sentences: np.ndarray, document: np.ndarray, budget: int) -> Windows:
    """The same windows with whole sentences of their document before and after, as far as they fit.

    As in Devlin et al. 2018, 5.3. Half of the room goes to each side, and what one side leaves to the
    other. A window of a longer sentence has no room.

    Args:
        sentences: [all + 1] the first piece of each sentence, those of other splits included.
        document: [sequences, 2] the first piece of the window's document and of the next.
    """
    room = np.maximum(0, budget - (alone.stop - alone.start))
    start = _before(alone.start, room // 2, sentences, document[:, 0])
    stop = _after(alone.stop, room - (alone.start - start), sentences, document[:, 1])
    start = _before(alone.start, room - (stop - alone.stop), sentences, document[:, 0])
    whole = alone.stop - alone.start < budget
    return Windows(
        np.where(whole, start, alone.start), np.where(whole, stop, alone.stop),
        alone.predict_start, alone.predict_stop, alone.window_offsets,
    )  # fmt: skip


def _before(start: np.ndarray, room: np.ndarray, sentences: np.ndarray, earliest: np.ndarray) -> np.ndarray:
    wanted = np.maximum(start - room, earliest)
    return sentences[np.searchsorted(sentences, wanted, side="left")]


def _after(stop: np.ndarray, room: np.ndarray, sentences: np.ndarray, latest: np.ndarray) -> np.ndarray:
    wanted = np.minimum(stop + room, latest)
    return sentences[np.searchsorted(sentences, wanted, side="right") - 1]
