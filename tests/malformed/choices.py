"""Multiple choice, as `swag` reads it."""

import json

from conftest import make_swag_rows

from malformed.case import Case, expect_error, expect_rows, make_damage_cases

ROWS = make_swag_rows(20, endings=(3,))
NUM_ROWS = len(ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "context,ending0,ending1,ending2,label\n" + "".join(
    ",".join([row["context"], *row["endings"], str(row["label"])]) + "\n" for row in ROWS
)


def replace_row(**change: object) -> str:
    return "".join(json.dumps(row | (change if at == 2 else {})) + "\n" for at, row in enumerate(ROWS))


FILES = {
    "a CSV file": expect_rows(CSV, NUM_ROWS),
    "JSON lines": expect_rows(LINES, NUM_ROWS),
    "no endings": expect_error("context,label\na,0\nb,1\n", "no columns look like the endings", "--ending-columns"),
    "one column of endings": expect_error("context,ending0,label\na,b,0\nc,d,0\n", "--ending-columns"),
    "a gap between endings": expect_error(CSV + "more,a,,c,0\n", "row 21", "ending1", "blank"),
    "a blank last ending": expect_rows(CSV + "more,a,b,,0\n", NUM_ROWS + 1),
    "one ending alone": expect_error(CSV + "more,a,,,0\n", "row 21", "one ending"),
    "no ending at all": expect_error(CSV + "more,,,,0\n", "row 21", "no ending"),
    "endings that are a text": expect_error(replace_row(endings="a"), "row 3", "not a list of endings"),
    "endings that are a number": expect_error(replace_row(endings=5), "row 3", "not a list of endings"),
    "endings that are null": expect_error(replace_row(endings=None), "row 3", "not a list of endings"),
    "endings that are an object": expect_error(replace_row(endings={"a": "b"}), "row 3", "not a list of endings"),
    "an ending that is a number": expect_error(replace_row(endings=["a", 5]), "row 3", "ending 1", "5, not a text"),
    "an ending that is null": expect_error(replace_row(endings=["a", None]), "row 3", "ending 1"),
    "an ending that is a list": expect_error(replace_row(endings=["a", ["b"]]), "row 3", "ending 1", "not a text"),
    "an ending that is empty": expect_error(replace_row(endings=["a", ""]), "row 3", "ending 1"),
    "an empty list of endings": expect_error(replace_row(endings=[]), "row 3", "no ending"),
    "a list of one ending": expect_error(replace_row(endings=["a"], label=0), "row 3", "one ending"),
    "an ending of half a surrogate pair": expect_rows(replace_row(endings=["\ud83d", "b"], label=0), NUM_ROWS),
    "a label beyond its endings": expect_error(replace_row(label=9), "row 3", "label 9 is none of the 3 endings"),
    "a label below zero": expect_error(replace_row(label=-1), "row 3"),
    "a label that is a fraction": expect_error(replace_row(label=0.5), "row 3", "none of the 3 endings"),
    "a label that is NaN": expect_error(replace_row(label=float("nan")), "row 3", "no label"),
    "a label that is infinite": expect_error(replace_row(label=float("inf")), "row 3"),
    "a label that is null": expect_error(replace_row(label=None), "row 3", "no label"),
    "a label that is a list": expect_error(replace_row(label=[0, 1]), "row 3", "none of the 3 endings"),
    "a label that is an object": expect_error(replace_row(label={}), "row 3", "none of the 3 endings"),
    "a label of endless digits": expect_error(replace_row(label="9" * 5000), "row 3"),
    "a label of digits that are none here": expect_error(replace_row(label="²"), "row 3", "none of the 3 endings"),
    "a label that is an ending": expect_rows(replace_row(label=ROWS[2]["endings"][1]), NUM_ROWS),
    "a context that is null": expect_error(replace_row(context=None), "row 3", "no text"),
    "a context that is a number": expect_error(replace_row(context=5), "row 3", "not a text"),
    "no label": expect_error(CSV.replace("label", "other"), "label"),
}  # fmt: skip

CASES: dict[str, Case] = {**make_damage_cases(CSV.encode(), NUM_ROWS), **FILES}
