"""Answers to questions marked as the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 mark them.

Marks are kept by question, since a bootstrap and a threshold ask for many totals of the same marks. Sums
run in the order of the scripts, so that totals equal theirs to the last bit.
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
# KorQuAD's, before lower case: a Greek sigma is lowered by what stands behind it.
QUOTES_TO_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


@dataclass(frozen=True)
class AnswerScores:
    """How well `n` questions are answered, each by the gold answer that suits best.

    Attributes:
        exact: [n] float, 0 or 1: the same after normalization.
        f1: [n] float, from 0 to 1: the tokens they share.
        answered: [n] bool; where not, the marks are 0. The empty string is an answer.
    """

    exact: np.ndarray
    f1: np.ndarray
    is_answered: np.ndarray


def normalize_answer(text: str) -> str:
    """SQuAD's: lower case, without ASCII punctuation, without articles, single blanks."""
    return " ".join(_tokens(text))


def score_answers_v1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Marks by the rule of SQuAD 1.1, where sides that share no token have an F1 of 0, also two empty ones.

    Args:
        gold: the gold answers of each question.
        answers: [n]; None where a question is unanswered.
    """
    return _marks([[_tokens(text) for text in texts] for texts in gold], answers, _f1)


def score_answers_v2(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> AnswerScores:
    """Marks by the rule of SQuAD 2.0, where a question may have no answer and "" says so; see `marks_v1`.

    A gold answer of which nothing is left does not count; where none counts, the empty one is right.
    """
    kept = [[tokens for tokens in map(_tokens, texts) if tokens] or [[]] for texts in gold]
    return _marks(kept, answers, _f1_or_both_empty)


def average_scores_v1(marks: AnswerScores) -> Scores:
    """The means exact and f1 in percent; an unanswered question counts as wrong."""
    total = max(len(marks.f1), 1)
    return {
        name: 100.0 * float(np.cumsum(np.append(0.0, values))[-1]) / total  # np.sum would add in pairs
        for name, values in (("exact", marks.exact), ("f1", marks.f1))
    }


def average_scores_v2(marks: AnswerScores, has_answer: np.ndarray) -> Scores:
    """The means exact and f1 in percent, of all and apart of questions with and without an answer.

    Args:
        has_answer: [n] bool, of the gold. Unanswered questions are left out of every mean.

    Returns:
        exact, f1; HasAns_exact, HasAns_f1, NoAns_exact, NoAns_f1 where there are such questions.
    """
    parts = {
        "": marks.is_answered,
        "HasAns_": marks.is_answered & has_answer,
        "NoAns_": marks.is_answered & ~has_answer,
    }
    return {
        # Python's sum, as in the script: from 3.12 on it rounds otherwise than adding one by one does.
        f"{part}{name}": 100.0 * sum(values[rows].tolist()) / max(int(rows.sum()), 1)
        for part, rows in parts.items()
        if not part or rows.any()
        for name, values in (("exact", marks.exact), ("f1", marks.f1))
    }


def compute_char_f1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> np.ndarray:
    """KorQuAD 1.0's F1 of characters: [n] float, from 0 to 1. Arguments as for `marks_v1`."""
    return _marks([[_characters(text) for text in texts] for texts in gold], answers, _f1, _characters).f1


def _tokens(text: str) -> list[str]:
    return ARTICLES.sub(" ", text.lower().translate(STRIP_PUNCTUATION)).split()


def _characters(text: str) -> list[str]:
    return list("".join(text.translate(QUOTES_TO_SPACES).lower().translate(STRIP_PUNCTUATION).split()))


def _marks(
    gold: Sequence[Sequence[list[str]]],
    answers: Sequence[str | None],
    f1: Callable[[list[str], list[str]], float],
    tokens_of: Callable[[str], list[str]] = _tokens,
) -> AnswerScores:
    """Marks of answers against gold ones that are tokens already; 0 where there is nothing to compare."""
    exact, best = np.zeros(len(answers)), np.zeros(len(answers))
    for row, (golds, answer) in enumerate(zip(gold, answers, strict=True)):
        if answer is not None:
            tokens = tokens_of(answer)
            exact[row] = tokens in golds
            best[row] = max((f1(tokens, some) for some in golds), default=0.0)
    return AnswerScores(exact, best, np.array([answer is not None for answer in answers], bool))


def _f1(answer: list[str], gold: list[str]) -> float:
    same = sum((Counter(answer) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(answer), same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _f1_or_both_empty(answer: list[str], gold: list[str]) -> float:
    return _f1(answer, gold) if answer and gold else float(answer == gold)
