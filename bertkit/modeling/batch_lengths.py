"""The lengths of the sequences of a batch, on the host.

The collator knows how many tokens each sequence has. A model that reads the lengths from a mask on a GPU has
to wait for the GPU, which then has nothing to do until the next kernel is started.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

LENGTHS = "batch_lengths"


def set_lengths(model: Any, lengths: Sequence[int]) -> None:
    """Set the number of tokens of each sequence for the next forward pass of a model.

    The lengths are not passed as a model input, because not every architecture passes unknown inputs to its
    encoder.

    Args:
        model: A model, its forward method, or a wrapper such as `DistributedDataParallel`.
        lengths: Number of tokens of each sequence; the sequences are padded on the right.
    """
    model = getattr(model, "__self__", model)
    unwrapped = getattr(model, "module", model)
    setattr(unwrapped.base_model, LENGTHS, tuple(lengths))


def take_lengths(encoder: Any) -> Sequence[int] | None:
    """Return the lengths of the current batch if they have been set, and forget them."""
    lengths: Sequence[int] | None = encoder.__dict__.pop(LENGTHS, None)
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
