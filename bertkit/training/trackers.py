"""Experiment trackers: whether one can be used, known before anything slow, and where it logs."""

import importlib.util
from pathlib import Path
from typing import Any

from bertkit.errors import UserError, suggest_similar
from bertkit.hub.client import summarize_error

TRACKERS = ("tensorboard", "trackio", "wandb")  # each a package of that name; Trainer knows more
OFFLINE_MODES = ("offline", "disabled", "dryrun")  # what WANDB_MODE says where nothing is sent


def check_tracker(name: str | None) -> None:
    """Refuse what `--report-to` names where it would fail once training begins, or ask for a key.

    Raises:
        UserError: no such tracker, not installed, or wandb without a key.
    """
    if name in (None, "none"):
        return
    if name not in TRACKERS:
        _check_other(name)
    elif importlib.util.find_spec(name) is None:
        raise UserError(f"--report-to {name}: not installed; pip install {name}")
    elif name == "wandb":
        _check_wandb()


def _check_other(name: str) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as KNOWN
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    if name not in KNOWN:
        raise UserError(f"--report-to {name}: {', '.join(TRACKERS)} or none{suggest_similar(name, TRACKERS)}")
    if name not in get_available_reporting_integrations():
        raise UserError(
            f"--report-to {name}: what it needs is not installed; transformers' page on callbacks names it, "
            f"or take {', '.join(TRACKERS)} or none"
        )


def _check_wandb() -> None:
    """Without a key it would ask for one at a terminal, without a network wait for a minute and a half."""
    import wandb

    instead = "or WANDB_MODE=offline keeps all on this machine"
    if wandb.setup().settings.mode in OFFLINE_MODES:
        return
    try:
        known = wandb.login(prompt=False)
    except wandb.Error as error:
        raise UserError(
            f"--report-to wandb: {summarize_error(error).rstrip('.')}; try again, wandb login, {instead}"
        ) from error
    if not known:
        raise UserError(f"--report-to wandb: no key; wandb login, {instead}")


def set_tensorboard_dir(trainer: Any, folder: Path) -> None:
    """Put TensorBoard's events into `folder`, unless TENSORBOARD_LOGGING_DIR names another place.

    Trainer's own place is among the checkpoints, under date and host.
    """
    from transformers.integrations import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)
