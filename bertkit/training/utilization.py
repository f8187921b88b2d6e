"""Compute the model FLOPs utilization (MFU) of a training run (Chowdhery et al. 2022, appendix B)."""

from typing import Any

import torch

from bertkit.training.flops import count_training_flops
from bertkit.training.meters import SequenceCounts
from bertkit.training.peak_flops import find_peak_flops
from bertkit.utils import distributed


def compute_utilization(
    model: Any, sequences: SequenceCounts, seconds: float, device: torch.device, precision: str
) -> dict[str, Any]:
    """Return the MFU and the peak rate that it refers to. All ranks must call this.

    Args:
        model: The trained model, whose weights are not sharded.
        sequences: Counts of the training batches of all ranks.
        seconds: Duration of the training loop.
        device: Device that the model was trained on.
        precision: "fp32", "bf16" or "fp16".

    Returns:
        `mfu`, `peak_flops` of one device, and `peak_flops_source`; empty if the operations are unknown.
    """
    flops = count_training_flops(model, sequences)
    if not flops:
        return {}
    peak = distributed.on_main_process(find_peak_flops, device, precision)
    utilization = flops / seconds / (peak.value * distributed.get_world_size())
    return {"mfu": utilization, "peak_flops": peak.value, "peak_flops_source": peak.source}
