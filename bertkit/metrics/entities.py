"""Scores of whole entities, from 0 to 1, as conlleval and seqeval define them.

An entity is right where its first token, its last and its type are. Counts are kept by sentence, since
a bootstrap draws sentences a thousand times where entities are counted once.
"""

import numpy as np

from bertkit.data.ner.tags import TagSet, find_sentence_indices
from bertkit.metrics.classification import Scores

UNTYPED_LABEL = "entity"  # what the type "" is called where scores are told


def count_entities(gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet) -> np.ndarray:
    """How many entities are right, guessed and gold: [n, types, 3] int.

    Illegal sequences are read by conlleval's rule: an I with nothing before it, or with another type
    before it, begins an entity.

    Args:
        gold, predicted: [total] tag numbers of all sentences.
        offsets: [n + 1] where each sentence begins; sentences may be empty.
    """
    gold_starts, gold_ends = _entities(gold, offsets, tags)
    starts, ends = _entities(predicted, offsets, tags)
    end_of = np.full(len(gold), -1)
    end_of[gold_starts] = gold_ends
    same_type = tags.type_ids[gold[starts]] == tags.type_ids[predicted[starts]]
    right = starts[(end_of[starts] == ends) & same_type]

    def count(numbers: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        shape = len(offsets) - 1, len(tags.types)
        cells = find_sentence_indices(tokens, offsets) * shape[1] + tags.type_ids[numbers[tokens]]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

    return np.stack([count(gold, right), count(predicted, starts), count(gold, gold_starts)], axis=-1)


def score_entities(counts: np.ndarray) -> Scores:
    """Micro precision, recall and f1 of counts [..., 3], summed over all but the last; 0 where nothing is."""
    right, guessed, gold = counts.reshape(-1, 3).sum(0).tolist()
    return {
        "precision": right / guessed if guessed else 0.0,
        "recall": right / gold if gold else 0.0,
        "f1": 2 * right / (guessed + gold) if guessed + gold else 0.0,
    }


def count_by_sentence(
    gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet
) -> tuple[np.ndarray, np.ndarray]:
    """Of each sentence, its `entity_counts` [n, types, 3], and [n, 2]: the tokens that are right, and all."""
    right = np.concatenate([[0], np.cumsum(gold == predicted)])[offsets]
    return count_entities(gold, predicted, offsets, tags), np.diff(np.stack([right, offsets], axis=1), axis=0)


def score_sentences(entities: np.ndarray, tokens: np.ndarray) -> Scores:
    """`entity_scores` of sentences from their counts, and the `accuracy` of their tokens, O included."""
    right, all_ = tokens.sum(0).tolist()
    return {**score_entities(entities), "accuracy": right / all_ if all_ else 0.0}


def score_types(counts: np.ndarray, tags: TagSet) -> dict[str, Scores]:
    """The scores of each type, and how many `entities` of it are gold, of counts [n, types, 3]."""
    found = counts.sum(0)
    return {
        type or UNTYPED_LABEL: score_entities(found[place]) | {"entities": int(found[place, 2])}
        for place, type in enumerate(tags.types)
    }


def compute_word_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """The share of tokens with the right tag, O included; 0 where there are none."""
    return float((gold == predicted).mean()) if len(gold) else 0.0


def _entities(numbers: np.ndarray, offsets: np.ndarray, tags: TagSet) -> tuple[np.ndarray, np.ndarray]:
    """The flat indices of the first and the last token of each entity."""
    starts, ends = tags.find_entity_bounds(numbers, offsets)
    return np.flatnonzero(starts), np.flatnonzero(ends)
