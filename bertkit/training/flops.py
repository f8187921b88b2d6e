"""Count the floating-point operations that training requires, without padding and recomputation."""

from typing import Any

import torch
from torch import nn

from bertkit.modeling.first_position import list_first_position_modules
from bertkit.modeling.layers import find_encoder_layers, list_submodels
from bertkit.training.meters import SequenceCounts

# Model types with the usual attention and feed-forward layers. For other types, such as Longformer and
# DeBERTa, the formula would be wrong.
SUPPORTED_MODEL_TYPES = {
    "albert", "bert", "camembert", "data2vec-text", "distilbert", "electra", "ernie", "megatron-bert",
    "modernbert", "mpnet", "nomic_bert", "rembert", "roberta", "roberta-prelayernorm", "roformer",
    "xlm-roberta", "xlm-roberta-xl",
}  # fmt: skip


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
