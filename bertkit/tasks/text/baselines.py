"""The baselines of tasks with one prediction per text: majority, TF-IDF, and a linear model on vectors."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.data.split import sample_rows
from bertkit.data.table import Rows
from bertkit.stats.baselines import predict_majority, predict_tfidf
from bertkit.stats.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS, LinearProbe, fit_linear_probe
from bertkit.tasks.base import Scores

if TYPE_CHECKING:
    from bertkit.models.encoder import FrozenEncoder
    from bertkit.tasks.text.task import SequenceTask


def score_text_baselines(task: "SequenceTask", train: Rows, rows: Rows) -> dict[str, Scores]:
    """Score the baselines that read no vectors.

    Args:
        task: The task.
        train: The training rows, which the baselines are fitted on.
        rows: The rows that they are scored on.
    """
    labels, gold = _encode_labels(task, train), _encode_labels(task, rows)
    name, columns = task.get_tfidf_baseline()
    texts = [[part[column] for column in columns] for part in (train, rows)]
    [predicted] = predict_tfidf(texts[0], labels, [texts[1]], task.config.seed)
    score = task.label_type.score
    return {"majority": score(gold, predict_majority(labels, len(gold))), name: score(gold, predicted)}


def score_linear_probe(
    task: "SequenceTask", encoder: "FrozenEncoder", tokenizer: Any, train: Rows, rows: Rows
) -> dict[str, Scores]:
    """Score `linear_probe`; see `score_text_baselines` for the rows."""
    sample = sample_rows(train, MAX_PROBE_ROWS, task.config.seed)
    parts = [sample, rows]
    vectors = [encoder.compute_vectors(task.featurize(part, tokenizer)) for part in parts]
    return {LINEAR_PROBE: score_probe(task, vectors, parts)}


def score_probe(task: "SequenceTask", vectors: Sequence[np.ndarray], parts: Sequence[Rows]) -> Scores:
    """Return the scores of a linear layer on vectors [n, poolings, hidden_size].

    Args:
        task: The task.
        vectors: The vectors of the training rows and of the scored rows.
        parts: The training rows and the scored rows.
    """
    labels, gold = (_encode_labels(task, part) for part in parts)
    probe = fit_probe(task, vectors[0], labels)
    return _score_logits(task, gold, probe.compute_logits(vectors[1]))


def fit_probe(
    task: "SequenceTask", vectors: np.ndarray, labels: np.ndarray, balanced: bool = False
) -> LinearProbe:
    """Fit a linear layer to vectors [n, poolings, hidden_size] of the texts of training rows.

    Args:
        task: The task.
        vectors: The vectors.
        labels: The encoded labels.
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
