"""The formats of predicted answers: n-best lists, and those of the official scripts and of `evaluate`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from bertkit.tasks.qa_scores import Rules

if TYPE_CHECKING:
    from bertkit.data.qa.spans import NBest


def iter_nbest(nbest: "NBest", contexts: Sequence[str], rules: Rules) -> Iterator[list[dict[str, Any]]]:
    """Yield the n-best list of each question; with v2, the list includes the empty answer.

    Args:
        nbest: The most probable spans of each question.
        contexts: The paragraph of each question.
        rules: The rules of SQuAD.
    """
    import numpy as np

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
    import msgspec

    yield "{"
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            text = msgspec.json.encode({key: value}).decode()
        except UnicodeEncodeError:  # a lone surrogate, which the file writer reports as an error
            text = json.dumps({key: value}, ensure_ascii=False)
        yield f"{',' if index else ''}\n{text[1:-1]}"
    yield "\n}\n"
