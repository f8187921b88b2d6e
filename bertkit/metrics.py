"""The metrics of this package as `evaluate.Metric` classes, which need no network access."""

from itertools import chain
from typing import Any

import datasets
import evaluate
import numpy as np

from bertkit.stats.scores import Scores, score_regression, score_single_label
from bertkit.tasks.ner.predictions import compute_word_accuracy, count_entities, score_entities
from bertkit.tasks.ner.tags import (
    OUTSIDE,
    TagSet,
    build_iob2_labels,
    compute_sentence_offsets,
    detect_scheme,
    to_iob2,
)
from bertkit.tasks.qa.predictions import (
    apply_threshold,
    average_scores,
    compute_best_scores,
    score_answers,
)

TEXT_FEATURE = datasets.Value("string")
SQUAD_REFERENCE = {
    "id": TEXT_FEATURE,
    "answers": {"text": [TEXT_FEATURE], "answer_start": [datasets.Value("int32")]},
}


class _Metric(evaluate.Metric):
    """Base class of the metrics, which declare what they compute and the features of a prediction."""

    summary: str
    prediction: Any
    reference: Any = None  # the features of a reference; None if they are the same

    def _info(self) -> evaluate.MetricInfo:
        references = self.reference or self.prediction
        features = datasets.Features({"predictions": self.prediction, "references": references})
        return evaluate.MetricInfo(description=self.summary, citation="", features=features)


class Classification(_Metric):
    """Metric of label ids that computes the scores of `score_single_label`."""

    summary = "Classification scores; see bertkit.stats.scores.score_single_label."
    prediction = datasets.Value("int64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        gold, predicted = np.asarray(references), np.asarray(predictions)
        classes = int(max(gold.max(), predicted.max())) + 1
        return score_single_label(gold, predicted, classes, positive=1 if classes == 2 else None)


class Regression(_Metric):
    """Metric of numbers that computes the scores of `score_regression`."""

    summary = "Correlations; see bertkit.stats.scores.score_regression."
    prediction = datasets.Value("float64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return score_regression(np.asarray(references), np.asarray(predictions))


class Entities(_Metric):
    """Metric of tags that computes precision, recall and F1 of entities, and the accuracy of words.

    Predictions and references are lists of tags for each sentence. Both must use the same tag scheme, which
    `detect_scheme` detects.
    """

    summary = "Entity scores; see bertkit.tasks.ner.predictions.score_entities."
    prediction = [TEXT_FEATURE]

    def _compute(self, predictions: Any, references: Any) -> Scores:
        offsets = compute_sentence_offsets(references)
        if not np.array_equal(offsets, compute_sentence_offsets(predictions)):
            raise ValueError(
                "predictions and references: sentence lengths differ; pass one tag per word on both sides"
            )
        scheme = detect_scheme([*references, *predictions])
        gold_sentences, predicted_sentences = to_iob2(references, scheme), to_iob2(predictions, scheme)
        all_tags = chain.from_iterable([*gold_sentences, *predicted_sentences])
        tags = TagSet(build_iob2_labels(tag[2:] for tag in all_tags if tag != OUTSIDE))
        gold, predicted = tags.encode(gold_sentences), tags.encode(predicted_sentences)
        scores = score_entities(count_entities(gold, predicted, offsets, tags))
        original_gold = np.array(list(chain.from_iterable(references)), object)
        original_predicted = np.array(list(chain.from_iterable(predictions)), object)
        return scores | {"accuracy": compute_word_accuracy(original_gold, original_predicted)}


class Squad(_Metric):
    """Metric of answers that computes the scores of SQuAD 1.1, see `average_scores`.

    A prediction is `{"id": ..., "prediction_text": ...}`. A reference is
    `{"id": ..., "answers": {"text": [...], "answer_start": [...]}}`. The order of both is arbitrary.
    """

    summary = "Answer scores; see bertkit.tasks.qa.predictions.average_scores."
    prediction = {"id": TEXT_FEATURE, "prediction_text": TEXT_FEATURE}
    reference = SQUAD_REFERENCE

    def _compute(self, predictions: Any, references: Any) -> Scores:
        text_by_id = {row["id"]: row["prediction_text"] for row in predictions}
        answers = [text_by_id.get(row["id"]) for row in references]
        return average_scores(score_answers([row["answers"]["text"] for row in references], answers, "v1"))


class SquadV2(_Metric):
    """Metric of answers that computes the scores of SQuAD 2.0.

    They are those of `average_scores` and `compute_best_scores`. Compared with `Squad`, a prediction also
    has a `no_answer_probability`, and the lists of a reference may be empty. `compute` accepts a
    `no_answer_threshold`.
    """

    summary = "Answer scores; see bertkit.tasks.qa.predictions.average_scores."
    prediction = {**Squad.prediction, "no_answer_probability": datasets.Value("float64")}
    reference = SQUAD_REFERENCE

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> Scores:
        prediction_by_id = {row["id"]: row for row in predictions}
        rows = [prediction_by_id.get(row["id"], {}) for row in references]
        answers = [row.get("prediction_text") for row in rows]
        odds = np.array([row.get("no_answer_probability", 0.0) for row in rows])
        gold = [row["answers"]["text"] for row in references]
        has_answer = np.array([bool(texts) for texts in gold])
        scores = score_answers(gold, answers, "v2")
        is_empty = np.array([answer == "" for answer in answers])
        best = compute_best_scores(scores, odds, has_answer, is_empty)
        scores = apply_threshold(scores, odds, has_answer, no_answer_threshold)
        return average_scores(scores, has_answer) | best
