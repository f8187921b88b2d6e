"""From settings to `TrainingArguments`: what a setting names as its `argument`, plus what is always ours."""

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bertkit.config import RunConfig, get_flag, get_settings
from bertkit.errors import UserError, suggest_similar

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Trainer's own evaluation, saving and best-model logic are off: bertkit evaluates in fp32, checkpoints
# whole or not at all, and chooses the best itself. What a user sets here would not do what it says.
FIXED_ARGUMENTS: dict[str, Any] = {
    "output_dir": None, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
    "remove_unused_columns": False, "label_names": [], "disable_tqdm": True, "push_to_hub": False,
    "logging_nan_inf_filter": False, "logging_steps": 10, "data_seed": None,
}  # fmt: skip
OVERRIDABLE_ARGUMENTS = {"logging_steps"}  # ours by default, the user's if he likes
# These would be accepted and do nothing, or undo what bertkit promises; where there is a flag, it is named.
REFUSED_ARGUMENTS = {
    "label_smoothing_factor": "use --label-smoothing", "save_steps": "use --save-steps",
    "torch_compile": "use --compile",
    "resume_from_checkpoint": "use --resume", "accelerator_config": "bertkit keeps it",
    **dict.fromkeys([
        "metric_for_best_model", "greater_is_better", "eval_steps", "eval_delay", "eval_on_start",
        "save_total_limit", "save_only_model", "do_train", "do_eval", "do_predict", "dataloader_drop_last",
        "auto_find_batch_size", "length_column_name", "use_cpu", "activation_checkpointing_kwargs",
    ], "bertkit decides it itself"),
}  # fmt: skip


def parse_set_flag(config: RunConfig) -> dict[str, Any]:
    """The KEY=VALUE pairs of `--set`, values as YAML.

    Raises:
        UserError: no such argument, one that has a flag of its own, or one that bertkit keeps.
    """
    if not config.set:  # transformers takes a second to import, and a refusal may need none of it
        return {}
    from transformers import TrainingArguments

    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    flags = {
        about.training_argument: get_flag(name, about) for name, (_, about, _) in get_settings(type(config)).items()
    }
    given = {}
    for pair in config.set:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"--set {pair}: must be KEY=VALUE")
        if key in flags:
            raise UserError(f"--set {key}: has a flag of its own, {flags[key]}")
        if key in FIXED_ARGUMENTS and key not in OVERRIDABLE_ARGUMENTS:
            raise UserError(f"--set {key}: bertkit keeps this one at {FIXED_ARGUMENTS[key]!r}")
        if key in REFUSED_ARGUMENTS:
            raise UserError(f"--set {key}: {REFUSED_ARGUMENTS[key]}")
        if key == "train_sampling_strategy" and value not in ("random", "sequential"):
            raise UserError(
                f"--set {pair}: random or sequential; bertkit's own order groups by length already"
            )
        if key not in fields:
            raise UserError(f"--set {key}: TrainingArguments has no such field{suggest_similar(key, fields)}")
        try:
            given[key] = _value(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {pair}: the value is no YAML ({' '.join(str(error).split())})") from error
    return given


def _value(text: str) -> Any:
    """YAML, but for numbers such as 1e-6, which YAML 1.1 reads as text."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def build_training_arguments(config: RunConfig, checkpoints: Path, precision: str) -> "TrainingArguments":
    """The arguments of a resolved config. Raises `UserError` where `TrainingArguments` refuses a value."""
    import torch
    from transformers import TrainingArguments

    named = {
        about.training_argument: getattr(config, name)
        for name, (_, about, _) in get_settings(type(config)).items()
        if about.training_argument and getattr(config, name) is not None
    }
    named |= FIXED_ARGUMENTS | {
        "output_dir": str(checkpoints),
        "use_cpu": not torch.accelerator.is_available(),  # else bf16 is refused on a CPU
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "report_to": config.report_to or "none",
        "run_name": checkpoints.parent.name,
        "accelerator_config": {"even_batches": False},  # it would repeat rows
        "ddp_find_unused_parameters": True,  # a pooler, say, that no head asks
        "ddp_broadcast_buffers": False,  # none changes, and choices take two forward passes to a backward
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    }
    if config.compile and not torch.accelerator.is_available() and shutil.which("g++") is None:
        raise UserError("--compile: on a CPU it needs a C++ compiler (g++) and there is none")
    try:
        return TrainingArguments(**named | parse_set_flag(config))
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise UserError(f"Trainer refuses these settings: {str(error).splitlines()[0]}") from error
