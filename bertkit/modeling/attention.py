"""Attention for training: chunked attention on CPUs, and attention over packed batches without padding.

Both are registered with transformers' `AttentionInterface`, so the encoder's own layers call them.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves

from bertkit.errors import UserError, format_list
from bertkit.modeling.dropout import RANDOM_LEVELS, sample_keep_mask

CHUNKED_SDPA = "sdpa_chunked"
PACKED_PREFIX = "packed_"
ATTENTION_MASKS = ("attention_mask", "attn_mask")  # names of the mask in the layers of an encoder
MAX_SCORES_PER_CHUNK = 2**20  # attention scores; 4 MB in fp32, which fits in the processor's cache

AttentionFunction = Callable[..., tuple[torch.Tensor, Any]]


def _set_attention(model: Any, name: str, attention: AttentionFunction, mask_function: Any) -> None:
    """Register an attention function with transformers, and make a model use it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_function)
    model.set_attn_implementation(name)


# ---- chunked attention


def enable_chunked_attention(model: Any) -> None:
    """Make `model` compute attention in chunks when it trains in fp32 with dropout on a CPU.

    PyTorch's fused CPU kernel does not support dropout. The fallback keeps several tensors of shape
    `[batch, heads, seq_len, seq_len]` until the backward pass. These tensors dominate the memory, and reading
    them dominates the time. Architectures with an attention of their own (DeBERTa, Longformer) do not change.
    """
    from transformers import PreTrainedModel
    from transformers.masking_utils import sdpa_mask

    stock_model = model if isinstance(model, PreTrainedModel) else model.base_model
    if stock_model.config._attn_implementation == "sdpa" and stock_model._can_set_attn_implementation():
        _set_attention(stock_model, CHUNKED_SDPA, _chunked_sdpa, sdpa_mask)


