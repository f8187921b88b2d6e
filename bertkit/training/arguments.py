"""How settings become `TrainingArguments`, defaults that depend on sizes, trackers and number formats."""

import dataclasses
import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import torch
import yaml

from bertkit.data.hub import summarize_error
from bertkit.errors import UserError, format_count, suggest_similar
from bertkit.settings.declaration import get_flag, get_settings
from bertkit.settings.run_settings import TRACKERS, RunConfig
from bertkit.utils import devices, system
from bertkit.utils.compat import get_argument_name
from bertkit.utils.system import DEFAULT_COMPILER, can_run_compiler

if TYPE_CHECKING:
    from transformers import TrainingArguments


# ---- TrainingArguments, and what `--set` may change

# Arguments that turn off Trainer's evaluation, checkpoint schedule and selection of the best model. bertkit
# evaluates in fp32, writes checkpoints atomically and selects the best checkpoint itself. `--set` may change
# only `logging_steps`.
FIXED_ARGUMENTS: dict[str, Any] = {
    "output_dir": None, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
    "remove_unused_columns": False, "label_names": [], "disable_tqdm": True, "push_to_hub": False,
    "logging_nan_inf_filter": False, "logging_steps": 10, "data_seed": None,
}  # fmt: skip
VALUE_TYPES = {bool: "true or false", int: "an integer", float: "a number"}
# Arguments that --set refuses, with the fix. They would have no effect, or break a guarantee of bertkit.
REFUSED_ARGUMENTS = {
    "label_smoothing_factor": "use --label-smoothing", "save_steps": "use --save-steps",
    "torch_compile": "use --compile", "metric_for_best_model": "use --metric-for-best-model",
    "greater_is_better": "use --greater-is-better",
    "resume_from_checkpoint": "use --resume", "accelerator_config": "is set by bertkit; omit it",
    **dict.fromkeys([
        "eval_steps", "eval_delay", "eval_on_start",
        "save_total_limit", "save_only_model", "do_train", "do_eval", "do_predict", "dataloader_drop_last",
        "auto_find_batch_size", "length_column_name", "use_cpu", "activation_checkpointing_kwargs",
    ], "is set by bertkit; omit it"),
}  # fmt: skip


def parse_extra_arguments(config: RunConfig) -> dict[str, Any]:
    """Return the `TrainingArguments` fields that `--set KEY=VALUE` sets, with values parsed as YAML."""
    for pair in config.set:
        if "=" not in pair:
            raise UserError(f"--set {pair}: is not KEY=VALUE; write --set KEY=VALUE")
    if not config.set:
        return {}  # without importing transformers, which takes a second
    flag_by_argument = {
        get_argument_name(setting.training_argument): get_flag(name, setting)
        for name, (_, setting, _) in get_settings(type(config)).items()
        if setting.training_argument
    }
    arguments = {}
    for pair in config.set:
        key, _, value = pair.partition("=")
        if key in flag_by_argument:
            raise UserError(f"--set {key}: has its own flag; use {flag_by_argument[key]}")
        arguments[key] = _parse_argument(key, value)
    return arguments


def _parse_argument(key: str, text: str) -> Any:
    """Return the value of a field of `TrainingArguments`, if `--set` may change it.

    Numbers such as 1e-6 are texts in YAML 1.1. Trainer would fail in the first step if a number or a boolean
    had another type.
    """
    if key in FIXED_ARGUMENTS and key != "logging_steps":
        raise UserError(f"--set {key}: is fixed at {FIXED_ARGUMENTS[key]!r} by bertkit; omit it")
    if fix := {get_argument_name(name): fix for name, fix in REFUSED_ARGUMENTS.items()}.get(key):
        raise UserError(f"--set {key}: {fix}")
    if key == "train_sampling_strategy" and text not in ("random", "sequential"):
        raise UserError(f"--set {key}={text}: use random or sequential; bertkit groups by length by default")
    from transformers import TrainingArguments  # here, because its import takes a second

    fields = {field.name for field in dataclasses.fields(TrainingArguments)}
    if key not in fields:
        fix = suggest_similar(key, fields) or "; omit it"
        raise UserError(f"--set {key}: TrainingArguments has no such field{fix}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--set {key}={text}: cannot parse the value as YAML ({reason}); quote it") from error
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    hint = get_type_hints(TrainingArguments)[key]
    types = set(get_args(hint) or (hint,)) - {NoneType}
    expected = next((name for kind, name in VALUE_TYPES.items() if types == {kind}), None)
    if value is not None and expected is not None:
        is_valid = isinstance(value, (int, float) if types == {float} else tuple(types))
        if not is_valid or (isinstance(value, bool) and types != {bool}):
            raise UserError(f"--set {key}: expected {expected}, found {value!r}; change the value")
    return value


