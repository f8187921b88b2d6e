"""Skip what a head that reads [CLS] does not need: all other positions after the attention of the last layer.

In the last layer, the other positions are keys and values of [CLS]. Nothing reads what their feed-forward
networks compute, and their gradients are 0.
"""

import math
from typing import Any

import torch
from torch import nn

from bertkit.modeling.heads import CHOICE_HEAD, SEQUENCE_HEAD
from bertkit.modeling.layers import find_encoder_layers, list_submodels

# Submodules of a layer that compute position 0 only, by the first of them. Where this is the feed-forward
# network alone, the residual connection broadcasts its output to all positions. Only position 0 is valid.
SKIPPED_PARTS = {
    "attention.output": ("attention.output", "intermediate", "output"),  # BERT
    "mlp": ("mlp",),  # ModernBERT
    "ffn": ("ffn",),  # DistilBERT
}
PROBE_LENGTH = 4


def compute_first_position_only(model: Any) -> None:
    """Make the last layer compute only position 0 after its attention, if the head reads no other position.

    The logits and the gradients do not change, except for rounding. The model's last hidden states are valid
    at position 0 only.

    Args:
        model: Any model. It does not change if its head reads other positions, if its layers share their
            weights, or if its architecture has an attention of its own.
    """
    for submodel in list_submodels(model):
        if hasattr(submodel, "first_position"):  # its hook would hide from this function what the head reads
            submodel.first_position[0].remove()
            del submodel.first_position
        if (layer := _find_last_layer(submodel)) is None or not _reads_first_position_only(submodel, layer):
            continue
        for part, skipped in SKIPPED_PARTS.items():
            if all(_has_submodule(layer, name) for name in skipped):
                hook = layer.get_submodule(part).register_forward_pre_hook(_keep_first_position)
                submodel.first_position = hook, [layer.get_submodule(name) for name in skipped]
                break


def _find_last_layer(model: Any) -> nn.Module | None:
    has_head = type(model).__name__.endswith((SEQUENCE_HEAD, CHOICE_HEAD))
    has_chunks = getattr(model.config, "chunk_size_feed_forward", 0) > 0  # which must divide the sequence
    if not has_head or has_chunks or not model.base_model._supports_attention_backend:
        return None
    found = find_encoder_layers(model)
    return None if found is None else model.get_submodule(found[0])[-1]


def _reads_first_position_only(model: Any, layer: nn.Module) -> bool:
    """Return whether the logits stay finite if all other positions of the last layer are NaN."""

    def replace_by_nan(_: Any, __: Any, output: Any) -> Any:
        states = (output[0] if isinstance(output, tuple) else output).clone()
        states[:, 1:] = math.nan
        return (states, *output[1:]) if isinstance(output, tuple) else states

    shape = (1, 1, PROBE_LENGTH) if type(model).__name__.endswith(CHOICE_HEAD) else (1, PROBE_LENGTH)
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


def _keep_first_position(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(states[:, :1] for states in inputs)


def _has_submodule(module: nn.Module, name: str) -> bool:
    return name in dict(module.named_modules())
