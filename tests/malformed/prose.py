"""Running text, as `pretrain-mlm-nsp` reads it: prose, or the texts in a column."""

import json

from conftest import make_document_rows

from malformed.case import Case, expect_error, expect_rows, make_damage_cases

ROWS = make_document_rows(30)
NUM_ROWS = len(ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
PROSE = "\n\n".join(row["text"].replace(". ", ".\n") for row in ROWS) + "\n"


def replace_row(row: object) -> str:
    return "".join(json.dumps(row if at == 2 else other) + "\n" for at, other in enumerate(ROWS))


FILES = {
    "a sentence a line": expect_rows(PROSE, NUM_ROWS),
    "JSON lines": expect_rows(LINES, NUM_ROWS),
    "one sentence": expect_error("It was good.\n", "only one sentence", "--validation"),
    "control characters alone": expect_error("\x01\x02\x03\n" * 9, "only control characters"),
    "a list of objects": expect_error(json.dumps(ROWS), "one object per line"),
    "a row that is a list": expect_error(replace_row([1]), "row 3", "not a JSON object"),
    "a row that is null": expect_error(replace_row(None), "row 3", "not a JSON object"),
    "a row cut short": expect_error(LINES[:-20], "row 30", "broken JSON"),
    "a row nested too deeply": expect_error(LINES + '{"text":' + "[" * 100_000 + "\n", "row 31", "nested too deeply"),
    "a row of endless digits": expect_error(LINES + '{"text": ' + "9" * 5000 + "}\n", "row 31", "digits"),
    "a text that is a number": expect_error(replace_row({"text": 5}), "row 3", "not a text"),
    "a text that is a list": expect_error(replace_row({"text": ["a"]}), "row 3", "not a text"),
    "a text that is null": expect_rows(replace_row({"text": None}), NUM_ROWS - 1),
    "a text that is missing": expect_rows(replace_row({}), NUM_ROWS - 1),
    "a text of half a surrogate pair": expect_rows(replace_row({"text": "It was \ud83d good. " * 2}), NUM_ROWS),
    "columns of other names": expect_error('{"a": "b", "c": "d"}\n' * 9, "--text-column"),
    "CSV with a row too long": expect_error("text,label\n" + "good food,a\n" * 12 + "a,b,c\n" * 3, "row 13", "expected 2 fields", "found 3"),
    "CSV with a quote that does not close": expect_error("text,label\n" + "good food,a\n" * 30 + '"a,b\n', "row 31", "broken CSV"),
    "a word of a hundred thousand letters": expect_rows(PROSE + "\n" + "a" * 100_000 + " b.\nIt was good.\n", NUM_ROWS + 1),
    "lines that end in CR alone": expect_rows(PROSE.replace("\n", "\r"), 20),
}  # fmt: skip

CASES: dict[str, Case] = {**make_damage_cases(PROSE.encode(), NUM_ROWS), **FILES}
