"""The predicted answers of `qa`, their scores by the rules of SQuAD, the prediction files, and baselines."""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from bertkit.data.language import is_korean
from bertkit.data.table import Rows
from bertkit.stats.calibration import Decisions
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores, sigmoid
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import NOT_FITTED, FittedConfidence, Outputs, RowEvaluation, ScoreDetail
from bertkit.tasks.qa.features import QuestionFeatures, compute_descending_keys
from bertkit.utils.arrays import compute_offsets, compute_positions_in_groups

Rules = Literal["v1", "v2"]

# ---- scores of the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0
#
# Each question is scored once, because the bootstrap and the threshold search sum the same scores many times.
# The scores are summed in the order of the official scripts, so the results are bit-identical to theirs.
# The script of SQuAD 2.0 uses Python's `sum`, which compensates for rounding from Python 3.12 on. The scores
# here are the same on every version of Python: those of the scripts with Python 3.11.

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


def score_answers(gold: Sequence[Sequence[str]], answers: Sequence[str | None], rules: Rules) -> AnswerScores:
    """Score answers as the official script of these rules does.

    By the rules of SQuAD 1.1, the F1 is 0 if the answers have no word in common, even if both are empty after
    normalization. By those of SQuAD 2.0, the answer "" means that the question is unanswerable. Gold answers
    that are empty after normalization are ignored. If none remains, the empty answer is correct.

    Args:
        gold: [n] gold answers of each question.
        answers: [n] predicted answers; None for unanswered questions.
    """
    gold_words = [[split_normalized(text) for text in texts] for texts in gold]
    if rules == "v1":
        return _score_answers(gold_words, answers, _compute_f1)

    def compute_f1(answer: list[str], gold: list[str]) -> float:
        return _compute_f1(answer, gold) if answer and gold else float(answer == gold)

    gold_words = [[words for words in texts if words] or [[]] for texts in gold_words]
    return _score_answers(gold_words, answers, compute_f1)


def average_scores(scores: AnswerScores, has_answer: np.ndarray | None = None) -> Scores:
    """Return means in percent, as the official scripts do.

    Args:
        has_answer: [n] bool, whether the question has a gold answer, by the rules of SQuAD 2.0; None for
            those of SQuAD 1.1, where unanswered questions are wrong.

    Returns:
        `exact` and `f1`. If there are answerable questions, also `HasAns_exact` and `HasAns_f1`. If there are
        unanswerable questions, also `NoAns_exact` and `NoAns_f1`.
    """
    if has_answer is None:
        subsets = {"": np.ones(len(scores.f1), bool)}
    else:
        subsets = {
            "": scores.is_answered,
            "HasAns_": scores.is_answered & has_answer,
            "NoAns_": scores.is_answered & ~has_answer,
        }
    means: Scores = {}
    for prefix, rows in subsets.items():
        for name, values in (("exact", scores.exact), ("f1", scores.f1)):
            if not prefix or rows.any():
                # Added in the order of the rows, unlike by `np.sum`, which adds in pairs.
                total = float(np.cumsum(np.append(0.0, values[rows]))[-1])
                means[f"{prefix}{name}"] = 100.0 * total / max(int(rows.sum()), 1)
    return means


def make_answer_scorer(scores: AnswerScores, has_answer: np.ndarray | None) -> Scorer:
    """Return a scorer of questions; the arguments are those of `average_scores`."""

    def score(rows: np.ndarray) -> Scores:
        sample = AnswerScores(scores.exact[rows], scores.f1[rows], scores.is_answered[rows])
        return average_scores(sample, None if has_answer is None else has_answer[rows])

    return Scorer(score, len(scores.f1))


def compute_char_f1(gold: Sequence[Sequence[str]], answers: Sequence[str | None]) -> np.ndarray:
    """Return the character F1 of KorQuAD 1.0 for each question [n], from 0 to 1.

    The arguments are those of `score_answers`.
    """
    gold_characters = [[_split_characters(text) for text in texts] for texts in gold]
    return _score_answers(gold_characters, answers, _compute_f1, _split_characters).f1


