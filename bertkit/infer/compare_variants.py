"""Several forms of one model on the same rows: how far their logits are apart, and how fast each is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features
from bertkit.modeling.forward import batch_by_length, compute_logits
from bertkit.training.scoring import restore_order
from bertkit.utils.reporting import Reporter


@dataclass
class VariantMeasurement:
    """What one form of the model gave.

    Attributes:
        difference: the greatest from the logits of the first form; inf where one has no number.
        seconds: in the forward passes.
        parts: what scoring keeps, batch by batch.
    """

    max_difference: float = 0.0
    seconds: float = 0.0
    batch_logits: list[np.ndarray] = field(default_factory=list)


def compare_variants(
    models: Mapping[str, Any], features: Features, collator: Callable[..., Any], batch_size: int,
    reporter: Reporter,
) -> tuple[dict[str, VariantMeasurement], dict[str, np.ndarray]]:  # fmt: skip
    """What each form was measured at, and its logits as `predict_logits` gives them.

    All compute the same batch one after the other, each time another first, so that none has the quiet
    moments of the machine for itself; a first batch warms them up.
    """
    batches, names = batch_by_length(features, batch_size), list(models)
    measured = {name: VariantMeasurement() for name in names}
    with torch.no_grad():
        for model in models.values():
            compute_logits(model, collator([features[row] for row in batches[-1]]))
        for number, rows in enumerate(reporter.track(batches, len(batches), "comparing")):
            batch, found = collator([features[row] for row in rows]), {}
            for name in np.roll(names, number).tolist():
                started = time.perf_counter()
                found[name] = compute_logits(models[name], batch)
                measured[name].seconds += time.perf_counter() - started
            for name, logits in found.items():
                one = measured[name]
                one.max_difference = max(one.max_difference, _apart(found[names[0]], logits))
                one.batch_logits.append(features.reduce_logits(logits.float(), rows, batch).numpy())
    return measured, {
        name: restore_order(features, batches, one.batch_logits) for name, one in measured.items()
    }


def _apart(some: Any, other: Any) -> float:
    """The greatest absolute difference. What is masked is -inf in both."""
    if not isinstance(some, torch.Tensor):  # several outputs
        pairs = zip(some, other, strict=True)
        return max(_apart(one, another) for one, another in pairs if one is not None)
    there = some != -torch.inf
    if not torch.equal(there, other != -torch.inf):
        return float("inf")
    difference = (some - other)[there].abs().nan_to_num(torch.inf)
    return float(difference.max()) if difference.numel() else 0.0
