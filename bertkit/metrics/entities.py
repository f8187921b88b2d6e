"""Scores of whole entities, from 0 to 1, as conlleval and seqeval define them.

An entity is correct if its first word, its last word and its type are. Counts are kept per sentence: the
entities are counted once, and a bootstrap only adds up the counts of the sentences it samples.
"""

import numpy as np

from bertkit.data.ner.tags import TagSet, find_sentence_indices
from bertkit.metrics.classification import Scores
from bertkit.utils.ragged import offsets_from_lengths

UNTYPED_LABEL = "entity"  # name of the empty type in reported scores


def count_entities(gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet) -> np.ndarray:
    """Count the correct, predicted and gold entities of each sentence and type.

    Illegal sequences are read by conlleval's rule: an I tag begins an entity if no entity of its type
    precedes it.

    Args:
        gold: [words] tag ids of all sentences.
        predicted: [words] tag ids of all sentences.
        offsets: [n + 1] index of each sentence's first word; sentences may be empty.
        tags: The tag set of the ids.

    Returns:
        [n, types, 3] int.
    """
    gold_starts, gold_ends = _find_entities(gold, offsets, tags)
    starts, ends = _find_entities(predicted, offsets, tags)
    gold_end_by_start = np.full(len(gold), -1)
    gold_end_by_start[gold_starts] = gold_ends
    same_type = tags.type_ids[gold[starts]] == tags.type_ids[predicted[starts]]
    correct = starts[(gold_end_by_start[starts] == ends) & same_type]

    def count(tag_ids: np.ndarray, first_words: np.ndarray) -> np.ndarray:
        shape = len(offsets) - 1, len(tags.types)
        cells = find_sentence_indices(first_words, offsets) * shape[1] + tags.type_ids[tag_ids[first_words]]
        return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)

    return np.stack([count(gold, correct), count(predicted, starts), count(gold, gold_starts)], axis=-1)


def score_entities(counts: np.ndarray) -> Scores:
    """Return micro precision, recall and f1 of counts [..., 3]; 0 where the denominator is 0."""
    correct, predicted, gold = counts.reshape(-1, 3).sum(0).tolist()
    return {
        "precision": correct / predicted if predicted else 0.0,
        "recall": correct / gold if gold else 0.0,
        "f1": 2 * correct / (predicted + gold) if predicted + gold else 0.0,
    }


def count_by_sentence(
    gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet
) -> tuple[np.ndarray, np.ndarray]:
    """Count the entities and the words of each sentence; arguments as for `count_entities`.

    Returns:
        The result of `count_entities` [n, types, 3], and the correct words and all words [n, 2].
    """
    correct = offsets_from_lengths(gold == predicted)[offsets]
    words = np.diff(np.stack([correct, offsets], axis=1), axis=0)
    return count_entities(gold, predicted, offsets, tags), words


def score_sentences(entities: np.ndarray, words: np.ndarray) -> Scores:
    """Return the entity scores of sentences, and the accuracy of their words (O included)."""
    correct, total = words.sum(0).tolist()
    return {**score_entities(entities), "accuracy": correct / total if total else 0.0}


def score_types(counts: np.ndarray, tags: TagSet) -> dict[str, Scores]:
    """Return the scores of each type and its number of gold `entities`, from counts [n, types, 3]."""
    totals = counts.sum(0)
    return {
        type or UNTYPED_LABEL: score_entities(totals[type_id]) | {"entities": int(totals[type_id, 2])}
        for type_id, type in enumerate(tags.types)
    }


def compute_word_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the fraction of words with the correct tag, O included; 0 without words."""
    return float((gold == predicted).mean()) if len(gold) else 0.0


def _find_entities(tag_ids: np.ndarray, offsets: np.ndarray, tags: TagSet) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat indices of the first and the last word of each entity."""
    starts, ends = tags.find_entity_bounds(tag_ids, offsets)
    return np.flatnonzero(starts), np.flatnonzero(ends)
