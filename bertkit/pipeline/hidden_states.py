"""The settings of a student that is compared with the hidden states of its teacher."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.config import FineTuningConfig, RunConfig
from bertkit.errors import UserError
from bertkit.modeling import loading
from bertkit.pipeline.ensemble import find_ensemble

if TYPE_CHECKING:
    import torch

    from bertkit.modeling.hidden_states import HiddenStateLoss
    from bertkit.modeling.losses import Loss
    from bertkit.pipeline.prepare import PreparedRun


def uses_hidden_states(config: RunConfig) -> bool:
    """Return whether the model learns the hidden states of a teacher."""
    return isinstance(config, FineTuningConfig) and bool(config.teacher and config.hidden_loss_weight)


def check_hidden_states(
    prepared: "PreparedRun", folder: Path, teacher_config: Any, has_same_tokenizer: bool
) -> None:
    """Check that the hidden states of student and teacher can be compared.

    Args:
        prepared: The run of the student.
        folder: The run of the teacher.
        teacher_config: Config of its model.
        has_same_tokenizer: Whether student and teacher have the same tokenizer.

    Raises:
        UserError: The teacher is an ensemble, or the tokens or the sizes of the hidden states differ.
    """
    from bertkit.modeling.hidden_states import FLAG, check_hidden_sizes

    if find_ensemble(folder):
        raise UserError(
            f"{FLAG}: {folder} is an ensemble, which has no common hidden states; pass one of its runs"
        )
    if not has_same_tokenizer:
        raise UserError(
            f"{FLAG}: {folder} has another tokenizer than {prepared.model_source.name}, so that the tokens "
            "differ; leave out the flag, or choose a student with the same tokenizer"
        )
    check_hidden_sizes(str(folder), teacher_config, prepared.model_config)


def add_hidden_state_loss(
    loss: "Loss", prepared: "PreparedRun", model: Any, device: "torch.device"
) -> "HiddenStateLoss":
    """Return the loss of a student with that towards the hidden states of its teacher.

    Args:
        loss: The loss towards the labels and the predictions of the teacher.
        prepared: The run of the student.
        model: The student.
        device: Device of the training.

    Raises:
        UserError: The layers of a model cannot be found, or only the teacher reads token types.
    """
    from bertkit.modeling.hidden_states import HiddenStateLoss, HiddenStateRecorder, match_layers
    from bertkit.pipeline.load_check import DTYPES

    assert prepared.distillation is not None
    teacher = prepared.distillation.load_teacher().model.to(device)
    _check_token_types(prepared, model, teacher)
    layers, teacher_layers = match_layers(model.config.num_hidden_layers, teacher.config.num_hidden_layers)
    return HiddenStateLoss(
        loss, prepared.config.hidden_loss_weight, HiddenStateRecorder(model, layers), teacher,
        HiddenStateRecorder(teacher, teacher_layers), DTYPES[prepared.precision],
    )  # fmt: skip


def _check_token_types(prepared: "PreparedRun", student: Any, teacher: Any) -> None:
    """Check that the batches of the student have what the teacher reads."""
    from bertkit.modeling.hidden_states import FLAG

    has_pairs = prepared.features["train"].get_sequence(0)[1].any()
    if has_pairs and loading.takes_token_type_ids(teacher) and not loading.takes_token_type_ids(student):
        raise UserError(
            f"{FLAG}: the teacher reads token types, which {prepared.model_source.name} does not have; leave "
            "out the flag, or choose another student"
        )
