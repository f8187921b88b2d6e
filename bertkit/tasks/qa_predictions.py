"""From the scores of spans to answers, as `qa` scores, shows and writes them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bertkit.tasks.base import Outputs, Scores

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.qa.nbest import NBest
    from bertkit.data.rows import Rows
    from bertkit.metrics.intervals import Scorer
    from bertkit.metrics.squad import AnswerScores

SWEEP_POINTS = 11  # thresholds of the sweep in a run's tables


@dataclass(frozen=True)
class AnswerDecoder:
    """The rules by which answers are given and scored.

    Attributes:
        rules: SQuAD's v1, every question has an answer; or v2, it may have none.
        threshold: tau; above it the null odds mean that there is no answer. None before it is chosen.
    """

    rules: Literal["v1", "v2"]
    threshold: float | None = None

    # ---- scores

    def compute_metrics(self, outputs: Outputs) -> Scores:
        """Of the final answers; with v2 also the best that thresholds on this split would reach."""
        from bertkit.metrics.thresholds import compute_best_scores

        gold, nbest = get_gold_texts(outputs.rows), self.merge_nbest(outputs)
        spans, final = extract_best_spans(nbest, outputs.rows), self.select_answers(outputs, nbest)
        scores = self._scores(self._marks(gold, final), gold)
        if self.rules == "v2":
            has, empty = _array(map(bool, gold)), _array(not text for text in spans)
            scores |= compute_best_scores(self._marks(gold, spans), nbest.null_odds, has, empty)
        return scores | self._korean(gold, final)

    def scorer(self, outputs: Outputs) -> "Scorer":
        """By questions; the threshold stays as it is."""
        from bertkit.metrics.intervals import Scorer

        gold = get_gold_texts(outputs.rows)
        marks = self._marks(gold, self.select_answers(outputs, self.merge_nbest(outputs)))
        has = _array(map(bool, gold))
        parts = {"": has | True} | ({"HasAns_": has, "NoAns_": ~has} if self.rules == "v2" else {})

        def score(rows: "np.ndarray") -> Scores:
            return {
                f"{part}{name}": 100.0 * float(values[rows][inside[rows]].mean())
                for part, inside in parts.items()
                if inside.any()
                for name, values in (("exact", marks.exact), ("f1", marks.f1))
                if inside[rows].any()
            }

        return Scorer(score, len(gold))

    def fit_threshold(self, outputs: Outputs) -> float:
        """Tau with the best F1 on this split (Devlin et al. 2018, 4.3)."""
        from bertkit.metrics.thresholds import fit_threshold

        return fit_threshold(self._sweep(outputs, self.merge_nbest(outputs)))

    def compute_details(self, outputs: Outputs) -> dict[str, Scores]:
        """The sweep: exact and F1 at some thresholds, that in use among them."""
        import numpy as np

        if self.rules == "v1":
            return {}
        sweep, used = self._sweep(outputs, self.merge_nbest(outputs)), self._tau(outputs)
        shown = np.linspace(0, len(sweep.threshold) - 1, SWEEP_POINTS).round().astype(int)
        in_use = max(0, int(np.searchsorted(sweep.threshold, used, side="right")) - 1)
        at = np.union1d(shown, [in_use])
        names = {i: f"tau {sweep.threshold[i]:.3f}" for i in at.tolist()} | {0: "nothing answered"}
        names[in_use] = f"{'' if in_use else 'nothing answered, '}tau {used:.3f} (in use)"
        return {name: {"exact": float(sweep.exact[i]), "f1": float(sweep.f1[i])} for i, name in names.items()}

    def score_baselines(self, rows: "Rows") -> dict[str, Scores]:
        """`overlap`: the sentence with the most words of the question; with v2 `majority`: no answer."""
        from bertkit.metrics.overlap import predict_overlap

        gold = get_gold_texts(rows)
        answers = {"overlap": predict_overlap(rows["question"], rows["context"])}
        if self.rules == "v2":
            answers["majority"] = [""] * len(rows)
        return {name: self._scores(self._marks(gold, some), gold) for name, some in answers.items()}

    # ---- answers

    def merge_nbest(self, outputs: Outputs) -> "NBest":
        """The best answers of each question."""
        from bertkit.data.qa.nbest import merge_windows

        return merge_windows(outputs.logits, outputs.features)

    def select_answers(self, outputs: Outputs, nbest: "NBest") -> list[str]:
        """[n] the answers that are given: with v2 "" where the null odds are above tau."""
        spans = extract_best_spans(nbest, outputs.rows)
        if self.rules == "v1":
            return spans
        none = nbest.null_odds > self._tau(outputs)
        return ["" if no else text for text, no in zip(spans, none, strict=True)]

    def iter_records(self, outputs: Outputs) -> Iterator[dict[str, Any]]:
        """A readable prediction of each question; see docs/qa.md for its keys."""
        nbest = self.merge_nbest(outputs)
        final, best, rows = self.select_answers(outputs, nbest), nbest.offsets[:-1], outputs.rows
        gold = get_gold_texts(rows) if "answers" in rows.columns else None
        odds, score = nbest.null_odds.tolist(), nbest.score[best].tolist()
        start, stop = nbest.start[best].tolist(), nbest.stop[best].tolist()
        for at, (question, answer) in enumerate(zip(rows["id"], final, strict=True)):
            yield {
                "id": question,
                "gold": None if gold is None else gold[at],
                "answer": answer,
                "start": start[at] if answer else None,
                "end": stop[at] if answer else None,
                "score": score[at],
                "null_odds": odds[at],
            }

    def prediction_files(self, outputs: Outputs) -> dict[str, Iterator[str]]:
        """`predictions.json`, `nbest_predictions.json`, and with v2 `null_odds.json`, by id."""
        nbest, names = self.merge_nbest(outputs), outputs.rows["id"]
        files = {
            "predictions.json": _object(names, self.select_answers(outputs, nbest)),
            "nbest_predictions.json": _object(names, self.iter_nbest(nbest, outputs.rows)),
        }
        if self.rules == "v2":
            files["null_odds.json"] = _object(names, nbest.null_odds.tolist())
        return files

    def iter_nbest(self, nbest: "NBest", rows: "Rows") -> Iterator[list[dict[str, Any]]]:
        """Each question's answers, with v2 no answer among them, and their shares of a softmax."""
        from itertools import islice

        import numpy as np

        shares, of_none = nbest.compute_probabilities(include_null=self.rules == "v2")
        columns = (nbest.start, nbest.stop, shares, nbest.start_logit, nbest.end_logit)
        answers = zip(*(some.tolist() for some in columns), strict=True)
        counts = np.diff(nbest.offsets)
        likelier = np.add.reduceat(shares >= np.repeat(of_none, counts), nbest.offsets[:-1], dtype=np.int64)
        none = zip(likelier.tolist(), of_none.tolist(), *nbest.null_logits.T.tolist(), strict=True)
        for context, count, nothing in zip(rows["context"], counts.tolist(), none, strict=True):
            found = [
                {"text": context[start:stop], "probability": share, "start_logit": one, "end_logit": other}
                for start, stop, share, one, other in islice(answers, count)
            ]
            if self.rules == "v2":
                at, share, one, other = nothing
                entry = {"text": "", "probability": share, "start_logit": one, "end_logit": other}
                found.insert(at, entry)
            yield found

    # ---- parts of these

    def _marks(self, gold: list[list[str]], answers: Sequence[str]) -> "AnswerScores":
        from bertkit.metrics.squad import score_answers_v1, score_answers_v2

        return (score_answers_v1 if self.rules == "v1" else score_answers_v2)(gold, answers)

    def _scores(self, marks: "AnswerScores", gold: list[list[str]]) -> Scores:
        from bertkit.metrics.squad import average_scores_v1, average_scores_v2

        return (
            average_scores_v1(marks)
            if self.rules == "v1"
            else average_scores_v2(marks, _array(map(bool, gold)))
        )

    def _korean(self, gold: list[list[str]], answers: Sequence[str]) -> Scores:
        """`char_f1`, KorQuAD's, where the answers are Korean."""
        from bertkit.data.unicode import is_korean
        from bertkit.metrics.squad import compute_char_f1

        if not is_korean([text for some in gold for text in some]):
            return {}
        return {"char_f1": 100.0 * float(compute_char_f1([some or [""] for some in gold], answers).mean())}

    def _sweep(self, outputs: Outputs, nbest: "NBest") -> Any:
        from bertkit.metrics.thresholds import sweep_thresholds

        gold = get_gold_texts(outputs.rows)
        marks = self._marks(gold, extract_best_spans(nbest, outputs.rows))
        return sweep_thresholds(marks, nbest.null_odds, self._marks(gold, [""] * len(gold)).exact)

    def _tau(self, outputs: Outputs) -> float:
        """The threshold, or while there is none, as during training, the best of this split."""
        return self.fit_threshold(outputs) if self.threshold is None else self.threshold


def get_gold_texts(rows: "Rows") -> list[list[str]]:
    """[n] the texts of each question's right answers; none where it has no answer."""
    return [[answer["text"] for answer in some] for some in rows["answers"]]


def extract_best_spans(nbest: "NBest", rows: "Rows") -> list[str]:
    """[n] the text of each question's best answer, as it stands in its paragraph."""
    best = nbest.offsets[:-1]
    places = zip(nbest.start[best].tolist(), nbest.stop[best].tolist(), strict=True)
    return [context[start:stop] for context, (start, stop) in zip(rows["context"], places, strict=True)]


def _object(names: Sequence[str], values: Any) -> Iterator[str]:
    """A JSON object, a line an entry."""
    import orjson

    yield "{"
    for number, (name, value) in enumerate(zip(names, values, strict=True)):
        try:
            text = orjson.dumps({name: value}).decode()
        except TypeError:  # half of a surrogate pair, which is left to the writer of the file
            text = json.dumps({name: value}, ensure_ascii=False)
        yield f"{',' if number else ''}\n{text[1:-1]}"
    yield "\n}\n"


def _array(values: Any) -> "np.ndarray":
    import numpy as np

    return np.fromiter(values, bool)
