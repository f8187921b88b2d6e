"""Packing: the pieces of a batch in one row, without padding, through all the encoder's layers.

All that a layer does to a piece it does to each by itself, but for attention. So pieces are packed in front
of the first layer, where they have their positions already, and put apart behind the last, where heads read
[CLS]; in between attention alone sees the examples one by one, which is what a block-diagonal mask over the
row would say, without the square of the row. What is computed is the same, without what padding costs.

transformers' flattening collator gives the row to models that do not know of its parts, and BERT then
attends from one example to the next.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bertkit.errors import UserError

PACKED_PREFIX = "packed_"  # of the name of an attention, among transformers' implementations


class Packing(NamedTuple):
    """Where the pieces of a padded batch are.

    Attributes:
        places: [pieces] the place of each among all of the batch, one sequence after the other.
        sequences, length: of the padded batch.
    """

    positions: torch.Tensor
    num_sequences: int
    seq_len: int

    @classmethod
    def from_mask(cls, attention_mask: torch.Tensor) -> "Packing":
        """By a mask [sequences, length] that is 0 at padding."""
        return cls(attention_mask.flatten().nonzero().squeeze(1), *attention_mask.shape)

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """[sequences, length, ...] to [1, pieces, ...]."""
        return states.flatten(0, 1).index_select(0, self.positions).unsqueeze(0)

    def unpack(self, pieces: torch.Tensor) -> torch.Tensor:
        """[1, pieces, ...] to [sequences, length, ...], with zeros at padding."""
        found = pieces.new_zeros(self.num_sequences * self.seq_len, *pieces.shape[2:])
        return found.index_copy(0, self.positions, pieces[0]).reshape(
            self.num_sequences, self.seq_len, *pieces.shape[2:]
        )


def enable_packing(model: Any) -> None:
    """Have `model` pack each batch it trains on; elsewhere it stays as it is.

    Raises:
        UserError: an architecture whose attention is its own (DeBERTa, Longformer), or without a module that
            holds all its layers (ModernBERT).
    """
    encoder = model.base_model
    stack = getattr(encoder, "encoder", None) or getattr(encoder, "transformer", None)
    if stack is None or not encoder._supports_attention_backend or not _choosable(encoder):
        raise UserError(
            f"--pack: {model.config.model_type} computes attention in a way of its own; leave it out"
        )
    _pack_attention(encoder)
    packed: list[Packing] = []  # of the batch that is on its way

    def begin(_: Any, __: Any, given: dict[str, Any]) -> None:
        packed[:] = [Packing.from_mask(given["attention_mask"])] if stack.training else []

    def together(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not packed:
            return None
        if given:
            return (packed[0].pack(given[0]), *given[1:]), named | {"packing": packed[0]}
        return given, named | {
            "hidden_states": packed[0].pack(named["hidden_states"]),
            "packing": packed[0],
        }

    def apart(_: Any, __: Any, output: Any) -> None:
        if packed:
            output.last_hidden_state = packed[0].unpack(output.last_hidden_state)

    encoder.register_forward_pre_hook(begin, with_kwargs=True)
    stack.register_forward_pre_hook(together, with_kwargs=True)
    stack.register_forward_hook(apart)


def _choosable(encoder: Any) -> bool:
    return encoder._can_set_attn_implementation() and encoder.config._attn_implementation != "eager"


def _pack_attention(encoder: Any) -> None:
    """Put in front of the encoder's attention, whichever it is, one that takes a packed row apart for it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    stock = encoder.config._attn_implementation
    AttentionInterface.register(PACKED_PREFIX + stock, _by_example(ALL_ATTENTION_FUNCTIONS[stock]))
    AttentionMaskInterface.register(PACKED_PREFIX + stock, ALL_MASK_ATTENTION_FUNCTIONS[stock])
    encoder.set_attn_implementation(PACKED_PREFIX + stock)


def _by_example(stock: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation of attention: queries, keys and values [1, heads, pieces, width] where packed."""

    def attend(
        module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attention_mask: torch.Tensor | None, packing: Packing | None = None, **others: Any,
    ) -> tuple[torch.Tensor, Any]:  # fmt: skip
        if packing is None:
            return stock(module, query, key, value, attention_mask, **others)
        apart = [packing.unpack(some.transpose(1, 2)).transpose(1, 2) for some in (query, key, value)]
        found, weights = stock(module, *apart, attention_mask, **others)
        return packing.pack(found), weights

    return attend
