"""Batches of sequences of different lengths: masks from lengths that the host knows, and packing.

A packed batch is one row without padding. On a GPU, a kernel for variable-length sequences reads this row
directly. Elsewhere, attention pads the row, and gets a mask. Both give the same result.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from bertkit.errors import UserError, format_list
from bertkit.models.layers import get_attention_dropout
from bertkit.utils.compat import has_varlen_attention
from bertkit.utils.devices import copy_to_device, get_device

AttentionFunction = Callable[..., tuple[torch.Tensor, Any]]


def set_attention(model: Any, name: str, attention: AttentionFunction, mask_function: Any) -> None:
    """Register an attention function with transformers, and make a model use it."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask_function)
    model.set_attn_implementation(name)


def attends_causally(module: Any, options: dict[str, Any]) -> bool:
    """Return whether an attention layer masks later tokens, given the arguments of its attention function."""
    is_causal = options.get("is_causal")
    return bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)


# ---- lengths

LENGTHS = "batch_lengths"  # attribute of the encoder
UNREAD_MASK_PREFIX = "unread_mask_"  # of the names under which attention functions are registered


@contextmanager
def provide_lengths(model: Any, lengths: Sequence[int] | None) -> Iterator[None]:
    """Provide the number of tokens of each sequence, if it is known, to the forward passes in the block.

    The sequences are padded on the right. The lengths are not passed as a model input, because not every
    architecture passes unknown inputs to its encoder. The model may be a forward method, or a wrapper such as
    `DistributedDataParallel`.
    """
    if lengths is None:
        yield
        return
    model = getattr(model, "__self__", model)
    unwrapped = getattr(model, "module", model)
    setattr(unwrapped.base_model, LENGTHS, lengths)
    try:
        yield
    finally:
        delattr(unwrapped.base_model, LENGTHS)


def get_lengths(encoder: Any) -> Sequence[int] | None:
    """Return the lengths that `provide_lengths` gives for the current batch, or None outside of it."""
    return getattr(encoder, LENGTHS, None)


