"""A batch that counts nothing, for a rank without an example of a step: it keeps pace with the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features

DUMMY_BATCH = "spare"  # in such a batch


@dataclass(frozen=True)
class DummyBatchCollator:
    """The collator of a loader: some examples to a batch, none to one that is spare, of any example."""

    collator: Callable[..., dict[str, torch.Tensor]]
    features: Features

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch that a step takes."""
        if examples:
            return self.collator(examples)
        (key,) = self.features.example_keys_for_epoch(0, np.zeros(1, int)).tolist()
        return self.collator([self.features[key]]) | {DUMMY_BATCH: torch.tensor(True)}
