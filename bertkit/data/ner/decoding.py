"""Decoding of tags: from logits per token to log-probabilities per word to the best legal tag sequence."""

from dataclasses import dataclass

import numpy as np

from bertkit.data.ner.features import WordFeatures
from bertkit.data.ner.tags import TagSet

NON_OUTSIDE_PENALTY = 1e-3  # makes a word without tokens O, unless its neighbors imply another tag
FORBIDDEN_PENALTY = 1e4  # for impossible tags; small enough that the sum over a sentence stays finite
MAX_CELLS = 2**22  # scores in memory at a time, sentences times pairs of tags: 32 MB


def compute_emissions(logits: np.ndarray, features: WordFeatures, tags: TagSet) -> np.ndarray:
    """Return the log-probability of each tag for each word [words, tags].

    A word with the same token as the word before continues that word's entity. Tokenizers that treat
    whole words as tokens cause this if the words of a file are single characters. A word without tokens
    follows its neighbors. It never begins an entity: its B would otherwise be preferred to the I of the
    neighbor's tokens.

    Args:
        logits: [predictions, tags].
        features: The features that the logits were computed from.
        tags: The tag set of the model.
    """
    from scipy.special import log_softmax

    without_tokens = np.where(tags.is_begin, -FORBIDDEN_PENALTY, -NON_OUTSIDE_PENALTY)
    without_tokens[tags.outside_id] = 0.0
    index = features.prediction_index
    emissions = np.tile(without_tokens, (len(index), 1))
    has_prediction = index >= 0
    log_probabilities = log_softmax(logits.astype(np.float64), axis=-1)
    emissions[has_prediction] = log_probabilities[index[has_prediction]]
    continued = np.flatnonzero(has_prediction[1:] & (index[1:] == index[:-1])) + 1
    for type_id in range(len(tags.types)):
        begin = (tags.type_ids == type_id) & tags.is_begin
        inside = (tags.type_ids == type_id) & ~tags.is_begin
        either = np.logaddexp(emissions[continued][:, begin], emissions[continued][:, inside])
        emissions[continued[:, None], inside] = either
        emissions[continued[:, None], begin] = -FORBIDDEN_PENALTY
    return emissions


def viterbi_decode(
    emissions: np.ndarray, offsets: np.ndarray, initial: np.ndarray, transitions: np.ndarray
) -> np.ndarray:
    """Return the legal tag sequence with the highest score for each sentence.

    Sentences whose argmax is legal keep it; only the others are decoded.

    Args:
        emissions: [words, tags] finite scores (logits or log-probabilities) of all sentences.
        offsets: [n + 1] index of each sentence's first word; sentences may be empty.
        initial: [tags] bool, whether a tag may begin a sentence.
        transitions: [tags, tags] bool (from, to), whether a tag may follow another. Every reachable tag
            must have a successor, as every tag does that may be followed by O.

    Returns:
        [words] int tag ids.
    """
    path = emissions.argmax(1)
    illegal = _find_illegal_sentences(path, offsets, initial, transitions)
    longest_first = illegal[np.argsort(-np.diff(offsets)[illegal], kind="stable")]
    starts, lengths = offsets[longest_first], np.diff(offsets)[longest_first]
    rules = _Rules.from_transitions(initial, transitions)
    size = max(1, MAX_CELLS // rules.transition_scores.size)
    for first in range(0, len(starts), size):
        batch = slice(first, first + size)
        _decode_sentences(emissions, starts[batch], lengths[batch], rules, path)
    return path


@dataclass(frozen=True)
class _Rules:
    """Transition rules in compact form: tags with the same predecessors (such as O and all B) share a kind.

    Attributes:
        initial_scores: [tags] 0, or -inf for tags that may not begin a sentence.
        transition_scores: [kinds, tags] 0, or -inf for tags that may not precede the kind.
        kind: [tags] the kind of each tag.
    """

    initial_scores: np.ndarray
    transition_scores: np.ndarray
    kind: np.ndarray

    @classmethod
    def from_transitions(cls, initial: np.ndarray, transitions: np.ndarray) -> "_Rules":
        predecessors, kind = np.unique(transitions.T, axis=0, return_inverse=True)
        return cls(np.where(initial, 0.0, -np.inf), np.where(predecessors, 0.0, -np.inf), kind.reshape(-1))


def _find_illegal_sentences(
    path: np.ndarray, offsets: np.ndarray, initial: np.ndarray, transitions: np.ndarray
) -> np.ndarray:
    """Return the indices of the sentences whose path is illegal."""
    first_words = offsets[:-1][np.diff(offsets) > 0]
    is_legal = np.ones(len(path), bool)
    is_legal[1:] = transitions[path[:-1], path[1:]]
    is_legal[first_words] = initial[path[first_words]]
    return np.unique(np.searchsorted(offsets, np.flatnonzero(~is_legal), side="right") - 1)


def _decode_sentences(
    emissions: np.ndarray, starts: np.ndarray, lengths: np.ndarray, rules: _Rules, path: np.ndarray
) -> None:
    """Write the best paths of sentences into `path`.

    The sentences are sorted by length, longest first. Those that reach a step are therefore the first ones,
    and no padding is needed.
    """
    active_counts = np.searchsorted(-lengths, -np.arange(1, lengths[0])).tolist()  # at steps 1, 2, ...
    scores = rules.initial_scores + emissions[starts]
    backpointers = []  # at each step the best tag before each kind, [active, kinds]
    for step, active in enumerate(active_counts, 1):
        candidates = scores[:active, None] + rules.transition_scores
        best = candidates.argmax(2)
        best_scores = np.take_along_axis(candidates, best[:, :, None], 2)[:, :, 0]
        scores[:active] = best_scores[:, rules.kind] + emissions[starts[:active] + step]
        backpointers.append(best.astype(np.int16))
    tag = scores.argmax(1)
    for step in range(len(active_counts), 0, -1):
        active = active_counts[step - 1]
        path[starts[:active] + step] = tag[:active]
        tag[:active] = backpointers[step - 1][np.arange(active), rules.kind[tag[:active]]]
    path[starts] = tag
