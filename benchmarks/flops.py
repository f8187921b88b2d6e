"""Count the floating-point operations that training requires, and find the peak rate of a device.

Their quotient is the model FLOPs utilization (MFU, Chowdhery et al. 2022, appendix B).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bertkit.models.layers import find_encoder_layers, list_submodels

# Model types with the usual attention and feed-forward layers. For other types, such as Longformer and
# DeBERTa, the formula would be wrong.
SUPPORTED_MODEL_TYPES = {
    "albert", "bert", "camembert", "data2vec-text", "distilbert", "electra", "ernie", "megatron-bert",
    "modernbert", "mpnet", "nomic_bert", "rembert", "roberta", "roberta-prelayernorm", "roformer",
    "xlm-roberta", "xlm-roberta-xl",
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Peak rates in TFLOP/s of products of dense matrices, accumulated in fp32. Many data sheets print the rates
# for sparse matrices, which are twice as high.
# Sources: the data sheets of NVIDIA A10, A100, H100, H200, L4, L40S, T4 and V100, and of AMD Instinct MI300X;
# for GeForce, the white papers of the architectures "Ampere GA102" and "Ada".
H100_SXM = {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp32": 66.9}
PEAK_TFLOPS = {  # pattern of the device name -> rates by precision
    r"H100 80GB HBM3": H100_SXM,
    r"H100 PCIe": {"bf16": 756.0, "fp16": 756.0, "tf32": 378.0, "fp32": 51.2},
    r"H100 NVL": {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0},
    r"H200 NVL": {"bf16": 835.5, "fp16": 835.5, "tf32": 417.5, "fp32": 60.0},
    r"H200": H100_SXM,
    r"A100": {"bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5},
    r"A10": {"bf16": 125.0, "fp16": 125.0, "tf32": 62.5, "fp32": 31.2},
    r"L40S": {"bf16": 362.1, "fp16": 362.1, "tf32": 183.0, "fp32": 91.6},
    r"L4": {"bf16": 121.0, "fp16": 121.0, "tf32": 60.0, "fp32": 30.3},
    r"T4": {"fp16": 65.0, "fp32": 8.1},
    r"V100S-PCIE": {"fp16": 130.0, "fp32": 16.4},
    r"V100-SXM2": {"fp16": 125.0, "fp32": 15.7},
    r"V100-PCIE": {"fp16": 112.0, "fp32": 14.0},
    r"RTX 3090": {"bf16": 71.0, "fp16": 71.0, "tf32": 35.6, "fp32": 35.6},
    r"RTX 4090": {"bf16": 165.2, "fp16": 165.2, "tf32": 82.6, "fp32": 82.6},
    r"MI300X": {"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4},
}
# A name is followed by the size of the memory or the form factor. Variants with other rates must not match.
NAME_PATTERN = r"\b{}(?=$|[ -](?!Ti\b|D\b|Laptop\b))"
# Sizes of the measured products: the feed-forward layer of a small encoder, or a size that fills a GPU.
CPU_SHAPE, ACCELERATOR_SHAPE = (4096, 384, 1536), (4096, 4096, 4096)
NUM_TIMINGS, MAX_SECONDS = 10, 0.2


@dataclass(frozen=True)
class SequenceCounts:
    """Numbers of sequences and predictions in some batches.

    Attributes:
        length_counts: `[max_length + 1]` number of sequences of each length, without padding.
        num_predictions: Number of predicted positions in pre-training, else 0.
    """

    length_counts: torch.Tensor
    num_predictions: int = 0

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return int(self.length_counts.sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens, without padding."""
        return int(self.length_counts @ torch.arange(len(self.length_counts)))


@dataclass(frozen=True)
class PeakFlops:
    """Peak rate of one device in operations per second, and where it is from."""

    value: float
    source: str


# ---- operations of a model


