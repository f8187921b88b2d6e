"""One forward pass over a batch as the collator gives it, windows pooled to one decision a document."""

from typing import Any

import torch


def logits_of(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits [examples, outputs]; where the batch has windows, the mean over those of a document.

    Args:
        model: a model, or just its forward function.
        batch: `Pad`'s output; `labels` are not handed on, since stock losses do not follow our rule.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name not in ("labels", "document")}
    logits = model(**inputs).logits
    if "document" not in batch:
        return logits
    document = batch["document"]
    counts = torch.bincount(document)
    sums = logits.new_zeros(len(counts), logits.shape[-1]).index_add(0, document, logits)
    return sums / counts.unsqueeze(-1).to(logits.dtype)
