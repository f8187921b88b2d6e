"""The best answers of each question over all of its windows, by characters of its paragraph."""

from dataclasses import dataclass

import numpy as np

from bertkit.data.qa.features import QuestionFeatures
from bertkit.data.qa.spans import compute_descending_keys

TEXT_HASH_FACTOR = 0xD1B54A32D192ED03  # odd: what is multiplied by it, modulo 2**64, is spread over all bits


@dataclass(frozen=True)
class NBest:
    """The answers of `n` questions, one question after the other, best first. Each has one at least.

    Attributes:
        offsets: [n + 1] the first answer of each question.
        start, stop: [answers] characters of its paragraph.
        start_logit, end_logit: [answers] S·T_i and E·T_j.
        null: [n, 2] S·C and E·C in the window in which no answer is least likely.
    """

    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray
    null_logits: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """[answers] S·T_i + E·T_j."""
        return self.start_logit + self.end_logit

    @property
    def null_odds(self) -> np.ndarray:
        """[n] s_null minus the score of the best answer (Devlin et al. 2018, 4.3)."""
        return (self.null_logits.sum(1) - self.score[self.offsets[:-1]]).astype(np.float64)

    def compute_probabilities(self, include_null: bool) -> tuple[np.ndarray, np.ndarray]:
        """[answers] and [n]: the softmax over each question's answers, and over no answer `with_none`."""
        first, score, none = (
            self.offsets[:-1],
            self.score.astype(np.float64),
            self.null_logits.sum(1, np.float64),
        )
        top = np.maximum(score[first], none) if include_null else score[first]
        of_answers = np.exp(score - np.repeat(top, np.diff(self.offsets)))
        of_none = np.exp(none - top) if include_null else np.zeros(len(none))
        total = np.add.reduceat(of_answers, first) + of_none
        return of_answers / np.repeat(total, np.diff(self.offsets)), of_none / total


def merge_windows(kept: np.ndarray, features: QuestionFeatures) -> NBest:
    """The answers of all windows of each question put together, of those with the same text the best.

    s_null is the least of the windows', as in google's `run_squad.py`: a window without the answer says
    nothing of the others.

    Args:
        kept: [windows, 2 + 4 n_best], see `QuestionFeatures.kept`.
    """
    n = features.limits.n_best
    found, places = kept[:, 2 : 2 + 2 * n].reshape(-1, 2, n), kept[:, 2 + 2 * n :].reshape(-1, 2, n)
    pieces = features.start[:, None, None] + places.astype(np.int64)
    there = np.isfinite(found).all(1)
    pieces = np.where(there[:, None], pieces, 0)
    start, stop = features.contexts.start[pieces[:, 0]], features.contexts.stop[pieces[:, 1]]
    text = np.where(stop > start, features.rolling_hash.hash_spans(pieces[:, 0], pieces[:, 1]), 0)
    question = np.broadcast_to(features.question_index[:, None], start.shape)
    null = _least(kept[:, :2], features)
    lone = np.flatnonzero(np.bincount(question[there], minlength=len(null)) == 0)  # no piece is left of it
    nothing = np.zeros(len(lone), start.dtype)
    return _sorted(
        np.concatenate([question[there], lone]), np.concatenate([text[there], nothing.astype(text.dtype)]),
        np.concatenate([start[there], nothing]), np.concatenate([stop[there], nothing]),
        np.concatenate([found[:, 0][there], null[lone, 0]]),
        np.concatenate([found[:, 1][there], null[lone, 1]]), null, n,
    )  # fmt: skip


def _least(null: np.ndarray, features: QuestionFeatures) -> np.ndarray:
    """[n, 2] of each question's windows the one with the least s_null."""
    order = np.lexsort((null.sum(1), features.question_index))
    return null[order[features.window_offsets[:-1]]]


def _sorted(
    question: np.ndarray, text: np.ndarray, start: np.ndarray, stop: np.ndarray,
    start_logit: np.ndarray, end_logit: np.ndarray, null: np.ndarray, n: int,
) -> NBest:  # fmt: skip
    """The best `n` of each question; of answers with one text, from two windows or two places, the better.

    Those of a window come sorted, so the stable sort, which looks for what is sorted, has little to do.
    """
    order = np.argsort((question << 32) + compute_descending_keys(start_logit + end_logit), kind="stable")
    answer = text * np.uint64(TEXT_HASH_FACTOR) + question.astype(np.uint64)
    order = order[np.sort(np.unique(answer[order], return_index=True)[1])]
    counts = np.bincount(question[order], minlength=len(null))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    order = order[rank < n]
    offsets = np.concatenate([[0], np.cumsum(np.minimum(counts, n))])
    return NBest(offsets, start[order], stop[order], start_logit[order], end_logit[order], null)
