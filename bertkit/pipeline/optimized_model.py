"""Replacement of parts of a model by faster equivalents."""

from typing import Any

from bertkit.config import RunConfig
from bertkit.modeling.attention_dropout import set_attention_dropout
from bertkit.modeling.batch_lengths import build_masks_from_lengths
from bertkit.modeling.cpu.acceleration import accelerate_on_cpu
from bertkit.modeling.first_position import compute_first_position_only
from bertkit.modeling.layer_norm import use_autocast_layer_norm
from bertkit.modeling.layers import check_activation_checkpointing, compile_layers, list_submodels
from bertkit.modeling.packing import describe_packed_attention, enable_packing
from bertkit.utils import devices, distributed
from bertkit.utils.allocator import keep_freed_memory
from bertkit.utils.reporting import Reporter


def optimize_model(model: Any, config: RunConfig, precision: str, reporter: Reporter) -> None:
    """Prepare `model` for fast training, and compile its layers if requested.

    Args:
        model: A model with a head.
        config: The settings of the run.
        precision: Training precision: "fp32", "bf16" or "fp16".
        reporter: Receives notes.

    Raises:
        UserError: The architecture does not support a setting.
    """
    if config.attention_dropout is not None:
        for submodel in list_submodels(model):
            set_attention_dropout(submodel, config.attention_dropout)
    if not devices.runs_asynchronously():
        keep_freed_memory()
        if not config.compile:
            accelerate_on_cpu(model, is_single_process=distributed.get_world_size() == 1)
    elif precision == "bf16":  # in fp16, the sums of residual connections could overflow
        use_autocast_layer_norm(model)
    if config.gradient_checkpointing:
        check_activation_checkpointing(model)
    if config.pack:
        for submodel in list_submodels(model):
            enable_packing(submodel)
        if note := describe_packed_attention(model, precision):
            reporter.info(note)
    elif devices.runs_asynchronously():
        for submodel in list_submodels(model):
            build_masks_from_lengths(submodel)
    if not (config.pack or config.compile):  # packed sequences have no common first position
        compute_first_position_only(model)
    if config.compile:
        compile_layers(model)
        reporter.info("the encoder is compiled during the first steps, which therefore take longer")
