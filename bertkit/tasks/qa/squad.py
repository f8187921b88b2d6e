"""Scores of answers as the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 compute them.

Each question is scored once, because the bootstrap and the threshold search sum the same scores many times.
The scores are summed in the order of the official scripts, so the results are bit-identical to theirs.
The script of SQuAD 2.0 uses Python's `sum`, which compensates for rounding from Python 3.12 on. The scores
here are the same on every version of Python: those of the scripts with Python 3.11.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.stats.scores import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
STRIP_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD replaces these characters before it lowercases a text. The order matters, because the lowercase form
# of a Greek sigma depends on the next character.
QUOTES_TO_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class AnswerScores:
    """Scores of the answers to `n` questions, each compared with the gold answer that matches best.

    Attributes:
        exact: [n] float, 1 if the answer equals a gold answer after normalization, else 0.
        f1: [n] float from 0 to 1, F1 of the words in the answer and a gold answer.
        is_answered: [n] bool, whether the predictions contain an answer to the question. The empty string is
            an answer. The scores of a question without an answer are 0.
    """

    exact: np.ndarray
    f1: np.ndarray
    is_answered: np.ndarray


def normalize_answer(text: str) -> str:
    """Normalize a text as SQuAD does: lowercase, without ASCII punctuation and articles, single spaces."""
    return " ".join(_split_normalized(text))


def score_answers_v1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Score answers by the rule of SQuAD 1.1.

    The F1 is 0 if the answers have no word in common, even if both are empty after normalization.

    Args:
        gold: [n] gold answers of each question.
        answers: [n] predicted answers; None for unanswered questions.
    """
    gold_words = [[_split_normalized(text) for text in texts] for texts in gold]
    return _score_answers(gold_words, answers, _compute_f1)


