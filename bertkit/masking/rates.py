"""What masking did to a batch, in figures."""

import numpy as np

from bertkit.masking.masks import KEPT, MASK, RANDOM, UNUSED, Masked
from bertkit.masking.words import Words


def measured(
    masked: Masked, input_ids: np.ndarray, special: np.ndarray, continues: np.ndarray | None
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
    row, slot = np.nonzero(masked.action != UNUSED)
    chosen = np.zeros(special.shape, bool)
    chosen[row, masked.masked_lm_positions[row, slot]] = True
    words = Words.of(input_ids, special, continues)
    before = np.concatenate([[0], np.cumsum(chosen)])
    parts = before[words.start + words.size] - before[words.start]
    actions = np.bincount(masked.action.ravel(), minlength=KEPT + 1)
    return {
        "selected": share(len(row), words.pieces.sum()),
        "mask": share(actions[MASK], len(row)),
        "random": share(actions[RANDOM], len(row)),
        "kept": share(actions[KEPT], len(row)),
        "special_selected": share((chosen & special).sum(), len(row)),
        "whole_words": share((parts == words.size).sum(), (parts > 0).sum()),
    }


def share(part: int, whole: int) -> float:
    """A share of nothing is 0."""
    return float(part / whole) if whole else 0.0
