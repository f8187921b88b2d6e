"""Logits of a whole data set, always in fp32 and in the order of its rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.errors import UserError
from bertkit.modeling.forward import compute_logits
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
    """Logits in fp32, the rows of example i at outputs[i] to outputs[i + 1] of the features.

    Where the features keep only a part of them (`Features.kept`), it is that part: it is taken batch by
    batch, so that memory does not grow with what is thrown away.

    Longest examples go first, so that memory runs out early or never. Of several ranks each takes its part
    of the batches, and all get all logits.

    Where examples have outputs of unlike number, those that are not there are -inf.

    Accelerate wraps the instance's forward in autocast under bf16 and fp16; the class's forward is
    untouched, and so it is the one called here.

    Args:
        in_shards: the weights lie in parts on all ranks, and only the model itself brings them together: all
            must call it equally often.
    """
    batches = batch_by_length(features, batch_size)
    mine = batches[distributed.get_rank() :: distributed.get_world_size()]
    if is_sharded and len(mine) * distributed.get_world_size() < len(batches):
        mine = [*mine, batches[0]]  # once more
    forward = model if is_sharded else type(model).forward.__get__(model)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def score(rows: np.ndarray) -> np.ndarray:
        batch = collator([features[row] for row in rows])
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        return features.reduce_logits(compute_logits(forward, batch).float(), rows, batch).cpu().numpy()

    found: list[tuple[np.ndarray, np.ndarray]] = []
    try:
        with torch.no_grad():
            for rows in reporter.track(mine, len(mine), what):
                found.extend([(rows, score(rows))] if is_sharded else score_with_halving(score, rows))
    finally:
        model.train(was_training)
    if len(found) > len(mine):
        reporter.info(f"out of memory at {batch_size} examples: the longest were scored fewer at a time")
    of_all = [pair for pairs in distributed.gather_object(found) for pair in pairs]
    return restore_order(features, *zip(*of_all, strict=True))


def score_with_halving(
    score: Callable[[np.ndarray], np.ndarray], rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What is found of some examples, and of which: of all at once, or of halves where memory runs out.

    Raises:
        UserError: it runs out for one alone.
    """
    try:
        with report_out_of_memory("out of memory for one row alone: it takes shorter texts or more memory"):
            found = score(rows)
        yield rows, found
        return
    except OutOfMemory as error:
        if len(rows) == 1:
            raise UserError(str(error)) from None
    release_memory()  # not within `except`: the error holds what memory ran out of
    for half in np.array_split(rows, 2):
        yield from score_with_halving(score, half)


def batch_by_length(features: Features, batch_size: int) -> list[np.ndarray]:
    """The numbers of the examples of each batch, the longest first."""
    order = np.argsort(-features.length_keys, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def restore_order(
    features: Features, batches: Sequence[np.ndarray], found: Sequence[np.ndarray]
) -> np.ndarray:
    """What was found of each batch, where it belongs."""
    outputs = features.logit_offsets
    logits = np.full((outputs[-1], max(part.shape[-1] for part in found)), -np.inf, np.float32)
    for rows, part in zip(batches, found, strict=True):
        logits[concat_ranges(outputs[rows], outputs[rows + 1]), : part.shape[-1]] = part
    return logits
