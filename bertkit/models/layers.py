"""The layers of an encoder: find, remove, freeze and compile them, and set their dropout."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bertkit.errors import UserError
from bertkit.models.heads import CHOICE_HEAD, SEQUENCE_HEAD

# Attributes of a config with one value for each layer: local or global attention (ModernBERT), and the size
# of the window (Longformer).
LAYER_LISTS = ("layer_types", "attention_window")


def list_submodels(model: Any) -> list[Any]:
    """Return the models with one encoder each of which `model` consists: itself, or its `submodels`."""
    return list(model.submodels.values()) if hasattr(model, "submodels") else [model]


def find_encoder_layers(model: Any) -> tuple[str, int] | None:
    """Return the name of the module list of encoder layers and their number, or None without such a list."""
    num_layers = model.config.num_hidden_layers
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) != num_layers:
            continue
        is_of_encoder = "decoder" not in name.split(".")  # Funnel has some layers after its encoder
        classes = {type(layer).__name__.lower() for layer in module}
        is_part = isinstance(module[0], nn.LayerNorm)  # XLM has a list for each part of its layers
        if is_of_encoder and len(classes) == 1 and not is_part:
            class_name = classes.pop()
            if "layer" in class_name or "block" in class_name:
                return name, num_layers
    return None


def require_encoder_layers(model: Any, flag: str) -> tuple[str, int]:
    """Return the name of the module list of encoder layers and their number."""
    if found := find_encoder_layers(model):
        return found
    raise UserError(f"{flag}: {model.config.model_type} has no separate encoder layers; omit {flag}")


def map_parameters_to_layers(model: Any, flag: str) -> dict[str, int]:
    """Return the layer index of each parameter by name.

    The index is 0 for the embeddings, 1 to L for the encoder's layers, and L + 1 for the head.
    """
    layers_name, num_layers = require_encoder_layers(model, flag)
    layer_by_parameter = {}
    for name, _ in model.named_parameters():
        if name.startswith(layers_name + "."):
            layer_by_parameter[name] = int(name[len(layers_name) + 1 :].split(".")[0]) + 1
        else:
            is_embedding = "embeddings" in name and name.startswith(model.base_model_prefix)
            layer_by_parameter[name] = 0 if is_embedding else num_layers + 1
    return layer_by_parameter


# ---- fewer layers, and frozen layers


def choose_layers(num_layers: int, count: int) -> list[int]:
    """Return the indices of `count` layers, evenly spread from the first to the last.

    If `count` is 1, this is the first layer. Of 12 layers, 6 are 0, 2, 4, 7, 9 and 11, as in DistilBERT (Sanh
    et al. 2019).
    """
    return [round(index * (num_layers - 1) / max(1, count - 1)) for index in range(count)]


def select_layers_of_config(config: Any, indices: Sequence[int]) -> None:
    """Change the config of a model to that of a model with only these layers."""
    config.num_hidden_layers = len(indices)
    for name in LAYER_LISTS:
        if isinstance(values := getattr(config, name, None), list):
            setattr(config, name, [values[index] for index in indices])


def keep_layers(model: Any, indices: Sequence[int], flag: str) -> None:
    """Remove the other encoder layers from a model."""
    layers_name, _ = require_encoder_layers(model, flag)
    parent, _, name = layers_name.rpartition(".")
    layers = model.get_submodule(layers_name)
    kept = nn.ModuleList([layers[index] for index in indices])
    for number, layer in enumerate(kept):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number  # type: ignore[assignment]
    setattr(model.get_submodule(parent), name, kept)
    select_layers_of_config(model.config, indices)


def count_trainable_parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def freeze_layers(model: Any, count: int) -> int:
    """Freeze the embeddings and the lowest `count` layers, if it is not 0; return how many parameters."""
    if count == 0:
        return 0
    layer_by_parameter = map_parameters_to_layers(model, "--freeze")
    num_layers = model.config.num_hidden_layers
    if count > num_layers:
        raise UserError(f"--freeze {count}: the model has {num_layers} layers; pass at most {num_layers}")
    frozen = [parameter for name, parameter in model.named_parameters() if layer_by_parameter[name] <= count]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in frozen)


# ---- faster steps, and steps with less memory


def supports_activation_checkpointing(model: Any) -> bool:
    """Return whether the encoder can recompute its activations; in transformers, ALBERT cannot."""
    return bool(model.base_model.supports_gradient_checkpointing)


def check_activation_checkpointing(model: Any) -> None:
    if not supports_activation_checkpointing(model):
        raise UserError(
            f"--gradient-checkpointing: {model.config.model_type} does not support it; omit it, or save "
            "memory with a smaller --batch-size and --gradient-accumulation-steps"
        )


def compile_layers(model: Any) -> None:
    """Compile the encoder's layers on first use.

    The layers are alike, so the code compiled for one layer is reused for all of them. Sizes stay dynamic:
    batches of different lengths do not trigger recompilation. If the layers share their weights or cannot be
    found, the encoder is compiled as a whole.
    """
    for submodel in list_submodels(model):
        found = find_encoder_layers(submodel)
        for layer in submodel.get_submodule(found[0]) if found else [submodel.base_model]:
            layer.compile(dynamic=True)


# Submodules of a layer that compute position 0 only, by the first of them. Where this is the feed-forward
# network alone, the residual connection broadcasts its output to all positions. Only position 0 is valid.
SKIPPED_PARTS = {
    "attention.output": ("attention.output", "intermediate", "output"),  # BERT
    "mlp": ("mlp",),  # ModernBERT
    "ffn": ("ffn",),  # DistilBERT
}


def compute_first_position_only(model: Any) -> None:
    """Make the last layer compute only position 0 after its attention, if the head reads no other position.

    The logits and the gradients do not change, except for rounding. The model's last hidden states are valid
    at position 0 only. Models whose layers share their weights, or with an attention of their own, do not
    change.
    """
    for submodel in list_submodels(model):
        if hasattr(submodel, "first_position"):  # its hook would hide from this function what the head reads
            submodel.first_position[0].remove()
            del submodel.first_position
        has_head = type(submodel).__name__.endswith((SEQUENCE_HEAD, CHOICE_HEAD))
        # the size of a chunk must divide the sequence
        has_chunks = getattr(submodel.config, "chunk_size_feed_forward", 0) > 0
        if not has_head or has_chunks or not submodel.base_model._supports_attention_backend:
            continue
        if (found := find_encoder_layers(submodel)) is None:
            continue
        layer = submodel.get_submodule(found[0])[-1]
        if not _reads_first_position_only(submodel, layer):
            continue
        names = dict(layer.named_modules())
        for part, skipped in SKIPPED_PARTS.items():
            if all(name in names for name in skipped):
                hook = layer.get_submodule(part).register_forward_pre_hook(
                    lambda _, inputs: tuple(states[:, :1] for states in inputs)
                )
                submodel.first_position = hook, [layer.get_submodule(name) for name in skipped]
                break


def _reads_first_position_only(model: Any, layer: nn.Module) -> bool:
    """Return whether the logits stay finite if all other positions of the last layer are NaN."""

    def replace_by_nan(_: Any, __: Any, output: Any) -> Any:
        states = (output[0] if isinstance(output, tuple) else output).clone()
        states[:, 1:] = math.nan
        return (states, *output[1:]) if isinstance(output, tuple) else states

    shape = (1, 1, 4) if type(model).__name__.endswith(CHOICE_HEAD) else (1, 4)
    mask = torch.ones(shape, dtype=torch.long, device=model.device)
    # decoders such as GPT-2 read the last token that is not padding, and the first one if all are
    token = 1 if model.config.pad_token_id == 0 else 0
    was_training = model.training
    hook = layer.register_forward_hook(replace_by_nan)
    with torch.no_grad():
        logits = model.eval()(input_ids=torch.full_like(mask, token), attention_mask=mask).logits
    hook.remove()
    model.train(was_training)
    return bool(logits.isfinite().all())


class AutocastLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` with inputs and outputs in the format of autocast; mean and variance are in fp32.

    Stock autocast computes in fp32, so each residual connection is in fp32, and each of the following linear
    layers converts its input to bf16 again. Without these conversions, a step of BERT-BASE with 32 texts of
    up to 128 tokens takes a quarter less time on an H200. MosaicBERT (Portes et al. 2023) trains like this.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        device = input.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(input)
        dtype = torch.get_autocast_dtype(device)
        weight, bias = (None if each is None else each.to(dtype) for each in (self.weight, self.bias))
        with torch.autocast(device, enabled=False):
            return nn.functional.layer_norm(input.to(dtype), self.normalized_shape, weight, bias, self.eps)


def use_autocast_layer_norm(model: Any) -> None:
    """Replace each `nn.LayerNorm` of a model; subclasses stay, because they may compute something else."""
    for module in model.modules():
        if type(module) is nn.LayerNorm:
            module.__class__ = AutocastLayerNorm


# ---- dropout


def set_dropout(model: nn.Module, p: float) -> None:
    """Set the dropout probability of all modules of `model`; its config keeps the original value."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p


