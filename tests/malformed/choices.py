"""Multiple choice, as `swag` reads it."""

import json

from conftest import swag_rows

from malformed.case import Case, damaged, legal, refused

ROWS = swag_rows(20, endings=(3,))
N = len(ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "context,ending0,ending1,ending2,label\n" + "".join(
    ",".join([row["context"], *row["endings"], str(row["label"])]) + "\n" for row in ROWS
)


def with_row(**change: object) -> str:
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


FILES = {
    "a CSV file": legal(CSV, N),
    "JSON lines": legal(LINES, N),
    "no endings": refused("context,label\na,0\nb,1\n", "no columns look like the endings", "--ending-columns"),
    "one column of endings": refused("context,ending0,label\na,b,0\nc,d,0\n", "--ending-columns"),
    "a gap between endings": refused(CSV + "more,a,,c,0\n", "row 21", "ending1", "blank"),
    "a blank last ending": legal(CSV + "more,a,b,,0\n", N + 1),
    "one ending alone": refused(CSV + "more,a,,,0\n", "row 21", "one ending"),
    "no ending at all": refused(CSV + "more,,,,0\n", "row 21", "no ending"),
    "endings that are a text": refused(with_row(endings="a"), "row 3", "not a list of endings"),
    "endings that are a number": refused(with_row(endings=5), "row 3", "not a list of endings"),
    "endings that are null": refused(with_row(endings=None), "row 3", "not a list of endings"),
    "endings that are an object": refused(with_row(endings={"a": "b"}), "row 3", "not a list of endings"),
    "an ending that is a number": refused(with_row(endings=["a", 5]), "row 3", "ending 1", "5, not a text"),
    "an ending that is null": refused(with_row(endings=["a", None]), "row 3", "ending 1"),
    "an ending that is a list": refused(with_row(endings=["a", ["b"]]), "row 3", "ending 1", "not a text"),
    "an ending that is empty": refused(with_row(endings=["a", ""]), "row 3", "ending 1"),
    "an empty list of endings": refused(with_row(endings=[]), "row 3", "no ending"),
    "a list of one ending": refused(with_row(endings=["a"], label=0), "row 3", "one ending"),
    "an ending of half a surrogate pair": legal(with_row(endings=["\ud83d", "b"], label=0), N),
    "a label beyond its endings": refused(with_row(label=9), "row 3", "label 9 is none of its 3 endings"),
    "a label below zero": refused(with_row(label=-1), "row 3"),
    "a label that is a fraction": refused(with_row(label=0.5), "row 3", "none of its 3 endings"),
    "a label that is NaN": refused(with_row(label=float("nan")), "row 3", "no label"),
    "a label that is infinite": refused(with_row(label=float("inf")), "row 3"),
    "a label that is null": refused(with_row(label=None), "row 3", "no label"),
    "a label that is a list": refused(with_row(label=[0]), "row 3", "none of its 3 endings"),
    "a label that is an object": refused(with_row(label={}), "row 3", "none of its 3 endings"),
    "a label of endless digits": refused(with_row(label="9" * 5000), "row 3"),
    "a label of digits that are none here": refused(with_row(label="²"), "row 3", "none of its 3 endings"),
    "a label that is an ending": legal(with_row(label=ROWS[2]["endings"][1]), N),
    "a context that is null": refused(with_row(context=None), "row 3", "no text"),
    "a context that is a number": refused(with_row(context=5), "row 3", "not a text"),
    "no label": refused(CSV.replace("label", "other"), "label"),
}  # fmt: skip

CASES: dict[str, Case] = {**damaged(CSV.encode(), N), **FILES}
