"""Scores of whole entities, from 0 to 1, as conlleval and seqeval define them.

An entity is correct if its first word, its last word and its type are correct. Entities are counted once for
each sentence. A bootstrap then only sums the counts of the sampled sentences.
"""

import numpy as np

from bertkit.data.ner.tags import TagSet, find_sentence_indices
from bertkit.metrics.classification import Scores
from bertkit.utils.ragged import compute_offsets

UNTYPED_LABEL = "entity"  # name under which the scores of entities without a type are reported


def count_entities(gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet) -> np.ndarray:
    """Count the correct, predicted and gold entities of each sentence and type.

    Illegal sequences are read by conlleval's rule: an I tag begins an entity if no entity of its type is
    directly before it.

    Args:
        gold: [words] gold tag ids of all sentences.
        predicted: [words] predicted tag ids of all sentences.
        offsets: [n + 1] index of each sentence's first word; sentences may be empty.
        tags: The tag set that defines the ids.

    Returns:
        [n, types, 3] int, the numbers of correct, predicted and gold entities.
    """
    gold_starts, _ = _find_entities(gold, offsets, tags)
    predicted_starts, _, is_correct = find_predicted_entities(gold, predicted, offsets, tags)
    correct_starts = predicted_starts[is_correct]

    def count(tag_ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
        num_sentences, num_types = len(offsets) - 1, len(tags.types)
        # Indices into the flattened counts [sentences, types].
        indices = find_sentence_indices(starts, offsets) * num_types + tags.type_ids[tag_ids[starts]]
        counts = np.bincount(indices, minlength=num_sentences * num_types)
        return counts.reshape(num_sentences, num_types)

    return np.stack(
        [count(gold, correct_starts), count(predicted, predicted_starts), count(gold, gold_starts)], axis=-1
    )


def find_predicted_entities(
    gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [entities] the first word and the last word of each predicted entity, and whether it is correct.

    The arguments are those of `count_entities`.
    """
    gold_starts, gold_ends = _find_entities(gold, offsets, tags)
    starts, ends = _find_entities(predicted, offsets, tags)
    gold_end_by_start = np.full(len(gold), -1)
    gold_end_by_start[gold_starts] = gold_ends
    has_gold_type = tags.type_ids[gold[starts]] == tags.type_ids[predicted[starts]]
    return starts, ends, (gold_end_by_start[starts] == ends) & has_gold_type


def score_entities(counts: np.ndarray) -> Scores:
    """Return micro-averaged precision, recall and f1 from counts [..., 3]; 0 if a denominator is 0."""
    correct, predicted, gold = counts.reshape(-1, 3).sum(0).tolist()
    return {
        "precision": correct / predicted if predicted else 0.0,
        "recall": correct / gold if gold else 0.0,
        "f1": 2 * correct / (predicted + gold) if predicted + gold else 0.0,
    }


def count_by_sentence(
    gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet
) -> tuple[np.ndarray, np.ndarray]:
    """Count the entities and the words of each sentence.

    The arguments are those of `count_entities`.

    Returns:
        The result of `count_entities` [n, types, 3], and the numbers of correct words and of words [n, 2].
    """
    cumulative_correct = compute_offsets(gold == predicted)[offsets]
    words = np.diff(np.stack([cumulative_correct, offsets], axis=1), axis=0)
    return count_entities(gold, predicted, offsets, tags), words


def score_sentences(entities: np.ndarray, words: np.ndarray) -> Scores:
    """Return the entity scores and the word accuracy of sentences, from the counts of `count_by_sentence`."""
    correct, total = words.sum(0).tolist()
    return {**score_entities(entities), "accuracy": correct / total if total else 0.0}


def score_types(counts: np.ndarray, tags: TagSet) -> dict[str, Scores]:
    """Return the scores and the number of gold `entities` by type, from counts [n, types, 3]."""
    totals = counts.sum(0)
    return {
        type or UNTYPED_LABEL: score_entities(totals[type_id]) | {"entities": int(totals[type_id, 2])}
        for type_id, type in enumerate(tags.types)
    }


def compute_word_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the fraction of words with the correct tag, including O; 0 without words."""
    return float((gold == predicted).mean()) if len(gold) else 0.0


def _find_entities(tag_ids: np.ndarray, offsets: np.ndarray, tags: TagSet) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat indices of the first and the last word of each entity."""
    is_start, is_end = tags.find_entity_bounds(tag_ids, offsets)
    return np.flatnonzero(is_start), np.flatnonzero(is_end)
