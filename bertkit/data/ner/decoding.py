"""Decode tags: compute log-probabilities of words from logits, and find the best legal tag sequences."""

from dataclasses import dataclass

import numpy as np

from bertkit.data.ner.features import WordFeatures
from bertkit.data.ner.tags import TagSet

NON_OUTSIDE_PENALTY = 1e-3  # a word without tokens becomes O, unless the words around it decide otherwise
FORBIDDEN_PENALTY = 1e4  # for impossible tags; finite, unlike the scores of illegal transitions
MAX_BATCH_SCORES = 2**22  # scores decoded at a time, sentences times transitions; 32 MB


def compute_emissions(logits: np.ndarray, features: WordFeatures, tags: TagSet) -> np.ndarray:
    """Return the log-probability of each tag for each word [words, tags].

    Several words may share a token: a file may label single characters, and a token may contain several of
    them. The second and later words of a token continue the entity of the first word.

    A word without tokens gets O or continues the entity of the words around it. It cannot begin an entity:
    otherwise its B would have the same score as the I that continues the entity.

    Args:
        logits: [predictions, tags] logits of the first token of each word.
        features: The features that the logits were computed from.
        tags: The tag set of the model.
    """
    from scipy.special import log_softmax

    emissions_without_tokens = np.where(tags.is_begin, -FORBIDDEN_PENALTY, -NON_OUTSIDE_PENALTY)
    emissions_without_tokens[tags.outside_id] = 0.0
    index = features.prediction_index
    emissions = np.tile(emissions_without_tokens, (len(index), 1))
    has_prediction = index >= 0
    log_probabilities = log_softmax(logits.astype(np.float64), axis=-1)
    emissions[has_prediction] = log_probabilities[index[has_prediction]]
    same_token = np.flatnonzero(mark_shared_tokens(index)[0])
    for type_id in range(len(tags.types)):
        begin = (tags.type_ids == type_id) & tags.is_begin
        inside = (tags.type_ids == type_id) & ~tags.is_begin
        begin_or_inside = np.logaddexp(emissions[same_token][:, begin], emissions[same_token][:, inside])
        emissions[same_token[:, None], inside] = begin_or_inside
        emissions[same_token[:, None], begin] = -FORBIDDEN_PENALTY
    return emissions


def mark_shared_tokens(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the token of each word is also that of an earlier, or of a later word, both [words].

    Args:
        index: [words] number of each word's token; -1 for a word without tokens.
    """
    words = np.flatnonzero(index >= 0)
    is_shared = index[words[1:]] == index[words[:-1]]
    with_earlier, with_later = np.zeros((2, len(index)), bool)
    with_earlier[words[1:][is_shared]] = True
    with_later[words[:-1][is_shared]] = True
    return with_earlier, with_later


def viterbi_decode(
    emissions: np.ndarray, offsets: np.ndarray, initial: np.ndarray, transitions: np.ndarray
) -> np.ndarray:
    """Return the legal tag sequence with the highest score for each sentence.

    If the best tags of a sentence's words form a legal sequence, this sequence is the result. Only the
    remaining sentences are decoded.

    Args:
        emissions: [words, tags] finite scores (logits or log-probabilities) of all sentences.
        offsets: [n + 1] index of each sentence's first word; sentences may be empty.
        initial: [tags] bool, whether a tag may begin a sentence.
        transitions: [tags, tags] bool, whether the second tag may follow the first. Each reachable tag must
            have a successor. O is usually one.

    Returns:
        [words] int tag ids.
    """
    path = emissions.argmax(1)
    illegal = _find_illegal_sentences(path, offsets, initial, transitions)
    longest_first = illegal[np.argsort(-np.diff(offsets)[illegal], kind="stable")]
    starts, lengths = offsets[longest_first], np.diff(offsets)[longest_first]
    rules = _Rules.from_transitions(initial, transitions)
    batch_size = max(1, MAX_BATCH_SCORES // rules.transition_scores.size)
    for first in range(0, len(starts), batch_size):
        batch = slice(first, first + batch_size)
        _decode_sentences(emissions, starts[batch], lengths[batch], rules, path)
    return path


@dataclass(frozen=True)
class _Rules:
    """Transition rules in compact form. Tags with the same legal predecessors have the same kind.

    O and all B tags, for example, have the same kind.

    Attributes:
        initial_scores: [tags] 0 if the tag may begin a sentence, else -inf.
        transition_scores: [kinds, tags] 0 if the tag may precede tags of the kind, else -inf.
        kind: [tags] index of each tag's kind.
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
    """Write the best tag sequences of sentences into `path`.

    The sentences are sorted by length, longest first. The sentences that are active at a step, because they
    have a word there, are therefore the first ones, and no padding is needed.
    """
    active_counts = np.searchsorted(-lengths, -np.arange(1, lengths[0])).tolist()  # at steps 1, 2, ...
    scores = rules.initial_scores + emissions[starts]
    backpointers = []  # for each step: the best predecessor of each kind [active, kinds]
    for step, active in enumerate(active_counts, 1):
        candidates = scores[:active, None] + rules.transition_scores
        best_predecessors = candidates.argmax(2)
        best_scores = np.take_along_axis(candidates, best_predecessors[:, :, None], 2)[:, :, 0]
        scores[:active] = best_scores[:, rules.kind] + emissions[starts[:active] + step]
        backpointers.append(best_predecessors.astype(np.int16))
    tag = scores.argmax(1)
    for step in range(len(active_counts), 0, -1):
        active = active_counts[step - 1]
        path[starts[:active] + step] = tag[:active]
        tag[:active] = backpointers[step - 1][np.arange(active), rules.kind[tag[:active]]]
    path[starts] = tag
