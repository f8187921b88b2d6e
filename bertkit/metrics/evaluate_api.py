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


def _info(description: str, value: Any) -> evaluate.MetricInfo:
    features = datasets.Features({"predictions": value, "references": value})
    return evaluate.MetricInfo(description=description, citation="", features=features)
