"""View of question answering (`qa`)."""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np

from bertkit.charts import Chart, plot_threshold_curves
from bertkit.stats.significance import Scorer
from bertkit.tasks.qa.predictions import Rules, score_answers, sweep_thresholds
from bertkit.tasks.view import Example, Field, FiniteNumber, Index, Probability, Record, View, overlay_spans

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

    def prepare(self) -> None:
        nbest = self.run.read_json("nbest_predictions.json", dict[str, list[_Candidate]])
        self.candidates = [nbest.get(str(record["id"]), []) for record in self.records]
        self.rules: Rules = "v2" if self.run.settings.get("squad") == "v2" else "v1"
        self.gold = [record["gold"] for record in self.records]
        self.scores = score_answers(self.gold, [record["answer"] for record in self.records], self.rules)
        # The probability that the answer is right if the run is calibrated, or else that in the n-best list.
        self.confidence = [
            record.get("probability")
            or next((entry["probability"] for entry in entries if entry["text"] == record["answer"]), None)
            for record, entries in zip(self.records, self.candidates, strict=True)
        ]

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        return "answer" in record and "context" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        start, end, answer = record["start"], record["end"], record["answer"]
        if not answer or (None not in (start, end) and record["context"][start:end] == answer):
            return None
        return f"the answer differs from characters {start} to {end} of the context"

    def build_example(self, index: int, record: Mapping[str, Any]) -> Example:
        gold, answer, confidence = record["gold"], record["answer"], self.confidence[index]
        priority = 1 - float(self.scores.f1[index]) + (confidence or 0.0) / 10
        return Example(
            record["id"], [HAS_ANSWER if gold else NO_ANSWER], [HAS_ANSWER if answer else NO_ANSWER],
            bool(self.scores.exact[index]), confidence, priority,
            [Field("question", record["question"]), _build_paragraph(record)],
            (" / ".join(dict.fromkeys(gold)) or NO_ANSWER, answer or NO_ANSWER),
        )  # fmt: skip

    def build_charts(self) -> list[Chart]:
        confidence = np.array([np.nan if p is None else p for p in self.confidence])
        is_known = ~np.isnan(confidence)
        charts = [self._plot_thresholds()] if self.rules == "v2" and any(self.candidates) else []
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
            next((entry["text"] for entry in entries if entry["text"]), "") for entries in self.candidates
        ]
        answer_scores, null_scores = (
            score_answers(self.gold, texts, self.rules) for texts in (answers, [""] * len(answers))
        )
        sweep = sweep_thresholds(answer_scores, self.get_column("null_odds"), null_scores.exact)
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
    gold = set()
    for text in filter(None, record["gold"]):
        before, after = context.rfind(text, 0, position + len(text)), context.find(text, position)
        if starts := [start for start in (before, after) if start >= 0]:
            nearest = min(starts, key=lambda start: abs(start - position))
            gold.add((nearest, nearest + len(text)))
    return Field("paragraph", context, overlay_spans(sorted(gold), predicted))
