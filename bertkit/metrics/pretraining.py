"""Metrics of pre-training, computed from sums over each example."""

import math
from typing import Any

import numpy as np

# Factor of the discriminator's loss (Clark et al. 2020, section 2 and appendix A).
DISCRIMINATOR_WEIGHT = 50.0


def score_pretraining(sums: np.ndarray, has_pairs: bool) -> dict[str, float]:
    """Return mean losses in nats, accuracies and the perplexity.

    The means and accuracies of masked tokens are over all masked tokens, those of pairs over all pairs.

    Args:
        sums: [n, 6] summed loss, number of correct predictions and number of predictions of each example. The
            first three columns are for masked tokens, the last three for pairs.
        has_pairs: Whether the examples are pairs.
    """
    totals = sums.sum(0, dtype=np.float64)
    num_predictions = np.maximum(np.repeat(totals[[2, 5]], 3), 1)
    mlm_loss, mlm_accuracy, _, nsp_loss, nsp_accuracy, _ = totals / num_predictions
    perplexity = math.exp(min(mlm_loss, 700.0))  # math.exp overflows above 709
    scores = {
        "loss": mlm_loss, "mlm_loss": mlm_loss, "mlm_accuracy": mlm_accuracy, "perplexity": perplexity,
    }  # fmt: skip
    if has_pairs:
        scores |= {"loss": mlm_loss + nsp_loss, "nsp_loss": nsp_loss, "nsp_accuracy": nsp_accuracy}
    return {name: float(value) for name, value in scores.items()}


def score_replaced_tokens(sums: np.ndarray) -> dict[str, float]:
    """Return the scores of replaced token detection: mean losses in nats, and how well tokens are classified.

    `replaced` is the fraction of tokens that are replaced. Precision, recall and F1 are those of the replaced
    tokens.

    Args:
        sums: [n, 9] sums of each example, see `reduce_replaced_token_logits`.
    """
    # The columns of the discriminator are in the place of those of the pairs.
    scores = score_pretraining(sums[:, :6], has_pairs=True)
    rtd_loss, rtd_accuracy = scores.pop("nsp_loss"), scores.pop("nsp_accuracy")
    num_tokens, num_true_positives, num_positives, num_replaced = sums[:, 5:].sum(0, dtype=np.float64)
    return {
        **scores,
        "loss": scores["mlm_loss"] + DISCRIMINATOR_WEIGHT * rtd_loss,
        "rtd_loss": rtd_loss,
        "rtd_accuracy": rtd_accuracy,
        "rtd_precision": float(num_true_positives / max(num_positives, 1)),
        "rtd_recall": float(num_true_positives / max(num_replaced, 1)),
        "rtd_f1": float(2 * num_true_positives / max(num_positives + num_replaced, 1)),
        "replaced": float(num_replaced / max(num_tokens, 1)),
    }


def score_majority(replaced: float) -> dict[str, float]:
    """Return the scores of a discriminator that gives each token the same probability of being replaced.

    Args:
        replaced: Fraction of the tokens that are replaced.
    """
    probabilities = [fraction for fraction in (replaced, 1 - replaced) if fraction > 0]
    entropy = -sum(probability * math.log(probability) for probability in probabilities)
    return {"rtd_loss": entropy, "rtd_accuracy": max(replaced, 1 - replaced)}


def score_unigram(
    train_corpus: Any, train_documents: np.ndarray, corpus: Any, documents: np.ndarray
) -> dict[str, float]:
    """Return the loss in nats and the perplexity of a unigram model with add-one smoothing.

    Args:
        train_corpus: Corpus from which the token frequencies are estimated.
        train_documents: Indices of the documents in `train_corpus` to use.
        corpus: Corpus to score.
        documents: Indices of the documents in `corpus` to score.
    """
    vocab_size = int(max(train_corpus.token_ids.max(), corpus.token_ids.max())) + 1
    frequencies = _count_tokens(train_corpus, train_documents, vocab_size) + 1.0
    counts = _count_tokens(corpus, documents, vocab_size)
    loss = float(-(counts * np.log(frequencies / frequencies.sum())).sum() / counts.sum())
    return {"loss": loss, "mlm_loss": loss, "perplexity": math.exp(loss)}


def _count_tokens(corpus: Any, documents: np.ndarray, vocab_size: int) -> np.ndarray:
    token_offsets = corpus.sentence_offsets[corpus.document_offsets].astype(np.int64)
    counts = np.zeros(vocab_size, np.int64)
    spans = zip(token_offsets[documents].tolist(), token_offsets[documents + 1].tolist(), strict=True)
    for start, stop in spans:
        counts += np.bincount(corpus.token_ids[start:stop], minlength=vocab_size)
    return counts
