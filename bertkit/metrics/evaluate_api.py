"""The metrics of this package as `evaluate.Metric` classes; they need no network."""

from itertools import chain
from typing import Any

import datasets
import evaluate
import numpy as np

from bertkit.data.ner.schemes import detect_scheme, to_iob2
from bertkit.data.ner.tags import OUTSIDE, TagSet, build_iob2_labels, compute_offsets
from bertkit.metrics.classification import Scores, score_regression, score_single_label
from bertkit.metrics.entities import compute_word_accuracy, count_entities, score_entities
from bertkit.metrics.squad import (
    apply_threshold,
    average_scores_v1,
    average_scores_v2,
    compute_best_scores,
    score_answers_v1,
    score_answers_v2,
)

TEXT_FEATURE = datasets.Value("string")


class Classification(evaluate.Metric):
    """Classification metric: label ids to the scores of `score_single_label`."""

    def _info(self) -> evaluate.MetricInfo:
        description = "Classification scores; see bertkit.metrics.classification.score_single_label."
        return _build_info(description, datasets.Value("int64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        gold, predicted = np.asarray(references), np.asarray(predictions)
        classes = int(max(gold.max(), predicted.max())) + 1
        return score_single_label(gold, predicted, classes, positive=1 if classes == 2 else None)


class Regression(evaluate.Metric):
    """Regression metric: numbers to the scores of `score_regression`."""

    def _info(self) -> evaluate.MetricInfo:
        description = "Correlations; see bertkit.metrics.classification.score_regression."
        return _build_info(description, datasets.Value("float64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return score_regression(np.asarray(references), np.asarray(predictions))


class Entities(evaluate.Metric):
    """Entity metric: lists of tags to precision, recall, f1 and accuracy.

    Predictions and references must use the same scheme, which may be any that `detect_scheme` recognizes.
    """

    def _info(self) -> evaluate.MetricInfo:
        description = "Entity scores; see bertkit.metrics.entities.score_entities."
        return _build_info(description, datasets.List(datasets.Value("string")))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        offsets = compute_offsets(references)
        if not np.array_equal(offsets, compute_offsets(predictions)):
            raise ValueError(
                "predictions and references: sentence lengths differ; pass one tag per word on both sides"
            )
        scheme = detect_scheme([*references, *predictions])
        sides = [to_iob2(side, scheme) for side in (references, predictions)]
        tags = TagSet(build_iob2_labels(tag[2:] for tag in chain(*chain(*sides)) if tag != OUTSIDE))
        gold, predicted = (tags.encode(side) for side in sides)
        original = (np.array(list(chain(*side)), object) for side in (references, predictions))
        scores = score_entities(count_entities(gold, predicted, offsets, tags))
        return scores | {"accuracy": compute_word_accuracy(*original)}


class Squad(evaluate.Metric):
    """SQuAD 1.1 metric: answers to the scores of `average_scores_v1`.

    Predictions are `{"id", "prediction_text"}`, references `{"id", "answers": {"text", "answer_start"}}`,
    in any order.
    """

    def _info(self) -> evaluate.MetricInfo:
        description = "Answer scores; see bertkit.metrics.squad.average_scores_v1."
        predictions = {"id": TEXT_FEATURE, "prediction_text": TEXT_FEATURE}
        return _build_info(description, predictions, _build_reference_features())

    def _compute(self, predictions: Any, references: Any) -> Scores:
        text_by_id = {row["id"]: row["prediction_text"] for row in predictions}
        answers = [text_by_id.get(row["id"]) for row in references]
        return average_scores_v1(score_answers_v1([row["answers"]["text"] for row in references], answers))


class SquadV2(evaluate.Metric):
    """SQuAD 2.0 metric: answers to the scores of `average_scores_v2` and `compute_best_scores`.

    Predictions have a `no_answer_probability` as well, and references may lack answers. `compute` takes a
    `no_answer_threshold`.
    """

    def _info(self) -> evaluate.MetricInfo:
        description = "Answer scores; see bertkit.metrics.squad.average_scores_v2."
        predictions = {
            "id": TEXT_FEATURE,
            "prediction_text": TEXT_FEATURE,
            "no_answer_probability": datasets.Value("float64"),
        }
        return _build_info(description, predictions, _build_reference_features())

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> Scores:
        prediction_by_id = {row["id"]: row for row in predictions}
        rows = [prediction_by_id.get(row["id"], {}) for row in references]
        answers = [row.get("prediction_text") for row in rows]
        odds = np.array([row.get("no_answer_probability", 0.0) for row in rows])
        gold = [row["answers"]["text"] for row in references]
        has_answer = np.array([bool(texts) for texts in gold])
        scores = score_answers_v2(gold, answers)
        is_empty = np.array([answer == "" for answer in answers])
        best = compute_best_scores(scores, odds, has_answer, is_empty)
        scores = apply_threshold(scores, odds, has_answer, no_answer_threshold)
        return average_scores_v2(scores, has_answer) | best


def _build_reference_features() -> dict[str, Any]:
    answers = {"text": datasets.List(TEXT_FEATURE), "answer_start": datasets.List(datasets.Value("int32"))}
    return {"id": TEXT_FEATURE, "answers": answers}


def _build_info(description: str, predictions: Any, references: Any = None) -> evaluate.MetricInfo:
    """Build the metric's description; references have the features of predictions unless given."""
    features = datasets.Features({"predictions": predictions, "references": references or predictions})
    return evaluate.MetricInfo(description=description, citation="", features=features)
