"""Heads that a checkpoint already has: when to keep them, and their labels in whose order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertkit.config import Head
from bertkit.errors import UserError, format_list
from bertkit.modeling.loading import HEAD_KEY

MIN_ROWS = 30  # fewer rows say nothing about the order of a head's labels
MIN_IMPROVEMENT = 0.3  # of the rows: so many more right answers in another order are no accident


SEQUENCE_HEAD, CHOICE_HEAD, TOKEN_HEAD = (
    "ForSequenceClassification",
    "ForMultipleChoice",
    "ForTokenClassification",
)
QUESTION_HEAD = "ForQuestionAnswering"
TAGGER_HEAD = "Tagger"  # bertkit's own
DROPOUT_KEYS = ["classifier_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout"]


def has_head(config: Any, *kinds: str) -> bool:
    """Whether a checkpoint's architecture ends in one of `kinds`: it was saved with such a head."""
    return any(name.endswith(kinds) for name in config.architectures or [])


def has_head_type(config: Any, head: Head) -> bool:
    """Whether what a checkpoint's own head stands on is what `head` names."""
    return getattr(config, HEAD_KEY, "linear") == head


def get_head_dropout(config: Any) -> float:
    """Of a head, by whatever name the architecture has for it."""
    return next((p for key in DROPOUT_KEYS if (p := getattr(config, key, None)) is not None), 0.0)


def set_labels(config: Any, names: Sequence[str]) -> Any:
    """The config with these names of the outputs, in this order."""
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    return config


def match_labels(config: Any, labels: Sequence[str], model: str, kind: str) -> tuple[bool, list[str]]:
    """Whether the head must be new, and the labels in the order of the head.

    A head with the same names in another order is kept and its order taken, so that no output is ever
    read under a wrong name. A head whose labels are only LABEL_0, LABEL_1, ... is not known to mean
    ours and is replaced.

    Args:
        config: the checkpoint's config.
        labels: the data's labels; empty for regression.
        model: its name, for the error.
        kind: of head that the task has.

    Raises:
        UserError: the head has other labels.
    """
    if not has_head(config, kind):
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
        f"--model {model}: its head was trained for {format_list(theirs)}, "
        f"the data has {format_list(labels or ['numbers'])}; rename the labels, or start afresh with --new-head"
    )


def verify_label_order(
    gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str], model: str, what: str = "rows"
) -> None:
    """Refuse a head whose answers are far more often right under its names in another order.

    Such is a checkpoint whose config names its outputs in the wrong order, and such are label numbers
    in a file that were taken for the wrong names.

    Args:
        gold, predicted: [n] label numbers, by the names as they stand.
        labels: those names.
        model: its name, for the error.
        what: they are labels of, for the error.

    Raises:
        UserError: naming the order that fits, where only one does.
    """
    from scipy.optimize import linear_sum_assignment

    classes, n = len(labels), len(gold)
    confusion = np.bincount(predicted * classes + gold, minlength=classes**2).reshape(classes, classes)
    outputs, meant = linear_sum_assignment(-confusion)
    as_named, at_best = np.trace(confusion) / n, confusion[outputs, meant].sum() / n
    spread = 1.96 * (0.25 / n) ** 0.5  # of a share, at most
    one_answer = np.bincount(gold).max() / n  # what a head that always says the same reaches at best
    if n >= MIN_ROWS and at_best - as_named > MIN_IMPROVEMENT and at_best > one_answer + spread:
        raise UserError(
            f"--model {model}: its head's labels stand in the wrong order: of {n} validation {what} "
            f"{as_named:.0%} are right by its names, {at_best:.0%} {_order(confusion, meant, labels)}; "
            "correct id2label in its config.json (or the label numbers in the data), or start afresh "
            "with --new-head"
        )


def _order(confusion: np.ndarray, meant: np.ndarray, labels: Sequence[str]) -> str:
    """What each output means, unless the head takes one label for another: then several orders fit."""
    outputs = np.flatnonzero(confusion.sum(1)).tolist()  # those that were given at all
    best = confusion[outputs, meant[outputs]]
    if (best <= confusion[outputs].sum(1) / 2).any():
        return "in another, which is not plain from them"
    return "if " + ", ".join(f"{labels[output]} means {labels[meant[output]]}" for output in outputs)


def compute_class_weights(labels: np.ndarray, classes: int) -> torch.Tensor:
    """[classes] float: n / (classes * count), as scikit-learn; of label sets, negatives / positives."""
    if labels.ndim == 2:
        positives = np.maximum(labels.sum(0), 1)
        return torch.tensor((len(labels) - labels.sum(0)) / positives, dtype=torch.float32)
    counts = np.maximum(np.bincount(labels, minlength=classes), 1)
    return torch.tensor(len(labels) / (classes * counts), dtype=torch.float32)
