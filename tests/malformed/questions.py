"""Questions about paragraphs, as `qa` reads them: the nested form of SQuAD, and a row a question."""

import copy
import json
from collections.abc import Iterable
from typing import Any

from conftest import qa_rows

from malformed.case import Case, damaged, legal, refused

ROWS = qa_rows(20)
N = len(ROWS)
ARTICLES = [
    {
        "title": f"article {at}",
        "paragraphs": [
            {
                "context": row["context"],
                "qas": [{"id": row["id"], "question": row["question"], "answers": row["answers"]}],
            }
        ],
    }
    for at, row in enumerate(ROWS)
]
SQUAD = {"version": "1.1", "data": ARTICLES}
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
GONE = object()
PARAGRAPHS = ("data", 2, "paragraphs")
PARAGRAPH = (*PARAGRAPHS, 0)
QUESTION = (*PARAGRAPH, "qas", 0)
ANSWER = (*QUESTION, "answers", 0)


def squad(path: Iterable[str | int], value: Any) -> str:
    """SQuAD with another value at one place."""
    document = at = copy.deepcopy(SQUAD)
    *above, last = path
    for key in above:
        at = at[key]
    if value is GONE:
        del at[last]
    else:
        at[last] = value
    return json.dumps(document)


def with_row(**change: object) -> str:
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


def wrong(*path: str | int) -> dict[str, tuple[str, Any]]:
    """Values of every kind that JSON has."""
    kinds = {"null": None, "a number": 5, "true": True, "a list of numbers": [5], "an object": {"a": 1}}
    return {f"{path[-1]} is {kind}": (squad(path, value), value) for kind, value in kinds.items()}


