"""Prediction of logits for all examples of a dataset, always in fp32."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.errors import UserError
from bertkit.models.forward import Collator, EnsembleModel, batch_by_length, collate_on_device, compute_logits
from bertkit.models.losses import Loss, sum_parts
from bertkit.training.failures import OutOfMemory, release_memory, report_out_of_memory
from bertkit.utils import distributed
from bertkit.utils.arrays import concat_ranges
from bertkit.utils.reporting import report_info, track_progress


class MeanLoss:
    """Mean loss over all examples that `predict_logits` scores, on all ranks."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        # By the first example of a batch: sum and number of items of each part. A repeated batch counts once.
        self._batches: dict[int, dict[str, tuple[float, float]]] = {}

    def add(self, examples: np.ndarray, logits: Any, batch: dict[str, torch.Tensor]) -> None:
        sums, counts = self.loss.sum_losses(logits, batch), self.loss.count_items(batch)
        self._batches[int(examples[0])] = {part: (float(sums[part]), float(counts[part])) for part in sums}

    def compute(self) -> float:
        """Return the sum of the means of all parts; all ranks must call this."""
        batches: dict[int, dict[str, tuple[float, float]]] = {}
        for rank_batches in distributed.gather_object(self._batches):
            batches |= rank_batches
        totals: dict[str, tuple[float, float]] = {}
        for _, parts in sorted(batches.items()):  # sorted: the result does not depend on the number of ranks
            for part, (loss, count) in parts.items():
                total_loss, total_count = totals.get(part, (0.0, 0.0))
                totals[part] = total_loss + loss, total_count + count
        means = {part: loss / (count or 1.0) for part, (loss, count) in totals.items()}
        return float(sum_parts(self.loss, means))


def predict_logits(
    model: Any,
    features: Features,
    collator: Collator,
    batch_size: int,
    what: str = "scoring",
    is_sharded: bool = False,
    mean_loss: MeanLoss | None = None,
) -> np.ndarray:
    """Return the logits [total, outputs] of all examples in fp32, and restore the mode of the model.

    Rows `logit_offsets[i]` to `logit_offsets[i + 1]` belong to example i. If examples have different numbers
    of outputs, missing outputs are -inf. `Features.reduce_logits` is applied to each batch, so discarded
    logits do not occupy memory. With several ranks, each rank computes a part of the batches, and all ranks
    receive all logits. If the weights are distributed over all ranks (`is_sharded`), the model must be the
    wrapped one, which gathers them, and all ranks call it the same number of times.
    """
    batches = batch_by_length(features, batch_size)
    own_batches = batches[distributed.get_rank() :: distributed.get_world_size()]
    if is_sharded and len(own_batches) * distributed.get_world_size() < len(batches):
        own_batches = [*own_batches, batches[0]]  # repeats a batch, because other ranks have one more batch
    compute = bind_logits(model, is_sharded)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def score(examples: np.ndarray) -> np.ndarray:
        batch = collate_on_device(features, examples, collator, device)
        logits = compute(batch).float()
        if mean_loss is not None:
            mean_loss.add(examples, logits, batch)
        return features.reduce_logits(logits, examples, batch).cpu().numpy()

    scored: list[tuple[np.ndarray, np.ndarray]] = []  # example indices and logits of each batch
    try:
        with torch.no_grad():
            for examples in track_progress(own_batches, len(own_batches), what):
                if is_sharded:
                    scored.append((examples, score(examples)))
                else:
                    scored.extend(score_with_halving(score, examples))
    finally:
        model.train(was_training)
    if len(scored) > len(own_batches):
        report_info(
            f"out of memory at {batch_size} examples: the longest examples were scored in smaller batches"
        )
    all_scored = [pair for rank_scored in distributed.gather_object(scored) for pair in rank_scored]
    batches_of_all_ranks, batch_logits = zip(*all_scored, strict=True)
    return restore_order(features, batches_of_all_ranks, batch_logits)


def bind_logits(model: Any, is_sharded: bool = False) -> Callable[[dict[str, Any]], Any]:
    """Return a function from a batch to the logits of a model or an ensemble, in fp32.

    For bf16 and fp16, accelerate wraps the forward method of the instance in autocast. The method of the
    class, which is called here unless the weights are sharded, is not wrapped.
    """
    if isinstance(model, EnsembleModel):
        return model.compute_logits
    return partial(compute_logits, model if is_sharded else type(model).forward.__get__(model))


def score_with_halving(
    score: Callable[[np.ndarray], np.ndarray], examples: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Score a batch, or each half if memory runs out; yield example indices and logits of what is scored."""
    try:
        with report_out_of_memory(
            "out of memory for a single row; shorten the texts or use a machine with more memory"
        ):
            logits = score(examples)
        yield examples, logits
        return
    except OutOfMemory as error:
        if len(examples) == 1:
            raise UserError(str(error)) from None
    release_memory()  # outside `except`, because the error keeps the tensors alive
    for half in np.array_split(examples, 2):
        yield from score_with_halving(score, half)


def restore_order(
    features: Features, batches: Sequence[np.ndarray], batch_logits: Sequence[np.ndarray]
) -> np.ndarray:
    """Return the logits of all batches in the order of the examples."""
    offsets = features.logit_offsets
    max_outputs = max(logits.shape[-1] for logits in batch_logits)
    ordered = np.full((offsets[-1], max_outputs), -np.inf, np.float32)
    for examples, logits in zip(batches, batch_logits, strict=True):
        rows = concat_ranges(offsets[examples], offsets[examples + 1])
        ordered[rows, : logits.shape[-1]] = logits
    return ordered