def _chunked_sdpa(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Compute attention as transformers' `sdpa_attention_forward` does, in chunks where this is faster.

    Query, key and value are `[batch, heads, seq_len, head_dim]`.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_self_attention = query.shape == key.shape and kwargs.get("position_bias") is None
    is_cpu_fp32 = query.device.type == "cpu" and query.dtype == torch.float32
    if not (is_self_attention and dropout and is_cpu_fp32):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    if attention_mask is None and is_causal:
        attention_mask = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = ChunkedAttention.apply(query, key, value, attention_mask, dropout, scaling)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


class ChunkedAttention(torch.autograd.Function):
    """Scaled dot-product attention with dropout (Vaswani et al. 2017, 3.2.1), a few examples at a time.

    Of the scores, the forward pass saves only the dropout mask, one byte per score. The backward pass
    recomputes the rest.
    """

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        dropout: float, scaling: float,
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention output `[batch, heads, seq_len, head_dim]`.

        Args:
            ctx: Autograd's context.
            q, k, v: `[batch, heads, seq_len, head_dim]`.
            mask: A bool mask that is true for pairs that attend, a float mask that is added to the scores,
                or None.
            dropout: Probability of dropping an attention weight.
            scaling: Factor that multiplies the scores.
        """
        # dropout is rounded to a multiple of 1 / RANDOM_LEVELS: see `sample_keep_mask`
        dropped_levels = round(dropout * RANDOM_LEVELS)
        ctx.keep_prob, ctx.scaling = 1 - dropped_levels / RANDOM_LEVELS, scaling
        output, keep_masks = torch.empty_like(q), []
        for chunk in _chunk_slices(q):
            weights = _attention_weights(q[chunk], k[chunk], _slice_mask(mask, chunk), scaling)
            keep_masks.append(sample_keep_mask(weights.shape, dropped_levels))
            output[chunk] = (weights.mul_(keep_masks[-1]) @ v[chunk]).div_(ctx.keep_prob)
        ctx.save_for_backward(q, k, v, mask, *keep_masks)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of q, k and v, computed in the same chunks."""
        q, k, v, mask, *keep_masks = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for chunk, keep in zip(_chunk_slices(q), keep_masks, strict=True):
            weights = _attention_weights(q[chunk], k[chunk], _slice_mask(mask, chunk), ctx.scaling)
            grad = grad_output[chunk] / ctx.keep_prob
            grad_v[chunk] = (weights * keep).mT @ grad
            grad_weights = (grad @ v[chunk].mT).mul_(keep)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(
                ctx.scaling
            )
            grad_q[chunk], grad_k[chunk] = grad_scores @ k[chunk], grad_scores.mT @ q[chunk]
        return grad_q, grad_k, grad_v, None, None, None


def _chunk_slices(q: torch.Tensor) -> list[slice]:
    """Split the batch into slices; the scores of one slice fit in the processor's cache."""
    batch, heads, seq_len, _ = q.shape
    size = max(1, MAX_SCORES_PER_CHUNK // (heads * seq_len * seq_len))
    return [slice(start, start + size) for start in range(0, batch, size)]


def _slice_mask(mask: torch.Tensor | None, chunk: slice) -> torch.Tensor | None:
    return mask if mask is None or len(mask) == 1 else mask[chunk]


def _attention_weights(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Return the softmax weights `[chunk, heads, seq_len, seq_len]` before dropout."""
    scores = (q @ k.mT).mul_(scaling)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, torch.finfo(q.dtype).min)
    return (scores if mask is None else scores.add_(mask)).softmax(-1)


# ---- packing


class Packing(NamedTuple):
    """The positions of the real tokens of a padded batch.

    Attributes:
        positions: `[num_tokens]` indices of the real tokens in the flattened batch.
        num_sequences: Number of sequences in the batch.
        seq_len: Length of the padded sequences.
    """

    positions: torch.Tensor
    num_sequences: int
    seq_len: int

    @classmethod
    def from_mask(cls, attention_mask: torch.Tensor) -> "Packing":
        """Build a packing from a mask `[batch, seq_len]` that is 0 at padding."""
        return cls(attention_mask.flatten().nonzero().squeeze(1), *attention_mask.shape)

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """Turn `[batch, seq_len, ...]` into `[1, num_tokens, ...]`."""
        return states.flatten(0, 1).index_select(0, self.positions).unsqueeze(0)

    def unpack(self, packed_states: torch.Tensor) -> torch.Tensor:
        """Turn `[1, num_tokens, ...]` into `[batch, seq_len, ...]`, with zeros at padding."""
        dims = packed_states.shape[2:]
        padded = packed_states.new_zeros(self.num_sequences * self.seq_len, *dims)
        padded = padded.index_copy(0, self.positions, packed_states[0])
        return padded.reshape(self.num_sequences, self.seq_len, *dims)


def enable_packing(model: Any) -> None:
    """Make `model` pack the tokens of each training batch into one row without padding.

    Within a layer, only attention relates tokens to each other. The tokens are therefore packed before the
    first layer, when the embeddings already contain their positions. They are unpacked after the last layer,
    since heads expect padded sequences. Between the two, each attention function unpacks its inputs and packs
    its output, so examples do not attend to each other. The results equal those of the padded batch.

    transformers' flattening collator cannot replace packing, because BERT would attend across examples.

    Raises:
        UserError: The architecture has an attention of its own (DeBERTa, Longformer), no module that holds
            all layers (ModernBERT), or layers with further inputs (X-MOD).
    """
    encoder = model.base_model
    layer_stack = getattr(encoder, "encoder", None) or getattr(encoder, "transformer", None)
    if layer_stack is None or not encoder._supports_attention_backend or not _can_set_attention(encoder):
        raise UserError(
            f"--pack: {model.config.model_type} has its own attention, which cannot be packed; "
            "leave out --pack"
        )
    if names := _find_further_inputs(encoder, layer_stack):
        raise UserError(
            f"--pack: the layers of {model.config.model_type} also read {format_list(names)}, which cannot "
            "be packed; leave out --pack"
        )
    _enable_packed_attention(encoder)
    _register_packing_hooks(encoder, layer_stack)


def _can_set_attention(encoder: Any) -> bool:
    return encoder._can_set_attn_implementation() and encoder.config._attn_implementation != "eager"


def _find_further_inputs(encoder: Any, layer_stack: Any) -> list[str]:
    """Return the names of the tensors that the layers read, except hidden states and attention mask.

    Such a tensor has a value for each example or position of the padded batch: the languages of X-MOD, or the
    rotary embeddings of ESM.
    """
    names: list[str] = []

    def find_tensors(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(layer_stack.forward).bind(*args, **kwargs)
        inputs = dict(list(bound.arguments.items())[1:])  # the first input is the hidden states
        inputs |= inputs.pop("kwargs", {})
        names.extend(
            name
            for name, value in inputs.items()
            if name not in ATTENTION_MASKS and any(map(torch.is_tensor, tree_leaves(value)))
        )

    hook = layer_stack.register_forward_pre_hook(find_tensors, with_kwargs=True)
    was_training = encoder.training
    encoder.eval()
    ones = torch.ones(1, 2, dtype=torch.long, device=encoder.device)
    with torch.no_grad():
        encoder(input_ids=ones, attention_mask=ones)
    encoder.train(was_training)
    hook.remove()
    return names


def _register_packing_hooks(encoder: Any, layer_stack: Any) -> None:
    current: list[Packing] = []  # contains the packing of the current batch; empty outside training

    def start_batch(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        current[:] = [Packing.from_mask(kwargs["attention_mask"])] if layer_stack.training else []

    def pack_inputs(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not current:
            return None
        packing = current[0]
        if args:
            return (packing.pack(args[0]), *args[1:]), kwargs | {"packing": packing}
        hidden_states = packing.pack(kwargs["hidden_states"])
        return args, kwargs | {"hidden_states": hidden_states, "packing": packing}

    def unpack_output(_: Any, __: Any, output: Any) -> None:
        if current:
            output.last_hidden_state = current[0].unpack(output.last_hidden_state)

    encoder.register_forward_pre_hook(start_batch, with_kwargs=True)
    layer_stack.register_forward_pre_hook(pack_inputs, with_kwargs=True)
    layer_stack.register_forward_hook(unpack_output)


def _enable_packed_attention(encoder: Any) -> None:
    """Replace the encoder's attention with a function that unpacks the inputs and packs the output."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = encoder.config._attn_implementation
    packed_attention = _wrap_attention(ALL_ATTENTION_FUNCTIONS[name])
    _set_attention(encoder, PACKED_PREFIX + name, packed_attention, ALL_MASK_ATTENTION_FUNCTIONS[name])


def _wrap_attention(attention: AttentionFunction) -> AttentionFunction:
    """Wrap `attention` for inputs that may be packed, `[1, heads, num_tokens, head_dim]`."""

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, packing: Packing | None = None, **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:  # fmt: skip
        if packing is None:
            return attention(module, query, key, value, attention_mask, **kwargs)
        query, key, value = (
            packing.unpack(states.transpose(1, 2)).transpose(1, 2) for states in (query, key, value)
        )
        output, weights = attention(module, query, key, value, attention_mask, **kwargs)
        return packing.pack(output), weights

    return attend