def score_answers_v2(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Score answers by the rule of SQuAD 2.0. The answer "" means that the question is unanswerable.

    Gold answers that are empty after normalization are ignored. If no gold answer remains, the empty answer
    is correct. The arguments are those of `score_answers_v1`.
    """

    def compute_f1(answer: list[str], gold: list[str]) -> float:
        return _compute_f1(answer, gold) if answer and gold else float(answer == gold)

    gold_words = [[words for words in map(_split_normalized, texts) if words] or [[]] for texts in gold]
    return _score_answers(gold_words, answers, compute_f1)


def average_scores_v1(scores: AnswerScores) -> Scores:
    """Return the means `exact` and `f1` in percent, with unanswered questions counted as wrong."""
    total = max(len(scores.f1), 1)
    return {
        name: 100.0 * _add_one_by_one(values) / total
        for name, values in (("exact", scores.exact), ("f1", scores.f1))
    }


def average_scores_v2(scores: AnswerScores, has_answer: np.ndarray) -> Scores:
    """Return means in percent over all, the answerable and the unanswerable questions.

    Args:
        has_answer: [n] bool, whether the question has a gold answer.

    Returns:
        `exact` and `f1`. If there are answerable questions, also `HasAns_exact` and `HasAns_f1`. If there are
        unanswerable questions, also `NoAns_exact` and `NoAns_f1`.
    """
    subsets = {
        "": scores.is_answered,
        "HasAns_": scores.is_answered & has_answer,
        "NoAns_": scores.is_answered & ~has_answer,
    }
    return {
        f"{prefix}{name}": 100.0 * _add_one_by_one(values[rows]) / max(int(rows.sum()), 1)
        for prefix, rows in subsets.items()
        if not prefix or rows.any()
        for name, values in (("exact", scores.exact), ("f1", scores.f1))
    }


def _add_one_by_one(values: np.ndarray) -> float:
    """Return the sum in the order of the rows, unlike `np.sum`, which adds in pairs."""
    return float(np.cumsum(np.append(0.0, values))[-1])


def compute_char_f1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> np.ndarray:
    """Return the character F1 of KorQuAD 1.0 for each question [n], from 0 to 1.

    The arguments are those of `score_answers_v1`.
    """
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
    """Score answers against gold answers that are split into words or characters already."""
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


# ---- the no-answer threshold of SQuAD 2.0


@dataclass(frozen=True)
class ThresholdSweep:
    """Scores at all thresholds that lead to different predictions.

    Attributes:
        threshold: [k] float, ascending. The first threshold is below all odds, so no question is answered.
        exact: [k] float, exact match in percent.
        f1: [k] float, F1 in percent.
    """

    threshold: np.ndarray
    exact: np.ndarray
    f1: np.ndarray


def apply_threshold(
    scores: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, threshold: float
) -> AnswerScores:
    """Return the scores if questions whose null odds exceed a threshold get the empty answer.

    Args:
        null_odds: [n] float, odds that the question is unanswerable, on any scale.
        has_answer: [n] bool, whether the question has a gold answer.
        threshold: Threshold on the scale of the odds.
    """
    is_null = scores.is_answered & (null_odds > threshold)
    exact, f1 = (np.where(is_null, ~has_answer, values) for values in (scores.exact, scores.f1))
    return AnswerScores(exact, f1, scores.is_answered)


def compute_best_scores(
    scores: AnswerScores, null_odds: np.ndarray, has_answer: np.ndarray, is_empty: np.ndarray
) -> Scores:
    """Return `best_exact` and `best_f1` of the official script, and their thresholds.

    These scores are for comparison with published results. Use `sweep_thresholds` to choose a threshold: the
    official script separates questions with equal odds, which is impossible for a threshold. If it is best
    to answer no question, the script reports the threshold 0.

    Args:
        null_odds: [n] float, odds that the question is unanswerable, on any scale.
        has_answer: [n] bool, whether the question has a gold answer.
        is_empty: [n] bool, whether the predicted answer is the empty string.
    """
    rows = np.flatnonzero(scores.is_answered)
    rows = rows[np.argsort(null_odds[rows], kind="stable")]
    thresholds = np.append(0.0, null_odds[rows])
    best: Scores = {}
    for name, values in (("exact", scores.exact), ("f1", scores.f1)):
        # What the total gains if one more question is answered.
        gains = np.where(has_answer[rows], values[rows], np.where(is_empty[rows], 0.0, -1.0))
        total_without_answers = float((~has_answer).sum())
        totals = np.cumsum(np.append(total_without_answers, gains))  # adds one by one, as the script does
        best_index = int(totals.argmax())
        best[f"best_{name}"] = 100.0 * float(totals[best_index]) / max(len(rows), 1)
        best[f"best_{name}_thresh"] = float(thresholds[best_index])
    return best


def sweep_thresholds(
    scores: AnswerScores, null_odds: np.ndarray, is_null_correct: np.ndarray
) -> ThresholdSweep:
    """Compute the scores at all thresholds. Questions with higher odds get the empty answer.

    The predictions must answer at least one question. Questions with equal odds are not separated.

    Args:
        null_odds: [n] float, odds that the question is unanswerable, on any scale.
        is_null_correct: [n] bool, whether the empty answer is correct. By the rule of SQuAD 2.0, it is also
            correct if all gold answers are empty after normalization.
    """
    rows = np.flatnonzero(scores.is_answered)
    odds, odds_index = np.unique(null_odds[rows], return_inverse=True)
    # In the precision of the odds: a lower number in double precision could be rounded up to the lowest odds.
    below_all = np.nextafter(odds[:1], -np.inf)
    null_scores = is_null_correct[rows].astype(float)

    def score_thresholds(values: np.ndarray) -> np.ndarray:
        # What the total gains if the threshold rises to the next odds.
        gains = np.bincount(odds_index, values[rows] - null_scores, minlength=len(odds))
        return 100.0 * np.cumsum(np.append(null_scores.sum(), gains)) / len(rows)

    thresholds = np.concatenate([below_all, odds]).astype(float)
    return ThresholdSweep(thresholds, score_thresholds(scores.exact), score_thresholds(scores.f1))


def fit_threshold(sweep: ThresholdSweep) -> float:
    """Return a threshold with the best F1, the lowest on ties.

    The result is the middle between the best threshold of the sweep and the next threshold. If the best one
    is the first or the last, the result is 1 below or above all odds. Numerical noise of another device or
    batch size then changes no answer.
    """
    thresholds = sweep.threshold
    best = int(sweep.f1.round(9).argmax())  # rounded, so that accumulated rounding errors do not break ties
    if best == 0:
        return float(min(thresholds[0], thresholds[1] - 1.0))
    if best == len(thresholds) - 1:
        return float(thresholds[best] + 1.0)
    middle = thresholds[best] + (thresholds[best + 1] - thresholds[best]) / 2
    # The middle of two adjacent floats may round up to the next threshold, which would change an answer.
    return float(middle if middle < thresholds[best + 1] else thresholds[best])
