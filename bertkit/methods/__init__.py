"""The methods of training: how the weights of a run learn. Without a method, a run fine-tunes all weights."""

from pathlib import Path

from bertkit.methods.base import Method
from bertkit.methods.distill import Distillation
from bertkit.methods.lora import Lora
from bertkit.methods.vectors import Contrastive, FrozenFeatures, LinearProbe
from bertkit.settings.run_settings import RunConfig


def choose_methods(config: RunConfig) -> list[Method]:
    """Return the methods that the settings select, in the order in which a run applies them."""
    methods: list[Method] = []
    if config.features is not None:
        methods.append(FrozenFeatures())
    if config.method == "contrastive":
        methods.append(Contrastive())
    if config.method == "linear-probe":
        methods.append(LinearProbe())
    if config.teacher:
        methods.append(Distillation(Path(config.teacher)))
    if config.lora is not None:
        methods.append(Lora(config.lora))
    return methods
