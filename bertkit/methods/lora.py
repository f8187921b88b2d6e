"""Low-rank adaptation (LoRA, Hu et al. 2021): train small matrices beside the frozen weights of an encoder.

The output of an adapted linear layer is `x @ W.T + alpha / rank * (x @ A.T) @ B.T`. Training changes only A,
`[rank, in_features]`, and B, `[out_features, rank]`, which starts at 0. After training, the product is added
to W, so the model has its original layers again. Adapters are added to the layers that peft adapts by
default.
"""

from typing import Any

from torch import nn

from bertkit.errors import UserError
from bertkit.methods.base import Method, PreparedRun
from bertkit.models.layers import count_trainable_parameters, find_encoder_layers, freeze_layers
from bertkit.utils.reporting import report_info

ALPHA_PER_RANK = 2  # Hu et al. 2021, table 9, use 1 or 2 for RoBERTa


class Lora(Method):
    """Adapters and the head are trained, and the adapters are added to the weights after training."""

    trains_adapters = True
    needs_all_weights = True

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.flag = f"--lora {rank}"

    def adapt_model(self, run: PreparedRun, model: Any) -> None:
        freeze = run.config.freeze
        add_adapters(model, self.rank)
        freeze_layers(model, freeze)
        layers = _find_adapted_layers(model).values()
        if not any(parameter.requires_grad for layer in layers for parameter in layer.parameters()):
            raise UserError(
                f"{self.flag}: --freeze {freeze} freezes all layers, so no adapter is trained; freeze fewer "
                "layers, or omit --lora"
            )
        report_info(
            f"{self.flag}: trains {count_trainable_parameters(model):,} parameters, those of the adapters "
            f"and the head; the encoder has {run.num_encoder_parameters:,}"
        )

    def finish(self, run: PreparedRun, model: Any) -> bool:
        merge_adapters(model)
        return True  # the last bits change; the predictions of the run must be those of the saved model


def add_adapters(model: Any, rank: int) -> None:
    """Freeze the encoder, and add adapters of this rank to its layers in place. The head stays trainable."""
    from peft import LoraConfig, LoraModel
    from transformers.pytorch_utils import Conv1D

    size = model.config.hidden_size
    if rank > size:
        raise UserError(f"--lora {rank}: the hidden size of the model is {size}; pass a smaller rank")
    # peft freezes all parameters. Those after the layers of the encoder (the pooler, the last LayerNorm and
    # the head) stay trainable. An encoder registers its modules in the order of the forward pass.
    stack = _find_layer_stack(model).removeprefix(model.base_model_prefix + ".")
    modules = dict(model.base_model.named_children())
    up_to_layers = list(modules.values())[: list(modules).index(stack) + 1]
    in_encoder = {id(parameter) for module in up_to_layers for parameter in module.parameters()}
    trainable = [one for one in model.parameters() if one.requires_grad and id(one) not in in_encoder]
    targets = _choose_target_modules(model)
    if not targets:
        raise UserError(
            f"--lora {rank}: {model.config.model_type} has no linear layers to adapt; omit --lora"
        )
    is_transposed = any(isinstance(module, Conv1D) for module in model.modules())  # the layers of GPT-2
    config = LoraConfig(
        r=rank, lora_alpha=ALPHA_PER_RANK * rank, target_modules=targets, fan_in_fan_out=is_transposed
    )
    LoraModel(model, config, "default")
    for parameter in trainable:
        parameter.requires_grad_(True)
    for layer in _find_adapted_layers(model).values():
        layer.cast_input_dtype_enabled = False  # autocast decides about the number format


def _find_layer_stack(model: Any) -> str:
    """Return the name of the child of the encoder that contains its layers, such as `bert.encoder`."""
    found, prefix = find_encoder_layers(model), model.base_model_prefix + "."
    if found is None and not hasattr(model.base_model, "encoder"):  # ALBERT has an encoder of shared layers
        raise UserError(f"--lora: {model.config.model_type} has no known encoder layers; omit --lora")
    return prefix + (found[0].removeprefix(prefix).partition(".")[0] if found else "encoder")


def _choose_target_modules(model: Any) -> list[str] | str:
    """Return the linear layers that peft adapts in this architecture, or all those of the encoder's layers.

    For most architectures, peft adapts the projections to queries and values, as Hu et al. do.
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS_BY_TYPE

    if model.config.model_type in TARGETS_BY_TYPE:
        return TARGETS_BY_TYPE[model.config.model_type]
    stack = _find_layer_stack(model)
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(stack + ".")
    ]


def merge_adapters(model: Any) -> None:
    """Add the adapters to the weights, and restore the original layers in place."""
    for name, layer in _find_adapted_layers(model).items():
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    del model.peft_config


def _find_adapted_layers(model: Any) -> dict[str, Any]:
    """Return the layers with adapters by name; a layer that is used several times has one name."""
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