def build_training_arguments(config: RunConfig, checkpoints: Path, precision: str) -> "TrainingArguments":
    """Create the `TrainingArguments` of a run."""
    from transformers import TrainingArguments

    arguments = {
        setting.training_argument: getattr(config, name)
        for name, (_, setting, _) in get_settings(type(config)).items()
        if setting.training_argument and getattr(config, name) is not None
    }
    arguments |= FIXED_ARGUMENTS | {
        "output_dir": str(checkpoints),
        "use_cpu": not devices.has_accelerator(),  # bf16 on a CPU requires it
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "report_to": config.report_to or "none",
        "run_name": checkpoints.parent.name,
        "tf32": False,  # the weights are scored in fp32, also after training in bf16
        # even_batches would repeat examples; batches are copied to the device while it computes
        "accelerator_config": {"even_batches": False, "non_blocking": devices.copies_asynchronously()},
        "ddp_find_unused_parameters": True,  # a head may not use the pooler
        "ddp_broadcast_buffers": False,  # constant; a broadcast breaks two forward passes per backward (swag)
        "dataloader_pin_memory": devices.get_device().type not in ("cpu", "mps"),
        "activation_checkpointing_kwargs": {"use_reentrant": False},
    }
    if config.compile and not devices.has_accelerator():
        compiler = os.environ.get("CXX", DEFAULT_COMPILER)  # as in torch._inductor.config
        if not can_run_compiler(compiler):
            raise UserError(
                f"--compile: needs a C++ compiler on a CPU, but cannot run {compiler or 'an empty CXX'}; "
                f"install {DEFAULT_COMPILER}, set CXX to a compiler, or omit --compile"
            )
    try:
        arguments = {get_argument_name(name): value for name, value in arguments.items()}
        return _use_device(TrainingArguments(**arguments | parse_extra_arguments(config)))
    except (ValueError, TypeError, ImportError, OSError) as error:
        fix = "; change --set or omit it" if config.set else ""
        reason = str(error).splitlines()[0]
        raise UserError(f"TrainingArguments rejects these settings: {reason}{fix}") from error


def _use_device(arguments: "TrainingArguments") -> "TrainingArguments":
    """Make Trainer use the device of this process, and return its arguments.

    Trainer chooses the first GPU, and distributes batches over all GPUs with `DataParallel`, which does not
    fit bertkit's losses. It has no public setting for another GPU.
    """
    if devices.get_device().type == "cuda" and system.get_launched_world_size() == 1:
        # after Trainer set another current GPU
        arguments.__dict__["_setup_devices"] = devices.select_device()
        arguments._n_gpu = 1
    return arguments


def describe_tf32(config: RunConfig) -> str | None:
    """Return whether matrix products in fp32 are rounded to TF32, for the console; None without a GPU."""
    if devices.get_device().type != "cuda":
        return None
    return "TF32 on" if parse_extra_arguments(config).get("tf32") else "TF32 off"


# ---- experiment trackers


