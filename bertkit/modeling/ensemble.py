"""Several models with the same inputs and outputs, whose predictions are averaged."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bertkit.modeling.forward import compute_logits
from bertkit.modeling.loading import select_inputs, takes_token_type_ids


class EnsembleModel(nn.Module):
    """Models that all score each batch.

    Args:
        members: The models.
        combine: Maps the logits of all members `[members, ...]` to those of the ensemble `[...]`.
    """

    def __init__(self, members: Sequence[nn.Module], combine: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.combine = combine
        self.config: Any = members[0].config

    @property
    def base_model(self) -> Any:
        """The encoder of the first member that takes token type ids, or else of the first member."""
        members: list[Any] = list(self.members)
        return next(filter(takes_token_type_ids, members), members[0]).base_model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Refuse a single forward pass; the logits of members are combined after `compute_logits`."""
        raise NotImplementedError

    def compute_logits(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the logits of the ensemble, in the form of `bertkit.modeling.forward.compute_logits`.

        Those of a single member are returned unchanged.
        """
        logits = [
            compute_logits(type(member).forward.__get__(member), select_inputs(member, batch)).float()
            for member in self.members
        ]
        return logits[0] if len(logits) == 1 else self.combine(torch.stack(logits))


def average_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the mean softmax: [members, n, classes] to [n, classes]."""
    return torch.log_softmax(logits, -1).logsumexp(0) - torch.tensor(float(len(logits))).log().to(logits)


def average_log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean of the logarithms of the softmax: [members, n, classes] to [n, classes]."""
    return torch.log_softmax(logits, -1).mean(0)


def average_label_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Return the logit of the mean sigmoid of each label: [members, n, labels] to [n, labels]."""
    return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)


def average_outputs(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean: [members, ...] to [...]."""
    return logits.mean(0)


# Functions by `problem_type` of the model's config; the outputs of other problems have a softmax.
AVERAGES_BY_PROBLEM = {
    "regression": average_outputs,
    "multi_label_classification": average_label_probabilities,
}
