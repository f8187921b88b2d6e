"""The same scores through the `evaluate` library's interface, with no network."""

from itertools import chain
from typing import Any

import datasets
import evaluate
import numpy as np

from bertkit.data.schemes import detect, to_iob2
from bertkit.data.tags import OUTSIDE, TagSet, iob2_names, offsets_of
from bertkit.metrics.classification import Scores, regression, single_label
from bertkit.metrics.entities import entity_counts, entity_scores, token_accuracy
from bertkit.metrics.squad import marks_v1, marks_v2, scores_v1, scores_v2
from bertkit.metrics.thresholds import best_thresholds, without_answer

TEXT = datasets.Value("string")


class Classification(evaluate.Metric):
    """`compute(predictions=..., references=...)` over label numbers gives `single_label`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        about = "classification scores, see bertkit.metrics.classification.single_label"
        return _info(about, datasets.Value("int64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        gold, predicted = np.asarray(references), np.asarray(predictions)
        classes = int(max(gold.max(), predicted.max())) + 1
        return single_label(gold, predicted, classes, positive=1 if classes == 2 else None)


class Regression(evaluate.Metric):
    """`compute(predictions=..., references=...)` over numbers gives `regression`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        about = "correlations, see bertkit.metrics.classification.regression"
        return _info(about, datasets.Value("float64"))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return regression(np.asarray(references), np.asarray(predictions))


class Entities(evaluate.Metric):
    """`compute(predictions=..., references=...)` over lists of tags gives precision, recall, f1, accuracy.

    The tags may be of any scheme that `bertkit.data.schemes.detect` tells, of one on both sides.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "entity scores, see bertkit.metrics.entities.entity_scores"
        return _info(about, datasets.List(datasets.Value("string")))

    def _compute(self, predictions: Any, references: Any) -> Scores:
        offsets = offsets_of(references)
        if not np.array_equal(offsets, offsets_of(predictions)):
            raise ValueError("predictions and references must have as many tags, sentence by sentence")
        scheme = detect([*references, *predictions])
        sides = [to_iob2(side, scheme) for side in (references, predictions)]
        tags = TagSet(iob2_names(tag[2:] for tag in chain(*chain(*sides)) if tag != OUTSIDE))
        gold, predicted = (tags.numbers(side) for side in sides)
        written = (np.array(list(chain(*side)), object) for side in (references, predictions))
        scores = entity_scores(entity_counts(gold, predicted, offsets, tags))
        return scores | {"accuracy": token_accuracy(*written)}


class Squad(evaluate.Metric):
    """`compute(predictions=..., references=...)` over answers in SQuAD 1.1's form gives `scores_v1`.

    `predictions` are `{"id", "prediction_text"}`, `references` `{"id", "answers": {"text", "answer_start"}}`,
    in any order.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "scores of answers, see bertkit.metrics.squad.scores_v1"
        return _info(about, {"id": TEXT, "prediction_text": TEXT}, _questions())

    def _compute(self, predictions: Any, references: Any) -> Scores:
        found = {row["id"]: row["prediction_text"] for row in predictions}
        answers = [found.get(row["id"]) for row in references]
        return scores_v1(marks_v1([row["answers"]["text"] for row in references], answers))


class SquadV2(evaluate.Metric):
    """`Squad` for SQuAD 2.0: predictions have a `no_answer_probability` as well, references may lack answers.

    `compute` takes a `no_answer_threshold`; it gives `scores_v2` and `best_thresholds`.
    """

    def _info(self) -> evaluate.MetricInfo:
        about = "scores of answers, see bertkit.metrics.squad.scores_v2"
        predictions = {
            "id": TEXT,
            "prediction_text": TEXT,
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
        marks = marks_v2(gold, answers)
        best = best_thresholds(marks, odds, has_answer, np.array([answer == "" for answer in answers]))
        return scores_v2(without_answer(marks, odds, has_answer, no_answer_threshold), has_answer) | best


def _questions() -> dict[str, Any]:
    answers = {"text": datasets.List(TEXT), "answer_start": datasets.List(datasets.Value("int32"))}
    return {"id": TEXT, "answers": answers}


def _info(description: str, predictions: Any, references: Any = None) -> evaluate.MetricInfo:
    """Features of both sides; where one is given, it is that of both."""
    features = datasets.Features({"predictions": predictions, "references": references or predictions})
    return evaluate.MetricInfo(description=description, citation="", features=features)
