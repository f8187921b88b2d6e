"""Logits of a whole dataset, always in fp32 and in the order of its rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.errors import UserError
from bertkit.modeling.forward import batch_by_length, compute_logits
from bertkit.training.memory import OutOfMemory, release_memory, report_out_of_memory
from bertkit.utils import distributed
from bertkit.utils.ragged import concat_ranges
from bertkit.utils.reporting import Reporter


def predict_logits(
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
    reporter: Reporter,
    what: str = "scoring",
    is_sharded: bool = False,
) -> np.ndarray:
    """Return the logits in fp32, with those of example i at `logit_offsets[i]` to `logit_offsets[i + 1]`.

    `Features.reduce_logits` is applied to each batch, so that memory does not grow with logits it discards.
    If examples have different numbers of outputs, missing ones are -inf. With several ranks, each computes a
    part of the batches, and all receive all logits.

    Under bf16 and fp16, accelerate wraps the forward method of the instance in autocast. The forward method
    of the class is called here, which is not wrapped.

    Args:
        model: the model; it returns to its current mode afterwards.
        features: the examples.
        collator: turns examples into a batch.
        batch_size: examples per forward pass.
        reporter: shows the progress.
        what: the name of the progress bar.
        is_sharded: whether the weights are distributed over all ranks. Then only the wrapped model can gather
            them, and all ranks must call it equally often.
    """
    batches = batch_by_length(features, batch_size)
    own_batches = batches[distributed.get_rank() :: distributed.get_world_size()]
    if is_sharded and len(own_batches) * distributed.get_world_size() < len(batches):
        own_batches = [*own_batches, batches[0]]  # repeats a batch to keep pace with the other ranks
    forward = model if is_sharded else type(model).forward.__get__(model)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def score(rows: np.ndarray) -> np.ndarray:
        batch = collator([features[row] for row in rows])
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        return features.reduce_logits(compute_logits(forward, batch).float(), rows, batch).cpu().numpy()

    scored: list[tuple[np.ndarray, np.ndarray]] = []
    try:
        with torch.no_grad():
            for rows in reporter.track(own_batches, len(own_batches), what):
                scored.extend([(rows, score(rows))] if is_sharded else score_with_halving(score, rows))
    finally:
        model.train(was_training)
    if len(scored) > len(own_batches):
        reporter.info(f"out of memory at {batch_size} examples: the longest were scored in smaller batches")
    all_scored = [pair for pairs in distributed.gather_object(scored) for pair in pairs]
    return restore_order(features, *zip(*all_scored, strict=True))


def score_with_halving(
    score: Callable[[np.ndarray], np.ndarray], rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows with their logits: all at once, or halves of the batch if memory runs out.

    Raises:
        UserError: memory runs out for a single row.
    """
    try:
        with report_out_of_memory(
            "out of memory for a single row; shorten the texts or use a machine with more memory"
        ):
            logits = score(rows)
        yield rows, logits
        return
    except OutOfMemory as error:
        if len(rows) == 1:
            raise UserError(str(error)) from None
    release_memory()  # outside `except`, because the error keeps the tensors alive
    for half in np.array_split(rows, 2):
        yield from score_with_halving(score, half)


def restore_order(
    features: Features, batches: Sequence[np.ndarray], batch_logits: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the logits of all batches in the order of the examples."""
    offsets = features.logit_offsets
    num_outputs = max(part.shape[-1] for part in batch_logits)
    logits = np.full((offsets[-1], num_outputs), -np.inf, np.float32)
    for rows, part in zip(batches, batch_logits, strict=True):
        logits[concat_ranges(offsets[rows], offsets[rows + 1]), : part.shape[-1]] = part
    return logits
