"""The same scores through the `evaluate` library's interface, with no network."""

from itertools import chain
from typing import Any

import datasets
import evaluate
import numpy as np

from bertkit.data.ner.schemes import detect_scheme, to_iob2
from bertkit.data.ner.tags import OUTSIDE, TagSet, build_iob2_labels, compute_offsets
from bertkit.metrics.classification import Scores, score_regression, score_single_label
from bertkit.metrics.entities import compute_word_accuracy, count_entities, score_entities
from bertkit.metrics.squad import average_scores_v1, average_scores_v2, score_answers_v1, score_answers_v2
from bertkit.metrics.thresholds import apply_threshold, compute_best_scores

TEXT_FEATURE = datasets.Value("string")


class Classification(evaluate.Metric):
    """`compute(predictions=..., references=...)` over label numbers gives `single_label`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        about = "classification scores, see bertkit.metrics.classification.single_label"
        return _info(about, datasets.Value("int64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        gold, predicted = np.asarray(references), np.asarray(predictions)
        classes = int(max(gold.max(), predicted.max())) + 1
        return score_single_label(gold, predicted, classes, positive=1 if classes == 2 else None)


class Regression(evaluate.Metric):
    """`compute(predictions=..., references=...)` over numbers gives `regression`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        about = "correlations, see bertkit.metrics.classification.regression"
        return _info(about, datasets.Value("float64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return score_regression(np.asarray(references), np.asarray(predictions))


class Entities(evaluate.Metric):
    """`compute(predictions=..., references=...)` over lists of tags gives precision, recall, f1, accuracy.

    The tags may be of any scheme that `bertkit.data.ner.schemes.detect` tells, of one on both sides.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "entity scores, see bertkit.metrics.entities.entity_scores"
        return _info(about, datasets.List(datasets.Value("string")))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        offsets = compute_offsets(references)
        if not np.array_equal(offsets, compute_offsets(predictions)):
            raise ValueError("predictions and references must have as many tags, sentence by sentence")
        scheme = detect_scheme([*references, *predictions])
        sides = [to_iob2(side, scheme) for side in (references, predictions)]
        tags = TagSet(build_iob2_labels(tag[2:] for tag in chain(*chain(*sides)) if tag != OUTSIDE))
        gold, predicted = (tags.encode(side) for side in sides)
        written = (np.array(list(chain(*side)), object) for side in (references, predictions))
        scores = score_entities(count_entities(gold, predicted, offsets, tags))
        return scores | {"accuracy": compute_word_accuracy(*written)}


class Squad(evaluate.Metric):
    """`compute(predictions=..., references=...)` over answers in SQuAD 1.1's form gives `scores_v1`.

    `predictions` are `{"id", "prediction_text"}`, `references` `{"id", "answers": {"text", "answer_start"}}`,
    in any order.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "scores of answers, see bertkit.metrics.squad.scores_v1"
        return _info(about, {"id": TEXT_FEATURE, "prediction_text": TEXT_FEATURE}, _questions())

    def _compute(self, predictions: Any, references: Any) -> Scores:
        found = {row["id"]: row["prediction_text"] for row in predictions}
        answers = [found.get(row["id"]) for row in references]
        return average_scores_v1(score_answers_v1([row["answers"]["text"] for row in references], answers))


class SquadV2(evaluate.Metric):
    """`Squad` for SQuAD 2.0: predictions have a `no_answer_probability` as well, references may lack answers.

    `compute` takes a `no_answer_threshold`; it gives `scores_v2` and `best_thresholds`.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "scores of answers, see bertkit.metrics.squad.scores_v2"
        predictions = {
            "id": TEXT_FEATURE,
            "prediction_text": TEXT_FEATURE,
            "no_answer_probability": datasets.Value("float64"),
        }
        return _info(about, predictions, _questions())

    def _compute(self, predictions: Any, references: Any, no_answer_threshold: float = 1.0) -> Scores:
        found = {row["id"]: row for row in predictions}
        rows = [found.get(row["id"], {}) for row in references]
        answers = [row.get("prediction_text") for row in rows]
        odds = np.array([row.get("no_answer_probability", 0.0) for row in rows])
        gold = [row["answers"]["text"] for row in references]
        has_answer = np.array([bool(texts) for texts in gold])
        marks = score_answers_v2(gold, answers)
        best = compute_best_scores(marks, odds, has_answer, np.array([answer == "" for answer in answers]))
        return (
            average_scores_v2(apply_threshold(marks, odds, has_answer, no_answer_threshold), has_answer)
            | best
        )


def _questions() -> dict[str, Any]:
    answers = {"text": datasets.List(TEXT_FEATURE), "answer_start": datasets.List(datasets.Value("int32"))}
    return {"id": TEXT_FEATURE, "answers": answers}


def _info(description: str, predictions: Any, references: Any = None) -> evaluate.MetricInfo:
    """Features of both sides; where one is given, it is that of both."""
    features = datasets.Features({"predictions": predictions, "references": references or predictions})
    return evaluate.MetricInfo(description=description, citation="", features=features)
