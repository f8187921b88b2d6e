"""Registration of attention functions with transformers' `AttentionInterface`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

AttentionFunction = Callable[..., tuple["torch.Tensor", Any]]


def set_attention(model: Any, name: str, attention: AttentionFunction, mask_function: Any) -> None:
    """Register an attention function with transformers, and make a model use it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_function)
    model.set_attn_implementation(name)
