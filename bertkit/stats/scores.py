"""Scores of classification and regression, as scikit-learn and SciPy define them, and probabilities.

Scores range from 0 to 1, and correlations from -1 to 1. scikit-learn takes milliseconds per call, which is
too slow for a bootstrap with a thousand calls. Single-label scores are therefore computed from the confusion
matrix. The tests check that they agree with scikit-learn.
"""

import math
from typing import Any

import numpy as np

Scores = dict[str, float]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return class probabilities [n, classes] in double precision. The probabilities of a row sum to 1."""
    from scipy.special import softmax as stable_softmax

    return stable_softmax(logits.astype(np.float64), axis=-1)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return label probabilities [n, classes] in double precision, for labels that are independent."""
    from scipy.special import expit

    return expit(logits.astype(np.float64))


# ---- labels and numbers


def score_single_label(
    gold: np.ndarray, predicted: np.ndarray, classes: int, positive: int | None = None
) -> Scores:
    """Score label ids [n].

    Returns `accuracy`; `f1`, `precision` and `recall`, the means over the labels that occur; and `matthews`,
    the Matthews correlation. With a positive label, also its F1, `positive_f1`, which GLUE reports.
    """
    counts = np.bincount(gold * classes + predicted, minlength=classes * classes)
    confusion = counts.reshape(classes, classes).astype(float)
    correct, gold_counts, predicted_counts = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    precision, recall = _divide_or_zero(correct, predicted_counts), _divide_or_zero(correct, gold_counts)
    f1 = _divide_or_zero(2 * correct, gold_counts + predicted_counts)
    occurs = (gold_counts + predicted_counts) > 0
    # R_k (Gorodkin 2004); 0 if all gold or all predicted labels are the same
    total = gold_counts.sum()
    covariance = correct.sum() * total - gold_counts @ predicted_counts
    spread = (total**2 - predicted_counts @ predicted_counts) * (total**2 - gold_counts @ gold_counts)
    scores = {
        "accuracy": correct.sum() / len(gold),
        "f1": f1[occurs].mean(),
        "precision": precision[occurs].mean(),
        "recall": recall[occurs].mean(),
        "matthews": covariance / np.sqrt(spread) if spread > 0 else 0.0,
    }
    if positive is not None:
        scores["positive_f1"] = f1[positive]
    return {name: float(value) for name, value in scores.items()}


def score_multi_label(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return `accuracy`, the fraction of rows with only correct labels; `micro_f1`; and `macro_f1`.

    Gold and predicted labels are [n, classes] int, 0 or 1.
    """
    correct = (gold & predicted).sum(0).astype(float)
    totals = (gold.sum(0) + predicted.sum(0)).astype(float)
    return {
        "accuracy": float((gold == predicted).all(1).mean()),
        "micro_f1": float(_divide_or_zero(2 * correct.sum(keepdims=True), totals.sum(keepdims=True))[0]),
        "macro_f1": float(_divide_or_zero(2 * correct, totals).mean()),
    }


def score_regression(gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the correlations `pearson` and `spearman` of two arrays [n], or 0 if an array is constant.

    Correlations ignore the scale of the predictions. `rmse`, the root of the mean squared error, does not.
    """
    from scipy.stats import rankdata

    return {
        "pearson": _correlate(gold, predicted),
        "spearman": _correlate(rankdata(gold), rankdata(predicted)),
        "rmse": float(np.sqrt(np.mean((gold.astype(np.float64) - predicted) ** 2))),
    }


def _correlate(a: np.ndarray, b: np.ndarray) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _divide_or_zero(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


# ---- pre-training


def score_pretraining(sums: np.ndarray, has_pairs: bool, part: str = "mlm") -> dict[str, float]:
    """Return mean losses in nats, accuracies and the perplexity.

    The means and accuracies of masked tokens are over all masked tokens, those of pairs over all pairs.

    Args:
        part: Prefix of the scores of tokens: "mlm", or "lm" of a left-to-right model.
        sums: [n, 6] summed loss, number of correct predictions and number of predictions of each example. The
            first three columns are for masked tokens, the last three for pairs.
    """
    totals = sums.sum(0, dtype=np.float64)
    num_predictions = np.maximum(np.repeat(totals[[2, 5]], 3), 1)
    mlm_loss, mlm_accuracy, _, nsp_loss, nsp_accuracy, _ = totals / num_predictions
    perplexity = math.exp(min(mlm_loss, 700.0))  # math.exp overflows above 709
    scores = {
        "loss": mlm_loss, f"{part}_loss": mlm_loss, f"{part}_accuracy": mlm_accuracy,
        "perplexity": perplexity,
    }  # fmt: skip
    if has_pairs:
        scores |= {"loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss, "nsp_accuracy": nsp_accuracy}
    return {name: float(value) for name, value in scores.items()}


def score_unigram(
    train_corpus: Any, train_documents: np.ndarray, corpus: Any, documents: np.ndarray, part: str = "mlm"
) -> dict[str, float]:
    """Return the loss in nats and the perplexity of a unigram model with add-one smoothing."""
    vocab_size = int(max(train_corpus.token_ids.max(), corpus.token_ids.max())) + 1
    frequencies = count_tokens(train_corpus, train_documents, vocab_size) + 1.0
    counts = count_tokens(corpus, documents, vocab_size)
    loss = float(-(counts * np.log(frequencies / frequencies.sum())).sum() / counts.sum())
    return {"loss": loss, f"{part}_loss": loss, "perplexity": math.exp(loss)}


def count_tokens(corpus: Any, documents: np.ndarray, vocab_size: int | None = None) -> np.ndarray:
    """Return how often the documents of a corpus have each token [vocab_size]."""
    if vocab_size is None:
        vocab_size = int(corpus.token_ids.max()) + 1
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    counts = np.zeros(vocab_size, np.int64)
    spans = zip(token_offsets[documents].tolist(), token_offsets[documents + 1].tolist(), strict=True)
    for start, stop in spans:
        counts += np.bincount(corpus.token_ids[start:stop], minlength=vocab_size)
    return counts
