"""View of question answering (`qa`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bertkit.charts import Chart, plot_threshold_curves
from bertkit.stats.significance import Scorer
from bertkit.tasks.qa.squad import AnswerScores, score_answers_v1, score_answers_v2, sweep_thresholds
from bertkit.tasks.view import Example, Field, FiniteNumber, Index, Probability, Record, View, overlay_spans

if TYPE_CHECKING:
    from bertkit.reports.finished_run import FinishedRun


NO_ANSWER, HAS_ANSWER = "no answer", "an answer"
MAX_POINTS = 400  # in a threshold curve


class _QaRecord(Record):
    question: str
    context: str
    gold: list[str]
    answer: str
    start: Index | None
    end: Index | None
    null_odds: FiniteNumber


class _Candidate(TypedDict):
    text: str
    probability: Probability


class _Config(TypedDict, total=False):
    null_odds_threshold: FiniteNumber | None


class QaView(View):
    """Records with a question, a paragraph, gold answers, and the predicted answer ("" for no answer)."""

    schema = _QaRecord
    predicted_keys = frozenset({"answer", "start", "end", "score", "null_odds"})

    def __init__(self, run: "FinishedRun", records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.nbest = run.read_json("nbest_predictions.json", dict[str, list[_Candidate]])
        self.allows_no_answer = run.settings.get("squad") == "v2"
        self.gold = [record["gold"] for record in self.records]
        self.scores = self._score([record["answer"] for record in self.records])

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return "answer" in record and "context" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        start, end, answer = record["start"], record["end"], record["answer"]
        if not answer or (None not in (start, end) and record["context"][start:end] == answer):
            return None
        return f"the answer differs from characters {start} to {end} of the context"

    def _score(self, answers: list[str]) -> AnswerScores:
        return (score_answers_v2 if self.allows_no_answer else score_answers_v1)(self.gold, answers)

    def build_examples(self) -> list[Example]:
        exact, f1 = self.scores.exact.tolist(), self.scores.f1.tolist()
        rows = zip(self.records, exact, f1, self._compute_confidence(), strict=True)
        return [self._build_example(*row) for row in rows]

    def _build_example(
        self, record: Mapping[str, Any], exact: float, f1: float, confidence: float | None
    ) -> Example:
        gold, answer = record["gold"], record["answer"]
        return Example(
            record["id"], [HAS_ANSWER if gold else NO_ANSWER], [HAS_ANSWER if answer else NO_ANSWER],
            bool(exact), confidence, 1 - f1 + (confidence or 0.0) / 10,
            [Field("question", record["question"]), _build_paragraph(record)],
            (" / ".join(dict.fromkeys(gold)) or NO_ANSWER, answer or NO_ANSWER),
        )  # fmt: skip

    def _get_candidates(self, record: Mapping[str, Any]) -> list[Any]:
        return self.nbest.get(str(record["id"]), [])

    def _compute_confidence(self) -> list[float | None]:
        """Return the probability of each predicted answer; None if it is not known.

        It is the probability that the answer is right if the run is calibrated, or else the probability in
        the n-best list.
        """
        return [
            record.get("probability")
            or next(
                (
                    candidate["probability"]
                    for candidate in self._get_candidates(record)
                    if candidate["text"] == record["answer"]
                ),
                None,
            )
            for record in self.records
        ]

    def build_charts(self) -> list[Chart]:
        confidence = np.array([np.nan if p is None else p for p in self._compute_confidence()])
        is_known = ~np.isnan(confidence)
        charts = [self._plot_thresholds()] if self.allows_no_answer and self.nbest else []
        if is_known.any():
            is_correct = self.scores.exact[is_known] > 0
            charts += self.plot_reliability(confidence[is_known], is_correct, "answers")
        return charts

    def scorer(self) -> Scorer:
        scores = {"exact": self.scores.exact, "f1": self.scores.f1}
        return Scorer(
            lambda rows: {name: 100.0 * float(values[rows].mean()) for name, values in scores.items()},
            len(self.records),
        )

    def _plot_thresholds(self) -> Chart:
        """Plot the scores that the best non-empty answers reach with each threshold."""
        answers = [
            next((candidate["text"] for candidate in self._get_candidates(record) if candidate["text"]), "")
            for record in self.records
        ]
        no_answer_scores = self._score([""] * len(answers)).exact
        sweep = sweep_thresholds(self._score(answers), self.get_column("null_odds"), no_answer_scores)
        points = np.unique(np.linspace(0, len(sweep.threshold) - 1, MAX_POINTS).round().astype(int))
        threshold = self.run.read_json("config.json", _Config).get("null_odds_threshold")
        note = (
            "The model gives no answer if the null odds of a question exceed τ. Training selects the τ with "
            "the best F1."
        )
        scores = {"F1": sweep.f1[points], "exact": sweep.exact[points]}
        return plot_threshold_curves("Threshold", sweep.threshold[points], scores, threshold, note)


def _build_paragraph(record: Mapping[str, Any]) -> Field:
    """Return the paragraph with marked answers.

    If a gold answer occurs several times, the occurrence nearest to the prediction is marked.
    """
    context = record["context"]
    predicted = [(record["start"], record["end"])] if record["answer"] else []
    position = predicted[0][0] if predicted else 0
    matches = [_find_nearest(context, text, position) for text in record["gold"] if text]
    gold = {span for span in matches if span}
    return Field("paragraph", context, overlay_spans(sorted(gold), predicted))


def _find_nearest(context: str, text: str, position: int) -> tuple[int, int] | None:
    """Return the occurrence of a text that is nearest to a position; None if there is none."""
    before, after = context.rfind(text, 0, position + len(text)), context.find(text, position)
    starts = [start for start in (before, after) if start >= 0]
    start = min(starts, key=lambda start: abs(start - position), default=None)
    return None if start is None else (start, start + len(text))
