"""Packing: a training batch becomes one row of tokens without padding.

The attention over packed batches is registered with transformers' `AttentionInterface`, so the encoder's own
layers call it.
"""

import inspect
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from bertkit.errors import UserError, format_list
from bertkit.modeling.attention import AttentionFunction, set_attention

PACKED_PREFIX = "packed_"
ATTENTION_MASKS = ("attention_mask", "attn_mask")  # names of the mask in the layers of an encoder


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
    set_attention(encoder, PACKED_PREFIX + name, packed_attention, ALL_MASK_ATTENTION_FUNCTIONS[name])


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
