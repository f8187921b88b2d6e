"""Questions about paragraphs, as `qa` reads them: the nested form of SQuAD, and a row a question."""

import copy
import json
from collections.abc import Iterable
from typing import Any

from conftest import make_qa_rows

from malformed.case import Case, expect_error, expect_rows, make_damage_cases

ROWS = make_qa_rows(20)
NUM_ROWS = len(ROWS)
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
REMOVED = object()
PARAGRAPHS = ("data", 2, "paragraphs")
PARAGRAPH = (*PARAGRAPHS, 0)
QUESTION = (*PARAGRAPH, "qas", 0)
ANSWER = (*QUESTION, "answers", 0)


def replace_in_squad(path: Iterable[str | int], value: Any) -> str:
    """SQuAD with another value at one place."""
    document = at = copy.deepcopy(SQUAD)
    *above, last = path
    for key in above:
        at = at[key]
    if value is REMOVED:
        del at[last]
    else:
        at[last] = value
    return json.dumps(document)


def replace_row(**change: object) -> str:
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


def make_wrong_values(*path: str | int) -> dict[str, tuple[str, Any]]:
    """Values of every kind that JSON has."""
    kinds = {"null": None, "a number": 5, "true": True, "a list of numbers": [5], "an object": {"a": 1}}
    return {f"{path[-1]} is {kind}": (replace_in_squad(path, value), value) for kind, value in kinds.items()}


