"""The logits of a teacher for the training examples of its student: computed once, and cached."""

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.data.features import Features, update_with_tokens
from bertkit.data.stored_logits import LogitsWriter, StoredLogits
from bertkit.errors import UserError
from bertkit.modeling.forward import batch_by_length
from bertkit.training.scoring import bind_logits, score_with_halving
from bertkit.utils.cache import cache_or_write
from bertkit.utils.reporting import Reporter

# Keys of `config.json` that do not affect the logits.
IRRELEVANT_CONFIG_KEYS = {"_name_or_path", "transformers_version", "id2label", "label2id", "dtype"}


def compute_teacher_logits(
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
    reporter: Reporter,
) -> StoredLogits:
    """Compute the logits of all examples, or load them from the cache.

    Args:
        model: The teacher, on the device to use.
        features: The examples as the teacher reads them.
        collator: Turns examples into a batch.
        batch_size: Number of examples per forward pass.
        reporter: Shows the progress.

    Raises:
        UserError: Logits are NaN, or cannot be written.
    """

    def write(folder: Path) -> None:
        with LogitsWriter(folder) as writer:
            _write_logits(writer, model, features, collator, batch_size, reporter)

    key = _compute_cache_key(model, features)
    return StoredLogits.load(cache_or_write("teacher-logits", key, write, "the teacher's logits"))


def _write_logits(
    writer: LogitsWriter,
    model: Any,
    features: Features,
    collator: Callable[..., dict[str, torch.Tensor]],
    batch_size: int,
    reporter: Reporter,
) -> None:
    """Compute the logits of all examples. The longest ones come first: memory runs out at once or never."""
    compute, device = bind_logits(model), next(model.parameters()).device
    counts = np.diff(features.logit_offsets)

    def score(examples: np.ndarray) -> np.ndarray:
        batch = collator([features[index] for index in examples])
        logits: torch.Tensor = compute({name: tensor.to(device) for name, tensor in batch.items()})
        return logits.float().cpu().numpy()

    batches = batch_by_length(features, batch_size)
    with torch.no_grad():
        for batch_examples in reporter.track(batches, len(batches), "computing the teacher's predictions"):
            for examples, logits in score_with_halving(score, batch_examples):
                if np.isnan(logits).any():
                    raise UserError("teacher: its logits are NaN; train it again")
                writer.add(examples, logits, counts[examples])


def _compute_cache_key(model: Any, features: Features) -> str:
    """Return a digest of everything that the logits depend on: the model, and the inputs in their order."""
    config = {
        key: value for key, value in model.config.to_dict().items() if key not in IRRELEVANT_CONFIG_KEYS
    }
    digest = blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    digest.update(np.ascontiguousarray(features.sequence_offsets).data)
    digest.update(np.ascontiguousarray(features.sequence_lengths).data)
    update_with_tokens(digest, features)
    if positions := getattr(features, "positions", None):  # of the words of `ner`
        digest.update(np.ascontiguousarray(positions.offsets).data)
        digest.update(np.ascontiguousarray(positions.values).data)
    return digest.hexdigest()
