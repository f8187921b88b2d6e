"""The methods of training: how the weights of a run learn. Without a method, a run fine-tunes all weights."""

from pathlib import Path

from bertkit.methods.base import Method
from bertkit.methods.contrastive import Contrastive, LinearProbe
from bertkit.methods.distill import Distillation
from bertkit.methods.frozen import FrozenFeatures
from bertkit.methods.lora import Lora
from bertkit.settings.run_settings import RunConfig

HEAD_METHODS = {"contrastive": Contrastive, "linear-probe": LinearProbe}  # by the value of `--method`


def choose_methods(config: RunConfig) -> list[Method]:
    """Return the methods that the settings select, in the order in which a run applies them."""
    methods: list[Method] = []
    if config.features is not None:
        methods.append(FrozenFeatures())
    if head_method := HEAD_METHODS.get(config.method):
        methods.append(head_method())
    if teacher := config.teacher:
        methods.append(Distillation(Path(teacher)))
    if config.lora is not None:
        methods.append(Lora(config.lora))
    return methods
