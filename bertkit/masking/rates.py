"""What masking did to a batch, in figures."""

import numpy as np

from bertkit.masking.masks import KEPT, MASK, RANDOM, UNUSED, MaskedBatch
from bertkit.masking.words import WordSpans


def measure_masking(
    masked: MaskedBatch, input_ids: np.ndarray, is_special: np.ndarray, is_continuation: np.ndarray | None
) -> dict[str, float]:
    """Shares of a masked batch; a share of nothing is 0.

    Args:
        input_ids, special: [B, L] as they were before.
        continues: [vocabulary] bool, by which words are told; None: each piece is a word.

    Returns:
        `selected`, of the pieces that are not special; of those selected `mask`, `random` (also where the
        piece drawn happens to be the one that was there), `kept` and `special_selected`; `whole_words`, of
        the words of which a piece is selected those of which all are.
    """
    row, slot = np.nonzero(masked.actions != UNUSED)
    chosen = np.zeros(is_special.shape, bool)
    chosen[row, masked.masked_lm_positions[row, slot]] = True
    words = WordSpans.from_batch(input_ids, is_special, is_continuation)
    before = np.concatenate([[0], np.cumsum(chosen)])
    parts = before[words.starts + words.sizes] - before[words.starts]
    actions = np.bincount(masked.actions.ravel(), minlength=KEPT + 1)
    return {
        "selected": safe_divide(len(row), words.token_counts.sum()),
        "mask": safe_divide(actions[MASK], len(row)),
        "random": safe_divide(actions[RANDOM], len(row)),
        "kept": safe_divide(actions[KEPT], len(row)),
        "special_selected": safe_divide((chosen & is_special).sum(), len(row)),
        "whole_words": safe_divide((parts == words.sizes).sum(), (parts > 0).sum()),
    }


def safe_divide(part: int, whole: int) -> float:
    """A share of nothing is 0."""
    return float(part / whole) if whole else 0.0
