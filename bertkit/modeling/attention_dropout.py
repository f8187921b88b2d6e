"""The dropout of attention weights, which architectures store under different names."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from bertkit.errors import UserError

QUERY_LAYERS = ("query", "query_proj", "q", "q_lin", "Wqkv")  # names of the projection in attention layers
DROPOUT_NAMES = ("attention_dropout", "dropout")


def set_attention_dropout(model: Any, p: float) -> None:
    """Set the dropout probability of all attention weights; the config keeps the original value.

    Raises:
        UserError: The attention layers of the architecture have no dropout.
    """
    attributes = list(_find_attention_dropouts(model))
    if not attributes:
        raise UserError(
            f"--attention-dropout: {model.config.model_type} drops no attention weights; leave it out"
        )
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
