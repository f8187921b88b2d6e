"""The chosen endings of `swag`, their scores, and the prediction records."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.stats.calibration import Decisions
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import softmax
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import Scores
from bertkit.tasks.evaluation import RowEvaluation, ScoreDetail


class ChoiceEvaluation(RowEvaluation):
    """The ending with the highest score for each row."""

    @property
    def gold(self) -> np.ndarray:
        """The indices of the correct endings, [rows]."""
        return self.outputs.labels

    @cached_property
    def predicted(self) -> np.ndarray:
        """The indices of the predicted endings, [rows]."""
        return self.outputs.logits.argmax(-1)

    def compute_scores(self) -> Scores:
        """Return `accuracy`, and the scores of the probabilities."""
        return compute_accuracy(self.gold, self.predicted) | self.confidence_scorer.score_all()

    def make_scorer(self) -> Scorer:
        """Return a scorer that also knows which rows are correct."""
        gold, predicted, confidence = self.gold, self.predicted, self.confidence_scorer

        def score(rows: np.ndarray) -> Scores:
            return compute_accuracy(gold[rows], predicted[rows]) | confidence.score(rows)

        return Scorer(score, len(gold), gold == predicted)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are choices between classes: the endings are classes."""
        return True

    def make_decisions(self) -> Decisions:
        """Return one decision between the endings of each row."""
        return Decisions.from_classes(self.outputs.logits, self.outputs.features.labels)

    @property
    def has_sets(self) -> bool:
        """Whether each row has one of several classes: one ending is correct."""
        return True

    def decode_set(self, is_member: np.ndarray) -> list[int]:
        """Return the indices of the endings in a prediction set."""
        return is_member.nonzero()[0].tolist()

    def compute_correct(self) -> np.ndarray:
        """Return whether the predicted ending is correct, [rows]."""
        return self.gold == self.predicted

    def decode(self) -> DecodedPredictions:
        """Return the indices of the endings, counted from 0."""
        return DecodedPredictions(self.predicted.tolist(), self.gold.tolist())

    def make_examples(self) -> DecodedPredictions:
        """Return the indices of the first two endings as predictions and references."""
        return DecodedPredictions([0, 1], [0, 1])

    def list_scores(self) -> list[str]:
        """Return `accuracy`, and the names of the scores of the probabilities."""
        return [*compute_accuracy(np.zeros(1), np.zeros(1)), *self.confidence_score_names]

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield the indices `gold` and `predicted`, and the `scores` and `probabilities` of all endings."""
        features, logits = self.outputs.features, self.outputs.logits
        probabilities, num_endings = softmax(logits), np.diff(features.sequence_offsets)
        for index, (predicted, count) in enumerate(zip(self.predicted, num_endings, strict=True)):
            yield {
                "gold": None if features.labels is None else int(features.labels[index]),
                "predicted": int(predicted),
                "scores": logits[index, :count].tolist(),
                "probabilities": probabilities[index, :count].tolist(),
            }


def compute_accuracy(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the fraction of rows with the correct ending."""
    return {"accuracy": float((gold == predicted).mean())}
