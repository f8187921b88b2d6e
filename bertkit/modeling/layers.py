"""Access to an encoder's layers in any architecture: freezing, layer-wise learning rates, compilation."""

from typing import Any

from torch import nn

from bertkit.errors import UserError


def map_parameters_to_layers(model: Any, flag: str) -> dict[str, int]:
    """Return parameter name -> 0 for the embeddings, 1 to L for the encoder's layers, L + 1 for the head.

    Args:
        model: A model with an encoder.
        flag: The flag that needs separate layers, for the error.

    Raises:
        UserError: The layers share their parameters (ALBERT), or cannot be found.
    """
    layers = _find_encoder_layers(model)
    if layers is None:
        raise UserError(f"{flag}: {model.config.model_type} has no separate encoder layers; leave out {flag}")
    prefix, count = layers
    layer_of_parameter = {}
    for name, _ in model.named_parameters():
        if name.startswith(prefix + "."):
            layer_of_parameter[name] = int(name[len(prefix) + 1 :].split(".")[0]) + 1
        else:
            is_embedding = "embeddings" in name and name.startswith(model.base_model_prefix)
            layer_of_parameter[name] = 0 if is_embedding else count + 1
    return layer_of_parameter


def _find_encoder_layers(model: Any) -> tuple[str, int] | None:
    """Return the name of the list of encoder layers, and its length."""
    count = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and _are_layers(module):
            return name, count
    return None


def _are_layers(modules: nn.ModuleList) -> bool:
    [name, *other_names] = {type(module).__name__.lower() for module in modules}
    return not other_names and ("layer" in name or "block" in name)


def freeze_layers(model: Any, count: int) -> int:
    """Freeze the embeddings and the lowest `count` layers (0: nothing), and return the parameters frozen."""
    if count == 0:
        return 0
    layer_of_parameter = map_parameters_to_layers(model, "--freeze")
    num_layers = model.config.num_hidden_layers
    if count > num_layers:
        raise UserError(f"--freeze {count}: the model has {num_layers} layers; pass at most {num_layers}")
    frozen = [parameter for name, parameter in model.named_parameters() if layer_of_parameter[name] <= count]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in frozen)


def compile_layers(model: Any) -> None:
    """Compile the encoder's layers on first use.

    Each layer is compiled on its own. All are alike, so the code compiled for one serves for all. Sizes stay
    dynamic, so that batches of different lengths do not trigger recompilation. If layers share their weights
    or cannot be found, the encoder is compiled as a whole.
    """
    found = _find_encoder_layers(model)
    layers = model.get_submodule(found[0]) if found else [model.base_model]
    for layer in layers:
        layer.compile(dynamic=True)
