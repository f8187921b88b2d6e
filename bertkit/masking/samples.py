"""Examples as they were masked, in words, for people."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertkit.masking.collator import MaskedPad, NextPiece

LABELS = ("IsNext", "NotNext")  # 0 and 1, in transformers' order


def drawn(features: Any, count: int) -> list[int]:
    """The numbers of at most `count` examples of the first epoch, from all over the text."""
    order = np.random.default_rng(features.seed).permutation(len(features))
    return np.sort(order[:count]).tolist()


def samples(
    features: Any, collate: MaskedPad | NextPiece, tokenizer: Any, numbers: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """`masked`, the text as the model reads it, and of each place to predict at the piece it should say.

    Args:
        features: `CorpusFeatures`, of which these numbers.
    """
    for number in numbers:
        item = features[number]
        batch = collate([item])
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
        yield sample | ({"pair": LABELS[int(item["next_sentence_label"])]} if collate.pairs else {})


def rates(
    features: Any, collate: MaskedPad | NextPiece, continues: np.ndarray | None, numbers: Sequence[int]
) -> dict[str, float]:
    """What masking did to these examples, and the shares of IsNext and of padding in them."""
    items = [features[number] for number in numbers]
    found = {"examples": len(items), **collate.rates(items, continues)}
    if collate.pairs:
        found["is_next"] = float(np.mean([item["next_sentence_label"] == 0 for item in items]))
    return found | {"padding": float((collate.pad(items)["attention_mask"] == 0).float().mean())}
