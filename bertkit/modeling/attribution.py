"""Integrated gradients over the input embeddings (Sundararajan et al. 2017, section 3).

The attribution of a token is the part of the model's score that is due to the token, compared with a baseline
in which all tokens except special tokens are replaced. The attributions of all tokens sum to the difference
of the scores ("completeness").
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.modeling.forward import compute_logits

Score = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Attributions:
    """The attributions of a batch of examples.

    Attributes:
        tokens: [sequences, seq_len] attribution of each token; 0 for special tokens and padding.
        difference: [examples] score of the text minus score of the baseline.
    """

    tokens: np.ndarray
    difference: np.ndarray


def integrate_gradients(
    model: Any, batch: dict[str, torch.Tensor], score: Score, baseline_ids: torch.Tensor, num_steps: int
) -> Attributions:
    """Integrate the gradients along the straight path from the baseline to the input.

    The integral is approximated by Gauss-Legendre quadrature, which needs fewer steps than a Riemann sum.

    Args:
        model: A model in evaluation mode, in fp32.
        batch: The output of `PaddingCollator`.
        score: Maps the logits [examples, outputs] to the score of each example [examples].
        baseline_ids: [sequences, seq_len] token ids of the baseline.
        num_steps: Number of points at which gradients are computed.
    """
    embedding = model.get_input_embeddings()
    with torch.no_grad():
        baseline = embedding(baseline_ids)
        direction = embedding(batch["input_ids"]) - baseline

        def compute_score(fraction: float) -> torch.Tensor:
            with _replace_output(embedding, baseline + fraction * direction):
                return score(compute_logits(model, batch))

        difference = compute_score(1.0) - compute_score(0.0)
    gradient = torch.zeros_like(direction)
    nodes, weights = np.polynomial.legendre.leggauss(num_steps)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        point = (baseline + (node + 1) / 2 * direction).requires_grad_()
        with torch.enable_grad(), _replace_output(embedding, point):
            total = score(compute_logits(model, batch)).sum()
        gradient += weight / 2 * torch.autograd.grad(total, point)[0]
    tokens = (gradient * direction).sum(-1)
    return Attributions(tokens.cpu().numpy(), difference.cpu().numpy())


@contextmanager
def _replace_output(module: torch.nn.Module, output: torch.Tensor) -> Iterator[None]:
    """Let an embedding return this tensor `[sequences, seq_len, size]` for the tokens of the batch.

    An encoder may add padding to the batch, or call its embedding again for padding only (Longformer).
    """

    def replace(_: Any, __: Any, own: torch.Tensor) -> torch.Tensor:
        if len(own) != len(output) or own.shape[1] < output.shape[1]:
            return own
        return torch.cat([output, own[:, output.shape[1] :]], 1)

    handle = module.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