def check_tracker(name: str | None) -> None:
    """Refuse an experiment tracker that would fail or prompt for an API key when training begins."""
    if name in (None, "none"):
        return
    if name in TRACKERS:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--report-to {name}: is not installed; run pip install {name}")
        if name == "wandb":
            _check_wandb()
        return
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    if name not in INTEGRATION_TO_CALLBACK:
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
    """Check the API key now: later, wandb would prompt for a key, or wait 90 seconds for the network."""
    import wandb

    alternative = "or set WANDB_MODE=offline to keep everything on this machine"
    if wandb.setup().settings.mode in ("offline", "disabled", "dryrun"):  # these modes send nothing
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
    """Make TensorBoard write its logs to `folder`, unless TENSORBOARD_LOGGING_DIR is set.

    Trainer's default is a subdirectory of the checkpoint directory, named after date and host.
    """
    from transformers.integrations import TensorBoardCallback

    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)


# ---- defaults that depend on the sizes of the data and the model

# Numbers of parameters in all layers; see `compute_layer_parameters`.
TINY_MODEL, SMALL_MODEL, MEDIUM_MODEL, BASE_MODEL, LARGE_MODEL = 2e6, 15e6, 60e6, 200e6, 500e6
# Lower limits of model types for large models: He et al. 2021 (DeBERTa), appendix, use 5e-6 to 1e-5.
MAX_LARGE_MODEL_RATES = {"deberta": 1e-5, "deberta-v2": 1e-5}
# Learning rate of adapters, relative to full fine-tuning. Hu et al. 2021, table 9, use 4e-4 and 5e-4 for
# RoBERTa-base, and 2e-4 to 4e-4 for RoBERTa-large.
LORA_RATE_FACTOR = 10
MAX_MERGED_TOKENS = 2**16  # of a batch, such as 128 sequences of 512 tokens
ACTIVATION_BYTES = 100  # for each token, layer and hidden unit; BERT-BASE in bf16 takes about half
FEW_ROWS, MANY_ROWS = 5_000, 100_000  # numbers of training rows
MIN_STEPS = 200  # of the default batch size; docs/design/defaults.md compares other numbers
MIN_EXAMPLES_PER_CLASS = 160  # on average, in all epochs: with 20 classes, those of MIN_STEPS


def suggest_hyperparameters(
    rows: int, model_config: Any, unit: str = "row", is_lora: bool = False, num_classes: int = 0
) -> tuple[dict[str, Any], str]:
    """Suggest values for `epochs`, `learning_rate` and `batch_size`, with the reason in one line.

    `num_classes` is 0 if rows do not have one class each.
    """
    if rows < FEW_ROWS:
        epochs, batch_size = 4.0, 16
    elif rows <= MANY_ROWS:
        epochs, batch_size = 3.0, 32
    else:
        epochs, batch_size = 2.0, 32
    num_examples = max(MIN_STEPS * batch_size, MIN_EXAMPLES_PER_CLASS * num_classes)
    epochs = max(epochs, float(math.ceil(num_examples / max(rows, batch_size))))
    learning_rate = _suggest_learning_rate(rows, model_config)
    if is_lora:
        learning_rate = round(LORA_RATE_FACTOR * learning_rate, 6)  # 3e-4, not 0.00030000000000000003
    layers = format_count(model_config.num_hidden_layers, "layer")
    reason = f"for {format_count(rows, f'training {unit}')} and {layers} of size {model_config.hidden_size}"
    return {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}, reason


def _suggest_learning_rate(rows: int, model_config: Any) -> float:
    parameters = compute_layer_parameters(model_config)
    has_many_rows = rows > MANY_ROWS
    if parameters < TINY_MODEL:
        return 3e-4
    if parameters < SMALL_MODEL:
        return 5e-5 if has_many_rows else 1e-4
    if parameters < MEDIUM_MODEL:
        return 3e-5 if has_many_rows else 5e-5
    if parameters < BASE_MODEL:
        return 2e-5 if has_many_rows else 3e-5
    if parameters < LARGE_MODEL:
        return MAX_LARGE_MODEL_RATES.get(model_config.model_type, 2e-5)
    return 1e-5