def split_normalized(text: str) -> list[str]:
    """Return the words of a text in lower case, without ASCII punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(STRIP_PUNCTUATION)).split()


def _split_characters(text: str) -> list[str]:
    return list("".join(text.translate(QUOTES_TO_SPACES).lower().translate(STRIP_PUNCTUATION).split()))


def _score_answers(
    gold: Sequence[Sequence[list[str]]],
    answers: Sequence[str | None],
    compute_f1: Callable[[list[str], list[str]], float],
    split: Callable[[str], list[str]] = split_normalized,
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


# ---- the n-best list of each question

TEXT_HASH_FACTOR = 0xD1B54A32D192ED03  # large and odd, so that the bits of a product modulo 2**64 are mixed


@dataclass(frozen=True)
class NBest:
    """The n-best lists of `n` questions, concatenated. Each list has at least one answer, the best one first.

    Attributes:
        offsets: [n + 1] index of each question's first answer.
        start: [answers] index of the answer's first character in the context.
        stop: [answers] index after the answer's last character in the context.
        start_logit: [answers] start logit S·T_i.
        end_logit: [answers] end logit E·T_j.
        null_logits: [n, 2] start and end logit S·C and E·C of the null token, from the window in which
            their sum is lowest.
    """

    offsets: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    start_logit: np.ndarray
    end_logit: np.ndarray
    null_logits: np.ndarray

    @property
    def score(self) -> np.ndarray:
        """[answers] sum of start and end logit, S·T_i + E·T_j."""
        return self.start_logit + self.end_logit

    @property
    def null_odds(self) -> np.ndarray:
        """[n] s_null minus the score of the best answer, s_null = S·C + E·C (Devlin et al. 2018, 4.3)."""
        return (self.null_logits.sum(1) - self.score[self.offsets[:-1]]).astype(np.float64)

    def compute_probabilities(self, include_null: bool) -> tuple[np.ndarray, np.ndarray]:
        """Compute the softmax over the scores of each question's answers.

        Args:
            include_null: Whether the softmax includes "no answer". Its probability is 0 otherwise.

        Returns:
            The probability of each answer [answers], and the probability of "no answer" [n].
        """
        first, counts = self.offsets[:-1], np.diff(self.offsets)
        score, null_score = self.score.astype(np.float64), self.null_logits.sum(1, np.float64)
        best = np.maximum(score[first], null_score) if include_null else score[first]
        answer_exp = np.exp(score - np.repeat(best, counts))
        null_exp = np.exp(null_score - best) if include_null else np.zeros(len(null_score))
        total = np.add.reduceat(answer_exp, first) + null_exp
        return answer_exp / np.repeat(total, counts), null_exp / total


def merge_windows(reduced: np.ndarray, features: QuestionFeatures) -> NBest:
    """Merge the answers of each question's windows, and keep the best answer of several with the same text.

    The null score of a question is the lowest null score of its windows, as in Google's `run_squad.py`. A
    window without the answer does not make a question unanswerable.

    Args:
        reduced: [windows, 2 + 4 n_best], the result of `QuestionFeatures.reduce_logits`.
    """
    n = features.limits.n_best
    logits = reduced[:, 2 : 2 + 2 * n].reshape(-1, 2, n)
    tokens = features.start[:, None, None] + reduced[:, 2 + 2 * n :].reshape(-1, 2, n).astype(np.int64)
    exists = np.isfinite(logits).all(1)
    tokens = np.where(exists[:, None], tokens, 0)
    start, stop = features.contexts.start[tokens[:, 0]], features.contexts.stop[tokens[:, 1]]
    text_hash = np.where(stop > start, features.rolling_hash.hash_spans(tokens[:, 0], tokens[:, 1]), 0)
    question = np.broadcast_to(features.question_index[:, None], start.shape)
    by_null_score = np.lexsort((reduced[:, :2].sum(1), features.question_index))
    null_logits = reduced[:, :2][by_null_score[features.window_offsets[:-1]]]
    # A question whose context has no tokens gets the empty answer with the null logits.
    unanswered = np.flatnonzero(np.bincount(question[exists], minlength=len(null_logits)) == 0)
    zeros = np.zeros(len(unanswered), start.dtype)
    question = np.concatenate([question[exists], unanswered])
    text_hash = np.concatenate([text_hash[exists], zeros.astype(text_hash.dtype)])
    start, stop = np.concatenate([start[exists], zeros]), np.concatenate([stop[exists], zeros])
    start_logit = np.concatenate([logits[:, 0][exists], null_logits[unanswered, 0]])
    end_logit = np.concatenate([logits[:, 1][exists], null_logits[unanswered, 1]])
    # The answers of a window are sorted already, which makes the stable sort fast.
    order = np.argsort((question << 32) + compute_descending_keys(start_logit + end_logit), kind="stable")
    # Equal keys mean the same question and text; `np.unique` returns the first, which is the best.
    answer_key = text_hash * np.uint64(TEXT_HASH_FACTOR) + question.astype(np.uint64)
    order = order[np.sort(np.unique(answer_key[order], return_index=True)[1])]
    counts = np.bincount(question[order], minlength=len(null_logits))
    order = order[compute_positions_in_groups(counts) < n]
    offsets = compute_offsets(np.minimum(counts, n))
    return NBest(offsets, start[order], stop[order], start_logit[order], end_logit[order], null_logits)


# ---- the probability that an answer is right

INTERCEPT = "intercept"
INVERSE_PENALTY = 100.0  # `C` of scikit-learn: weak regularization, for features of standard deviation 1


def fit_answer_weights(features: Mapping[str, np.ndarray], is_correct: np.ndarray) -> dict[str, float]:
    """Return the weight of each feature, and the intercept.

    Args:
        features: [n] values by name.
        is_correct: [n] bool, whether the answer is right; there must be right and wrong answers.
    """
    from sklearn.linear_model import LogisticRegression

    values = np.stack(list(features.values()), axis=1).astype(np.float64)
    mean, deviation = values.mean(0), values.std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000, tol=1e-8)
    model.fit((values - mean) / deviation, is_correct)
    weights = model.coef_[0] / deviation
    intercept = float(model.intercept_[0] - weights @ mean)
    return {INTERCEPT: intercept, **dict(zip(features, weights.tolist(), strict=True))}


def compute_answer_logits(features: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """Return [n] the logit of the probability that each answer is right, from features [n] by name."""
    terms = [weights[name] * values.astype(np.float64) for name, values in features.items()]
    return weights[INTERCEPT] + np.sum(terms, axis=0)


def compute_answer_probability(
    features: Mapping[str, np.ndarray], weights: Mapping[str, float]
) -> np.ndarray:
    """Return [n] the probability that each answer is right."""
    return sigmoid(compute_answer_logits(features, weights))


# ---- predictions


def get_gold_texts(rows: Rows) -> list[list[str]]:
    """Return the texts of the gold answers to each question; an empty list if there is no answer."""
    return [[answer["text"] for answer in answers] for answers in rows["answers"]]


def make_prediction(question_id: str, answer: str, null_probability: float) -> dict[str, Any]:
    """Return a prediction in the format of the `squad_v2` module of `evaluate`."""
    return {"id": question_id, "prediction_text": answer, "no_answer_probability": null_probability}


def make_reference(question_id: str, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the gold answers of a question; an unknown offset is -1."""
    starts = [-1 if (start := answer["answer_start"]) is None else start for answer in answers]
    return {
        "id": question_id,
        "answers": {"text": [answer["text"] for answer in answers], "answer_start": starts},
    }


