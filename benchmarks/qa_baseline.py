"""Answers from the scores of starts and ends as question answering scripts usually find them.

Window by window, the best starts meet the best ends in Python loops. `qa_speed.py` sets it beside bertkit's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Offsets = list[tuple[int, int] | None]  # the characters of each token; None beside the paragraph
Span = dict[str, Any]


@dataclass(frozen=True)
class Windows:
    """The windows of all questions, as the tokenizer's `return_overflowing_tokens` leaves them.

    Attributes:
        question: [windows] the number of the question of each.
        offsets: [windows] the places of its tokens.
    """

    question: Sequence[int]
    offsets: Sequence[Offsets]


@dataclass
class BaselineAnswers:
    """What was found, by the questions' ids; `scores` are those of the best spans, -inf where none was."""

    predictions: dict[str, str] = field(default_factory=dict)
    nbest: dict[str, list[Span]] = field(default_factory=dict)
    null_odds: dict[str, float] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)

    def format_files(self) -> list[str]:
        """The three files, not indented: that is much the slower way to write JSON."""
        found = (self.predictions, self.nbest, self.null_odds)
        return [json.dumps(values, ensure_ascii=False) for values in found]


def find_answers(
    logits: np.ndarray, windows: Windows, ids: Sequence[str], contexts: Sequence[str],
    n_best: int, max_answer_length: int,
) -> BaselineAnswers:  # fmt: skip
    """The answers by SQuAD 2.0's rules, with a threshold of 0.

    Args:
        logits: [windows, 2, length] of starts and ends; [CLS] is the first token.
        ids, contexts: [questions].
    """
    of_question: dict[int, list[int]] = defaultdict(list)
    for window, question in enumerate(windows.question):
        of_question[question].append(window)
    found = BaselineAnswers()
    for number, (name, context) in enumerate(zip(ids, contexts, strict=True)):
        spans, null = [], np.inf
        for window in of_question[number]:
            start, end = logits[window]
            null = min(null, start[0] + end[0])
            spans += _spans(start, end, windows.offsets[window], n_best, max_answer_length)
        _decide(found, name, context, spans, null, n_best)
    return found


def _spans(start: np.ndarray, end: np.ndarray, offsets: Offsets, n_best: int, longest: int) -> list[Span]:
    """The spans of one window between its best starts and its best ends."""
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
            one, other = start[first], end[last]
            spans.append({"place": (begin[0], stop[1]), "score": one + other, "start": one, "end": other})
    return spans


def _decide(
    found: BaselineAnswers, name: str, context: str, spans: list[Span], null: float, n_best: int
) -> None:  # fmt: skip
    """Sort the spans of one question, give each its probability, and put the best against no answer."""
    best = sorted(spans, key=lambda span: span["score"], reverse=True)[:n_best]
    top = float(best[0]["score"]) if best else -np.inf
    listed = [{**span, "text": context[slice(*span["place"])]} for span in best]
    listed.append({"text": "", "score": null, "start": null / 2, "end": null / 2})
    listed.sort(key=lambda span: span["score"], reverse=True)
    scores = np.array([span["score"] for span in listed])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    found.nbest[name] = [
        {
            "text": span["text"],
            "probability": float(probability),
            "start_logit": float(span["start"]),
            "end_logit": float(span["end"]),
        }
        for span, probability in zip(listed, probabilities, strict=True)
    ]
    span = next((span["text"] for span in listed if span["text"]), "")
    found.null_odds[name] = float(null) - top
    found.predictions[name] = "" if found.null_odds[name] > 0 else span
    found.scores.append(top)
