"""`TrainingArguments` from bertkit's settings, and the checks of `--set` and `--report-to`."""

import dataclasses
import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bertkit.config import RunConfig, get_flag, get_settings
from bertkit.errors import UserError, suggest_similar
from bertkit.hub.client import summarize_error

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Trainer's own evaluation, saving and best-model logic are off. bertkit evaluates in fp32, writes checkpoints
# atomically and selects the best one itself, so these arguments would not have the effect they describe.
FIXED_ARGUMENTS: dict[str, Any] = {
    "output_dir": None, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
    "remove_unused_columns": False, "label_names": [], "disable_tqdm": True, "push_to_hub": False,
    "logging_nan_inf_filter": False, "logging_steps": 10, "data_seed": None,
}  # fmt: skip
OVERRIDABLE_ARGUMENTS = {"logging_steps"}  # bertkit has its own default, and users may change it
# These would have no effect, or break a guarantee of bertkit. If there is a flag instead, it is named.
REFUSED_ARGUMENTS = {
    "label_smoothing_factor": "use --label-smoothing", "save_steps": "use --save-steps",
    "torch_compile": "use --compile",
    "resume_from_checkpoint": "use --resume", "accelerator_config": "bertkit sets it",
    **dict.fromkeys([
        "metric_for_best_model", "greater_is_better", "eval_steps", "eval_delay", "eval_on_start",
        "save_total_limit", "save_only_model", "do_train", "do_eval", "do_predict", "dataloader_drop_last",
        "auto_find_batch_size", "length_column_name", "use_cpu", "activation_checkpointing_kwargs",
    ], "bertkit sets it"),
}  # fmt: skip

TRACKERS = ("tensorboard", "trackio", "wandb")  # each is a package of that name; Trainer supports others
OFFLINE_MODES = ("offline", "disabled", "dryrun")  # values of WANDB_MODE with which nothing is sent


def parse_set_flag(config: RunConfig) -> dict[str, Any]:
    """Return the KEY=VALUE pairs of `--set`, with values parsed as YAML.

    Raises:
        UserError: an argument does not exist, has its own flag, or is set by bertkit.
    """
    if not config.set:  # importing transformers takes a second, and early errors must be fast
        return {}
    from transformers import TrainingArguments

    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    flags = {
        setting.training_argument: get_flag(name, setting)
        for name, (_, setting, _) in get_settings(type(config)).items()
    }
    arguments = {}
    for pair in config.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"--set {pair}: is not KEY=VALUE; write --set KEY=VALUE")
        if key in flags:
            raise UserError(f"--set {key}: has its own flag; use {flags[key]}")
        if key in FIXED_ARGUMENTS and key not in OVERRIDABLE_ARGUMENTS:
            raise UserError(f"--set {key}: bertkit keeps it at {FIXED_ARGUMENTS[key]!r}; leave it out")
        if key in REFUSED_ARGUMENTS:
            raise UserError(f"--set {key}: {REFUSED_ARGUMENTS[key]}")
        if key == "train_sampling_strategy" and value not in ("random", "sequential"):
            raise UserError(f"--set {pair}: use random or sequential; bertkit groups by length by default")
        if key not in fields:
            raise UserError(f"--set {key}: TrainingArguments has no such field{suggest_similar(key, fields)}")
        try:
            arguments[key] = _parse_value(value)
        except yaml.YAMLError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"--set {pair}: cannot parse the value as YAML ({reason}); quote it") from error
    return arguments


def _parse_value(text: str) -> Any:
    """Parse a value as YAML, and numbers such as 1e-6 as floats, which YAML 1.1 reads as text."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def build_training_arguments(config: RunConfig, checkpoints: Path, precision: str) -> "TrainingArguments":
    """Return the arguments of a resolved config; raise `UserError` if `TrainingArguments` rejects a value."""
    import torch
    from transformers import TrainingArguments

    arguments = {
        setting.training_argument: getattr(config, name)
        for name, (_, setting, _) in get_settings(type(config)).items()
        if setting.training_argument and getattr(config, name) is not None
    }
    arguments |= FIXED_ARGUMENTS | {
        "output_dir": str(checkpoints),
        "use_cpu": not torch.accelerator.is_available(),  # otherwise bf16 is rejected on a CPU
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "report_to": config.report_to or "none",
        "run_name": checkpoints.parent.name,
        "accelerator_config": {"even_batches": False},  # True would repeat rows
        "ddp_find_unused_parameters": True,  # such as a pooler that the head does not use
        "ddp_broadcast_buffers": False,  # buffers are constant, and swag runs two forward passes per backward
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    }
    if config.compile and not torch.accelerator.is_available() and shutil.which("g++") is None:
        raise UserError(
            "--compile: needs a C++ compiler on a CPU, and g++ is not installed; install g++ or leave it out"
        )
    try:
        return TrainingArguments(**arguments | parse_set_flag(config))
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise UserError(f"TrainingArguments rejects these settings: {str(error).splitlines()[0]}") from error


# ---- experiment trackers


def check_tracker(name: str | None) -> None:
    """Refuse an experiment tracker that would fail when training begins, or prompt for a key.

    Raises:
        UserError: the tracker does not exist, is not installed, or is wandb without a key.
    """
    if name in (None, "none"):
        return
    if name not in TRACKERS:
        _check_other_tracker(name)
    elif importlib.util.find_spec(name) is None:
        raise UserError(f"--report-to {name}: is not installed; run pip install {name}")
    elif name == "wandb":
        _check_wandb()


def _check_other_tracker(name: str) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as KNOWN
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    if name not in KNOWN:
        raise UserError(
            f"--report-to {name}: no such tracker; use {', '.join(TRACKERS)} or none"
            f"{suggest_similar(name, TRACKERS)}"
        )
    if name not in get_available_reporting_integrations():
        raise UserError(
            f"--report-to {name}: its package is not installed; install it (see transformers' page on "
            f"callbacks), or use {', '.join(TRACKERS)} or none"
        )


def _check_wandb() -> None:
    """Check the key, because wandb would prompt for one, or without a network wait for 90 seconds."""
    import wandb

    alternative = "or set WANDB_MODE=offline to keep everything on this machine"
    if wandb.setup().settings.mode in OFFLINE_MODES:
        return
    try:
        is_logged_in = wandb.login(prompt=False)
    except wandb.Error as error:
        raise UserError(
            f"--report-to wandb: {summarize_error(error).rstrip('.')}; try again, run wandb login, "
            f"{alternative}"
        ) from error
    if not is_logged_in:
        raise UserError(f"--report-to wandb: no API key; run wandb login, {alternative}")


def set_tensorboard_dir(trainer: Any, folder: Path) -> None:
    """Make TensorBoard log into `folder`, unless TENSORBOARD_LOGGING_DIR is set.

    By default, Trainer logs into the checkpoint directory, in a folder named after date and host.
    """
    from transformers.integrations import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)