def map_inputs(encoder: Any, map_kwargs: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the inputs of `encoder.forward`, which are passed by name.

    Unlike in a forward pre-hook, the forward hooks of the encoder still receive the original inputs.
    """
    forward = encoder.forward
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def forward_mapped(*args: Any, **kwargs: Any) -> Any:
        inputs = signature.bind(*args, **kwargs).arguments
        other_inputs = inputs.pop("kwargs", {})
        return forward(**map_kwargs(inputs | other_inputs))

    encoder.forward = forward_mapped


def build_masks_from_lengths(model: Any) -> None:
    """Make `model` decide by the known lengths whether a batch has padding, and needs an attention mask.

    transformers reads the mask to decide this. Architectures with an attention of their own do not change.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    encoder = model.base_model

    def drop_mask_without_padding(inputs: dict[str, Any]) -> dict[str, Any]:
        mask, lengths = inputs.get("attention_mask"), get_lengths(encoder)
        if mask is None:
            return inputs
        has_padding = not mask.all() if lengths is None else min(lengths) < mask.shape[1]
        return inputs if has_padding else inputs | {"attention_mask": None}

    def build_unread_mask(**options: Any) -> torch.Tensor | None:
        """Build the mask of a batch with padding, without reading the values of the padding mask."""
        if options.get("attention_mask") is not None:
            options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        mask: torch.Tensor | None = sdpa_mask(**options)
        return mask

    name = encoder.config._attn_implementation
    uses_sdpa_mask = ALL_MASK_ATTENTION_FUNCTIONS.get(name) is sdpa_mask
    if uses_sdpa_mask and encoder._can_set_attn_implementation():
        set_attention(encoder, UNREAD_MASK_PREFIX + name, ALL_ATTENTION_FUNCTIONS[name], build_unread_mask)
        map_inputs(encoder, drop_mask_without_padding)


# ---- packing

PACKED_PREFIX = "packed_"
PACKS_TOKEN_IDS = ("modernbert",)  # architectures whose tokens are packed before the embeddings
TOKEN_INPUTS = ("input_ids", "inputs_embeds")
ATTENTION_MASKS = ("attention_mask", "attn_mask")  # names of the mask in the layers of an encoder


class Packing(NamedTuple):
    """The positions of the real tokens of a padded batch."""

    positions: torch.Tensor  # `[num_tokens]` indices of the real tokens in the flattened batch
    # `[num_sequences + 1]` int32 index of the first token of each sequence in the packed row, and the end
    cu_seqlens: torch.Tensor
    seq_len: int
    supports_varlen: bool  # whether the device has the kernel; compiled layers cannot query the device

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], seq_len: int, device: torch.device) -> "Packing":
        """Build the packing of sequences that are padded on the right, without waiting for a GPU."""
        cu_seqlens = copy_to_device(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), device)
        sequences = torch.repeat_interleave(cu_seqlens.diff(), output_size=sum(lengths))
        positions = torch.arange(len(sequences), device=device) - cu_seqlens[sequences]
        return cls(sequences.long() * seq_len + positions, cu_seqlens, seq_len, supports_varlen(device))

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.shape[0] - 1

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

    Within a layer, only attention relates tokens to each other. The tokens are packed once, before the first
    layer, and unpacked once, after the last layer, since heads expect padded sequences. Between the two,
    attention treats the sequences separately (see `_wrap_attention`). The results equal those of the
    padded batch.

    transformers' flattening collator cannot replace packing, because BERT would attend across examples.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    encoder = model.base_model
    layer_stack = getattr(encoder, "encoder", None) or getattr(encoder, "transformer", None)
    packs_token_ids = model.config.model_type in PACKS_TOKEN_IDS
    has_layers = packs_token_ids or layer_stack is not None
    name = encoder.config._attn_implementation
    can_set_attention = encoder._can_set_attn_implementation() and name != "eager"
    if not (has_layers and encoder._supports_attention_backend and can_set_attention):
        raise UserError(
            f"--pack: {model.config.model_type} has its own attention, which cannot be packed; omit --pack"
        )
    if not packs_token_ids and (further := _find_further_inputs(encoder, layer_stack)):
        raise UserError(
            f"--pack: the layers of {model.config.model_type} also read {format_list(further)}, which cannot "
            "be packed; omit --pack"
        )
    packed_attention = _wrap_attention(ALL_ATTENTION_FUNCTIONS[name])
    set_attention(encoder, PACKED_PREFIX + name, packed_attention, ALL_MASK_ATTENTION_FUNCTIONS[name])
    _pack_batches(encoder, None if packs_token_ids else layer_stack)


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


def _pack_batches(encoder: Any, layer_stack: Any) -> None:
    """Pack the embeddings, which already contain the positions of the tokens, and unpack the last layer.

    Without `layer_stack`, pack the token ids and their positions, which the layers turn into rotary
    embeddings.
    """
    current: list[Packing] = []  # contains the packing of the current batch; empty outside training

    def start_batch(inputs: dict[str, Any]) -> dict[str, Any]:
        current.clear()
        if not encoder.training:
            return inputs
        mask, lengths = inputs["attention_mask"], get_lengths(encoder)
        lengths = mask.sum(1).tolist() if lengths is None else lengths  # without lengths, wait for a GPU
        packing = Packing.from_lengths(lengths, mask.shape[1], mask.device)
        current.append(packing)
        if layer_stack is not None:
            return inputs | {"attention_mask": None}
        return inputs | {
            **{name: packing.pack(inputs[name]) for name in TOKEN_INPUTS if inputs.get(name) is not None},
            "position_ids": (packing.positions % packing.seq_len).unsqueeze(0),
            "attention_mask": dict.fromkeys(encoder.config.layer_types),  # attention builds its masks
            "packing": packing,
        }

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

    map_inputs(encoder, start_batch)
    if layer_stack is None:
        encoder.register_forward_hook(unpack_output, prepend=True)  # before those that read positions
    else:
        layer_stack.register_forward_pre_hook(pack_inputs, with_kwargs=True)
        layer_stack.register_forward_hook(unpack_output)


# ---- attention over a packed row

Window = tuple[int, int]  # number of visible tokens to the left and to the right; -1 for all
VARLEN_DTYPES = (torch.float16, torch.bfloat16)
FULL_ATTENTION = (-1, -1)


