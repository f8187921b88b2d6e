"""Scores of answers as the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 compute them.

Scores are kept per question, because the bootstrap and the threshold search sum the same scores many times.
Sums are computed in the order of the official scripts, so totals are bit-identical to theirs.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.metrics.classification import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
STRIP_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD replaces these before lowercasing. The order matters: how a Greek sigma is lowercased depends on
# the character after it.
QUOTES_TO_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class AnswerScores:
    """Scores of the answers to `n` questions, each against the gold answer that matches best.

    Attributes:
        exact: [n] float, 0 or 1: whether both are equal after normalization.
        f1: [n] float, from 0 to 1: F1 of the words in common.
        is_answered: [n] bool; the scores of unanswered questions are 0. The empty string is an answer.
    """

    exact: np.ndarray
    f1: np.ndarray
    is_answered: np.ndarray


def normalize_answer(text: str) -> str:
    """Normalize as SQuAD does: lowercase, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_split_normalized(text))


def score_answers_v1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Score answers by the rule of SQuAD 1.1.

    The F1 is 0 without a word in common, which includes two empty answers.


    Args:
        gold: [n] the gold answers of each question.
        answers: [n] the predicted answers; None for unanswered questions.
    """
    gold_words = [[_split_normalized(text) for text in texts] for texts in gold]
    return _score_answers(gold_words, answers, _compute_f1)


def score_answers_v2(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Score answers by the rule of SQuAD 2.0, where the answer "" means that the question is unanswerable.

    A gold answer that normalizes to nothing is ignored. If none remains, the empty answer is correct.
    Arguments as for `score_answers_v1`.
    """
    gold_words = [[words for words in map(_split_normalized, texts) if words] or [[]] for texts in gold]
    return _score_answers(gold_words, answers, _compute_f1_or_match_empty)


def average_scores_v1(scores: AnswerScores) -> Scores:
    """Return the means exact and f1 in percent; unanswered questions count as wrong."""
    total = max(len(scores.f1), 1)
    return {
        # Unlike np.sum, np.cumsum adds one by one, as the script does.
        name: 100.0 * float(np.cumsum(np.append(0.0, values))[-1]) / total
        for name, values in (("exact", scores.exact), ("f1", scores.f1))
    }


def average_scores_v2(scores: AnswerScores, has_answer: np.ndarray) -> Scores:
    """Return the means in percent: over all questions, the answerable ones and the unanswerable ones.

    Args:
        scores: The scores of each question; unanswered questions are excluded from every mean.
        has_answer: [n] bool, whether the question has a gold answer.

    Returns:
        exact and f1; HasAns_exact, HasAns_f1, NoAns_exact and NoAns_f1 if there are such questions.
    """
    subsets = {
        "": scores.is_answered,
        "HasAns_": scores.is_answered & has_answer,
        "NoAns_": scores.is_answered & ~has_answer,
    }
    return {
        # The script uses Python's sum, which from 3.12 on rounds differently from adding one by one.
        f"{prefix}{name}": 100.0 * sum(values[rows].tolist()) / max(int(rows.sum()), 1)
        for prefix, rows in subsets.items()
        if not prefix or rows.any()
        for name, values in (("exact", scores.exact), ("f1", scores.f1))
    }


def compute_char_f1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> np.ndarray:
    """Return KorQuAD 1.0's character F1 [n], from 0 to 1; arguments as for `score_answers_v1`."""
    gold_characters = [[_split_characters(text) for text in texts] for texts in gold]
    return _score_answers(gold_characters, answers, _compute_f1, _split_characters).f1


def _split_normalized(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(STRIP_PUNCTUATION)).split()


def _split_characters(text: str) -> list[str]:
    return list("".join(text.translate(QUOTES_TO_SPACES).lower().translate(STRIP_PUNCTUATION).split()))


def _score_answers(
    gold: Sequence[Sequence[list[str]]],
    answers: Sequence[str | None],
    compute_f1: Callable[[list[str], list[str]], float],
    split: Callable[[str], list[str]] = _split_normalized,
) -> AnswerScores:
    """Score answers against gold answers that are split already; 0 for unanswered questions."""
    exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (gold_answers, answer) in enumerate(zip(gold, answers, strict=True)):
        if answer is not None:
            words = split(answer)
            exact[row] = words in gold_answers
            f1[row] = max((compute_f1(words, gold_words) for gold_words in gold_answers), default=0.0)
    return AnswerScores(exact, f1, np.array([answer is not None for answer in answers], bool))