def count_training_flops(model: Any, sequences: SequenceCounts) -> float | None:
    """Return the floating-point operations of the forward and backward passes over some sequences.

    These are 6 per weight and token, and 12 * hidden_size * seq_len ** 2 per layer for attention. Shared
    layers count once per use. A layer without gradients counts only its forward pass, a third of this. The
    vocabulary projection counts at the predicted positions. What runs at the first position only counts once
    per sequence. Other heads and the embeddings do not count, because they require hardly any operations.

    Args:
        model: A model with an encoder.
        sequences: Numbers of sequences by length, and of predicted positions.

    Returns:
        The number of operations, or None if the formula does not fit the architecture.
    """
    submodels = list_submodels(model)
    if len(submodels) > 1:
        return _add_submodels(submodels, sequences)
    layers = list_layer_passes(model)
    if layers is None:
        return None
    counts = sequences.length_counts.double()
    lengths = torch.arange(len(counts), dtype=torch.float64)
    flops = 0.0
    has_gradient = _has_trained_embeddings(model)
    once_per_sequence = {
        id(weight) for module in list_first_position_modules(model) for weight in module.parameters()
    }
    for index, layer in enumerate(layers):
        has_gradient = has_gradient or any(weight.requires_grad for weight in layer.parameters())
        num_pairs = float(counts @ _count_attention_pairs(model.config, index, lengths))
        for weight in list_matrices(layer):
            uses = sequences.num_sequences if id(weight) in once_per_sequence else sequences.num_tokens
            flops += uses * _count_flops_per_use(weight, has_gradient)
        flops += 4 * model.config.hidden_size * num_pairs * (3 if has_gradient else 1)
    if sequences.num_predictions and model.get_output_embeddings() is not None:
        projection = model.get_output_embeddings().weight
        flops += sequences.num_predictions * _count_flops_per_use(projection, has_gradient)
    return flops


def list_first_position_modules(model: Any) -> list[nn.Module]:
    """Return the modules of a model with one encoder that compute only position 0."""
    return list(getattr(model, "first_position", (None, []))[1])


def _add_submodels(submodels: list[Any], sequences: SequenceCounts) -> float | None:
    """Return the sum of the operations of submodels that process the same sequences."""
    counts = [count_training_flops(submodel, sequences) for submodel in submodels]
    return None if None in counts else sum(count for count in counts if count is not None)


def list_layer_passes(model: Any) -> list[nn.Module] | None:
    """Return the layer of each pass through a layer, in order; None if they are unknown.

    ALBERT passes through the same layers several times.
    """
    if model.config.model_type not in SUPPORTED_MODEL_TYPES:
        return None
    if model.config.model_type == "albert":
        groups, passes = model.base_model.encoder.albert_layer_groups, model.config.num_hidden_layers
        return [groups[index * len(groups) // passes] for index in range(passes)]
    found = find_encoder_layers(model)
    return None if found is None else list(model.get_submodule(found[0]))


def list_matrices(module: nn.Module) -> list[torch.Tensor]:
    """Return the weight matrices of a module, without embeddings, which are not multiplied."""
    owners = (part for part in module.modules() if not isinstance(part, nn.Embedding))
    return [weight for owner in owners for weight in owner.parameters(recurse=False) if weight.ndim > 1]


def _has_trained_embeddings(model: Any) -> bool:
    named = model.base_model.named_parameters()
    return any(weight.requires_grad for name, weight in named if "embeddings" in name)


def _count_flops_per_use(weight: torch.Tensor, has_gradient: bool) -> int:
    """Return the operations of a product with one vector: forward pass, gradients of input and of weight."""
    return 2 * weight.numel() * (1 + has_gradient + weight.requires_grad)


def _count_attention_pairs(config: Any, index: int, lengths: torch.Tensor) -> torch.Tensor:
    """Return the number of pairs of tokens that attend to each other in a layer, for each sequence length."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None or layer_types[index] != "sliding_attention":
        return lengths.square()
    excess = (lengths - config.sliding_window - 1).clamp(min=0)  # the window extends to both sides
    return lengths.square() - excess * (excess + 1)


# ---- peak rates


def find_peak_flops(device: torch.device, precision: str) -> PeakFlops:
    """Return the rate in the data sheet of the device, or else the measured rate of matrix products.

    Args:
        device: Device that the model is trained on.
        precision: "fp32", "bf16" or "fp16".
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        number_format = precision
        if precision == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32":
            number_format = "tf32"
        if rate := find_data_sheet_rate(name, number_format):
            return PeakFlops(rate, f"data sheet of {name}, {number_format}")
    return PeakFlops(measure_rate(device, DTYPES[precision]), f"measured, {precision}")


def find_data_sheet_rate(device_name: str, number_format: str) -> float | None:
    """Return the operations per second of a GPU, or None if the GPU or its number format is not listed.

    A part of a GPU (MIG) has only a part of its rate.
    """
    if " MIG " in device_name:
        return None
    for pattern, rates in PEAK_TFLOPS.items():
        if re.search(NAME_PATTERN.format(pattern), device_name):
            return rates[number_format] * 1e12 if number_format in rates else None
    return None


def measure_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of the fastest of several matrix products."""
    rows, inner, columns = CPU_SHAPE if device.type == "cpu" else ACCELERATOR_SHAPE
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(inner, columns, device=device).to(dtype)
    seconds: list[float] = []
    out = torch.mm(left, right)  # warm-up
    while len(seconds) < NUM_TIMINGS and sum(seconds) < MAX_SECONDS:
        started = time.perf_counter()
        torch.mm(left, right, out=out)
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - started)
    return 2 * rows * inner * columns / min(seconds)