NESTED = {
    "SQuAD": legal(json.dumps(SQUAD), N),
    "SQuAD on many lines": legal(json.dumps(SQUAD, indent=1), N),
    "SQuAD cut short": refused(json.dumps(SQUAD)[:-40], "broken JSON"),
    "SQuAD without data": refused('{"version": "1.1"}', "no articles"),
    "SQuAD with empty data": refused('{"version": "1.1", "data": []}', "no rows"),
    "SQuAD with data that are an object": refused('{"version": "1.1", "data": {"a": 1}}', "no articles"),
    "SQuAD with data that are a text": refused('{"version": "1.1", "data": "x"}', "no articles"),
    "SQuAD with an article that is a list": refused(squad(["data", 2], [1]), "row 3", "not a JSON object"),
    "SQuAD with an article that is null": refused(squad(["data", 2], None), "row 3", "not a JSON object"),
    "SQuAD with paragraphs gone": refused(squad(["data", 2, "paragraphs"], GONE), "article 3", "paragraphs"),
    "SQuAD with a paragraph that is null": refused(squad(PARAGRAPH, None), "article 3", "paragraphs"),
    "SQuAD without a context": refused(squad([*PARAGRAPH, "context"], GONE), "row 3", "id q2", "has no text"),
    "SQuAD with an empty context": refused(squad([*PARAGRAPH, "context"], " "), "row 3", "has no text"),
    "SQuAD without questions": refused(squad([*PARAGRAPH, "qas"], GONE), "article 3", "paragraph 1", "qas"),
    "SQuAD with no questions in a paragraph": legal(squad([*PARAGRAPH, "qas"], []), N - 1),
    "SQuAD without a question": refused(squad([*QUESTION, "question"], GONE), "row 3", "has no text"),
    "SQuAD with an empty question": refused(squad([*QUESTION, "question"], ""), "row 3", "has no text"),
    "SQuAD without an id": legal(squad([*QUESTION, "id"], GONE), N),
    "SQuAD with an id twice": refused(squad([*QUESTION, "id"], "q0"), "row 3", "id 'q0' is also that of"),
    "SQuAD with an id of half a pair": refused(squad([*QUESTION, "id"], "\ud83d"), "row 3", "surrogate"),
    "SQuAD with an id that is a path": legal(squad([*QUESTION, "id"], "../../x"), N),
    "SQuAD with an answer beyond its paragraph": refused(squad([*ANSWER, "answer_start"], 9999), "row 3", "id q2", "beyond"),
    "SQuAD with an answer before its paragraph": refused(squad([*ANSWER, "answer_start"], -1), "row 3", "beyond"),
    "SQuAD with an endless offset": refused(squad([*ANSWER, "answer_start"], 10**30), "row 3", "beyond"),
    "SQuAD with an infinite offset": refused(squad([*ANSWER, "answer_start"], float("inf")), "row 3", "whole number"),
    "SQuAD with an offset that is NaN": legal(squad([*ANSWER, "answer_start"], float("nan")), N),
    "SQuAD with an offset that is a fraction": refused(squad([*ANSWER, "answer_start"], 1.5), "row 3", "1.5, not a whole"),
    "SQuAD with an offset that is a word": refused(squad([*ANSWER, "answer_start"], "two"), "row 3", "'two', not a whole"),
    "SQuAD with an offset that is true": refused(squad([*ANSWER, "answer_start"], True), "row 3", "True, not a whole"),
    "SQuAD with an offset that is a list": refused(squad([*ANSWER, "answer_start"], [1]), "row 3", "not a whole"),
    "SQuAD with an offset of digits": legal(squad([*ANSWER, "answer_start"], "3"), N),
    "SQuAD with an offset of endless digits": refused(squad([*ANSWER, "answer_start"], "9" * 5000), "row 3", "not a whole number"),
    "SQuAD with an empty answer": refused(squad([*ANSWER, "text"], ""), "row 3", "is empty"),
    "SQuAD with an answer without a text": refused(squad([*ANSWER, "text"], GONE), "row 3", "no answers"),
    "SQuAD with an answer that stands nowhere": legal(squad([*ANSWER, "text"], "no such words"), N - 1),
    "SQuAD with a mark that is a word": refused(squad([*QUESTION, "is_impossible"], "maybe"), "row 3", "neither true nor false"),
    "SQuAD with a mark that is a list": refused(squad([*QUESTION, "is_impossible"], [True]), "row 3", "neither true nor false"),
    "SQuAD with a mark that is an object": refused(squad([*QUESTION, "is_impossible"], {}), "row 3", "neither true nor false"),
}  # fmt: skip
KINDS = {
    f"SQuAD whose {name}": refused(content, "article 3" if place is PARAGRAPHS else "row 3")
    for place in (
        PARAGRAPHS, (*PARAGRAPH, "context"), (*QUESTION, "question"),
        (*QUESTION, "answers"), (*ANSWER, "text"),
    )
    for name, (content, value) in wrong(*place).items()
    if not (place[-1] == "answers" and value is None)
} | {
    f"SQuAD whose {name}": refused(content, "article 3", "paragraph 1", "'qas' is no list of objects")
    for name, (content, _) in wrong(*PARAGRAPH, "qas").items()
}  # fmt: skip
FLAT = {
    "a row a question": legal(LINES, N),
    "a row without a context": refused(with_row(context=None), "row 3", "has no text"),
    "a row with a question that is a list": refused(with_row(question=["a"]), "row 3", "not a text"),
    "answers of unlike length": refused(with_row(answers={"text": ["a"], "answer_start": [1, 2]}), "row 3", "no answers"),
    "answers without texts": refused(with_row(answers={"answer_start": [1]}), "row 3", "no answers"),
    "an object of no JSON in a cell": refused(with_row(answers="{'text': 'a', 'answer_start': 1}"), "row 3", "no JSON"),
    "an object nested too deeply in a cell": refused(with_row(answers='{"text":' + "[" * 100_000), "row 3", "no JSON"),
    "CSV without a context": refused("question,answer\nwhy,so\nhow,thus\n", "context"),
    "a CSV file": legal("question,context,answer\n" + "".join(f"why {n},so it {n} is,it {n}\n" for n in range(12)), 12),
}  # fmt: skip

CASES: dict[str, Case] = {**damaged(json.dumps(SQUAD, indent=1).encode(), N), **NESTED, **KINDS, **FLAT}
