"""Default hyperparameters by data and model size, and default precision by device.

Devlin et al. 2018, appendix A.3, recommend batch size 16 or 32, learning rate 2e-5 to 5e-5, and 2 to 4
epochs. For smaller BERT models, the README of google-research/bert recommends learning rates from 3e-5 to
3e-4.
"""

import dataclasses
from typing import Any

from bertkit.config import RunConfig
from bertkit.errors import UserError, format_count
from bertkit.setting import ConfigT
from bertkit.utils import devices

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


def suggest_hyperparameters(
    rows: int, model_config: Any, unit: str = "row", is_lora: bool = False
) -> tuple[dict[str, Any], str]:
    """Suggest values for `epochs`, `learning_rate` and `batch_size`.

    Args:
        rows: Number of training rows.
        model_config: The transformers config of the model.
        unit: Noun for a training row, such as "question".
        is_lora: Whether only adapters and the head are trained.

    Returns:
        The values by setting, and the reason in one line.
    """
    layers = format_count(model_config.num_hidden_layers, "layer")
    size = f"{format_count(rows, f'training {unit}')} and {layers} of size {model_config.hidden_size}"
    if rows < FEW_ROWS:
        epochs, batch_size = 4.0, 16
    elif rows <= MANY_ROWS:
        epochs, batch_size = 3.0, 32
    else:
        epochs, batch_size = 2.0, 32
    learning_rate = _suggest_learning_rate(rows, model_config)
    if is_lora:
        learning_rate = round(LORA_RATE_FACTOR * learning_rate, 6)  # 3e-4, not 0.00030000000000000003
    return {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}, f"for {size}"


def merge_batches(config: ConfigT, model_config: Any, example_tokens: int) -> ConfigT:
    """Return the settings with larger batches on a GPU, and the same effective batch size.

    A GPU computes a few large batches faster than many small ones. The batch size is multiplied by
    a divisor of the accumulation steps, as long as a batch has at most `MAX_MERGED_TOKENS` tokens, and its
    activations probably fit into half of the memory.

    Args:
        config: The settings of the run.
        model_config: The transformers config of the model.
        example_tokens: Upper bound of the number of tokens of an example.
    """
    assert isinstance(config, RunConfig)
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
    ELECTRA-Small (12 layers of size 256). 1.5e-3 is the rate of the recipe pretrain/imdb-tiny; other
    rates were compared for it only together with other batch sizes (docs/results.md).
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


def check_precision(config: RunConfig) -> None:
    """Check `--fp16` and `--bf16`.

    Raises:
        UserError: Both are set, or there is no accelerator for fp16. Trainer would silently ignore `--fp16`.
    """
    if config.fp16 and config.bf16:
        raise UserError("--fp16 and --bf16: exclude each other; leave one out")
    if config.fp16 and not devices.supports_fp16():
        raise UserError(
            f"--fp16: needs a GPU, but the device is {devices.get_device()}; leave it out or use --bf16"
        )
    if config.bf16 and not devices.supports_bf16():
        raise UserError("--bf16: needs macOS 14 on this device; leave it out")


def choose_precision(config: RunConfig) -> tuple[str, str]:
    """Choose the training precision; evaluation always uses fp32.

    Returns:
        "fp32", "bf16" or "fp16", and the reason.
    """
    if config.fp16:
        return "fp16", "set with --fp16"
    if config.bf16 is not None:
        return ("bf16", "set with --bf16") if config.bf16 else ("fp32", "set with --no-bf16")
    if devices.is_bf16_faster():
        return "bf16", "this device computes it natively"
    return "fp32", "this device does not compute bf16 natively"
