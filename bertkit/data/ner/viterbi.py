"""The best legal sequence of tags: what a token classifier's scores say where tags depend on each other."""

from dataclasses import dataclass

import numpy as np

MAX_CELLS = 2**22  # scores held at once, sentences times pairs of tags: 32 MB


def viterbi_decode(
    emissions: np.ndarray, offsets: np.ndarray, initial: np.ndarray, pair: np.ndarray
) -> np.ndarray:
    """The legal path of each sentence with the highest sum of scores; a legal argmax is that path.

    Args:
        emissions: [total, C] finite scores (logits or log-probabilities) of all sentences.
        offsets: [n + 1] where each sentence begins; sentences may be empty.
        initial: [C] bool, the tags that may begin a sentence.
        pair: [C, C] bool, which tag (first) may stand before which; every tag that can be reached must
            have a way on, as one to O always is.

    Returns:
        [total] int tag numbers.
    """
    path = emissions.argmax(1)
    illegal = _illegal(path, offsets, initial, pair)
    longest_first = illegal[np.argsort(-np.diff(offsets)[illegal], kind="stable")]
    starts, lengths = offsets[longest_first], np.diff(offsets)[longest_first]
    rules = _Rules.of(initial, pair)
    size = max(1, MAX_CELLS // rules.barred.size)
    for part in (slice(start, start + size) for start in range(0, len(starts), size)):
        _decode(emissions, starts[part], lengths[part], rules, path)
    return path


@dataclass(frozen=True)
class _Rules:
    """What may follow what, in `U` kinds of tags that may follow the same ones: O and all B are one."""

    start: np.ndarray  # [C] 0, or -inf for what may not begin
    barred: np.ndarray  # [U, C] 0, or -inf for what may not stand before
    kind: np.ndarray  # [C] the kind of each tag

    @classmethod
    def of(cls, initial: np.ndarray, pair: np.ndarray) -> "_Rules":
        kinds, kind = np.unique(pair.T, axis=0, return_inverse=True)
        return cls(np.where(initial, 0.0, -np.inf), np.where(kinds, 0.0, -np.inf), kind.reshape(-1))


def _illegal(path: np.ndarray, offsets: np.ndarray, initial: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """The numbers of the sentences whose path is illegal."""
    first = offsets[:-1][np.diff(offsets) > 0]
    legal = np.ones(len(path), bool)
    legal[1:] = pair[path[:-1], path[1:]]
    legal[first] = initial[path[first]]
    return np.unique(np.searchsorted(offsets, np.flatnonzero(~legal), side="right") - 1)


def _decode(
    emissions: np.ndarray, starts: np.ndarray, lengths: np.ndarray, rules: _Rules, path: np.ndarray
) -> None:
    """Writes the best paths of some sentences, longest first, into `path`.

    Those still going on at a step are the first ones, so nothing is padded.
    """
    going = np.searchsorted(-lengths, -np.arange(1, lengths[0])).tolist()  # at steps 1, 2, ...
    score = rules.start + emissions[starts]
    back = []  # at each step the best tag before each kind of tag, [going, U]
    for step, count in enumerate(going, 1):
        ways = score[:count, None] + rules.barred
        best = ways.argmax(2)
        reached = np.take_along_axis(ways, best[:, :, None], 2)[:, :, 0]
        score[:count] = reached[:, rules.kind] + emissions[starts[:count] + step]
        back.append(best.astype(np.int16))
    tag = score.argmax(1)
    for step in range(len(going), 0, -1):
        count = going[step - 1]
        path[starts[:count] + step] = tag[:count]
        tag[:count] = back[step - 1][np.arange(count), rules.kind[tag[:count]]]
    path[starts] = tag
