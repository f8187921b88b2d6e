"""Scores of pre-training, from what scoring keeps of each example."""

import math
from typing import Any

import numpy as np


def score_pretraining(kept: np.ndarray, pairs: bool) -> dict[str, float]:
    """Mean losses in nats and shares of right answers, each over all that is predicted of its kind.

    Args:
        kept: [n, 6] of masked pieces and of pairs the summed loss, how many are right, how many there are.
        pairs: whether there are any.
    """
    loss, right, _, pair_loss, pair_right, _ = kept.sum(0, dtype=np.float64) / _counts(kept)
    found = {"loss": loss, "mlm_loss": loss, "mlm_accuracy": right, "perplexity": math.exp(min(loss, 700.0))}
    if pairs:
        found |= {"loss": loss + pair_loss, "nsp_loss": pair_loss, "nsp_accuracy": pair_right}
    return {name: float(value) for name, value in found.items()}


def _counts(kept: np.ndarray) -> np.ndarray:
    return np.maximum(np.repeat(kept[:, [2, 5]].sum(0, dtype=np.float64), 3), 1)


def score_unigram(corpus: Any, train: np.ndarray, other: Any, chosen: np.ndarray) -> dict[str, float]:
    """The loss in nats of who knows only how frequent each piece is in the training text, and perplexity.

    Args:
        corpus, train: a corpus and the numbers of its documents; `other` and `chosen` are those to judge.
    """
    size = int(max(corpus.token_ids.max(), other.token_ids.max())) + 1
    learnt, judged = _frequencies(corpus, train, size) + 1.0, _frequencies(other, chosen, size)
    loss = float(-(judged * np.log(learnt / learnt.sum())).sum() / judged.sum())
    return {"loss": loss, "mlm_loss": loss, "perplexity": math.exp(loss)}


def _frequencies(corpus: Any, documents: np.ndarray, size: int) -> np.ndarray:
    begins = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    counts = np.zeros(size, np.int64)
    for start, stop in zip(begins[documents].tolist(), begins[documents + 1].tolist(), strict=True):
        counts += np.bincount(corpus.token_ids[start:stop], minlength=size)
    return counts
