"""The predicted answers of `qa`, their scores by the rules of SQuAD, the prediction files, and baselines."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import msgspec
import numpy as np

from bertkit.data.table import Rows
from bertkit.data.unicode import is_korean
from bertkit.stats.baselines import predict_overlap
from bertkit.stats.calibration import Decisions
from bertkit.stats.metric_modules import DecodedPredictions
from bertkit.stats.scores import Scores, sigmoid
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import NOT_FITTED, FittedConfidence
from bertkit.tasks.evaluation import Outputs, RowEvaluation, ScoreDetail
from bertkit.tasks.qa.spans import (
    NBest,
    compute_answer_features,
    compute_answer_logits,
    compute_answer_probability,
    compute_nbest_probability,
    merge_windows,
)
from bertkit.tasks.qa.squad import (
    AnswerScores,
    ThresholdSweep,
    average_scores_v1,
    average_scores_v2,
    compute_best_scores,
    compute_char_f1,
    fit_threshold,
    score_answers_v1,
    score_answers_v2,
    sweep_thresholds,
)

Rules = Literal["v1", "v2"]


def get_gold_texts(rows: Rows) -> list[list[str]]:
    """Return the texts of the gold answers to each question; an empty list if there is no answer."""
    return [[answer["text"] for answer in answers] for answers in rows["answers"]]


def score_answers(gold: list[list[str]], answers: Sequence[str], rules: Rules) -> AnswerScores:
    """Return exact match and F1 of each answer, computed as in the official script of these rules."""
    return (score_answers_v1 if rules == "v1" else score_answers_v2)(gold, answers)


def average_scores(scores: AnswerScores, gold: list[list[str]], rules: Rules) -> Scores:
    """Return the mean scores in percent that the official script of these rules prints."""
    if rules == "v1":
        return average_scores_v1(scores)
    return average_scores_v2(scores, np.fromiter(map(bool, gold), bool))


def score_baselines(rows: Rows, rules: Rules) -> dict[str, Scores]:
    """Return the scores of `overlap` and, with v2, of `majority`.

    The overlap baseline answers with the sentence that contains most words of the question. The majority
    baseline gives empty answers.
    """
    gold = get_gold_texts(rows)
    predictions = {"overlap": predict_overlap(rows["question"], rows["context"])}
    if rules == "v2":
        predictions["majority"] = [""] * len(rows)
    return {
        name: average_scores(score_answers(gold, answers, rules), gold, rules)
        for name, answers in predictions.items()
    }


def iter_nbest(nbest: NBest, contexts: Sequence[str], rules: Rules) -> Iterator[list[dict[str, Any]]]:
    """Yield the n-best list of each question; with v2, the list includes the empty answer."""
    probabilities, null_probabilities = nbest.compute_probabilities(include_null=rules == "v2")
    columns = (nbest.start, nbest.stop, probabilities, nbest.start_logit, nbest.end_logit)
    spans = zip(*(column.tolist() for column in columns), strict=True)
    counts = np.diff(nbest.offsets)
    # The empty answer follows the spans that are at least as probable.
    is_before_null = probabilities >= np.repeat(null_probabilities, counts)
    null_ranks = np.add.reduceat(is_before_null, nbest.offsets[:-1], dtype=np.int64)
    null_columns = (null_probabilities, *nbest.null_logits.T)
    null_values = zip(*(column.tolist() for column in null_columns), strict=True)
    questions = zip(contexts, counts.tolist(), null_ranks.tolist(), null_values, strict=True)
    for context, count, null_rank, null in questions:
        answers = [
            _make_nbest_entry(context[start:stop], *values) for start, stop, *values in islice(spans, count)
        ]
        if rules == "v2":
            answers.insert(null_rank, _make_nbest_entry("", *null))
        yield answers


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


def _make_nbest_entry(text: str, probability: float, start_logit: float, end_logit: float) -> dict[str, Any]:
    return {"text": text, "probability": probability, "start_logit": start_logit, "end_logit": end_logit}


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


NUM_TABLE_THRESHOLDS = 11  # rows of the table of thresholds, besides that of the threshold in use


class QaEvaluation(RowEvaluation):
    """The predicted answer to each question, and its n-best list.

    Attributes:
        rules: The rules of SQuAD. With v1, every question has an answer; with v2, some questions have none.
    """

    has_comparable_logits = False  # only the best spans of each window are kept

    def __init__(
        self,
        outputs: Outputs,
        rules: Rules,
        threshold: float | None = None,
        fitted: FittedConfidence = NOT_FITTED,
    ) -> None:
        """Store the outputs.

        Args:
            threshold: Null odds above which the answer is empty; None for the best threshold on this split.
        """
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
        return _to_bool_array(map(bool, self.gold))

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

    def compute_scores(self) -> Scores:
        """Return `exact` and `f1` in percent, computed as in the official scripts.

        With v2, also return both scores on the questions with and without answer, and the best scores that a
        threshold could reach on this split. For Korean answers, also return KorQuAD's `char_f1`.
        """
        scores = average_scores(self._answer_scores, self.gold, self.rules)
        if self.rules == "v2":
            is_empty = _to_bool_array(not span for span in self.best_spans)
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
        names = list(average_scores(null_scores, self.gold, self.rules))
        if self.rules == "v2":
            odds, is_empty = np.zeros(len(self.gold)), np.ones(len(self.gold), bool)
            names += compute_best_scores(null_scores, odds, self._has_answer, is_empty)
        return [*names, *self.confidence_score_names, *(["char_f1"] if self._has_korean_answers else [])]

    # ---- the probability that an answer is right

    @property
    def calibration_method(self) -> Literal["answers"]:
        return "answers"

    @property
    def has_classes(self) -> bool:
        return self.fitted.answer_weights is not None

    @property
    def _null_threshold(self) -> float | None:
        """The threshold of the null odds; None with v1, because no answer is empty."""
        return self.threshold if self.rules == "v2" else None

    @cached_property
    def answer_features(self) -> dict[str, np.ndarray]:
        """The scores that the probability of a right answer depends on, [questions] by name."""
        return compute_answer_features(self.nbest, self._null_threshold)

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability that each answer is right, [questions]; needs `has_classes`."""
        assert self.fitted.answer_weights is not None
        return compute_answer_probability(self.answer_features, self.fitted.answer_weights)

    def compute_nbest_probability(self) -> np.ndarray:
        """Return the probability of each answer in its n-best list, [questions]."""
        return compute_nbest_probability(self.nbest, self._null_threshold)

    def compute_correct(self) -> np.ndarray:
        """Return whether each answer is an exact match, [questions]."""
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

    def make_scorer(self) -> Scorer:
        has_answer, answer_scores = self._has_answer, self._answer_scores
        is_member_by_prefix = {"": np.ones(len(has_answer), bool)}  # which questions a score includes
        if self.rules == "v2":
            is_member_by_prefix |= {"HasAns_": has_answer, "NoAns_": ~has_answer}
        metrics = {"exact": answer_scores.exact, "f1": answer_scores.f1}
        confidence = self.confidence_scorer

        def score(rows: np.ndarray) -> Scores:
            scores = {}
            for prefix, is_member in is_member_by_prefix.items():
                members = rows[is_member[rows]]
                if len(members):
                    for name, values in metrics.items():
                        scores[f"{prefix}{name}"] = 100.0 * float(values[members].mean())
            return scores | confidence.score(rows)

        return Scorer(score, len(self.gold))

    def compute_details(self) -> dict[str, Scores]:
        if self.rules == "v1":
            return {}
        sweep = self._sweep
        evenly_spaced = np.linspace(0, len(sweep.threshold) - 1, NUM_TABLE_THRESHOLDS).round().astype(int)
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
        return iter_nbest(self.nbest, self.outputs.rows["context"], self.rules)

    def format_files(self) -> dict[str, Iterator[str]]:
        ids = self.outputs.rows["id"]
        files = {
            "predictions.json": format_json(ids, self.answers),
            "nbest_predictions.json": format_json(ids, self._iter_nbest()),
        }
        if self.rules == "v2":
            files["null_odds.json"] = format_json(ids, self.nbest.null_odds.tolist())
        return files


def _to_bool_array(values: Iterable[bool]) -> np.ndarray:
    return np.fromiter(values, bool)
