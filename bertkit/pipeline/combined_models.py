"""Combine the models of finished runs to one that averages their predictions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from bertkit.errors import UserError
from bertkit.metrics.averaging import average_values
from bertkit.modeling.ensemble import EnsembleModel
from bertkit.pipeline.trained_model import TrainedModel, serialize_tokenizer
from bertkit.tasks.base import Task
from bertkit.tasks.confidence import NOT_FITTED

M = TypeVar("M", bound=TrainedModel)
# Attributes of a model's config that decide what its outputs mean.
OUTPUT_ATTRIBUTES = ("id2label", "problem_type", "tag_scheme", "first_ending", "label_separator")


def combine_models(folders: Sequence[Path], members: Sequence[M]) -> M:
    """Return a model with the averaged predictions of its members.

    Truncation, windows and decoding are those of the first member. Thresholds are the means of the members'
    thresholds.

    Args:
        folders: The runs, for error messages.
        members: Their models.

    Raises:
        UserError: The members differ in their task, labels, tokenizer or maximum length.
    """
    first = members[0]
    for folder, member in zip(folders[1:], members[1:], strict=True):
        if difference := _find_difference(first, member):
            raise UserError(
                f"{folder}: has {difference} than {folders[0]}; the members of an ensemble must have the same"
            )
    _average_thresholds([member.task for member in members])
    model = EnsembleModel([member.model for member in members], first.task.combine_logits)
    return dataclasses.replace(first, model=model.eval())


def _find_difference(first: TrainedModel, other: TrainedModel) -> str | None:
    """Return what distinguishes two members that cannot be combined; None if they can."""
    if first.task.spec.name != other.task.spec.name:
        return "another task"
    if any(_get_output(first, name) != _get_output(other, name) for name in OUTPUT_ATTRIBUTES):
        return "other labels"
    if serialize_tokenizer(first.tokenizer) != serialize_tokenizer(other.tokenizer):
        return "another tokenizer"
    if first.task.config.max_length != other.task.config.max_length:
        return "another maximum length"
    return None


def _get_output(member: TrainedModel, name: str) -> Any:
    return getattr(member.model.config, name, None)


def _average_thresholds(tasks: Sequence[Task]) -> None:
    """Replace the fitted parameters of the first task by the means over all tasks.

    An ensemble neither abstains nor has prediction sets.
    """
    first = tasks[0]
    first.fitted_confidence = NOT_FITTED  # the confidence of the mean differs from that of a member
    first.fitted_params = average_values([task.fitted_params for task in tasks])
    label_types = [task.label_type for task in tasks if hasattr(task, "label_type")]
    if label_types:
        label_types[0].thresholds = average_values([label_type.thresholds for label_type in label_types])
