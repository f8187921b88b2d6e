"""Examples as they were masked, in words, for people."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertkit.masking.collator import CausalLmCollator, MlmCollator

PAIR_LABELS = ("IsNext", "NotNext")  # 0 and 1, in transformers' order


def sample_indices(features: Any, count: int) -> list[int]:
    """The numbers of at most `count` examples of the first epoch, from all over the text."""
    order = np.random.default_rng(features.seed).permutation(len(features))
    return np.sort(order[:count]).tolist()


def decode_masked_samples(
    features: Any, collator: MlmCollator | CausalLmCollator, tokenizer: Any, indices: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """`masked`, the text as the model reads it, and of each place to predict at the piece it should say.

    Args:
        features: `CorpusFeatures`, of which these numbers.
    """
    for number in indices:
        item = features[number]
        batch = collator([item])
        used = batch["masked_lm_labels"][0] >= 0
        places, labels = (
            batch[name][0][used].tolist() for name in ("masked_lm_positions", "masked_lm_labels")
        )
        pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        sample = {
            "masked": " ".join(pieces),
            "places": places,
            "pieces": tokenizer.convert_ids_to_tokens(labels),
        }
        yield sample | ({"pair": PAIR_LABELS[int(item["next_sentence_label"])]} if collator.has_pairs else {})


def measure_samples(
    features: Any,
    collator: MlmCollator | CausalLmCollator,
    is_continuation: np.ndarray | None,
    indices: Sequence[int],
) -> dict[str, float]:
    """What masking did to these examples, and the shares of IsNext and of padding in them."""
    items = [features[number] for number in indices]
    found = {"examples": len(items), **collator.measure(items, is_continuation)}
    if collator.has_pairs:
        found["is_next"] = float(np.mean([item["next_sentence_label"] == 0 for item in items]))
    return found | {"padding": float((collator.pad(items)["attention_mask"] == 0).float().mean())}
