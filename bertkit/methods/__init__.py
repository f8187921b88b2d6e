"""The methods of training: how the weights of a run learn. Without a method, a run fine-tunes all weights."""

from pathlib import Path

from bertkit.methods.base import Method
from bertkit.methods.distill import Distillation
from bertkit.methods.linear_text import INPUTS, LinearText
from bertkit.methods.lora import Lora
from bertkit.methods.vectors import Contrastive, FrozenFeatures, LinearProbe
from bertkit.settings.run_settings import RunConfig
from bertkit.utils.plugins import find_plugin, warn_about_hidden


def choose_methods(config: RunConfig) -> list[Method]:
    """Return the methods that the settings select, in the order in which a run applies them."""
    methods: list[Method] = []
    if config.features is not None:
        methods.append(FrozenFeatures())
    if config.method == "contrastive":
        methods.append(Contrastive())
    if config.method == "linear-probe":
        methods.append(LinearProbe())
    if config.method in INPUTS:
        methods.append(LinearText(config.method))
    if find_plugin("method", config.method):
        methods.append(load_method(config.method))
    warn_about_hidden("method", config.method)
    if config.teacher:
        methods.append(Distillation(Path(config.teacher)))
    if config.lora is not None:
        methods.append(Lora(config.lora))
    return methods


def load_method(name: str) -> Method:
    """Return the method of a plugin, which must exist."""
    plugin = find_plugin("method", name)
    assert plugin is not None
    method = plugin.load()
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise plugin.make_error("does not extend bertkit.methods.base.Method")
    loaded = method()
    loaded.flag = f"--method {plugin.name}"
    return loaded
