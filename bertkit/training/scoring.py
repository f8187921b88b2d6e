"""Logits of a whole data set, always in fp32 and in the order of its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.modeling.forward import logits_of
from bertkit.reporter import Reporter


def predict_logits(
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
    reporter: Reporter,
) -> np.ndarray:
    """Logits [n, outputs] in fp32, longest examples first so that memory runs out early or never.

    Accelerate wraps the instance's forward in autocast under bf16 and fp16; the class's forward is
    untouched, and so it is the one called here.
    """
    order = np.argsort(-features.lengths, kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    forward = type(model).forward.__get__(model)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    logits: np.ndarray | None = None
    with torch.no_grad():
        for rows in reporter.track(batches, len(batches), "scoring"):
            batch = collator([features[row] for row in rows])
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            found = logits_of(forward, batch).float().cpu().numpy()
            if logits is None:
                logits = np.empty((len(features), found.shape[-1]), np.float32)
            logits[rows] = found
    model.train(was_training)
    assert logits is not None, "a split with no rows is refused when it is read"
    return logits