NESTED = {
    "SQuAD": expect_rows(json.dumps(SQUAD), NUM_ROWS),
    "SQuAD on many lines": expect_rows(json.dumps(SQUAD, indent=1), NUM_ROWS),
    "SQuAD cut short": expect_error(json.dumps(SQUAD)[:-40], "broken JSON"),
    "SQuAD without data": expect_error('{"version": "1.1"}', "expected a list of articles"),
    "SQuAD with empty data": expect_error('{"version": "1.1", "data": []}', "no rows"),
    "SQuAD with data that are an object": expect_error('{"version": "1.1", "data": {"a": 1}}', "expected a list of articles"),
    "SQuAD with data that are a text": expect_error('{"version": "1.1", "data": "x"}', "expected a list of articles"),
    "SQuAD with an article that is a list": expect_error(replace_in_squad(["data", 2], [1]), "row 3", "not a JSON object"),
    "SQuAD with an article that is null": expect_error(replace_in_squad(["data", 2], None), "row 3", "not a JSON object"),
    "SQuAD with paragraphs gone": expect_error(replace_in_squad(["data", 2, "paragraphs"], REMOVED), "article 3", "paragraphs"),
    "SQuAD with a paragraph that is null": expect_error(replace_in_squad(PARAGRAPH, None), "article 3", "paragraphs"),
    "SQuAD without a context": expect_error(replace_in_squad([*PARAGRAPH, "context"], REMOVED), "row 3", "id q2", "is empty"),
    "SQuAD with an empty context": expect_error(replace_in_squad([*PARAGRAPH, "context"], " "), "row 3", "is empty"),
    "SQuAD without questions": expect_error(replace_in_squad([*PARAGRAPH, "qas"], REMOVED), "article 3", "paragraph 1", "qas"),
    "SQuAD with no questions in a paragraph": expect_rows(replace_in_squad([*PARAGRAPH, "qas"], []), NUM_ROWS - 1),
    "SQuAD without a question": expect_error(replace_in_squad([*QUESTION, "question"], REMOVED), "row 3", "is empty"),
    "SQuAD with an empty question": expect_error(replace_in_squad([*QUESTION, "question"], ""), "row 3", "is empty"),
    "SQuAD without an id": expect_rows(replace_in_squad([*QUESTION, "id"], REMOVED), NUM_ROWS),
    "SQuAD with an id twice": expect_error(replace_in_squad([*QUESTION, "id"], "q0"), "row 3", "id 'q0' is also the id of"),
    "SQuAD with an id of half a pair": expect_error(replace_in_squad([*QUESTION, "id"], "\ud83d"), "row 3", "surrogate"),
    "SQuAD with an id that is a path": expect_rows(replace_in_squad([*QUESTION, "id"], "../../x"), NUM_ROWS),
    "SQuAD with an answer beyond its paragraph": expect_error(replace_in_squad([*ANSWER, "answer_start"], 9999), "row 3", "id q2", "exceeds its context"),
    "SQuAD with an answer before its paragraph": expect_error(replace_in_squad([*ANSWER, "answer_start"], -2), "row 3", "exceeds its context"),
    "SQuAD with an endless offset": expect_error(replace_in_squad([*ANSWER, "answer_start"], 10**30), "row 3", "exceeds its context"),
    "SQuAD with an infinite offset": expect_error(replace_in_squad([*ANSWER, "answer_start"], float("inf")), "row 3", "not a whole number"),
    "SQuAD with an offset that is NaN": expect_rows(replace_in_squad([*ANSWER, "answer_start"], float("nan")), NUM_ROWS),
    "SQuAD with an offset that is a fraction": expect_error(replace_in_squad([*ANSWER, "answer_start"], 1.5), "row 3", "1.5 of an answer is not a whole"),
    "SQuAD with an offset that is a word": expect_error(replace_in_squad([*ANSWER, "answer_start"], "two"), "row 3", "'two' of an answer is not a whole"),
    "SQuAD with an offset that is true": expect_error(replace_in_squad([*ANSWER, "answer_start"], True), "row 3", "True of an answer is not a whole"),
    "SQuAD with an offset that is a list": expect_error(replace_in_squad([*ANSWER, "answer_start"], [1]), "row 3", "not a whole"),
    "SQuAD with an offset of digits": expect_rows(replace_in_squad([*ANSWER, "answer_start"], "3"), NUM_ROWS),
    "SQuAD with an offset of endless digits": expect_error(replace_in_squad([*ANSWER, "answer_start"], "9" * 5000), "row 3", "not a whole number"),
    "SQuAD with an empty answer": expect_error(replace_in_squad([*ANSWER, "text"], ""), "row 3", "is empty"),
    "SQuAD with an answer without a text": expect_error(replace_in_squad([*ANSWER, "text"], REMOVED), "row 3", "cannot parse answers"),
    "SQuAD with an answer that stands nowhere": expect_rows(replace_in_squad([*ANSWER, "text"], "no such words"), NUM_ROWS - 1),
    "SQuAD with a mark that is a word": expect_error(replace_in_squad([*QUESTION, "is_impossible"], "maybe"), "row 3", "neither true nor false"),
    "SQuAD with a mark that is a list": expect_error(replace_in_squad([*QUESTION, "is_impossible"], [True]), "row 3", "neither true nor false"),
    "SQuAD with a mark that is an object": expect_error(replace_in_squad([*QUESTION, "is_impossible"], {}), "row 3", "neither true nor false"),
}  # fmt: skip
WRONG_TYPES = {
    f"SQuAD whose {name}": expect_error(content, "article 3" if place is PARAGRAPHS else "row 3")
    for place in (
        PARAGRAPHS, (*PARAGRAPH, "context"), (*QUESTION, "question"),
        (*QUESTION, "answers"), (*ANSWER, "text"),
    )
    for name, (content, value) in make_wrong_values(*place).items()
    if not (place[-1] == "answers" and value is None)
} | {
    f"SQuAD whose {name}": expect_error(content, "article 3", "paragraph 1", "'qas': expected a list of objects")
    for name, (content, _) in make_wrong_values(*PARAGRAPH, "qas").items()
}  # fmt: skip
FLAT = {
    "a row a question": expect_rows(LINES, NUM_ROWS),
    "a row without a context": expect_error(replace_row(context=None), "row 3", "is empty"),
    "a row with a question that is a list": expect_error(replace_row(question=["a"]), "row 3", "not a text"),
    "answers of unlike length": expect_error(replace_row(answers={"text": ["a"], "answer_start": [1, 2]}), "row 3", "cannot parse answers"),
    "answers without texts": expect_error(replace_row(answers={"answer_start": [1]}), "row 3", "cannot parse answers"),
    "an object of no JSON in a cell": expect_error(replace_row(answers="{'text': 'a', 'answer_start': 1}"), "row 3", "not JSON"),
    "an object nested too deeply in a cell": expect_error(replace_row(answers='{"text":' + "[" * 100_000), "row 3", "not JSON"),
    "CSV without a context": expect_error("question,answer\nwhy,so\nhow,thus\n", "context"),
    "a CSV file": expect_rows("question,context,answer\n" + "".join(f"why {n},so it {n} is,it {n}\n" for n in range(12)), 12),
}  # fmt: skip

CASES: dict[str, Case] = {
    **make_damage_cases(json.dumps(SQUAD, indent=1).encode(), NUM_ROWS),
    **NESTED,
    **WRONG_TYPES,
    **FLAT,
}