QUERY_LAYERS = ("query", "query_proj", "q", "q_lin", "Wqkv")  # names of the projection in attention layers
DROPOUT_NAMES = ("attention_dropout", "dropout")


def set_attention_dropout(model: Any, p: float) -> None:
    """Set the dropout probability of all attention weights; the config keeps the original value."""
    attributes = list(_find_attention_dropouts(model))
    if not attributes:
        raise UserError(f"--attention-dropout: {model.config.model_type} drops no attention weights; omit it")
    for layer, name in attributes:
        dropout = getattr(layer, name)
        if isinstance(dropout, nn.Dropout):
            dropout.p = p
        else:
            setattr(layer, name, p)


def get_attention_dropout(model: Any) -> float:
    """Return the highest dropout probability of attention weights; 0 if there is no dropout."""
    dropouts = [getattr(layer, name) for layer, name in _find_attention_dropouts(model)]
    return max((d.p if isinstance(d, nn.Dropout) else d for d in dropouts), default=0.0)


def _find_attention_dropouts(model: Any) -> Iterator[tuple[nn.Module, str]]:
    """Yield each attention layer with the name of its dropout, a module or a probability."""
    for module in model.base_model.modules():
        if any(hasattr(module, name) for name in QUERY_LAYERS):
            name = next((name for name in DROPOUT_NAMES if hasattr(module, name)), None)
            if name is not None:
                yield module, name
