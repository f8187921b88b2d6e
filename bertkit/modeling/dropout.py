"""Dropout probabilities of a model."""

from torch import nn


def set_dropout(model: nn.Module, p: float) -> None:
    """Set the dropout probability of all modules of `model`; its config keeps the original value."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