def _wrap_attention(attention: AttentionFunction) -> AttentionFunction:
    """Wrap `attention` for inputs that may be packed, `[1, heads, num_tokens, head_dim]`."""

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, packing: Packing | None = None, **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:  # fmt: skip
        if packing is None:
            return attention(module, query, key, value, attention_mask, **kwargs)
        size = kwargs.get("sliding_window")  # includes the token itself
        distance = -1 if size is None else size - 1
        window = distance, 0 if attends_causally(module, kwargs) else distance
        if packing.supports_varlen and can_use_varlen(query, kwargs.get("dropout", 0.0)):
            return attend_varlen(query, key, value, packing.cu_seqlens, packing.seq_len, window, kwargs), None
        query, key, value = (
            packing.unpack(states.transpose(1, 2)).transpose(1, 2) for states in (query, key, value)
        )
        has_padding = len(packing.positions) < packing.num_sequences * packing.seq_len
        needs_mask = has_padding or window != FULL_ATTENTION
        mask = build_mask(packing.cu_seqlens, packing.seq_len, window) if needs_mask else None
        output, weights = attention(module, query, key, value, mask, **kwargs)
        return packing.pack(output), weights

    return attend


def can_use_varlen(query: torch.Tensor, dropout: float) -> bool:
    """Return whether the kernel can process queries `[1, heads, num_tokens, head_dim]` on a GPU that has it.

    The kernel has no dropout. To leave out the dropout of the attention weights would change the
    regularization, so a model with dropout gets padded attention.
    """
    head_dim = query.shape[-1]
    is_supported = query.dtype in VARLEN_DTYPES and head_dim <= 256 and head_dim % 8 == 0
    return dropout == 0 and is_supported


@lru_cache
def supports_varlen(device: torch.device) -> bool:
    """Return whether a device can run the kernel: an NVIDIA GPU of the generation Ampere or newer."""
    is_cuda = device.type == "cuda" and torch.version.hip is None
    return is_cuda and has_varlen_attention() and torch.cuda.get_device_capability(device) >= (8, 0)


def attend_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor, max_length: int,
    window: Window, options: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """Return the output `[1, num_tokens, heads, head_dim]` for inputs `[1, heads, num_tokens, head_dim]`."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    output = varlen_attn(
        query, key, value, cu_seqlens, cu_seqlens, max_length, max_length,
        scale=options.get("scaling"), window_size=window,
    )  # fmt: skip
    assert isinstance(output, torch.Tensor)  # a tuple only with return_aux
    return output.unsqueeze(0)


def build_mask(cu_seqlens: torch.Tensor, seq_len: int, window: Window) -> torch.Tensor:
    """Return the bool mask `[batch, 1, seq_len, seq_len]` of the padded batch, true for pairs that attend.

    The queries at padding attend as well, because a softmax over nothing would give NaN. Their outputs are
    dropped.
    """
    positions = torch.arange(seq_len, device=cu_seqlens.device)
    is_token = positions < cu_seqlens.diff().unsqueeze(1)
    mask = is_token[:, None, None, :].expand(-1, -1, seq_len, -1)
    if window == FULL_ATTENTION:
        return mask
    distance = positions - positions.unsqueeze(1)  # of the key from the query
    is_near = torch.ones_like(distance, dtype=torch.bool)
    left, right = window
    if left >= 0:
        is_near &= distance >= -left
    if right >= 0:
        is_near &= distance <= right
    return (mask | ~is_token[:, None, :, None]) & is_near


def describe_packed_attention(model: Any, precision: str) -> str | None:
    """Return a note if a GPU with a kernel for variable-length sequences cannot use it for a model."""
    if not supports_varlen(get_device()):
        return None
    if precision == "fp32":
        return "--pack: attention is padded, because the kernel for packed sequences does not compute in fp32"
    if (dropout := get_attention_dropout(model)) == 0:
        return None
    return (
        "--pack: attention is padded, because the kernel for packed sequences has no dropout, and this model "
        f"has an attention dropout of {dropout:g}; --attention-dropout 0 is faster, but regularizes less"
    )
