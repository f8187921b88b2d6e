"""Answer extraction from start and end logits as in the question answering scripts of transformers.

Python loops combine the best starts and the best ends of each window. `qa_speed.py` compares it with bertkit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Offsets = list[tuple[int, int] | None]  # the characters of each token; None outside the context
Span = dict[str, Any]


@dataclass(frozen=True)
class Windows:
    """The windows of all questions, as returned by the tokenizer with `return_overflowing_tokens`.

    Attributes:
        question: `[num_windows]` index of the question.
        offsets: `[num_windows]` offsets of the tokens.
    """

    question: Sequence[int]
    offsets: Sequence[Offsets]


@dataclass
class BaselineAnswers:
    """Answers by question id; `scores` are those of the best spans, -inf for questions without a span."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[Span]] = field(default_factory=dict)
    null_odds: dict[str, float] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)

    def format_files(self) -> list[str]:
        """Return the contents of the three files as JSON without indentation, which is faster to write."""
        files = (self.predictions, self.nbest, self.null_odds)
        return [json.dumps(values, ensure_ascii=False) for values in files]


def find_answers(
    logits: np.ndarray, windows: Windows, ids: Sequence[str], contexts: Sequence[str],
    n_best: int, max_answer_length: int,
) -> BaselineAnswers:  # fmt: skip
    """Return the answers by the rules of SQuAD 2.0, with a threshold of 0.

    Args:
        logits: `[num_windows, 2, seq_len]` of starts and ends; [CLS] is the first token.
        ids: `[num_questions]`.
        contexts: `[num_questions]`.
    """
    windows_of_question: dict[int, list[int]] = defaultdict(list)
    for window, question in enumerate(windows.question):
        windows_of_question[question].append(window)
    answers = BaselineAnswers()
    for number, (name, context) in enumerate(zip(ids, contexts, strict=True)):
        spans, null = [], np.inf
        for window in windows_of_question[number]:
            start, end = logits[window]
            null = min(null, start[0] + end[0])
            spans += _list_spans(start, end, windows.offsets[window], n_best, max_answer_length)
        _choose_answer(answers, name, context, spans, null, n_best)
    return answers


def _list_spans(
    start: np.ndarray, end: np.ndarray, offsets: Offsets, n_best: int, longest: int
) -> list[Span]:
    """List the valid spans between the best starts and the best ends of a window."""
    spans = []
    starts = np.argsort(start)[-1 : -n_best - 1 : -1].tolist()
    ends = np.argsort(end)[-1 : -n_best - 1 : -1].tolist()
    for first in starts:
        for last in ends:
            if first >= len(offsets) or last >= len(offsets):
                continue
            begin, stop = offsets[first], offsets[last]
            if begin is None or stop is None:
                continue
            if last < first or last - first + 1 > longest:
                continue
            start_logit, end_logit = start[first], end[last]
            spans.append(
                {
                    "offsets": (begin[0], stop[1]), "score": start_logit + end_logit,
                    "start": start_logit, "end": end_logit,
                }
            )  # fmt: skip
    return spans


def _choose_answer(
    answers: BaselineAnswers, name: str, context: str, spans: list[Span], null: float, n_best: int
) -> None:  # fmt: skip
    """Sort the spans of a question, compute probabilities, and compare the best span with no answer."""
    best = sorted(spans, key=lambda span: span["score"], reverse=True)[:n_best]
    top = float(best[0]["score"]) if best else -np.inf
    candidates = [{**span, "text": context[slice(*span["offsets"])]} for span in best]
    candidates.append({"text": "", "score": null, "start": null / 2, "end": null / 2})
    candidates.sort(key=lambda span: span["score"], reverse=True)
    scores = np.array([span["score"] for span in candidates])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    answers.nbest[name] = [
        {
            "text": span["text"],
            "probability": float(probability),
            "start_logit": float(span["start"]),
            "end_logit": float(span["end"]),
        }
        for span, probability in zip(candidates, probabilities, strict=True)
    ]
    span = next((span["text"] for span in candidates if span["text"]), "")
    answers.null_odds[name] = float(null) - top
    answers.predictions[name] = "" if answers.null_odds[name] > 0 else span
    answers.scores.append(top)
