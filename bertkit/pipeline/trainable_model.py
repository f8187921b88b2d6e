"""The model of a run, as it is trained: with its selected layers, adapters and frozen layers."""

from typing import Any

from bertkit.modeling.layers import count_trainable_parameters, freeze_layers
from bertkit.modeling.loading import resize_embeddings
from bertkit.modeling.lora import add_adapters, require_trainable_adapters
from bertkit.pipeline.optimized_model import optimize_model
from bertkit.pipeline.prepare import PreparedRun, count_parameters
from bertkit.pipeline.selected_layers import build_model
from bertkit.utils.reporting import Reporter


def build_trainable_model(prepared: PreparedRun, reporter: Reporter) -> Any:
    """Build the model of a run, with the adapters of `--lora` and the layers of `--freeze` frozen.

    Args:
        prepared: The run.
        reporter: Receives notes.

    Raises:
        UserError: The architecture does not support a setting, or nothing is left to train.
    """
    config = prepared.config
    model = build_model(prepared.task, prepared.model_config, prepared.model_source)
    resize_embeddings(model, prepared.tokenizer)
    if config.lora is not None:
        add_adapters(model, config.lora)
    freeze_layers(model, config.freeze)
    if config.lora is not None:
        require_trainable_adapters(model, config.lora, config.freeze)
        reporter.info(_describe_adapters(prepared, count_trainable_parameters(model)))
    optimize_model(model, config, prepared.precision, reporter)
    return model


def _describe_adapters(prepared: PreparedRun, num_trainable: int) -> str:
    total = count_parameters(prepared.model_config)
    return (
        f"--lora {prepared.config.lora}: trains {num_trainable:,} parameters, those of the adapters and the "
        f"head; the encoder has {total:,}"
    )
