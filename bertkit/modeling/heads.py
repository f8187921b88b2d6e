"""Classification heads of checkpoints: whether a head can be kept, and the order of its labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertkit.config import Head
from bertkit.errors import UserError, format_list
from bertkit.modeling.loading import HEAD_KEY

MIN_ROWS = 30  # with fewer rows, the order of a head's labels cannot be verified
MIN_IMPROVEMENT = 0.3  # accuracy that another label order must gain to be reported

SEQUENCE_HEAD = "ForSequenceClassification"
CHOICE_HEAD = "ForMultipleChoice"
TOKEN_HEAD = "ForTokenClassification"  # noqa: S105
QUESTION_HEAD = "ForQuestionAnswering"
TAGGER_HEAD = "Tagger"  # bertkit's own class
DROPOUT_KEYS = ["classifier_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout"]


def has_head(config: Any, *kinds: str) -> bool:
    """Return whether a checkpoint was saved with one of these heads (suffixes of the architecture)."""
    return any(name.endswith(kinds) for name in config.architectures or [])


def has_head_type(config: Any, head: Head) -> bool:
    """Return whether the checkpoint's head is of this type: linear, or with a BiLSTM."""
    return getattr(config, HEAD_KEY, "linear") == head


def get_head_dropout(config: Any) -> float:
    """Return the dropout probability of the head, whose key differs between architectures."""
    probabilities = (getattr(config, key, None) for key in DROPOUT_KEYS)
    return next((p for p in probabilities if p is not None), 0.0)


def set_labels(config: Any, names: Sequence[str]) -> Any:
    """Set the labels of the model's outputs, in this order, and return the config."""
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    return config


def match_labels(config: Any, labels: Sequence[str], model: str, kind: str) -> tuple[bool, list[str]]:
    """Return whether the head must be re-initialized, and the labels in the order of the head.

    A head with the same labels in another order is kept, and the data's labels take its order. Otherwise
    outputs would be read under wrong names. A head whose labels are LABEL_0, LABEL_1, ... is re-initialized,
    because these names do not say what its outputs mean.

    Args:
        config: The checkpoint's config.
        labels: The data's labels; empty for regression.
        model: The model's name, for the error.
        kind: The head that the task needs.

    Raises:
        UserError: The head has other labels than the data.
    """
    if not has_head(config, kind):
        return True, list(labels)
    head_labels = [config.id2label[number] for number in range(config.num_labels)]
    if not labels and len(head_labels) == 1:
        return False, []
    if all(name == f"LABEL_{number}" for number, name in enumerate(head_labels)):
        return True, list(labels)
    if sorted(head_labels) == sorted(labels):
        return False, head_labels
    label_of_key = {name.casefold(): name for name in labels}
    if {name.casefold() for name in head_labels} == set(label_of_key) and len(head_labels) == len(
        label_of_key
    ):
        return False, [label_of_key[name.casefold()] for name in head_labels]
    raise UserError(
        f"--model {model}: its head was trained for {format_list(head_labels)}, the data has "
        f"{format_list(labels or ['numbers'])}; rename the labels, or pass --new-head to re-initialize "
        "the head"
    )


def verify_label_order(
    gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str], model: str, what: str = "rows"
) -> None:
    """Refuse a head that is far more accurate if its labels are put into another order.

    Either the checkpoint's config lists its labels in the wrong order, or the label numbers in a file were
    mapped to the wrong names.

    Args:
        gold: `[n]` label numbers of the data.
        predicted: `[n]` label numbers predicted by the head.
        labels: The label names by number.
        model: The model's name, for the error.
        what: What is labeled, for the error.

    Raises:
        UserError: Another order fits far better; it is named if it is unique.
    """
    from scipy.optimize import linear_sum_assignment

    num_labels, n = len(labels), len(gold)
    confusion = np.bincount(predicted * num_labels + gold, minlength=num_labels**2)
    confusion = confusion.reshape(num_labels, num_labels)
    outputs, best_match = linear_sum_assignment(-confusion)
    accuracy, best_accuracy = np.trace(confusion) / n, confusion[outputs, best_match].sum() / n
    max_margin = 1.96 * (0.25 / n) ** 0.5  # upper bound of the 95% confidence interval's half-width
    majority = np.bincount(gold).max() / n
    is_much_better = best_accuracy - accuracy > MIN_IMPROVEMENT and best_accuracy > majority + max_margin
    if n >= MIN_ROWS and is_much_better:
        raise UserError(
            f"--model {model}: its head's labels are in the wrong order: of {n} validation {what}, "
            f"{accuracy:.0%} are correct by its id2label, "
            f"{best_accuracy:.0%} {_describe_order(confusion, best_match, labels)}; "
            "correct id2label in its config.json (or the label numbers in the data), or pass --new-head to "
            "re-initialize the head"
        )


def _describe_order(confusion: np.ndarray, best_match: np.ndarray, labels: Sequence[str]) -> str:
    """Describe what each output means, unless the head confuses labels, so that several orders fit."""
    outputs = np.flatnonzero(confusion.sum(1)).tolist()  # labels that were predicted at least once
    matches = confusion[outputs, best_match[outputs]]
    if (matches <= confusion[outputs].sum(1) / 2).any():
        return "in another order, which these rows do not determine"
    return "if " + ", ".join(f"{labels[output]} means {labels[best_match[output]]}" for output in outputs)


def compute_class_weights(labels: np.ndarray, num_classes: int) -> torch.Tensor:
    """Return class weights `[num_classes]`.

    They are n / (num_classes * count), as in scikit-learn. For multi-label data `[n, num_classes]` they are
    negatives / positives.
    """
    if labels.ndim == 2:
        positives = np.maximum(labels.sum(0), 1)
        return torch.tensor((len(labels) - labels.sum(0)) / positives, dtype=torch.float32)
    counts = np.maximum(np.bincount(labels, minlength=num_classes), 1)
    return torch.tensor(len(labels) / (num_classes * counts), dtype=torch.float32)
