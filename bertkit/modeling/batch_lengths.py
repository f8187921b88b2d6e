"""The lengths of the sequences of a batch, on the host.

The collator knows how many tokens each sequence has. A model that reads the lengths from a mask on a GPU has
to wait for the GPU, which then has nothing to do until the next kernel is started.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bertkit.modeling.attention import set_attention

LENGTHS = "batch_lengths"  # attribute of the encoder
UNREAD_MASK_PREFIX = "unread_mask_"  # of the names under which attention functions are registered


@contextmanager
def provide_lengths(model: Any, lengths: Sequence[int]) -> Iterator[None]:
    """Provide the number of tokens of each sequence to the forward passes in the block.

    The lengths are not passed as a model input, because not every architecture passes unknown inputs to its
    encoder.

    Args:
        model: A model, its forward method, or a wrapper such as `DistributedDataParallel`.
        lengths: Number of tokens of each sequence; the sequences are padded on the right.
    """
    model = getattr(model, "__self__", model)
    unwrapped = getattr(model, "module", model)
    setattr(unwrapped.base_model, LENGTHS, lengths)
    try:
        yield
    finally:
        delattr(unwrapped.base_model, LENGTHS)


def get_lengths(encoder: Any) -> Sequence[int] | None:
    """Return the lengths that `provide_lengths` gives for the current batch, or None outside of it."""
    lengths: Sequence[int] | None = getattr(encoder, LENGTHS, None)
    return lengths


def map_inputs(
    encoder: Any,
    map_kwargs: Callable[[dict[str, Any]], dict[str, Any]],
    edit_output: Callable[[Any], None] = lambda _: None,
) -> None:
    """Change the inputs and the output of `encoder.forward`.

    Unlike in a forward pre-hook, the forward hooks of the encoder still receive the original inputs.

    Args:
        encoder: A model of transformers without a head.
        map_kwargs: Receives all inputs by name, and returns the inputs that `encoder.forward` gets.
        edit_output: Edits the output in place.
    """
    forward = encoder.forward
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def forward_mapped(*args: Any, **kwargs: Any) -> Any:
        inputs = signature.bind(*args, **kwargs).arguments
        other_inputs = inputs.pop("kwargs", {})
        output = forward(**map_kwargs(inputs | other_inputs))
        edit_output(output)
        return output

    encoder.forward = forward_mapped


# ---- attention masks


def build_masks_from_lengths(model: Any) -> None:
    """Make `model` decide by the known lengths whether a batch has padding, and needs an attention mask.

    transformers reads the mask to decide this. Architectures with an attention of their own do not change.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    encoder = model.base_model
    name = encoder.config._attn_implementation
    uses_sdpa_mask = ALL_MASK_ATTENTION_FUNCTIONS.get(name) is sdpa_mask
    if uses_sdpa_mask and encoder._can_set_attn_implementation():
        set_attention(encoder, UNREAD_MASK_PREFIX + name, ALL_ATTENTION_FUNCTIONS[name], _build_unread_mask)
        map_inputs(encoder, lambda inputs: _drop_mask_without_padding(encoder, inputs))


def _drop_mask_without_padding(encoder: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batch, without its attention mask if no sequence is padded."""
    mask, lengths = inputs.get("attention_mask"), get_lengths(encoder)
    if mask is None:
        return inputs
    has_padding = not mask.all() if lengths is None else min(lengths) < mask.shape[1]
    return inputs if has_padding else inputs | {"attention_mask": None}


def _build_unread_mask(**options: Any) -> torch.Tensor | None:
    """Build the mask of a batch with padding, without reading the values of the padding mask."""
    from transformers.masking_utils import sdpa_mask

    if options.get("attention_mask") is not None:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: torch.Tensor | None = sdpa_mask(**options)
    return mask
