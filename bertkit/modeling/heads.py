"""Decide whether the classification head of a checkpoint can be kept, and verify the order of its labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bertkit.common_settings import Pooling
from bertkit.config import Head
from bertkit.errors import UserError, format_list
from bertkit.modeling.loading import HEAD_KEY, POOLING_KEY

MIN_ROWS = 30  # with fewer rows, the order of a head's labels cannot be verified
MIN_IMPROVEMENT = 0.3  # a label order is reported as wrong if another order improves accuracy by more

SEQUENCE_HEAD = "ForSequenceClassification"
CHOICE_HEAD = "ForMultipleChoice"
TOKEN_HEAD = "ForTokenClassification"  # noqa: S105
QUESTION_HEAD = "ForQuestionAnswering"
TAGGER_HEAD, VECTOR_HEAD = "Tagger", "VectorClassifier"  # bertkit's own classes
DROPOUT_KEYS = ["classifier_dropout", "classifier_dropout_prob", "hidden_dropout_prob", "dropout"]


def has_head(config: Any, *kinds: str) -> bool:
    """Return whether a checkpoint was saved with a head of one of these kinds.

    A kind is a suffix of the architecture's name, such as `SEQUENCE_HEAD`.
    """
    return any(name.endswith(kinds) for name in config.architectures or [])


def has_head_type(config: Any, head: Head, pooling: Pooling = "cls") -> bool:
    """Return whether the checkpoint's head has the given type and reads vectors of the given pooling."""
    return getattr(config, HEAD_KEY, "linear") == head and getattr(config, POOLING_KEY, "cls") == pooling


def get_head_dropout(config: Any) -> float:
    """Return the dropout probability of the head; its name in `config.json` depends on the architecture."""
    probabilities = (getattr(config, key, None) for key in DROPOUT_KEYS)
    return next((p for p in probabilities if p is not None), 0.0)


def set_labels(config: Any, names: Sequence[str]) -> Any:
    """Set the labels of the model's outputs in the given order, and return the config."""
    config.num_labels = len(names)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: label_id for label_id, name in enumerate(names)}
    return config


def find_output_layer(model: Any) -> tuple[str, torch.nn.Linear]:
    """Return the name and the module of a model's output layer, its last linear layer outside of the encoder.

    Raises:
        UserError: There is no linear layer outside of the encoder.
    """
    encoder_prefix = model.base_model_prefix + "."
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith(encoder_prefix)
    ]
    if not layers:
        raise UserError(
            f"{model.config.model_type}: its head has no linear output layer; use another architecture"
        )
    return layers[-1]


def set_output_bias(model: Any, value: float) -> None:
    """Set the bias of a model's output layer."""
    _, output_layer = find_output_layer(model)
    if output_layer.bias is not None:
        torch.nn.init.constant_(output_layer.bias, value)


def match_labels(config: Any, labels: Sequence[str], model: str, kind: str) -> tuple[bool, list[str]]:
    """Decide whether to re-initialize the head of a checkpoint, and order the data's labels like its outputs.

    A head with the data's labels is kept, whatever their order and capitalization. A head whose labels are
    LABEL_0, LABEL_1, ... is re-initialized, because these names do not say what the outputs mean.

    Args:
        config: The checkpoint's config.
        labels: The data's labels; empty for regression.
        model: The model's name, for the error.
        kind: The kind of head that the task needs, see `has_head`.

    Returns:
        Whether the head must be re-initialized, and the data's labels in the order of the outputs.

    Raises:
        UserError: The head was trained for labels that differ from the data's labels.
    """
    if not has_head(config, kind):
        return True, list(labels)
    head_labels = [config.id2label[label_id] for label_id in range(config.num_labels)]
    if not labels and len(head_labels) == 1:
        return False, []
    if all(name == f"LABEL_{label_id}" for label_id, name in enumerate(head_labels)):
        return True, list(labels)
    if sorted(head_labels) == sorted(labels):
        return False, head_labels
    label_by_key = {label.casefold(): label for label in labels}
    head_keys = [label.casefold() for label in head_labels]
    if len(label_by_key) == len(labels) and sorted(head_keys) == sorted(label_by_key):
        return False, [label_by_key[key] for key in head_keys]
    raise UserError(
        f"--model {model}: its head was trained for {format_list(head_labels)}, the data has "
        f"{format_list(labels or ['numbers'])}; rename the labels, or pass --new-head to re-initialize "
        "the head"
    )


def verify_label_order(
    gold: np.ndarray, predicted: np.ndarray, labels: Sequence[str], model: str, what: str = "rows"
) -> None:
    """Check that a head would not be far more accurate with its labels in another order.

    If it would, the labels in the checkpoint's config are in the wrong order, or the label ids of a file map
    to wrong names.

    Args:
        gold: `[n]` label ids of the data.
        predicted: `[n]` label ids predicted by the head.
        labels: Label names by id.
        model: The model's name, for the error.
        what: Noun for the labeled items, for the error.

    Raises:
        UserError: The labels fit far better in another order. The message names the order if it is unique.
    """
    from scipy.optimize import linear_sum_assignment

    num_labels, n = len(labels), len(gold)
    confusion = np.bincount(predicted * num_labels + gold, minlength=num_labels**2)
    confusion = confusion.reshape(num_labels, num_labels)
    outputs, best_match = linear_sum_assignment(-confusion)
    accuracy, best_accuracy = np.trace(confusion) / n, confusion[outputs, best_match].sum() / n
    max_margin = 1.96 * (0.25 / n) ** 0.5  # upper bound of the half-width of accuracy's 95 % interval
    majority_accuracy = np.bincount(gold).max() / n
    is_much_better = (
        best_accuracy - accuracy > MIN_IMPROVEMENT and best_accuracy > majority_accuracy + max_margin
    )
    if n >= MIN_ROWS and is_much_better:
        raise UserError(
            f"--model {model}: its head's labels are in the wrong order: of {n} validation {what}, "
            f"{accuracy:.0%} are correct by its id2label, "
            f"{best_accuracy:.0%} {_describe_order(confusion, best_match, labels)}; "
            "correct id2label in its config.json (or the label numbers in the data), or pass --new-head to "
            "re-initialize the head"
        )


def _describe_order(confusion: np.ndarray, best_match: np.ndarray, labels: Sequence[str]) -> str:
    """Describe the best order of the labels, unless the head confuses labels and several orders fit."""
    outputs = np.flatnonzero(confusion.sum(1)).tolist()  # labels that were predicted at least once
    matches = confusion[outputs, best_match[outputs]]
    if (matches <= confusion[outputs].sum(1) / 2).any():
        return "in another order, which these rows do not determine"
    return "if " + ", ".join(f"{labels[output]} means {labels[best_match[output]]}" for output in outputs)


def compute_class_weights(labels: np.ndarray, num_classes: int) -> torch.Tensor:
    """Return the weight of each class `[num_classes]`.

    Args:
        labels: `[n]` label ids: the weight is n / (num_classes * count), as in scikit-learn. Or
            `[n, num_classes]` with 0 and 1: the weight is the number of zeros per one, or 1 without zeros.
        num_classes: Number of classes.
    """
    if labels.ndim == 2:
        positives = labels.sum(0)
        negatives = len(labels) - positives
        # A label that every row has would get the weight 0, and the model would not learn it.
        weights = np.where(negatives == 0, 1, negatives / np.maximum(positives, 1))
        return torch.tensor(weights, dtype=torch.float32)
    counts = np.maximum(np.bincount(labels, minlength=num_classes), 1)
    return torch.tensor(len(labels) / (num_classes * counts), dtype=torch.float32)