def merge_batches(config: RunConfig, model_config: Any, example_tokens: int) -> RunConfig:
    """Return the settings with larger batches on a GPU, and the same effective batch size.

    A GPU computes a few large batches faster than many small ones. The batch size is multiplied by
    a divisor of the accumulation steps, as long as a batch has at most `MAX_MERGED_TOKENS` tokens, and its
    activations probably fit into half of the memory.
    """
    steps, memory = config.gradient_accumulation_steps, devices.get_total_memory()
    if config.batch_size is None or steps == 1 or memory is None:
        return config
    bytes_per_token = ACTIVATION_BYTES * model_config.num_hidden_layers * model_config.hidden_size
    max_tokens = min(MAX_MERGED_TOKENS, memory / 2 / bytes_per_token)
    max_factor = max_tokens / (config.batch_size * example_tokens)
    factor = max((n for n in range(2, steps + 1) if steps % n == 0 and n <= max_factor), default=1)
    return dataclasses.replace(
        config, batch_size=factor * config.batch_size, gradient_accumulation_steps=steps // factor
    )


def suggest_pretraining_rate(model_config: Any) -> float:
    """Return a learning rate for pre-training a model from scratch, which depends on its size.

    Devlin et al. 2018, A.2, use 1e-4 for BASE and LARGE, and Clark et al. 2020, appendix A, use 5e-4 for
    ELECTRA-Small (12 layers of size 256). 1.5e-3 is the rate of the recipe pretrain/imdb-tiny.
    """
    parameters = compute_layer_parameters(model_config)
    if parameters < TINY_MODEL:
        return 1.5e-3
    if parameters < SMALL_MODEL:
        return 5e-4
    return 3e-4 if parameters < MEDIUM_MODEL else 1e-4


def compute_layer_parameters(model_config: Any) -> int:
    """Return the number of parameters that BERT has in as many layers of the same width.

    The best learning rate depends on depth and width. The number of parameters of the model would be
    misleading: the layers of ALBERT have common parameters, and a large vocabulary adds parameters to a
    small encoder.
    """
    return 12 * model_config.num_hidden_layers * model_config.hidden_size**2


# ---- number formats, and deterministic algorithms


def check_precision(config: RunConfig) -> None:
    if config.fp16 and config.bf16:
        raise UserError("--fp16 and --bf16: exclude each other; leave one out")
    if config.fp16 and not devices.supports_fp16():
        raise UserError(
            f"--fp16: needs a GPU, but the device is {devices.get_device()}; omit it or use --bf16"
        )
    if config.bf16 and not devices.supports_bf16():
        raise UserError("--bf16: needs macOS 14 on this device; omit it")


def choose_precision(config: RunConfig) -> tuple[str, str]:
    """Return "fp32", "bf16" or "fp16" for training, and the reason; evaluation always uses fp32."""
    if config.fp16:
        return "fp16", "set with --fp16"
    if config.bf16 is not None:
        return ("bf16", "set with --bf16") if config.bf16 else ("fp32", "set with --no-bf16")
    if devices.is_bf16_faster():
        return "bf16", "this device computes it natively"
    return "fp32", "this device does not compute bf16 natively"


# A size with which cuBLAS and the LSTM of cuDNN are deterministic, and further variables that
# `enable_full_determinism` sets.
WORKSPACE_VARIABLE, WORKSPACE_SIZE = "CUBLAS_WORKSPACE_CONFIG", ":16:8"
VARIABLES = (
    "CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC",
)  # fmt: skip


def choose_deterministic_workspace() -> None:
    """Choose the workspace of cuBLAS, which PyTorch reads once, before the first matrix product on a GPU.

    Trainer chooses it too, but after the products of a teacher or of a frozen encoder.
    """
    os.environ.setdefault(WORKSPACE_VARIABLE, WORKSPACE_SIZE)


@contextmanager
def restore_algorithms() -> Iterator[None]:
    """Turn deterministic algorithms off at the end of the block, if they were off before.

    With `full_determinism`, Trainer turns them on for the rest of the process.
    """
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    cudnn_flags = cudnn.deterministic, cudnn.benchmark
    variables = {name: os.environ.get(name) for name in VARIABLES}
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)
        cudnn.deterministic, cudnn.benchmark = cudnn_flags
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
