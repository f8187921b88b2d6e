"""The same scores through the `evaluate` library's interface, with no network."""

from typing import Any

import datasets
import evaluate
import numpy as np

from bertkit.metrics.classification import Scores, regression, single_label


class Classification(evaluate.Metric):
    """`compute(predictions=..., references=...)` over label numbers gives `single_label`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        return _info("classification scores, see bertkit.metrics.classification.single_label", "int64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        gold, predicted = np.asarray(references), np.asarray(predictions)
        classes = int(max(gold.max(), predicted.max())) + 1
        return single_label(gold, predicted, classes, positive=1 if classes == 2 else None)


class Regression(evaluate.Metric):
    """`compute(predictions=..., references=...)` over numbers gives `regression`'s scores."""

    def _info(self) -> evaluate.MetricInfo:
        return _info("correlations, see bertkit.metrics.classification.regression", "float64")

    def _compute(self, predictions: Any, references: Any) -> Scores:
        return regression(np.asarray(references), np.asarray(predictions))


def _info(description: str, kind: str) -> evaluate.MetricInfo:
    value = datasets.Value(kind)
    features = datasets.Features({"predictions": value, "references": value})
    return evaluate.MetricInfo(description=description, citation="", features=features)
