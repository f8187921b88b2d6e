"""Predicted answers of `qa`: decoding, scores, records and files."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from bertkit.tasks.base import Scores
from bertkit.tasks.evaluation import Evaluation, Outputs, ScoreDetail

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.qa.spans import NBest
    from bertkit.data.rows import Rows
    from bertkit.metrics.significance import Scorer
    from bertkit.metrics.squad import AnswerScores, ThresholdSweep

Rules = Literal["v1", "v2"]
SWEEP_POINTS = 11  # thresholds in a run's tables


class QaEvaluation(Evaluation):
    """The answer to each question, with the best alternatives.

    Attributes:
        rules: SQuAD v1, where every question has an answer, or v2, where it may have none.
    """

    def __init__(self, outputs: Outputs, rules: Rules, threshold: float | None = None) -> None:
        """Keep the outputs.

        Args:
            outputs: the start and end logits.
            rules: the rules of SQuAD.
            threshold: the null odds above which there is no answer; None: the best of this split.
        """
        super().__init__(outputs)
        self.rules: Rules = rules
        self._fitted_threshold = threshold

    @cached_property
    def nbest(self) -> "NBest":
        """The best answers to each question, merged from its windows."""
        from bertkit.data.qa.spans import merge_windows

        return merge_windows(self.outputs.logits, self.outputs.features)

    @cached_property
    def best_spans(self) -> list[str]:
        """The text of the best span for each question, whether or not it is the answer."""
        best = self.nbest.offsets[:-1]
        spans = zip(self.nbest.start[best].tolist(), self.nbest.stop[best].tolist(), strict=True)
        contexts = self.outputs.rows["context"]
        return [context[start:stop] for context, (start, stop) in zip(contexts, spans, strict=True)]

    @cached_property
    def threshold(self) -> float:
        """The threshold in use: the fitted one, or before it is fitted the best of this split."""
        return self.fit_threshold() if self._fitted_threshold is None else self._fitted_threshold

    @cached_property
    def answers(self) -> list[str]:
        """The answer to each question; with v2 it is "" where the null odds exceed the threshold."""
        if self.rules == "v1":
            return self.best_spans
        is_null = self.nbest.null_odds > self.threshold
        return ["" if null else text for text, null in zip(self.best_spans, is_null, strict=True)]

    # ---- scores

    @cached_property
    def gold(self) -> list[list[str]]:
        """The texts of the gold answers to each question; empty if it has no answer."""
        return get_gold_texts(self.outputs.rows)

    @cached_property
    def _has_answer(self) -> "np.ndarray":
        return _to_bool_array(map(bool, self.gold))

    @cached_property
    def _answer_scores(self) -> "AnswerScores":
        return score_answers(self.gold, self.answers, self.rules)

    @cached_property
    def _span_scores(self) -> "AnswerScores":
        return score_answers(self.gold, self.best_spans, self.rules)

    @cached_property
    def _sweep(self) -> "ThresholdSweep":
        """Scores of v2 at every threshold that makes a difference on this split."""
        from bertkit.metrics.squad import sweep_thresholds

        null_scores = score_answers(self.gold, [""] * len(self.gold), self.rules)
        return sweep_thresholds(self._span_scores, self.nbest.null_odds, null_scores.exact)

    def fit_threshold(self) -> float:
        """Return the threshold with the best F1 on this split (Devlin et al. 2018, 4.3)."""
        from bertkit.metrics.squad import fit_threshold

        return fit_threshold(self._sweep)

    def compute_scores(self) -> Scores:
        """Return `exact` and `f1` in percent as the official scripts do; with v2 also their parts.

        With v2, the scores include the best that a threshold on this split would reach. Korean answers
        are also scored by KorQuAD's `char_f1`.
        """
        from bertkit.data.unicode import is_korean
        from bertkit.metrics.squad import compute_best_scores, compute_char_f1

        scores = average_scores(self._answer_scores, self.gold, self.rules)
        if self.rules == "v2":
            is_empty = _to_bool_array(not text for text in self.best_spans)
            scores |= compute_best_scores(self._span_scores, self.nbest.null_odds, self._has_answer, is_empty)
        if is_korean([text for texts in self.gold for text in texts]):
            char_f1 = compute_char_f1([texts or [""] for texts in self.gold], self.answers)
            scores["char_f1"] = 100.0 * float(char_f1.mean())
        return scores

    def scorer(self) -> "Scorer":
        """Return a scorer of questions; the threshold is fixed."""
        from bertkit.metrics.significance import Scorer

        has_answer, values = self._has_answer, self._answer_scores
        parts = {"": has_answer | True}
        if self.rules == "v2":
            parts |= {"HasAns_": has_answer, "NoAns_": ~has_answer}
        metrics = {"exact": values.exact, "f1": values.f1}

        def score(rows: "np.ndarray") -> Scores:
            scores = {}
            for prefix, is_inside in parts.items():
                inside = is_inside[rows]
                if inside.any():
                    for name, metric in metrics.items():
                        scores[f"{prefix}{name}"] = 100.0 * float(metric[rows][inside].mean())
            return scores

        return Scorer(score, len(self.gold))

    def details(self) -> dict[str, Scores]:
        """Return, with v2, exact and F1 at some thresholds, including the one in use."""
        import numpy as np

        if self.rules == "v1":
            return {}
        sweep = self._sweep
        points = np.linspace(0, len(sweep.threshold) - 1, SWEEP_POINTS).round().astype(int)
        in_use = max(0, int(np.searchsorted(sweep.threshold, self.threshold, side="right")) - 1)
        indices = np.union1d(points, [in_use]).tolist()
        names = {index: f"tau {sweep.threshold[index]:.3f}" for index in indices} | {0: "nothing answered"}
        prefix = "" if in_use else "nothing answered, "
        names[in_use] = f"{prefix}tau {self.threshold:.3f} (in use)"
        return {
            name: {"exact": float(sweep.exact[index]), "f1": float(sweep.f1[index])}
            for index, name in names.items()
        }

    # ---- records

    def records(self, scores: ScoreDetail = "default") -> Iterator[dict[str, Any]]:
        """Yield `answer`, its `start` and `end` in the paragraph, `score` and `null_odds`.

        All scores add `nbest`, the best answers; see docs/qa.md for the keys.
        """
        rows, nbest, best = self.outputs.rows, self.nbest, self.nbest.offsets[:-1]
        gold = self.gold if "answers" in rows.columns else None
        columns = (nbest.start[best], nbest.stop[best], nbest.score[best], nbest.null_odds)
        values = zip(*(column.tolist() for column in columns), strict=True)
        alternatives = self._iter_nbest() if scores == "all" else None
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
            }
            yield record if alternatives is None else record | {"nbest": next(alternatives)}

    def files(self) -> dict[str, Iterator[str]]:
        """Return the official files, by id: answers, n-best lists, and with v2 the null odds."""
        ids = self.outputs.rows["id"]
        files = {
            "predictions.json": _format_object(ids, self.answers),
            "nbest_predictions.json": _format_object(ids, self._iter_nbest()),
        }
        if self.rules == "v2":
            files["null_odds.json"] = _format_object(ids, self.nbest.null_odds.tolist())
        return files

    def _iter_nbest(self) -> Iterator[list[dict[str, Any]]]:
        """Yield each question's best answers with their probabilities; with v2 also no answer."""
        from itertools import islice

        import numpy as np

        nbest = self.nbest
        probabilities, null_probabilities = nbest.compute_probabilities(include_null=self.rules == "v2")
        columns = (nbest.start, nbest.stop, probabilities, nbest.start_logit, nbest.end_logit)
        spans = zip(*(column.tolist() for column in columns), strict=True)
        counts = np.diff(nbest.offsets)
        is_likelier = probabilities >= np.repeat(null_probabilities, counts)
        null_ranks = np.add.reduceat(is_likelier, nbest.offsets[:-1], dtype=np.int64)
        nulls = zip(
            null_ranks.tolist(), null_probabilities.tolist(), *nbest.null_logits.T.tolist(), strict=True
        )
        contexts = self.outputs.rows["context"]
        for context, count, (null_rank, *null) in zip(contexts, counts.tolist(), nulls, strict=True):
            answers = [
                _nbest_entry(context[start:stop], *values) for start, stop, *values in islice(spans, count)
            ]
            if self.rules == "v2":
                answers.insert(null_rank, _nbest_entry("", *null))
            yield answers