def _compute_f1(answer: list[str], gold: list[str]) -> float:
    common = sum((Counter(answer) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _compute_f1_or_match_empty(answer: list[str], gold: list[str]) -> float:
    return _compute_f1(answer, gold) if answer and gold else float(answer == gold)


# ---- the no-answer threshold of SQuAD 2.0


@dataclass(frozen=True)
class ThresholdSweep:
    """Scores at every threshold that changes a prediction.

    Attributes:
        threshold: [k] float, ascending; the first is below all odds, so no question is answered.
        exact: [k] float, in percent.
        f1: [k] float, in percent.
    """

    threshold: np.ndarray
    exact: np.ndarray
    f1: np.ndarray


def apply_threshold(
    scores: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, threshold: float
) -> AnswerScores:
    """Replace the answers of questions whose odds exceed the threshold by no answer.

    Args:
        scores: The scores of each question.
        null_odds: [n] float, evidence for no answer, on any scale.
        has_answer: [n] bool, whether the question has a gold answer.
        threshold: On the scale of the odds.
    """
    is_null = scores.is_answered & (null_odds > threshold)
    exact, f1 = (np.where(is_null, ~has_answer, values) for values in (scores.exact, scores.f1))
    return AnswerScores(exact, f1, scores.is_answered)


def compute_best_scores(
    scores: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, is_empty: np.ndarray
) -> Scores:
    """Return the official script's best_exact and best_f1, and the thresholds that reach them.

    These are for comparison with published scores; use `sweep_thresholds` to choose a threshold. The script
    separates questions with equal odds, which no threshold can. It also reports "no question answered"
    as threshold 0.

    Args:
        scores: The scores of each question.
        null_odds: [n] float, evidence for no answer, on any scale.
        has_answer: [n] bool, whether the question has a gold answer.
        is_empty: [n] bool, whether the predicted answer is the empty string.
    """
    rows = np.flatnonzero(scores.is_answered)
    rows = rows[np.argsort(null_odds[rows], kind="stable")]
    thresholds = np.append(0.0, null_odds[rows])
    best: Scores = {}
    for name, values in (("exact", scores.exact), ("f1", scores.f1)):
        steps = np.where(has_answer[rows], values[rows], np.where(is_empty[rows], 0.0, -1.0))
        totals = np.cumsum(
            np.append(float((~has_answer).sum()), steps)
        )  # adds one by one, as the script does
        best_index = int(totals.argmax())
        best[f"best_{name}"] = 100.0 * float(totals[best_index]) / max(len(rows), 1)
        best[f"best_{name}_thresh"] = float(thresholds[best_index])
    return best


def sweep_thresholds(
    scores: AnswerScores, null_odds: np.ndarray, is_null_correct: np.ndarray
) -> ThresholdSweep:
    """Score every threshold: questions with higher odds get the empty answer.

    At least one question must be answered. Questions with equal odds change together, as in prediction.

    Args:
        scores: The scores of each question.
        null_odds: [n] float, evidence for no answer, on any scale.
        is_null_correct: [n] bool, whether the empty answer is correct. By the rule of SQuAD 2.0 it is
            also correct if all gold answers normalize to nothing.
    """
    rows = np.flatnonzero(scores.is_answered)
    odds, step_index = np.unique(null_odds[rows], return_inverse=True)
    # Computed in the precision of the odds; a lower value in double precision could round up to them.
    below_all = np.nextafter(odds[:1], -np.inf)
    null_scores = is_null_correct[rows].astype(float)

    def score_thresholds(values: np.ndarray) -> np.ndarray:
        steps = np.bincount(step_index, values[rows] - null_scores, minlength=len(odds))
        return 100.0 * np.cumsum(np.append(null_scores.sum(), steps)) / len(rows)

    thresholds = np.concatenate([below_all, odds]).astype(float)
    return ThresholdSweep(thresholds, score_thresholds(scores.exact), score_thresholds(scores.f1))


def fit_threshold(sweep: ThresholdSweep) -> float:
    """Return the threshold with the best F1, the lowest on ties (up to accumulated rounding errors).

    The threshold lies halfway to the next question's odds, or 1 beyond the last ones. Numerical noise of
    another device or batch size then changes no answer.
    """
    best, odds = int(sweep.f1.round(9).argmax()), sweep.threshold
    if best == 0:
        return float(min(odds[0], odds[1] - 1.0))
    if best == len(odds) - 1:
        return float(odds[best] + 1.0)
    middle = odds[best] + (odds[best + 1] - odds[best]) / 2
    return float(middle if middle < odds[best + 1] else odds[best])
