"""The predicted tags and entities of `ner`, their scores, and the prediction files."""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.data.readers.conll import format_conll
from bertkit.stats.calibration import SELECTIVE_SCORES, Decisions, EceScorer
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores, softmax
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import NOT_FITTED, FittedConfidence, Outputs, RowEvaluation, ScoreDetail
from bertkit.tasks.ner.features import WordFeatures
from bertkit.tasks.ner.rows import extract_entities
from bertkit.tasks.ner.tags import (
    Scheme,
    TagSet,
    detect_scheme,
    find_sentence_indices,
    from_iob2,
    split_by_offsets,
)
from bertkit.utils.arrays import compute_offsets


class NerEvaluation(RowEvaluation):
    """The most probable legal sequence of tags for each sentence."""

    has_classes = True

    def __init__(
        self, outputs: Outputs, tags: TagSet, scheme: Scheme, fitted: FittedConfidence = NOT_FITTED
    ) -> None:
        super().__init__(outputs, fitted)
        self.tags = tags
        self.scheme = scheme

    @cached_property
    def gold(self) -> np.ndarray:
        """The gold tag ids in IOB2, [words]."""
        return self.tags.encode(self.outputs.rows["iob2"])

    @cached_property
    def split_scheme(self) -> Scheme:
        """The tagging scheme of this split: the training scheme, unless the gold tags contradict it."""
        rows = self.outputs.rows
        return detect_scheme(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme

    @cached_property
    def _decoded(self) -> tuple[np.ndarray, np.ndarray]:
        """The predicted tag ids and their probabilities, both [words]."""
        emissions = self._compute_emissions()
        # IO tags cannot separate adjacent entities of one type.
        transitions = self.tags.build_transitions(allow_adjacent=self.split_scheme.name != "IO")
        predicted = viterbi_decode(emissions, self.outputs.features.word_offsets, *transitions)
        return predicted, np.exp(emissions[np.arange(len(predicted)), predicted])

    @property
    def predicted(self) -> np.ndarray:
        """The predicted tag ids in IOB2, [words]."""
        return self._decoded[0]

    def _compute_emissions(self) -> np.ndarray:
        """Return the log probability of each tag, [words, tags]; not cached because of its size."""
        return compute_emissions(self.outputs.logits, self.outputs.features, self.tags)

    @cached_property
    def _iob2(self) -> list[list[str]]:
        """The predicted tags of each sentence in IOB2."""
        return split_by_offsets(self.tags.decode(self.predicted), self.outputs.features.word_offsets)

    @cached_property
    def _tags_in_split_scheme(self) -> list[list[str]]:
        """The predicted tags of each sentence in the scheme of this split."""
        return from_iob2(self._iob2, self.split_scheme)

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of entities and of words in each sentence; see `count_by_sentence`."""
        return count_by_sentence(self.gold, self.predicted, self.outputs.features.word_offsets, self.tags)

    def compare_entity_types(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the gold and the most probable type id of each word that is in a gold entity.

        The id of O is the number of types. Types are compared instead of tags, since a head with the right
        order of types may confuse B and I.
        """
        is_inside = self.gold != self.tags.outside_id
        outside_type_id = len(self.tags.types)
        type_ids = np.where(self.tags.type_ids < 0, outside_type_id, self.tags.type_ids)  # by tag id
        predicted = self._compute_emissions()[is_inside].argmax(-1)
        return type_ids[self.gold[is_inside]], type_ids[predicted]

    # ---- scores

    @cached_property
    def scores(self) -> Scores:
        return self.scorer.score_all()

    @cached_property
    def _entity_scorer(self) -> EceScorer:
        """The calibration error of predicted entities; rows are sentences."""
        predicted, probabilities = self._decoded
        offsets = self.outputs.features.word_offsets
        starts, ends, is_correct = find_predicted_entities(self.gold, predicted, offsets, self.tags)
        totals = compute_offsets(probabilities)
        confidence = (totals[ends + 1] - totals[starts]) / (ends + 1 - starts)  # the mean, as in the records
        return EceScorer(confidence, is_correct, find_sentence_indices(starts, offsets), len(offsets) - 1)

    @cached_property
    def scorer(self) -> Scorer:
        """A scorer of sentences, since the words of one sentence are not independent."""
        entities_by_type, words = self._counts
        sentences, confidence = make_sentence_scorer(entities_by_type, words), self.abstention_scorer
        entity_scorer = self._entity_scorer

        def score(rows: np.ndarray) -> Scores:
            scores = sentences.score(rows) | {"entity_ece": entity_scorer.score(rows)}
            return scores | confidence.score(rows) if confidence else scores

        return Scorer(score, len(words))

    def compute_details(self) -> dict[str, Scores]:
        entities_by_type, _ = self._counts
        return score_types(entities_by_type, self.tags)

    def make_decisions(self) -> Decisions:
        features, logits = self.outputs.features, self.outputs.logits.astype(np.float64)
        num_sentences = len(features.word_offsets) - 1
        sentence = np.repeat(np.arange(num_sentences), np.diff(features.word_offsets))
        has_prediction = features.prediction_index >= 0
        row = np.zeros(len(logits), int)
        row[features.prediction_index[has_prediction]] = sentence[has_prediction]
        gold = np.full(len(logits), -1) if features.labels is None else features.labels
        return Decisions(logits, gold, row, num_sentences)

    def score_scaled(self, factor: float | np.ndarray) -> Scores:
        """Return `entity_ece` if the logits of words are multiplied by a factor, or by [words] factors."""
        factors = np.broadcast_to(factor, len(self.outputs.logits))[:, None]
        scaled = dataclasses.replace(self.outputs, logits=self.outputs.logits * factors)
        scorer = NerEvaluation(scaled, self.tags, self.scheme)._entity_scorer
        return {"entity_ece": scorer.score(np.arange(scorer.num_rows))}

    def compute_correct(self) -> np.ndarray:
        _, words = self._counts
        return words[:, 0] == words[:, 1]

    def decode(self) -> DecodedPredictions:
        return DecodedPredictions(self._tags_in_split_scheme, list(self.outputs.rows["tags"]))

    def make_examples(self) -> DecodedPredictions:
        rows = self.outputs.rows
        sentences = list(rows.select(range(min(2, len(rows))))["tags"])
        return DecodedPredictions(sentences, sentences)

    def list_scores(self) -> list[str]:
        names = score_sentences(np.zeros((1, 3), int), np.zeros((1, 2), int))
        has_abstention = self.fitted.min_confidence is not None
        return [*names, "entity_ece", *(SELECTIVE_SCORES if has_abstention else ())]

    # ---- records

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield `tokens`, the `gold` and `predicted` tags, `text`, and `entities` with character offsets.

        `score_detail="all"` adds `probabilities`, with the probability of each word's predicted tag.
        """
        rows, split_points = self.outputs.rows, self.outputs.features.word_offsets[1:-1]
        gold = rows.columns.get("tags")
        parts = zip(rows["tokens"], rows["text"], np.split(self._decoded[1], split_points), strict=True)
        for index, (words, text, sentence) in enumerate(parts):
            probabilities = sentence.tolist()
            record = {
                "tokens": words,
                "gold": None if gold is None else gold[index],
                "predicted": self._tags_in_split_scheme[index],
                "text": text,
                "entities": extract_entities(self._iob2[index], words, text, probabilities),
            }
            yield record | {"probabilities": probabilities} if score_detail == "all" else record

    def iter_full_records(self) -> Iterator[dict[str, Any]]:
        tags = self.tags.names
        split_points = self.outputs.features.word_offsets[1:-1]
        sentences = np.split(softmax(self._compute_emissions()), split_points)
        for record, words in zip(self.iter_records(), sentences, strict=True):
            by_tag = [dict(zip(tags, word, strict=True)) for word in words.tolist()]
            yield record | {"probabilities": by_tag}

    def format_files(self) -> dict[str, Iterator[str]]:
        rows = self.outputs.rows
        gold_columns = [rows["tags"]] if "tags" in rows.columns else []
        return {
            "predictions.conll": format_conll([rows["tokens"], *gold_columns, self._tags_in_split_scheme])
        }


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
    first_words = offsets[:-1][np.diff(offsets) > 0]
    is_legal = np.ones(len(path), bool)
    is_legal[1:] = transitions[path[:-1], path[1:]]
    is_legal[first_words] = initial[path[first_words]]
    illegal = np.unique(find_sentence_indices(np.flatnonzero(~is_legal), offsets))
    longest_first = illegal[np.argsort(-np.diff(offsets)[illegal], kind="stable")]
    starts, lengths = offsets[longest_first], np.diff(offsets)[longest_first]
    # Tags with the same legal predecessors have the same kind, such as O and all B tags.
    predecessors, kind = np.unique(transitions.T, axis=0, return_inverse=True)
    initial_scores, transition_scores = (np.where(legal, 0.0, -np.inf) for legal in (initial, predecessors))
    rules = initial_scores, transition_scores, kind.reshape(-1)
    batch_size = max(1, MAX_BATCH_SCORES // transition_scores.size)
    for first in range(0, len(starts), batch_size):
        batch = slice(first, first + batch_size)
        _decode_sentences(emissions, starts[batch], lengths[batch], *rules, path)
    return path


def _decode_sentences(
    emissions: np.ndarray, starts: np.ndarray, lengths: np.ndarray,
    initial_scores: np.ndarray, transition_scores: np.ndarray, kind: np.ndarray, path: np.ndarray,
) -> None:  # fmt: skip
    """Write the best tag sequences of sentences into `path`.

    The sentences are sorted by length, longest first. The sentences that are active at a step, because they
    have a word there, are therefore the first ones, and no padding is needed.

    Args:
        initial_scores: [tags] 0 if the tag may begin a sentence, else -inf.
        transition_scores: [kinds, tags] 0 if the tag may precede tags of the kind, else -inf.
        kind: [tags] index of each tag's kind.
    """
    active_counts = np.searchsorted(-lengths, -np.arange(1, lengths[0])).tolist()  # at steps 1, 2, ...
    scores = initial_scores + emissions[starts]
    backpointers = []  # for each step: the best predecessor of each kind [active, kinds]
    for step, active in enumerate(active_counts, 1):
        candidates = scores[:active, None] + transition_scores
        best_predecessors = candidates.argmax(2)
        best_scores = np.take_along_axis(candidates, best_predecessors[:, :, None], 2)[:, :, 0]
        scores[:active] = best_scores[:, kind] + emissions[starts[:active] + step]
        backpointers.append(best_predecessors.astype(np.int16))
    tag = scores.argmax(1)
    for step in range(len(active_counts), 0, -1):
        active = active_counts[step - 1]
        path[starts[:active] + step] = tag[:active]
        tag[:active] = backpointers[step - 1][np.arange(active), kind[tag[:active]]]
    path[starts] = tag


UNTYPED_LABEL = "entity"  # name under which the scores of entities without a type are reported


def count_entities(gold: np.ndarray, predicted: np.ndarray, offsets: np.ndarray, tags: TagSet) -> np.ndarray:
    """Count the correct, predicted and gold entities of each sentence and type.

    Illegal sequences are read by conlleval's rule: an I tag begins an entity if no entity of its type is
    directly before it.

    Args:
        gold: [words] gold tag ids of all sentences.
        predicted: [words] predicted tag ids of all sentences.
        offsets: [n + 1] index of each sentence's first word; sentences may be empty.

    Returns:
        [n, types, 3] int, the numbers of correct, predicted and gold entities.
    """
    gold_starts, _ = tags.find_entities(gold, offsets)
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
    gold_starts, gold_ends = tags.find_entities(gold, offsets)
    starts, ends = tags.find_entities(predicted, offsets)
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


def make_sentence_scorer(entities_by_type: np.ndarray, words: np.ndarray) -> Scorer:
    """Return a scorer of sentences, from the counts of `count_by_sentence`."""
    return Scorer.from_columns(score_sentences, [entities_by_type.sum(1), words])


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