def get_gold_texts(rows: "Rows") -> list[list[str]]:
    """Return the texts of the gold answers to each question; empty if it has no answer."""
    return [[answer["text"] for answer in answers] for answers in rows["answers"]]


def score_answers(gold: list[list[str]], answers: Sequence[str], rules: Rules) -> "AnswerScores":
    """Return exact match and F1 of each answer, as the official script of these rules does."""
    from bertkit.metrics.squad import score_answers_v1, score_answers_v2

    return (score_answers_v1 if rules == "v1" else score_answers_v2)(gold, answers)


def average_scores(scores: "AnswerScores", gold: list[list[str]], rules: Rules) -> Scores:
    """Return the means in percent, as the official script of these rules prints them."""
    from bertkit.metrics.squad import average_scores_v1, average_scores_v2

    if rules == "v1":
        return average_scores_v1(scores)
    return average_scores_v2(scores, _to_bool_array(map(bool, gold)))


def score_baselines(rows: "Rows", rules: Rules) -> dict[str, Scores]:
    """Score the sentence with the most words of the question (`overlap`); with v2 also `majority`.

    The majority baseline answers no question.
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


def _nbest_entry(text: str, probability: float, start_logit: float, end_logit: float) -> dict[str, Any]:
    return {"text": text, "probability": probability, "start_logit": start_logit, "end_logit": end_logit}


def _format_object(names: Sequence[str], values: Iterable[Any]) -> Iterator[str]:
    """Yield a JSON object, one line per entry."""
    import orjson

    yield "{"
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        try:
            text = orjson.dumps({name: value}).decode()
        except TypeError:  # orjson refuses a lone surrogate; writing the file reports it
            text = json.dumps({name: value}, ensure_ascii=False)
        yield f"{',' if index else ''}\n{text[1:-1]}"
    yield "\n}\n"


def _to_bool_array(values: Iterable[bool]) -> "np.ndarray":
    import numpy as np

    return np.fromiter(values, bool)
