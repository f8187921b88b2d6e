"""The predictions of `classify` and `nli`."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import NOT_FITTED, FittedConfidence, Scores
from bertkit.tasks.evaluation import Outputs, RowEvaluation, ScoreDetail
from bertkit.tasks.text.labels import LabelType, SingleLabel

if TYPE_CHECKING:
    from bertkit.stats.calibration import Decisions
    from bertkit.stats.metric_modules import DecodedPredictions
    from bertkit.stats.significance import Scorer


class SequenceEvaluation(RowEvaluation):
    """Predicted labels and their probabilities.

    Attributes:
        label_type: Kind of the labels, and their names.
    """

    def __init__(
        self, outputs: Outputs, label_type: LabelType, fitted: FittedConfidence = NOT_FITTED
    ) -> None:
        super().__init__(outputs, fitted)
        self.label_type = label_type

    @property
    def gold(self) -> np.ndarray:
        """The gold labels as numbers, [rows] or [rows, labels]."""
        return self.outputs.labels

    @cached_property
    def predicted(self) -> np.ndarray:
        """The predicted labels as numbers, in the shape of `gold`."""
        return self.label_type.predict(self.outputs.logits)

    def compute_scores(self) -> Scores:
        """Return the scores that are usual for the kind of the labels, and those of the probabilities."""
        return self.label_type.score(self.gold, self.predicted) | self.confidence_scorer.score_all()

    def make_scorer(self) -> Scorer:
        """Return a scorer of rows; for single labels, it includes which rows are correct."""
        gold, predicted = self.gold, self.predicted

        def score(rows: np.ndarray) -> Scores:
            return self.label_type.score(gold[rows], predicted[rows]) | self.confidence_scorer.score(rows)

        is_correct = gold == predicted if isinstance(self.label_type, SingleLabel) else None
        return Scorer(score, len(gold), is_correct)

    @property
    def has_classes(self) -> bool:
        """Whether the labels are classes, not numbers."""
        return bool(self.label_type.labels)

    def make_decisions(self) -> "Decisions":
        """Return one decision for each row or, with label sets, for each label of each row."""
        gold = self.outputs.features.labels
        return self.label_type.make_decisions(self.outputs.logits, gold)

    @property
    def has_sets(self) -> bool:
        """Whether each row has one of several classes."""
        return isinstance(self.label_type, SingleLabel)

    def decode_set(self, is_member: np.ndarray) -> list[str]:
        """Return the labels in a prediction set."""
        return [label for label, is_in in zip(self.label_type.labels, is_member, strict=True) if is_in]

    def compute_correct(self) -> np.ndarray:
        """Return whether the label, or the whole set of labels, is correct, [rows]."""
        is_correct = self.gold == self.predicted
        return is_correct.all(1) if is_correct.ndim == 2 else is_correct

    def decode(self) -> DecodedPredictions:
        """Return label ids, lists of 0 and 1, or numbers."""
        return DecodedPredictions(self.predicted.tolist(), self.gold.tolist(), self.label_type.labels)

    def make_examples(self) -> DecodedPredictions:
        """Return a few labels of this kind as predictions and references."""
        labels = self.label_type.make_example_labels().tolist()
        return DecodedPredictions(labels, labels, self.label_type.labels)

    def list_scores(self) -> list[str]:
        """Return the names of the scores of the label type and of the probabilities."""
        labels = self.label_type.make_example_labels()
        return [*self.label_type.score(labels, labels), *self.confidence_score_names]

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield `gold`, `predicted` and, except for regression, `probabilities` by label.

        With `score_detail="compact"`, only the probabilities of the predicted labels are included.
        """
        gold, decode_label = self.outputs.features.labels, self.label_type.decode_label
        probabilities = self.label_type.compute_probabilities(self.outputs.logits)
        for index, encoded_label in enumerate(self.predicted):
            predicted = decode_label(encoded_label)
            record = {"gold": None if gold is None else decode_label(gold[index]), "predicted": predicted}
            if probabilities is not None:
                by_label = dict(zip(self.label_type.labels, probabilities[index].tolist(), strict=True))
                if score_detail == "compact":
                    predicted_labels = predicted if isinstance(predicted, list) else [predicted]
                    by_label = {label: by_label[label] for label in predicted_labels}
                record["probabilities"] = by_label
            yield record
