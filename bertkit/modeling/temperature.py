"""A temperature that is folded into the output layer: its weights and its bias are divided by it.

The model then computes logits that are divided by the temperature, in any program that loads it.
"""

from pathlib import Path
from typing import Any

import torch

from bertkit.errors import UserError, format_list
from bertkit.modeling.heads import find_output_layer
from bertkit.modeling.loading import WEIGHTS_FILE

TEMPERATURE_KEY = "bertkit_temperature"  # in the metadata of the file of weights


def read_temperature(run: Path) -> float:
    """Return the temperature that is folded into the weights of a run; 1 for weights as trained.

    The file of weights itself states the temperature, so that both are always replaced together.

    Raises:
        UserError: The weights are not in a single file.
    """
    from safetensors import safe_open

    path = run / WEIGHTS_FILE
    if not path.exists():
        raise UserError(
            f"{run}: has no {WEIGHTS_FILE}; pass the output directory of a training command with this file"
        )
    with safe_open(path, "pt") as file:
        return float((file.metadata() or {}).get(TEMPERATURE_KEY, 1.0))


def divide_output_layer(model: Any, divisor: float) -> list[str]:
    """Divide the weight and the bias of a loaded model's output layer; return the names of both parameters.

    Raises:
        UserError: The model has no linear output layer.
    """
    name, layer = find_output_layer(model)
    parameters = dict(layer.named_parameters(name))
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.div_(divisor)
    return list(parameters)


def write_divided_weights(
    run: Path, staging: Path, names: list[str], divisor: float, temperature: float
) -> None:
    """Write the weights of a run into another directory, with some parameters divided.

    Args:
        run: The run directory.
        staging: The other directory.
        names: Names of the parameters of the output layer.
        divisor: Number that these parameters are divided by.
        temperature: The temperature that the new weights contain.

    Raises:
        UserError: The file has other names, those of the file that the model was loaded from in training.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(run / WEIGHTS_FILE, "pt") as file:
        metadata = {**(file.metadata() or {}), TEMPERATURE_KEY: repr(temperature)}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    if missing := [name for name in names if name not in tensors]:
        raise UserError(f"{run / WEIGHTS_FILE}: lacks {format_list(missing)}; train the run again")
    for name in names:
        tensors[name] = (tensors[name].double() / divisor).to(tensors[name].dtype)
    save_file(tensors, staging / WEIGHTS_FILE, metadata)
