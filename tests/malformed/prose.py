"""Running text, as `pretrain-mlm-nsp` reads it: prose, or the texts in a column."""

import json

from conftest import document_rows

from malformed.case import Case, damaged, legal, refused

ROWS = document_rows(30)
N = len(ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
PROSE = "\n\n".join(row["text"].replace(". ", ".\n") for row in ROWS) + "\n"


def with_row(row: object) -> str:
    return "".join(json.dumps(row if at == 2 else other) + "\n" for at, other in enumerate(ROWS))


FILES = {
    "a sentence a line": legal(PROSE, N),
    "JSON lines": legal(LINES, N),
    "one sentence": refused("It was good.\n", "only one sentence", "--validation"),
    "control characters alone": refused("\x01\x02\x03\n" * 9, "only control characters"),
    "a list of objects": refused(json.dumps(ROWS), "one a line"),
    "a row that is a list": refused(with_row([1]), "row 3", "not a JSON object"),
    "a row that is null": refused(with_row(None), "row 3", "not a JSON object"),
    "a row cut short": refused(LINES[:-20], "row 30", "broken JSON"),
    "a row nested too deeply": refused(LINES + '{"text":' + "[" * 100_000 + "\n", "row 31", "nested too deeply"),
    "a row of endless digits": refused(LINES + '{"text": ' + "9" * 5000 + "}\n", "row 31", "digits"),
    "a text that is a number": refused(with_row({"text": 5}), "row 3", "not a text"),
    "a text that is a list": refused(with_row({"text": ["a"]}), "row 3", "not a text"),
    "a text that is null": legal(with_row({"text": None}), N - 1),
    "a text that is missing": legal(with_row({}), N - 1),
    "a text of half a surrogate pair": legal(with_row({"text": "It was \ud83d good. " * 2}), N),
    "columns of other names": refused('{"a": "b", "c": "d"}\n' * 9, "--text-column"),
    "CSV with a row too long": refused("text,label\n" + "good food,a\n" * 12 + "a,b,c\n" * 3, "row 13", "3 fields"),
    "CSV with a quote that does not close": refused("text,label\n" + "good food,a\n" * 30 + '"a,b\n', "row 31", "broken CSV"),
    "a word of a hundred thousand letters": legal(PROSE + "\n" + "a" * 100_000 + " b.\nIt was good.\n", N + 1),
    "lines that end in CR alone": legal(PROSE.replace("\n", "\r"), 20),
}  # fmt: skip

CASES: dict[str, Case] = {**damaged(PROSE.encode(), N), **FILES}
