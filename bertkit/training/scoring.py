"""Logits of a whole data set, always in fp32 and in the order of its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.data.ragged import stretches
from bertkit.modeling.forward import logits_of
from bertkit.reporter import Reporter


def predict_logits(
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
    reporter: Reporter,
    what: str = "scoring",
) -> np.ndarray:
    """Logits in fp32, the rows of example i at outputs[i] to outputs[i + 1] of the features.

    Where the features keep only a part of them (`Features.kept`), it is that part: it is taken batch by
    batch, so that memory does not grow with what is thrown away.

    Longest examples go first, so that memory runs out early or never.

    Where examples have outputs of unlike number, those that are not there are -inf.

    Accelerate wraps the instance's forward in autocast under bf16 and fp16; the class's forward is
    untouched, and so it is the one called here.
    """
    batches = batches_of(features, batch_size)
    forward = type(model).forward.__get__(model)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found: list[np.ndarray] = []
    with torch.no_grad():
        for rows in reporter.track(batches, len(batches), what):
            batch = collator([features[row] for row in rows])
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            found.append(features.kept(logits_of(forward, batch).float(), rows, batch).cpu().numpy())
    model.train(was_training)
    return in_order(features, batches, found)


def batches_of(features: Features, batch_size: int) -> list[np.ndarray]:
    """The numbers of the examples of each batch, the longest first."""
    order = np.argsort(-features.sizes, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def in_order(features: Features, batches: list[np.ndarray], found: list[np.ndarray]) -> np.ndarray:
    """What was found of each batch, where it belongs."""
    outputs = features.outputs
    logits = np.full((outputs[-1], max(part.shape[-1] for part in found)), -np.inf, np.float32)
    for rows, part in zip(batches, found, strict=True):
        logits[stretches(outputs[rows], outputs[rows + 1]), : part.shape[-1]] = part
    return logits
