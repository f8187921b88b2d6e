"""The predictions of `classify` and `nli`, and their baselines."""

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.split import sample_rows
from bertkit.data.table import Rows
from bertkit.models.encoder import FrozenEncoder
from bertkit.stats.baselines import predict_majority, predict_tfidf
from bertkit.stats.calibration import Decisions
from bertkit.stats.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS, LinearProbe, fit_linear_probe
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores
from bertkit.tasks.base import NOT_FITTED, FittedConfidence
from bertkit.tasks.evaluation import LabelEvaluation, Outputs, ScoreDetail
from bertkit.tasks.text.labels import LabelType, SingleLabel

if TYPE_CHECKING:
    from bertkit.tasks.text.task import SequenceTask  # which imports this module


class SequenceEvaluation(LabelEvaluation):
    """Predicted labels and their probabilities.

    Attributes:
        label_type: Kind of the labels, and their names.
    """

    def __init__(
        self, outputs: Outputs, label_type: LabelType, fitted: FittedConfidence = NOT_FITTED
    ) -> None:
        super().__init__(outputs, fitted)
        self.label_type = label_type

    @cached_property
    def predicted(self) -> np.ndarray:
        return self.label_type.predict(self.outputs.logits)

    def score(self, gold: np.ndarray, predicted: np.ndarray) -> Scores:
        return self.label_type.score(gold, predicted)

    @property
    def has_classes(self) -> bool:
        """Whether the labels are classes, not numbers."""
        return bool(self.label_type.labels)

    def make_decisions(self) -> Decisions:
        gold = self.outputs.features.labels
        return self.label_type.make_decisions(self.outputs.logits, gold)

    @property
    def has_sets(self) -> bool:
        return isinstance(self.label_type, SingleLabel)

    def decode_set(self, is_member: np.ndarray) -> list[str]:
        return [label for label, is_in in zip(self.label_type.labels, is_member, strict=True) if is_in]

    def decode(self) -> DecodedPredictions:
        return DecodedPredictions(self.predicted.tolist(), self.gold.tolist(), self.label_type.labels)

    def make_examples(self) -> DecodedPredictions:
        labels = self.label_type.make_example_labels().tolist()
        return DecodedPredictions(labels, labels, self.label_type.labels)

    def list_scores(self) -> list[str]:
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


# ---- baselines


def score_text_baselines(task: "SequenceTask", train: Rows, rows: Rows) -> dict[str, Scores]:
    """Score the baselines that read no vectors."""
    labels, gold = _encode_labels(task, train), _encode_labels(task, rows)
    name, columns = task.get_tfidf_baseline()
    texts = [[part[column] for column in columns] for part in (train, rows)]
    [predicted] = predict_tfidf(texts[0], labels, [texts[1]], task.config.seed)
    score = task.label_type.score
    return {"majority": score(gold, predict_majority(labels, len(gold))), name: score(gold, predicted)}


def score_linear_probe(
    task: "SequenceTask", encoder: FrozenEncoder, tokenizer: Any, train: Rows, rows: Rows
) -> dict[str, Scores]:
    """Score `linear_probe`; see `score_text_baselines` for the rows."""
    sample = sample_rows(train, MAX_PROBE_ROWS, task.config.seed)
    parts = [sample, rows]
    vectors = [encoder.compute_vectors(task.featurize(part, tokenizer)) for part in parts]
    return {LINEAR_PROBE: score_probe(task, vectors, parts)}


def score_probe(task: "SequenceTask", vectors: Sequence[np.ndarray], parts: Sequence[Rows]) -> Scores:
    """Return the scores of a linear layer on vectors [n, poolings, hidden_size]."""
    labels, gold = (_encode_labels(task, part) for part in parts)
    probe = fit_probe(task, vectors[0], labels)
    return _score_logits(task, gold, probe.compute_logits(vectors[1]))


def fit_probe(
    task: "SequenceTask", vectors: np.ndarray, labels: np.ndarray, balanced: bool = False
) -> LinearProbe:
    """Fit a linear layer to vectors [n, poolings, hidden_size] of the texts of training rows.

    Args:
        balanced: Whether to weight classes by the inverse of their frequency.
    """

    def score(gold: np.ndarray, logits: np.ndarray) -> float:
        return _score_logits(task, gold, logits)[task.label_type.default_metric]

    return fit_linear_probe(vectors, labels, len(task.labels) or 1, score, task.config.seed, balanced)


def _encode_labels(task: "SequenceTask", rows: Rows) -> np.ndarray:
    labels = task.encode_labels(rows)
    assert labels is not None
    return labels


def _score_logits(task: "SequenceTask", gold: np.ndarray, logits: np.ndarray) -> Scores:
    """Return the scores of logits without thresholds, which are fitted to the probabilities of a run."""
    label_type = copy.copy(task.label_type)
    label_type.thresholds = {}
    return label_type.score(gold, label_type.predict(logits))