def format_json(keys: Sequence[str], values: Iterable[Any]) -> Iterator[str]:
    """Yield the lines of a JSON object with one entry per line."""
    yield "{"
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            text = msgspec.json.encode({key: value}).decode()
        except UnicodeEncodeError:  # a lone surrogate, which the file writer reports as an error
            text = json.dumps({key: value}, ensure_ascii=False)
        yield f"{',' if index else ''}\n{text[1:-1]}"
    yield "\n}\n"


class QaEvaluation(RowEvaluation):
    """The predicted answer to each question, and its n-best list.

    Attributes:
        rules: The rules of SQuAD. With v1, every question has an answer; with v2, some questions have none.
    """

    perfect_score = 100.0
    has_comparable_logits = False  # only the best spans of each window are kept
    calibration_method = "answers"

    def __init__(
        self,
        outputs: Outputs,
        rules: Rules,
        threshold: float | None = None,
        fitted: FittedConfidence = NOT_FITTED,
    ) -> None:
        """Store the outputs. If `threshold` is None, it is the best threshold on this split."""
        super().__init__(outputs, fitted)
        self.rules: Rules = rules
        self._fitted_threshold = threshold

    @cached_property
    def nbest(self) -> NBest:
        """The n-best list of each question, merged from the windows of its paragraph."""
        return merge_windows(self.outputs.logits, self.outputs.features)

    @cached_property
    def best_spans(self) -> list[str]:
        """The text of the best span for each question, even if the answer is empty."""
        best = self.nbest.offsets[:-1]  # the first entry of each n-best list
        spans = zip(self.nbest.start[best].tolist(), self.nbest.stop[best].tolist(), strict=True)
        contexts = self.outputs.rows["context"]
        return [context[start:stop] for context, (start, stop) in zip(contexts, spans, strict=True)]

    @cached_property
    def threshold(self) -> float:
        """The threshold in use: the fitted threshold, or else the best threshold on this split."""
        return self.find_best_threshold() if self._fitted_threshold is None else self._fitted_threshold

    @cached_property
    def answers(self) -> list[str]:
        """The answer to each question; with v2, it is empty if the null odds exceed the threshold."""
        if self.rules == "v1":
            return self.best_spans
        is_empty = self.nbest.null_odds > self.threshold
        return ["" if empty else text for text, empty in zip(self.best_spans, is_empty, strict=True)]

    # ---- scores

    @cached_property
    def gold(self) -> list[list[str]]:
        """The texts of the gold answers to each question; an empty list if there is no answer."""
        return get_gold_texts(self.outputs.rows)

    @cached_property
    def _has_answer(self) -> np.ndarray:
        """Whether each question has a gold answer, [questions]."""
        return np.array([bool(texts) for texts in self.gold], bool)

    @cached_property
    def _answer_scores(self) -> AnswerScores:
        """The scores of `answers`."""
        return score_answers(self.gold, self.answers, self.rules)

    @cached_property
    def _span_scores(self) -> AnswerScores:
        """The scores of `best_spans`, as if every question were answered."""
        return score_answers(self.gold, self.best_spans, self.rules)

    @cached_property
    def _sweep(self) -> ThresholdSweep:
        """The scores at every threshold that changes an answer, with v2."""
        null_scores = score_answers(self.gold, [""] * len(self.gold), self.rules)
        return sweep_thresholds(self._span_scores, self.nbest.null_odds, null_scores.exact)

    def find_best_threshold(self) -> float:
        """Return the threshold with the best F1 on this split (Devlin et al. 2018, 4.3)."""
        return fit_threshold(self._sweep)

    @cached_property
    def scores(self) -> Scores:
        """`exact` and `f1` in percent, computed as in the official scripts.

        With v2, also both scores on the questions with and without answer, and the best scores that a
        threshold could reach on this split. For Korean answers, also KorQuAD's `char_f1`.
        """
        scores = average_scores(self._answer_scores, self._has_answer if self.rules == "v2" else None)
        if self.rules == "v2":
            is_empty = np.array([not span for span in self.best_spans], bool)
            scores |= compute_best_scores(self._span_scores, self.nbest.null_odds, self._has_answer, is_empty)
        scores |= self.confidence_scorer.score_all()
        if self._has_korean_answers:
            char_f1 = compute_char_f1([texts or [""] for texts in self.gold], self.answers)
            scores["char_f1"] = 100.0 * float(char_f1.mean())
        return scores

    @property
    def _has_korean_answers(self) -> bool:
        return is_korean([text for texts in self.gold for text in texts])

    def list_scores(self) -> list[str]:
        null_scores = score_answers(self.gold, [""] * len(self.gold), self.rules)
        names = list(average_scores(null_scores, self._has_answer if self.rules == "v2" else None))
        if self.rules == "v2":
            odds, is_empty = np.zeros(len(self.gold)), np.ones(len(self.gold), bool)
            names += compute_best_scores(null_scores, odds, self._has_answer, is_empty)
        return [*names, *self.confidence_score_names, *(["char_f1"] if self._has_korean_answers else [])]

    # ---- the probability that an answer is right

    @property
    def has_classes(self) -> bool:
        return self.fitted.answer_weights is not None

    @cached_property
    def answer_features(self) -> dict[str, np.ndarray]:
        """The scores that the probability of a right answer depends on, [questions] by name.

        With v1, these are the score of the answer and the null odds. With v2, they are the score of the
        answer, which may be empty, and the distance of the null odds from the threshold. Empty answers then
        have weights of their own.
        """
        score, null_odds = self.nbest.score[self.nbest.offsets[:-1]].astype(np.float64), self.nbest.null_odds
        if self.rules == "v1":
            return {"score": score, "null_odds": null_odds}
        is_empty = null_odds > self.threshold
        score = np.where(is_empty, score + null_odds, score)
        features = {"score": score, "distance": np.abs(null_odds - self.threshold)}
        empty_features = {f"empty_{name}": values * is_empty for name, values in features.items()}
        return {**features, "empty": is_empty.astype(np.float64), **empty_features}

    @cached_property
    def confidence(self) -> np.ndarray:
        assert self.fitted.answer_weights is not None
        return compute_answer_probability(self.answer_features, self.fitted.answer_weights)

    def compute_uncertainty(self) -> np.ndarray:
        """Return 1 - P(answer), which is the probability in the n-best list unless the run is calibrated."""
        return 1 - (self.confidence if self.has_classes else self.compute_nbest_probability())

    def compute_nbest_probability(self) -> np.ndarray:
        """Return the probability of each answer in its n-best list, [questions]."""
        probabilities, null_probabilities = self.nbest.compute_probabilities(self.rules == "v2")
        best = probabilities[self.nbest.offsets[:-1]]
        if self.rules == "v1":
            return best
        return np.where(self.nbest.null_odds > self.threshold, null_probabilities, best)

    def compute_correct(self) -> np.ndarray:
        return self._answer_scores.exact > 0

    def make_decisions(self) -> Decisions:
        assert self.fitted.answer_weights is not None
        logits = compute_answer_logits(self.answer_features, self.fitted.answer_weights)
        gold = self.compute_correct().astype(int)[:, None] if "answers" in self.outputs.rows.columns else None
        return Decisions.from_label_sets(logits[:, None], gold)

    # ---- for modules

    def decode(self) -> DecodedPredictions:
        """Return answers as the modules `squad` and `squad_v2` expect them.

        The probability of no answer is computed from the null odds. Answers are already empty if the null
        odds exceed the threshold.
        """
        null_odds = self.nbest.null_odds
        probabilities = [0.0] * len(null_odds) if self.rules == "v1" else sigmoid(null_odds).tolist()
        ids = [str(question_id) for question_id in self.outputs.rows["id"]]
        predictions = [
            make_prediction(*values) for values in zip(ids, self.answers, probabilities, strict=True)
        ]
        gold = self.outputs.rows["answers"]
        references = [make_reference(*values) for values in zip(ids, gold, strict=True)]
        return DecodedPredictions(predictions, references)

    def make_examples(self) -> DecodedPredictions:
        """Return correct answers to a question with an answer and a question without one, if they exist."""
        first_indices = [np.flatnonzero(mask)[:1] for mask in (self._has_answer, ~self._has_answer)]
        gold = [self.outputs.rows["answers"][index] for index in np.concatenate(first_indices).tolist()]
        predictions = [
            make_prediction(str(index), answers[0]["text"] if answers else "", float(not answers))
            for index, answers in enumerate(gold)
        ]
        return DecodedPredictions(predictions, list(map(make_reference, map(str, range(len(gold))), gold)))

    @cached_property
    def scorer(self) -> Scorer:
        has_answer = self._has_answer if self.rules == "v2" else None
        answers, confidence = make_answer_scorer(self._answer_scores, has_answer), self.confidence_scorer
        return Scorer(lambda rows: answers.score(rows) | confidence.score(rows), answers.size)

    def compute_details(self) -> dict[str, Scores]:
        if self.rules == "v1":
            return {}
        sweep = self._sweep
        evenly_spaced = np.linspace(0, len(sweep.threshold) - 1, 11).round().astype(int)
        # The last threshold of the sweep that does not exceed the threshold in use gives the same answers.
        index_in_use = max(0, int(np.searchsorted(sweep.threshold, self.threshold, side="right")) - 1)
        details = {}
        for index in np.union1d(evenly_spaced, [index_in_use]).tolist():
            names = [] if index else ["nothing answered"]
            if index == index_in_use:
                names.append(f"tau {self.threshold:.3f} (in use)")
            elif index:
                names.append(f"tau {sweep.threshold[index]:.3f}")
            details[", ".join(names)] = {"exact": float(sweep.exact[index]), "f1": float(sweep.f1[index])}
        return details

    # ---- records

    def iter_predictions(self, score_detail: ScoreDetail) -> Iterator[dict[str, Any]]:
        """Yield `id`, `gold`, `answer` with its `start` and `end` in the paragraph, `score` and `null_odds`.

        A calibrated run adds `probability`, the probability that the answer is right. `score_detail="all"`
        adds `nbest`, the n-best list. The keys are explained in docs/qa.md.
        """
        rows, nbest, best = self.outputs.rows, self.nbest, self.nbest.offsets[:-1]
        gold = self.gold if "answers" in rows.columns else None
        columns = (nbest.start[best], nbest.stop[best], nbest.score[best], nbest.null_odds)
        values = zip(*(column.tolist() for column in columns), strict=True)
        nbest_lists = self._iter_nbest() if score_detail == "all" else None
        confidence = self.confidence.tolist() if self.has_classes else None
        for index, (question_id, answer, (start, stop, score, null_odds)) in enumerate(
            zip(rows["id"], self.answers, values, strict=True)
        ):
            record = {
                "id": question_id,
                "gold": None if gold is None else gold[index],
                "answer": answer,
                "start": start if answer else None,
                "end": stop if answer else None,
                "score": score,
                "null_odds": null_odds,
                **({"probability": confidence[index]} if confidence else {}),
            }
            yield record if nbest_lists is None else record | {"nbest": next(nbest_lists)}

    def iter_full_records(self) -> Iterator[dict[str, Any]]:
        return self.iter_records("all")

    @staticmethod
    def merge_records(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the record of the answer with the highest mean probability, without the n-best list.

        `score` and `null_odds` are the means of all models.
        """

        def sum_probabilities(record: dict[str, Any]) -> float:
            entries = (entry for other in records for entry in other["nbest"])
            return sum(entry["probability"] for entry in entries if entry["text"] == record["answer"])

        best = {name: value for name, value in max(records, key=sum_probabilities).items() if name != "nbest"}
        means = {
            name: sum(record[name] for record in records) / len(records) for name in ("score", "null_odds")
        }
        return best | means

    def _iter_nbest(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the n-best list of each question; with v2, the list includes the empty answer."""
        nbest = self.nbest
        probabilities, null_probabilities = nbest.compute_probabilities(include_null=self.rules == "v2")
        columns = (nbest.start, nbest.stop, probabilities, nbest.start_logit, nbest.end_logit)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        counts = np.diff(nbest.offsets)
        # The empty answer follows the spans that are at least as probable.
        is_before_null = probabilities >= np.repeat(null_probabilities, counts)
        null_ranks = np.add.reduceat(is_before_null, nbest.offsets[:-1], dtype=np.int64)
        null_columns = (null_probabilities, *nbest.null_logits.T)
        null_values = zip(*(column.tolist() for column in null_columns), strict=True)
        contexts, keys = self.outputs.rows["context"], ("text", "probability", "start_logit", "end_logit")
        questions = zip(contexts, counts.tolist(), null_ranks.tolist(), null_values, strict=True)
        for context, count, null_rank, null in questions:
            answers = [
                dict(zip(keys, (context[start:stop], *values), strict=True))
                for start, stop, *values in islice(spans, count)
            ]
            if self.rules == "v2":
                answers.insert(null_rank, dict(zip(keys, ("", *null), strict=True)))
            yield answers

    def format_files(self) -> dict[str, Iterator[str]]:
        ids = self.outputs.rows["id"]
        files = {
            "predictions.json": format_json(ids, self.answers),
            "nbest_predictions.json": format_json(ids, self._iter_nbest()),
        }
        if self.rules == "v2":
            files["null_odds.json"] = format_json(ids, self.nbest.null_odds.tolist())
        return files
