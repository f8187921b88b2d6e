"""The encoder's layers in any architecture: their parameters (`--freeze`, `--layer-decay`), and compiled."""

from typing import Any

from torch import nn

from bertkit.errors import UserError


def map_parameters_to_layers(model: Any, flag: str) -> dict[str, int]:
    """Parameter name -> 0 for the embeddings, 1 ... L for the encoder's layers, L + 1 for the head.

    Raises:
        UserError: layers share their parameters (ALBERT), or cannot be found.
    """
    layers = _encoder_layers(model)
    if layers is None:
        raise UserError(f"{flag}: {model.config.model_type} has no separate encoder layers to tell apart")
    prefix, count = layers
    numbers = {}
    for name, _ in model.named_parameters():
        if name.startswith(prefix + "."):
            numbers[name] = int(name[len(prefix) + 1 :].split(".")[0]) + 1
        else:
            numbers[name] = (
                0 if "embeddings" in name and name.startswith(model.base_model_prefix) else count + 1
            )
    return numbers


def _encoder_layers(model: Any) -> tuple[str, int] | None:
    """The name and size of the list of encoder layers."""
    wanted = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted and _are_layers(module):
            return name, wanted
    return None


def _are_layers(modules: nn.ModuleList) -> bool:
    [name, *others] = {type(module).__name__.lower() for module in modules}
    return not others and ("layer" in name or "block" in name)


def freeze_layers(model: Any, count: int) -> int:
    """Freeze the embeddings and the lowest `count` layers (0: nothing). Returns the parameters frozen."""
    if count == 0:
        return 0
    numbers = map_parameters_to_layers(model, "--freeze")
    if count > model.config.num_hidden_layers:
        raise UserError(f"--freeze {count}: the model has {model.config.num_hidden_layers} layers")
    frozen = [p for name, p in model.named_parameters() if numbers[name] <= count]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in frozen)


def compile_layers(model: Any) -> None:
    """Have the encoder's layers compiled when they are first used.

    Each by itself, since all are alike: what is compiled of one serves for all. Sizes are left open, so that
    batches of unlike length do not compile it again and again. Where layers share their weights or cannot be
    found, the encoder is compiled as a whole.
    """
    found = _encoder_layers(model)
    layers = model.get_submodule(found[0]) if found else [model.base_model]
    for layer in layers:
        layer.compile(dynamic=True)
