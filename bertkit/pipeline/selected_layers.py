"""The setting `num_layers`: a model with some of the encoder layers of another one."""

import copy
import dataclasses
from typing import Any

from bertkit.config import FineTuningConfig, RunConfig
from bertkit.errors import UserError, format_count
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.tasks.base import Task

FLAG = "--num-layers"


def get_num_layers(config: RunConfig) -> int | None:
    """Return the number of layers to select, or None for all; `num_layers` of pre-training differs."""
    return config.num_layers if isinstance(config, FineTuningConfig) else None


def select_layers(model_config: Any, config: RunConfig, model: str) -> None:
    """Change the config of a model to that with the selected layers.

    Args:
        model_config: The config of the model.
        config: The settings of the run.
        model: Name of the model, for the error.

    Raises:
        UserError: The model does not have more layers.
    """
    count = get_num_layers(config)
    if count is None:
        return
    from bertkit.modeling.layers import choose_layers, select_layers_of_config

    num_layers = model_config.num_hidden_layers
    if count >= num_layers:
        raise UserError(f"{FLAG} {count}: {model} has {num_layers} layers; pass a smaller number")
    try:
        select_layers_of_config(model_config, choose_layers(num_layers, count))
    except NotImplementedError as error:  # Funnel derives their number from its blocks
        raise UserError(
            f"{FLAG}: {model_config.model_type} has no separate encoder layers; leave out {FLAG}"
        ) from error


def name_model(source: ModelSource, config: RunConfig) -> ModelSource:
    """Return the origin of a model with a name that shows the number of selected layers."""
    count = get_num_layers(config)
    if count is None:
        return source
    return dataclasses.replace(source, name=f"{source.name}-{format_count(count, 'layer').replace(' ', '-')}")


def build_model(task: Task, model_config: Any, source: ModelSource) -> Any:
    """Build the model of a run; with `num_layers`, remove the other layers of the loaded model."""
    count = get_num_layers(task.config)
    if count is None:
        return task.build_model(model_config, source)
    from bertkit.modeling.layers import LAYER_LISTS, choose_layers, keep_layers

    saved = loading.load_config(source)
    full_config = copy.deepcopy(model_config)
    for name in ("num_hidden_layers", *LAYER_LISTS):
        if hasattr(saved, name):
            setattr(full_config, name, getattr(saved, name))
    model = task.build_model(full_config, source)
    keep_layers(model, choose_layers(saved.num_hidden_layers, count), FLAG)
    return model
