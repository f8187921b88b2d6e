"""Answers in paragraphs: `qa`."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from bertkit.metrics.calibration import compute_calibration
from bertkit.metrics.significance import Scorer
from bertkit.metrics.squad import AnswerScores, score_answers_v1, score_answers_v2, sweep_thresholds
from bertkit.reports.charts import Chart, plot_reliability_diagram, plot_threshold_curves
from bertkit.reports.example import Example, Field, overlay_spans
from bertkit.reports.finished_run import FinishedRun
from bertkit.reports.views.base import FiniteNumber, Index, Probability, Record, View

NO_ANSWER, HAS_ANSWER = "no answer", "an answer"
MAX_POINTS = 400  # of a curve


class _Answered(Record):
    question: str
    context: str
    gold: list[str]
    answer: str
    start: Index | None
    end: Index | None
    null_odds: FiniteNumber


class _Best(TypedDict):
    text: str
    probability: Probability


class _Config(TypedDict, total=False):
    null_odds_threshold: FiniteNumber | None


class QaView(View):
    """Records with a question, its paragraph, gold answers, and the answer that is given ("" for none)."""

    schema = _Answered
    predicted_keys = frozenset({"answer", "start", "end", "score", "null_odds"})

    def __init__(self, run: FinishedRun, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(run, records)
        self.nbest = run.read_json("nbest_predictions.json", dict[str, list[_Best]])
        self.allows_no_answer = run.settings.get("squad") == "v2"
        self.gold = [record["gold"] for record in self.records]
        self.marks = self._marked([record["answer"] for record in self.records])

    @classmethod
    def matches(cls, record: Mapping[str, Any]) -> bool:
        """An answer in a context."""
        return "answer" in record and "context" in record

    def find_error(self, record: Mapping[str, Any]) -> str | None:
        """An answer that does not stand where it is said to."""
        start, end, answer = record["start"], record["end"], record["answer"]
        stands = start is not None and end is not None and record["context"][start:end] == answer
        return f"the answer does not stand at {start} to {end} of context" if answer and not stands else None

    def _marked(self, answers: list[str]) -> AnswerScores:
        return (score_answers_v2 if self.allows_no_answer else score_answers_v1)(self.gold, answers)

    def build_examples(self) -> list[Example]:
        """The less of the gold answer was found, and the surer of that, the sooner."""
        sure = self._confidence()
        return [
            Example(
                record["id"], [HAS_ANSWER if record["gold"] else NO_ANSWER], [HAS_ANSWER if record["answer"] else NO_ANSWER],
                bool(exact), share, 1 - f1 + (share or 0.0) / 10,
                [Field("question", record["question"]), _paragraph(record)],
                (" / ".join(dict.fromkeys(record["gold"])) or NO_ANSWER, record["answer"] or NO_ANSWER),
            )
            for record, exact, f1, share in zip(
                self.records, self.marks.exact.tolist(), self.marks.f1.tolist(), sure, strict=True
            )
        ]  # fmt: skip

    def _confidence(self) -> list[float | None]:
        """The share of the answer that is given among the best ones."""
        return [
            next((best["probability"] for best in self.nbest.get(str(record["id"]), [])
                  if best["text"] == record["answer"]), None)
            for record in self.records
        ]  # fmt: skip

    def build_charts(self) -> list[Chart]:
        """With v2 the scores under every threshold; how often an answer is right that is held likely."""
        sure = np.array([np.nan if share is None else share for share in self._confidence()])
        known = ~np.isnan(sure)
        found = [self._curve()] if self.allows_no_answer and self.nbest else []
        if known.any():
            found.append(
                plot_reliability_diagram(
                    compute_calibration(sure[known], self.marks.exact[known] > 0), "answers"
                )
            )
        return found

    def scorer(self) -> Scorer:
        """Exact and F1 in percent."""
        values = {"exact": self.marks.exact, "f1": self.marks.f1}
        return Scorer(
            lambda rows: {name: 100.0 * float(some[rows].mean()) for name, some in values.items()},
            len(self.records),
        )

    def _curve(self) -> Chart:
        spans = [
            next((best["text"] for best in self.nbest.get(str(record["id"]), []) if best["text"]), "")
            for record in self.records
        ]
        found = sweep_thresholds(
            self._marked(spans), self.get_column("null_odds"), self._marked([""] * len(spans)).exact
        )
        shown = np.unique(np.linspace(0, len(found.threshold) - 1, MAX_POINTS).round().astype(int))
        used = self.run.read_json("config.json", _Config).get("null_odds_threshold")
        note = "Questions whose null odds are above τ get no answer; τ is what had the best F1 in training."
        scores = {"F1": found.f1[shown], "exact": found.exact[shown]}
        return plot_threshold_curves("Threshold", found.threshold[shown], scores, used, note)


def _paragraph(record: Mapping[str, Any]) -> Field:
    """The paragraph; a gold answer is marked where its text stands, next to the answer that is given."""
    context, given = record["context"], [(record["start"], record["end"])] if record["answer"] else []
    near = given[0][0] if given else 0
    gold = {span for text in record["gold"] if text and (span := _nearest(context, text, near))}
    return Field("paragraph", context, overlay_spans(sorted(gold), given))


def _nearest(context: str, text: str, near: int) -> tuple[int, int] | None:
    """Where a text stands nearest to a place; None where it does not."""
    before, after = context.rfind(text, 0, near + len(text)), context.find(text, near)
    places = [place for place in (before, after) if place >= 0]
    start = min(places, key=lambda place: abs(place - near), default=None)
    return None if start is None else (start, start + len(text))
