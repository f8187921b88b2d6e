"""Rows with columns, as `classify` reads them: CSV, TSV, JSON, JSON lines, Parquet."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import toy_rows

from malformed.case import Case, changed, damaged, legal, refused, zipped

ROWS = toy_rows(30)
N = len(ROWS)


def csv_of(rows: list[dict[str, str]], mark: str = ",") -> str:
    return f"text{mark}label\n" + "".join(f"{row['text']}{mark}{row['label']}\n" for row in rows)


def lines_of(rows: list) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def with_row(row: object, at: int = 6) -> list:
    return [*ROWS[:at], row, *ROWS[at + 1 :]]


def with_text(text: object) -> list:
    return with_row({**ROWS[6], "text": text})


def with_label(label: object) -> list:
    return with_row({**ROWS[6], "label": label})


def parquet(columns: dict, metadata: dict | None = None) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
    return file.getvalue()


CSV, TSV, JSON, LINES = csv_of(ROWS), csv_of(ROWS, "\t"), json.dumps(ROWS), lines_of(ROWS)
COLUMNS = {name: [row[name] for row in ROWS] for name in ("text", "label")}
PARQUET = parquet(COLUMNS)
DEEP = "[" * 100_000
FIRST, REST = CSV.split("\n", 1)

DELIMITED = {
    "a header alone": refused("text,label\n", "header and no rows"),
    "a header without its end": refused("text,label", "header and no rows"),
    "a row too long": refused(CSV + "a,b,c\n", "row 31", "3 fields", "header has 2"),
    "a row too short": refused(CSV + "a\n", "row 31", "1 field"),
    "a quote that does not close": refused(CSV + '"a,b\n', "row 31", "broken CSV"),
    "a quote in a quoted field": refused(CSV + '"a"b,c\n', "row 31", "broken CSV"),
    "a quote that does not close in the header": refused('"text,label\na,b\n', "broken CSV"),
    "an unquoted quote": legal(CSV + 'an "odd" one,negative\n', N + 1),
    "lines within quotes": legal(CSV + '"two\nlines\r\nhere",negative\n', N + 1),
    "the same column twice": refused("text,label,text\na,b,c\nd,e,f\n", "header names 'text' twice"),
    "two columns without a name": refused("text,label,,\na,b,,\nd,e,,\n", "names '' twice"),
    "lines that end in CR alone": refused(CSV.replace("\n", "\r"), "data.csv", "CR"),
    "lines of both kinds": legal(CSV.replace("\n", "\r\n", 5), N),
    "a byte order mark within": legal(CSV + "\ufeffmore,negative\n", N + 1),
    "a separator of lines that is none here": legal(CSV + "a\u2028b\x0c\x85c,negative\n", N + 1),
    "no header": refused(REST, "looks like"),
    "semicolons": legal(csv_of(ROWS, ";"), N),
    "TABs": legal(TSV, N),
    "TABs with a row too long": refused(TSV + "a\tb\tc\n", "row 31", "3 fields"),
    "TABs with a bare quote": legal(TSV + '"a\tnegative\n', N + 1),
    "no last line end": legal(CSV.removesuffix("\n"), N),
    "blank lines between rows": legal(CSV.replace("\n", "\n\n"), N),
    "a row of blanks": refused(CSV + "   \n", "row 31", "1 field"),
    "a row of commas": refused(CSV + ",\n", "row 31"),
    "columns of other names": refused(CSV.replace("text", "a", 1), "--text-column"),
    "a sentence in place of a table": refused("This is a sentence, no table\n" * 3, "--text-column"),
    "a field of a hundred thousand letters": legal(CSV + "good " * 20_000 + ",negative\n", N + 1),
    "a thousand columns": refused(",".join(f"c{n}" for n in range(1000)) + "\n" + "a," * 999 + "a\n", "column"),
    "labels of one kind": refused("text,label\na,x\nb,x\nc,x\n", "only the class 'x'"),
    "a script for a label": legal(CSV + "more,<script>alert(1)</script>\n" * 1 + "yet more,<script>alert(1)</script>\n", N + 2),
    "JSON in name alone": refused("so it is\n", "begins with neither", name="data.json"),
}  # fmt: skip

DOCUMENTS = {
    "JSON": legal(JSON, N),
    "JSON cut short": refused(JSON[:-20], "line 1", "broken JSON"),
    "JSON cut at a row's end": refused(JSON[: JSON.index("}") + 1], "broken JSON"),
    "JSON with more behind": refused(JSON + " x", "broken JSON"),
    "JSON with a comma too many": refused(JSON[:-1] + ",]", "broken JSON"),
    "JSON in single quotes": refused(str(ROWS), "broken JSON"),
    "JSON with a comment": refused("[ // rows\n" + JSON[1:], "broken JSON"),
    "JSON with a TAB in a text": refused(JSON.replace(" ", "\t"), "broken JSON"),
    "JSON of nothing": refused("[]", "no rows"),
    "JSON of an empty object": refused("{}", "column"),
    "JSON of empty objects": refused("[{}, {}]", "column"),
    "JSON of lists": refused(json.dumps([[1, 2], [3, 4]]), "row 1", "not a JSON object"),
    "JSON of numbers": refused("[1, 2, 3]", "row 1", "not a JSON object"),
    "JSON of null": refused("[null]", "row 1", "not a JSON object"),
    "JSON nested too deeply": refused(DEEP, "nested too deeply"),
    "a JSON object nested too deeply": refused('{"a":' * 100_000, "nested too deeply"),
    "JSON of one row that is none": refused(json.dumps(with_row(["a", "b"])), "row 7", "not a JSON object"),
    "a text that is NaN": refused(json.dumps(with_text(float("nan"))), "row 7", "nan, not a text"),
    "a text that is infinite": refused(json.dumps(with_text(float("inf"))), "row 7", "inf, not a text"),
    "a text that is null": refused(json.dumps(with_text(None)), "row 7", "no text"),
    "a text that is true": refused(json.dumps(with_text(True)), "row 7", "True, not a text"),
    "a text that is a list": refused(json.dumps(with_text(["a"])), "row 7", "not a text"),
    "a text that is an object": refused(json.dumps(with_text({"a": "b"})), "row 7", "not a text"),
    "a text that is missing": refused(json.dumps(with_row({"label": "negative"})), "row 7", "no text"),
    "a label that is missing": refused(json.dumps(with_row({"text": "more"})), "row 7", "no label"),
    "a label that is null": refused(json.dumps(with_label(None)), "row 7", "no label"),
    "a label that is an object": refused(json.dumps(with_label({"a": 1})), "row 7"),
    "a label that is a list": legal(json.dumps(with_label(["negative"])), N),
    "a label that is NaN": refused(json.dumps(with_label(float("nan"))), "row 7"),
    "a number of many digits": refused(json.dumps(with_label(0)).replace('"label": 0', '"label": ' + "9" * 5000), "digits"),
    "half of a surrogate pair in a text": legal(json.dumps(with_text("half \ud83d of it")), N),
    "half of a surrogate pair in a label": refused(json.dumps([*ROWS, *({"text": text, "label": "\ud83d"} for text in "ab")]), "surrogate"),
    "half of a surrogate pair in a name": legal(json.dumps([{**row, "\ud83d": 1} for row in ROWS]), N),
    "a zero in a text": legal(json.dumps(with_text("a\0b good")), N),
    "a key twice in a row": legal(JSON.replace('{"text": "', '{"text": "x", "text": "', 1), N),
    "an object of columns": legal(json.dumps(COLUMNS), N),
    "an object of columns of unlike length": refused(json.dumps({**COLUMNS, "label": ["a"]}), "column"),
    "an object of data that is none": refused('{"data": 5}', "column"),
    "an object of empty data": refused('{"data": []}', "no rows"),
}  # fmt: skip

JSON_LINES = {
    "JSON lines": legal(LINES, N),
    "a line cut short": refused(LINES[:-20], "row 30", "broken JSON"),
    "a line that is a list": refused(lines_of(with_row([1])), "row 7", "not a JSON object"),
    "a line that is a number": refused(lines_of(with_row(5)), "row 7", "not a JSON object"),
    "a line that is null": refused(lines_of(with_row(None)), "row 7", "not a JSON object"),
    "a line that is a text": refused(lines_of(with_row("{")), "row 7", "not a JSON object"),
    "a line nested too deeply": refused(LINES + '{"text":' + DEEP + "\n", "row 31", "nested too deeply"),
    "two objects in a line": refused(LINES.replace("}\n", "} ", 1), "broken JSON"),
    "a comma behind a line": refused(LINES.replace("}\n", "},\n"), "row 1", "broken JSON"),
    "a CSV header before them": refused("text,label\n" + LINES, "row 1", "JSON object under a header"),
    "a line of rubbish": refused(LINES + "rubbish\n", "row 31", "broken JSON"),
    "a line with a text that is none": refused(lines_of(with_text(3.5)), "row 7", "3.5, not a text"),
    "a line without its columns": refused(lines_of(with_row({})), "row 7"),
    "blank lines between objects": legal(LINES.replace("\n", "\n\n"), N),
    "one object": refused(lines_of(ROWS[:1]), "only"),
}  # fmt: skip

FEATURES = {
    "huggingface": json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a"]}}}})
}
TABLES = {
    "Parquet": legal(PARQUET, N),
    "Parquet without its end": refused(PARQUET[:-8], "broken Parquet"),
    "Parquet with a broken page": refused(changed(PARQUET, 24, 255), "broken Parquet"),
    "Parquet without rows": refused(parquet({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}), "no rows"),
    "Parquet without columns": refused(parquet({}), "no rows"),
    "Parquet of other columns": refused(parquet({"a": [1, 2], "b": [3, 4]}), "column"),
    "Parquet with numbers for texts": refused(parquet({**COLUMNS, "text": list(range(N))}), "row 1", "0, not a text"),
    "Parquet with a text that is null": refused(parquet({**COLUMNS, "text": [None, *COLUMNS["text"][1:]]}), "row 1", "no text"),
    "Parquet with bytes that are no text": refused(parquet({**COLUMNS, "text": pa.array([b"\xff"] * N, pa.binary()).cast(pa.string(), safe=False)}), "UTF-8"),
    "Parquet with bytes for texts": refused(parquet({**COLUMNS, "text": [b"a"] * N}), "row 1", "not a text"),
    "Parquet with a class of no name": refused(parquet({**COLUMNS, "label": [0] * (N - 1) + [7]}, FEATURES), "row 30"),
    "Parquet with metadata that are no JSON": legal(parquet(COLUMNS, {"huggingface": "{"}), N),
    "Parquet with metadata that are a list": legal(parquet(COLUMNS, {"huggingface": "[]"}), N),
    "Parquet with features that are a list": legal(parquet(COLUMNS, {"huggingface": '{"info": {"features": []}}'}), N),
    "Parquet with features of no columns": legal(parquet(COLUMNS, {"huggingface": '{"info": {"features": {"x": {"_type": "ClassLabel", "names": ["a"]}}}}'}), N),
    "Parquet with names that are a number": legal(parquet(COLUMNS, {"huggingface": '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 5}}}}'}), N),
    "Parquet in a zip archive": legal(zipped({"a": PARQUET}), N),
}  # fmt: skip

CASES: dict[str, Case] = {**damaged(CSV.encode(), N), **DELIMITED, **DOCUMENTS, **JSON_LINES, **TABLES}
