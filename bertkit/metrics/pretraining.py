"""Pre-training metrics, computed from per-example sums."""

import math
from typing import Any

import numpy as np


def score_pretraining(sums: np.ndarray, pairs: bool) -> dict[str, float]:
    """Return mean losses in nats and accuracies, each over all predictions of its kind.

    Args:
        sums: [n, 6]: for masked tokens, then pairs, the summed loss, the correct and all predictions.
        pairs: Whether the examples are pairs.
    """
    totals = sums.sum(0, dtype=np.float64)
    counts = np.maximum(np.repeat(totals[[2, 5]], 3), 1)
    mlm_loss, mlm_accuracy, _, nsp_loss, nsp_accuracy, _ = totals / counts
    perplexity = math.exp(min(mlm_loss, 700.0))
    scores = {
        "loss": mlm_loss, "mlm_loss": mlm_loss, "mlm_accuracy": mlm_accuracy, "perplexity": perplexity,
    }  # fmt: skip
    if pairs:
        scores |= {"loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss, "nsp_accuracy": nsp_accuracy}
    return {name: float(value) for name, value in scores.items()}


def score_unigram(
    train_corpus: Any, train_documents: np.ndarray, corpus: Any, documents: np.ndarray
) -> dict[str, float]:
    """Return loss in nats and perplexity of a unigram model, with add-one smoothing.

    Args:
        train_corpus: Corpus that the token frequencies are estimated from.
        train_documents: Indices of its documents.
        corpus: Corpus to score.
        documents: Indices of its documents.
    """
    size = int(max(train_corpus.token_ids.max(), corpus.token_ids.max())) + 1
    frequencies = _count_tokens(train_corpus, train_documents, size) + 1.0
    counts = _count_tokens(corpus, documents, size)
    loss = float(-(counts * np.log(frequencies / frequencies.sum())).sum() / counts.sum())
    return {"loss": loss, "mlm_loss": loss, "perplexity": math.exp(loss)}


def _count_tokens(corpus: Any, documents: np.ndarray, size: int) -> np.ndarray:
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    counts = np.zeros(size, np.int64)
    spans = zip(token_offsets[documents].tolist(), token_offsets[documents + 1].tolist(), strict=True)
    for start, stop in spans:
        counts += np.bincount(corpus.token_ids[start:stop], minlength=size)
    return counts
