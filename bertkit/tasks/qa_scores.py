"""The scores of the answers of `qa` by the rules of SQuAD, and those of baselines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bertkit.tasks.base import Scores

if TYPE_CHECKING:
    from bertkit.data.rows import Rows
    from bertkit.metrics.squad import AnswerScores

Rules = Literal["v1", "v2"]


def get_gold_texts(rows: "Rows") -> list[list[str]]:
    """Return the texts of the gold answers to each question; an empty list if there is no answer."""
    return [[answer["text"] for answer in answers] for answers in rows["answers"]]


def score_answers(gold: list[list[str]], answers: Sequence[str], rules: Rules) -> "AnswerScores":
    """Return exact match and F1 of each answer, computed as in the official script of these rules."""
    from bertkit.metrics.squad import score_answers_v1, score_answers_v2

    return (score_answers_v1 if rules == "v1" else score_answers_v2)(gold, answers)


def average_scores(scores: "AnswerScores", gold: list[list[str]], rules: Rules) -> Scores:
    """Return the mean scores in percent that the official script of these rules prints."""
    import numpy as np

    from bertkit.metrics.squad import average_scores_v1, average_scores_v2

    if rules == "v1":
        return average_scores_v1(scores)
    return average_scores_v2(scores, np.fromiter(map(bool, gold), bool))


def score_baselines(rows: "Rows", rules: Rules) -> dict[str, Scores]:
    """Return the scores of `overlap` and, with v2, of `majority`.

    The overlap baseline answers with the sentence that contains most words of the question. The majority
    baseline gives empty answers.
    """
    from bertkit.metrics.baselines import predict_overlap

    gold = get_gold_texts(rows)
    predictions = {"overlap": predict_overlap(rows["question"], rows["context"])}
    if rules == "v2":
        predictions["majority"] = [""] * len(rows)
    return {
        name: average_scores(score_answers(gold, answers, rules), gold, rules)
        for name, answers in predictions.items()
    }
