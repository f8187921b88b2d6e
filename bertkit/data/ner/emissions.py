"""From logits of pieces to what each token says of each tag."""

import numpy as np

from bertkit.data.ner.features import WordFeatures
from bertkit.data.ner.tags import TagSet

NON_OUTSIDE_PENALTY = (
    1e-3  # a token of which no piece is left: outside, if its neighbours do not say otherwise
)
FORBIDDEN_PENALTY = 1e4  # against what cannot be, small enough to stay finite in a sum over a sentence


def compute_emissions(logits: np.ndarray, features: WordFeatures, tags: TagSet) -> np.ndarray:
    """[tokens, tags] log-probabilities.

    A token that shares its piece with the one before (characters, where pieces are words) goes on with
    what that one began. A token of which no piece is left goes along with its neighbours; it begins
    nothing, or it would lend its B to a neighbour whose pieces say I.

    Args:
        logits: [decisions, tags].
    """
    from scipy.special import log_softmax

    silent = np.where(tags.is_begin, -FORBIDDEN_PENALTY, -NON_OUTSIDE_PENALTY)
    silent[tags.outside_id] = 0.0
    found = np.tile(silent, (len(features.prediction_index), 1))
    there = features.prediction_index >= 0
    rows = log_softmax(logits.astype(np.float64), axis=-1)
    found[there] = rows[features.prediction_index[there]]
    shares = np.flatnonzero(there[1:] & (features.prediction_index[1:] == features.prediction_index[:-1])) + 1
    for kind in range(len(tags.types)):
        begin, inside = ((tags.type_ids == kind) & (tags.is_begin == first) for first in (True, False))
        found[shares[:, None], inside] = np.logaddexp(found[shares][:, begin], found[shares][:, inside])
        found[shares[:, None], begin] = -FORBIDDEN_PENALTY
    return found
