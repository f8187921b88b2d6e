"""The loss of a student towards the hidden states of its teacher, in addition to its other losses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from bertkit.errors import UserError
from bertkit.modeling.first_position import compute_all_positions
from bertkit.modeling.forward import compute_logits
from bertkit.modeling.layers import choose_layers, require_encoder_layers
from bertkit.modeling.loading import select_inputs
from bertkit.modeling.losses import Loss

FLAG = "--hidden-loss-weight"
PART = "hidden_states"  # of the loss


@dataclass(frozen=True)
class RecordedPass:
    """The hidden states of one forward pass of an encoder.

    Attributes:
        mask: `[sequences, seq_len]`, 0 at padding.
        states: Outputs of some layers, each `[sequences, seq_len, hidden_size]`, in the order of the layers.
    """

    mask: torch.Tensor
    states: list[torch.Tensor] = field(default_factory=list)


class HiddenStateRecorder:
    """Records the outputs of some encoder layers of a model.

    Args:
        model: A model with an encoder.
        layers: Indices of the layers, in ascending order.

    Raises:
        UserError: The layers share their parameters (ALBERT), or cannot be found.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._passes: list[RecordedPass] | None = None
        compute_all_positions(model)
        name, _ = require_encoder_layers(model, FLAG)
        model.base_model.register_forward_pre_hook(self._start_pass, with_kwargs=True)
        modules = model.get_submodule(name)
        for layer in layers:
            modules[layer].register_forward_hook(self._add_states, with_kwargs=True)

    @contextmanager
    def record(self) -> Iterator[list[RecordedPass]]:
        """Record the forward passes in the block; a multiple-choice batch runs in several passes."""
        self._passes = []
        try:
            yield self._passes
        finally:
            self._passes = None

    @property
    def passes(self) -> list[RecordedPass]:
        """The forward passes since the beginning of the block."""
        assert self._passes is not None
        return self._passes

    def _start_pass(self, _: Any, __: Any, kwargs: dict[str, Any]) -> None:
        if self._passes is not None:
            self._passes.append(RecordedPass(kwargs["attention_mask"]))

    # A compiled layer would be compiled again for each recorded tensor.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _add_states(self, _: Any, __: Any, kwargs: dict[str, Any], output: Any) -> None:
        if self._passes is None:
            return
        states = output[0] if isinstance(output, tuple) else output
        if (packing := kwargs.get("packing")) is not None:
            states = packing.unpack(states)
        current = self._passes[-1]
        # models with block-sparse attention pad their sequences again
        current.states.append(states[:, : current.mask.shape[1]])


@dataclass(frozen=True)
class HiddenStateLoss:
    """A loss, plus the mean cosine distance of a student's hidden states from those of its teacher.

    The mean is over all tokens except padding, and over the compared layers. The cosine distance is that of
    DistilBERT (Sanh et al. 2019, section 2), which compares only the last layer. Unlike the squared error, it
    does not depend on the size of the hidden states, which differs between architectures.

    Attributes:
        loss: The loss towards the labels and the predictions of the teacher.
        weight: Weight of the distance.
        student: Recorder of the student, which records the forward pass of the batch.
        teacher: The teacher, in evaluation mode.
        teacher_states: Recorder of the teacher.
        dtype: Number format of the teacher's forward pass.
    """

    loss: Loss
    weight: float
    student: HiddenStateRecorder
    teacher: Any
    teacher_states: HiddenStateRecorder
    dtype: torch.dtype

    def count_items(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the counts of the other losses, and the number of tokens."""
        return {**self.loss.count_items(batch), PART: batch["attention_mask"].sum().float()}

    def sum_losses(self, logits: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the other losses, and the distance summed over the tokens, multiplied by its weight."""
        passes = zip(self.student.passes, self._run_teacher(batch), strict=True)
        distance = sum(_sum_distances(student, teacher) for student, teacher in passes)
        return {**self.loss.sum_losses(logits, batch), PART: self.weight * torch.as_tensor(distance)}

    def _run_teacher(self, batch: dict[str, torch.Tensor]) -> list[RecordedPass]:
        device = batch["attention_mask"].device
        autocast = torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)
        with torch.no_grad(), autocast, self.teacher_states.record() as passes:
            compute_logits(self.teacher, select_inputs(self.teacher, batch))
        return passes


def _sum_distances(student: RecordedPass, teacher: RecordedPass) -> torch.Tensor:
    """Return the mean cosine distance over the layers, summed over the tokens that are not padding."""
    distances = [
        1 - F.cosine_similarity(own.float(), other.float(), dim=-1)
        for own, other in zip(student.states, teacher.states, strict=True)
    ]
    return (torch.stack(distances).mean(0) * student.mask).sum()


def match_layers(num_student_layers: int, num_teacher_layers: int) -> tuple[list[int], list[int]]:
    """Return the indices of the layers of student and teacher that are compared with each other.

    Those of the larger model are evenly spread. A student that keeps some layers of its teacher is compared
    with exactly these layers.
    """
    count = min(num_student_layers, num_teacher_layers)
    return choose_layers(num_student_layers, count), choose_layers(num_teacher_layers, count)


def check_hidden_sizes(teacher_name: str, teacher_config: Any, student_config: Any) -> None:
    """Check that the hidden states of both models can be compared.

    Raises:
        UserError: They have different sizes.
    """
    student, teacher = student_config.hidden_size, teacher_config.hidden_size
    if student != teacher:
        raise UserError(
            f"{FLAG}: the hidden size of the student is {student}, that of {teacher_name} is {teacher}; "
            "leave out the flag, or choose a student with the same hidden size"
        )
