"""Averages of the predictions of several models on the same rows."""

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-12  # smallest probability, so that its logarithm is finite


def average_logits(members: Sequence[np.ndarray], problem_type: str | None) -> np.ndarray:
    """Return logits whose probabilities are the mean of the probabilities of all members.

    Args:
        members: Logits of each member, all [rows, outputs]. An output that a row lacks is -inf.
        problem_type: `problem_type` of the model's config. The numbers of "regression" are averaged, each
            label of "multi_label_classification" has a sigmoid, and other outputs have a softmax.
    """
    from scipy.special import expit, log_softmax, logit, logsumexp

    if len(members) == 1:
        return members[0]
    stacked = np.stack(members).astype(np.float64)
    if problem_type == "regression":
        return stacked.mean(0)
    if problem_type == "multi_label_classification":
        return logit(np.clip(expit(stacked).mean(0), EPSILON, 1 - EPSILON))
    with np.errstate(divide="ignore"):
        return logsumexp(log_softmax(stacked, axis=-1), axis=0) - np.log(len(members))
