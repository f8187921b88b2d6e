"""The predicted tags and entities of `ner`, their scores, and the prediction files."""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from bertkit.tasks.base import Scores
from bertkit.tasks.confidence import NOT_FITTED, FittedConfidence
from bertkit.tasks.evaluation import Outputs, RowEvaluation, ScoreDetail

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.ner.schemes import Scheme
    from bertkit.data.ner.tags import TagSet
    from bertkit.data.rows import Rows
    from bertkit.metrics.calibration import Decisions, EceScorer
    from bertkit.metrics.modules import DecodedPredictions
    from bertkit.metrics.significance import Scorer


class NerEvaluation(RowEvaluation):
    """The most probable legal sequence of tags for each sentence.

    Attributes:
        tags: The tags in the order of the model's outputs.
        scheme: Tagging scheme of the training rows.
    """

    def __init__(
        self, outputs: Outputs, tags: "TagSet", scheme: "Scheme", fitted: FittedConfidence = NOT_FITTED
    ) -> None:
        super().__init__(outputs, fitted)
        self.tags = tags
        self.scheme = scheme

    @cached_property
    def gold(self) -> "np.ndarray":
        """The gold tag ids in IOB2, [words]."""
        return self.tags.encode(self.outputs.rows["iob2"])

    @cached_property
    def split_scheme(self) -> "Scheme":
        """The tagging scheme of this split: the training scheme, unless the gold tags contradict it."""
        from bertkit.data.ner.schemes import detect_scheme

        rows = self.outputs.rows
        return detect_scheme(rows["tags"], self.scheme) if "tags" in rows.columns else self.scheme

    @cached_property
    def _decoded(self) -> "tuple[np.ndarray, np.ndarray]":
        """The predicted tag ids and their probabilities, both [words]."""
        import numpy as np

        from bertkit.data.ner.decoding import viterbi_decode

        emissions = self._compute_emissions()
        # IO tags cannot separate adjacent entities of one type.
        transitions = self.tags.build_transitions(allow_adjacent=self.split_scheme.name != "IO")
        predicted = viterbi_decode(emissions, self.outputs.features.word_offsets, *transitions)
        return predicted, np.exp(emissions[np.arange(len(predicted)), predicted])

    @property
    def predicted(self) -> "np.ndarray":
        """The predicted tag ids in IOB2, [words]."""
        return self._decoded[0]

    def _compute_emissions(self) -> "np.ndarray":
        """Return the log probability of each tag, [words, tags]; not cached because of its size."""
        from bertkit.data.ner.decoding import compute_emissions

        return compute_emissions(self.outputs.logits, self.outputs.features, self.tags)

    @cached_property
    def _probabilities(self) -> list[list[float]]:
        """The probabilities of the predicted tags of each sentence."""
        import numpy as np

        _, probabilities = self._decoded
        split_points = self.outputs.features.word_offsets[1:-1]
        return [sentence.tolist() for sentence in np.split(probabilities, split_points)]

    @cached_property
    def _iob2(self) -> list[list[str]]:
        """The predicted tags of each sentence in IOB2."""
        from bertkit.data.ner.tags import split_by_offsets

        return split_by_offsets(self.tags.decode(self.predicted), self.outputs.features.word_offsets)

    @cached_property
    def _tags_in_split_scheme(self) -> list[list[str]]:
        """The predicted tags of each sentence in the scheme of this split."""
        from bertkit.data.ner.schemes import from_iob2

        return from_iob2(self._iob2, self.split_scheme)

    @cached_property
    def _counts(self) -> "tuple[np.ndarray, np.ndarray]":
        """The numbers of entities and of words in each sentence; see `count_by_sentence`."""
        from bertkit.metrics.entities import count_by_sentence

        return count_by_sentence(self.gold, self.predicted, self.outputs.features.word_offsets, self.tags)

    def compare_entity_types(self) -> "tuple[np.ndarray, np.ndarray]":
        """Return the gold and the most probable type id of each word that is in a gold entity.

        The id of O is the number of types. Types are compared instead of tags, since a head with the right
        order of types may confuse B and I.
        """
        import numpy as np

        is_inside = self.gold != self.tags.outside_id
        outside_type_id = len(self.tags.types)
        type_ids = np.where(self.tags.type_ids < 0, outside_type_id, self.tags.type_ids)  # by tag id
        predicted = self._compute_emissions()[is_inside].argmax(-1)
        return type_ids[self.gold[is_inside]], type_ids[predicted]

    # ---- scores

    def compute_scores(self) -> Scores:
        """Return `precision`, `recall` and `f1` of entities, `accuracy` of words, and `entity_ece`.

        If the run abstains from sentences of low confidence, also the scores of abstention.
        """
        return self.make_scorer().score_all()

    @cached_property
    def _entity_scorer(self) -> "EceScorer":
        """The calibration error of predicted entities; rows are sentences."""
        from bertkit.data.ner.tags import find_sentence_indices
        from bertkit.metrics.calibration import EceScorer

        offsets = self.outputs.features.word_offsets
        starts, is_correct, confidence = self.list_entities(*self._decoded)
        return EceScorer(confidence, is_correct, find_sentence_indices(starts, offsets), len(offsets) - 1)

    def list_entities(
        self, predicted: "np.ndarray", probabilities: "np.ndarray"
    ) -> "tuple[np.ndarray, np.ndarray, np.ndarray]":
        """Return the first word of each predicted entity, whether it is correct, and its confidence.

        The arrays have the shape [entities]. The confidence is the mean probability of the words, as in the
        records.

        Args:
            predicted: [words] predicted tag ids.
            probabilities: [words] probabilities of these tags.
        """
        from bertkit.metrics.entities import find_predicted_entities
        from bertkit.utils.ragged import compute_offsets

        offsets = self.outputs.features.word_offsets
        starts, ends, is_correct = find_predicted_entities(self.gold, predicted, offsets, self.tags)
        totals = compute_offsets(probabilities)
        return starts, is_correct, (totals[ends + 1] - totals[starts]) / (ends + 1 - starts)

    def make_scorer(self) -> "Scorer":
        """Return a scorer of sentences, since the words of one sentence are not independent."""
        from bertkit.metrics.entities import score_sentences
        from bertkit.metrics.significance import Scorer

        entities_by_type, words = self._counts
        entities = entities_by_type.sum(1)
        entity_scorer, confidence = self._entity_scorer, self.confidence_scorer.selection

        def score(rows: "np.ndarray") -> Scores:
            scores = score_sentences(entities[rows], words[rows]) | {"entity_ece": entity_scorer.score(rows)}
            return scores | confidence.score(rows) if confidence else scores

        return Scorer(score, len(words))

    def compute_details(self) -> dict[str, Scores]:
        """Return the scores of each entity type."""
        from bertkit.metrics.entities import score_types

        entities_by_type, _ = self._counts
        return score_types(entities_by_type, self.tags)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are choices between classes: the tags are classes."""
        return True

    def make_decisions(self) -> "Decisions":
        """Return a decision between the tags for each word that has tokens; rows are sentences."""
        import numpy as np

        from bertkit.metrics.calibration import Decisions

        features, logits = self.outputs.features, self.outputs.logits.astype(np.float64)
        num_sentences = len(features.word_offsets) - 1
        sentence = np.repeat(np.arange(num_sentences), np.diff(features.word_offsets))
        has_prediction = features.prediction_index >= 0
        row = np.zeros(len(logits), int)
        row[features.prediction_index[has_prediction]] = sentence[has_prediction]
        gold = np.full(len(logits), -1) if features.labels is None else features.labels
        return Decisions(logits, gold, row, num_sentences)

    def score_scaled(self, factor: "float | np.ndarray") -> Scores:
        """Return `entity_ece` if the logits of words are multiplied by a factor, or by [words] factors."""
        import numpy as np

        factors = np.broadcast_to(factor, len(self.outputs.logits))[:, None]
        scaled = dataclasses.replace(self.outputs, logits=self.outputs.logits * factors)
        scorer = NerEvaluation(scaled, self.tags, self.scheme)._entity_scorer
        return {"entity_ece": scorer.score(np.arange(scorer.num_rows))}

    def compute_correct(self) -> "np.ndarray":
        """Return whether all tags of each sentence are correct, [sentences]."""
        _, words = self._counts
        return words[:, 0] == words[:, 1]

    def decode(self) -> "DecodedPredictions":
        """Return the lists of tags of each sentence, in the scheme of this split."""
        from bertkit.metrics.modules import DecodedPredictions

        return DecodedPredictions(self._tags_in_split_scheme, list(self.outputs.rows["tags"]))

    def make_examples(self) -> "DecodedPredictions":
        """Return the gold tags of two sentences as predictions and references."""
        from bertkit.metrics.modules import DecodedPredictions

        rows = self.outputs.rows
        sentences = list(rows.select(range(min(2, len(rows))))["tags"])
        return DecodedPredictions(sentences, sentences)

    def list_scores(self) -> list[str]:
        """Return the names of the scores of entities, words and, if the run abstains, abstention."""
        import numpy as np

        from bertkit.metrics.entities import score_sentences
        from bertkit.metrics.selection import SELECTIVE_SCORES

        names = score_sentences(np.zeros((1, 3), int), np.zeros((1, 2), int))
        has_abstention = self.fitted.min_confidence is not None
        return [*names, "entity_ece", *(SELECTIVE_SCORES if has_abstention else ())]

    # ---- records

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield `tokens`, the `gold` and `predicted` tags, `text`, and `entities` with character offsets.

        `score_detail="all"` adds `probabilities`, with the probability of each word's predicted tag.
        """
        from bertkit.data.ner.words import extract_entities

        rows = self.outputs.rows
        gold = rows.columns.get("tags")
        for index, (words, text) in enumerate(zip(rows["tokens"], rows["text"], strict=True)):
            probabilities = self._probabilities[index]
            record = {
                "tokens": words,
                "gold": None if gold is None else gold[index],
                "predicted": self._tags_in_split_scheme[index],
                "text": text,
                "entities": extract_entities(self._iob2[index], words, text, probabilities),
            }
            yield record | {"probabilities": probabilities} if score_detail == "all" else record

    def iter_full_records(self) -> Iterator[dict[str, Any]]:
        """Yield the records with `probabilities`: for each word, the probability of each tag in IOB2."""
        import numpy as np

        from bertkit.metrics.classification import softmax

        tags = self.tags.names
        split_points = self.outputs.features.word_offsets[1:-1]
        sentences = np.split(softmax(self._compute_emissions()), split_points)
        for record, words in zip(self.iter_records(), sentences, strict=True):
            by_tag = [dict(zip(tags, word, strict=True)) for word in words.tolist()]
            yield record | {"probabilities": by_tag}

    def format_files(self) -> dict[str, Iterator[str]]:
        """Return `predictions.conll`: word, gold tag if there is one, and predicted tag."""
        from bertkit.data.readers.conll import format_conll

        rows = self.outputs.rows
        gold_columns = [rows["tags"]] if "tags" in rows.columns else []
        return {
            "predictions.conll": format_conll([rows["tokens"], *gold_columns, self._tags_in_split_scheme])
        }


def score_baselines(train: "Rows", rows: "Rows", tags: "TagSet") -> dict[str, Scores]:
    """Return the scores of `majority` and `frequent_tag`.

    The majority baseline predicts O for every word. The other baseline predicts the most frequent tag that
    the word has in the training rows.
    """
    import numpy as np

    from bertkit.data.ner.tags import compute_sentence_offsets
    from bertkit.metrics.baselines import predict_frequent_tag
    from bertkit.metrics.entities import count_by_sentence, score_sentences

    train_tags, gold = tags.encode(train["iob2"]), tags.encode(rows["iob2"])
    train_words, words = list(chain.from_iterable(train["tokens"])), list(chain.from_iterable(rows["tokens"]))
    predictions = {
        "majority": np.full(len(gold), tags.outside_id),
        "frequent_tag": predict_frequent_tag(train_words, train_tags, words, tags.outside_id),
    }
    offsets = compute_sentence_offsets(rows["tokens"])
    return {
        name: score_sentences(*count_by_sentence(gold, predicted, offsets, tags))
        for name, predicted in predictions.items()
    }
