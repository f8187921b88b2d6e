"""Decode masked examples for display, and measure what masking did to them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertkit.data.masking import CausalLmCollator, MlmCollator

PAIR_LABELS = ("IsNext", "NotNext")  # 0 and 1, as in transformers


def sample_indices(features: Any, count: int) -> list[int]:
    """Return the sorted indices of at most `count` random examples of the first epoch."""
    order = np.random.default_rng(features.seed).permutation(len(features))
    return np.sort(order[:count]).tolist()


def decode_masked_samples(
    features: Any, collator: MlmCollator | CausalLmCollator, tokenizer: Any, indices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the text of each example as the model reads it (`masked`), and the `tokens` to predict.

    Args:
        features: Features of the corpus, `CorpusFeatures`.
        collator: Collator that masks the examples.
        tokenizer: Tokenizer of the features.
        indices: Indices of the examples.
    """
    for index in indices:
        item = features[index]
        batch = collator([item])
        is_used = batch["masked_lm_labels"][0] >= 0
        positions = batch["masked_lm_positions"][0][is_used].tolist()
        labels = batch["masked_lm_labels"][0][is_used].tolist()
        sample = {
            "masked": " ".join(tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())),
            "positions": positions,
            "tokens": tokenizer.convert_ids_to_tokens(labels),
        }
        if collator.has_pairs:
            sample["pair"] = PAIR_LABELS[int(item["next_sentence_label"])]
        yield sample


def measure_samples(
    features: Any,
    collator: MlmCollator | CausalLmCollator,
    is_continuation: np.ndarray | None,
    indices: Sequence[int],
) -> dict[str, float]:
    """Return the measurements of the collator, and the fractions of IsNext pairs and of padding."""
    items = [features[index] for index in indices]
    measurements = {"examples": len(items), **collator.measure(items, is_continuation)}
    if collator.has_pairs:
        measurements["is_next"] = float(np.mean([item["next_sentence_label"] == 0 for item in items]))
    is_padding = collator.pad(items)["attention_mask"] == 0
    return measurements | {"padding": float(is_padding.float().mean())}
