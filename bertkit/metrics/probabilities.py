"""Logits to probabilities, in double precision."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """[n, classes], each row adding up to 1."""
    from scipy.special import softmax as stable

    return stable(logits.astype(np.float64), axis=-1)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """[n, classes], each by itself."""
    from scipy.special import expit

    return expit(logits.astype(np.float64))
