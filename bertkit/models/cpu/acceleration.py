"""Replace parts of a model by equivalents that are faster on a CPU."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from bertkit.models.cpu.attention import enable_fast_attention
from bertkit.models.cpu.modules import MIN_VALUES, FastDropout, FastEmbedding, FastLinear
from bertkit.models.layers import list_submodels

MAX_HEAD_SIZE = 1024  # outputs of a head in fp32; the output layer of a masked language model has more


def accelerate_on_cpu(model: Any, is_single_process: bool) -> None:
    """Replace attention, dropout, linear layers and embeddings of `model` by faster equivalents.

    On an accelerator, and in other number formats than fp32 and bf16, they do what the stock modules do. The
    names of the parameters do not change.

    Args:
        is_single_process: Whether no other process trains the same weights; see `FastEmbedding`.
    """
    for submodel in list_submodels(model):
        enable_fast_attention(submodel)
    replace_modules(model, is_single_process)
    _keep_heads_in_fp32(model)


def _keep_heads_in_fp32(model: Any) -> None:
    """Compute small linear layers outside of the encoders in fp32, which takes hardly any time."""
    encoders = [submodel.base_model for submodel in list_submodels(model)]
    in_encoder = {id(module) for encoder in encoders for module in encoder.modules()}
    for module in model.modules():
        is_head = isinstance(module, FastLinear) and id(module) not in in_encoder
        if is_head and module.out_features <= MAX_HEAD_SIZE:
            module.keeps_fp32 = True


def replace_modules(model: nn.Module, is_single_process: bool) -> None:
    """Replace the dropout, linear layers and embeddings of `model`; see `accelerate_on_cpu`.

    Subclasses of the stock modules stay, because they may compute something else.
    """
    uses = Counter(id(module.weight) for module in model.modules() if hasattr(module, "weight"))
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = FastDropout
        elif type(module) is nn.Linear:
            FastLinear.convert(module)
        elif type(module) is nn.Embedding and is_single_process and _can_reuse_gradient(module, uses):
            module.__class__ = FastEmbedding


def _can_reuse_gradient(embedding: nn.Embedding, uses: Mapping[int, int]) -> bool:
    """Return whether a table is large, has no further options, and is not also the output layer."""
    has_options = embedding.max_norm is not None or embedding.scale_grad_by_freq or embedding.sparse
    is_tied = uses[id(embedding.weight)] > 1
    return embedding.weight.numel() >= MIN_VALUES and not has_options and not is_tied
