"""Heads that a checkpoint already has: when to keep them, and their labels in whose order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertkit.errors import UserError, listed

SEQUENCE_KINDS = {
    "binary": "single_label_classification",
    "multi-class": "single_label_classification",
    "multi-label": "multi_label_classification",
    "regression": "regression",
}


def match_labels(config: Any, labels: Sequence[str], model: str) -> tuple[bool, list[str]]:
    """Whether the head must be new, and the labels in the order of the head.

    A head with the same names in another order is kept and its order taken, so that no output is ever
    read under a wrong name. A head whose labels are only LABEL_0, LABEL_1, ... is not known to mean
    ours and is replaced.

    Args:
        config: the checkpoint's config.
        labels: the data's labels; empty for regression.
        model: its name, for the error.

    Raises:
        UserError: the head has other labels.
    """
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or []):
        return True, list(labels)
    theirs = [config.id2label[number] for number in range(config.num_labels)]
    if not labels and len(theirs) == 1:
        return False, []
    if all(name == f"LABEL_{number}" for number, name in enumerate(theirs)):
        return True, list(labels)
    if sorted(theirs) == sorted(labels):
        return False, theirs
    ours = {name.casefold(): name for name in labels}
    if {name.casefold() for name in theirs} == set(ours) and len(theirs) == len(ours):
        return False, [ours[name.casefold()] for name in theirs]
    raise UserError(
        f"--model {model}: its head was trained for {listed(theirs)}, "
        f"the data has {listed(labels or ['numbers'])}; rename the labels, "
        "or save its encoder alone with AutoModel.from_pretrained(...).save_pretrained(DIR)"
    )


def balanced_weights(labels: np.ndarray, classes: int) -> torch.Tensor:
    """[classes] float: n / (classes * count), as scikit-learn; of label sets, negatives / positives."""
    if labels.ndim == 2:
        positives = np.maximum(labels.sum(0), 1)
        return torch.tensor((len(labels) - labels.sum(0)) / positives, dtype=torch.float32)
    counts = np.maximum(np.bincount(labels, minlength=classes), 1)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32)
