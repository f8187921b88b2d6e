"""Rows with columns, as `classify` reads them: CSV, TSV, JSON, JSON lines, Parquet."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from conftest import make_toy_rows
from pyarrow import feather

from malformed.case import Case, expect_error, expect_rows, make_damage_cases, make_zip, replace_byte

ROWS = make_toy_rows(30)
NUM_ROWS = len(ROWS)


def to_csv(rows: list[dict[str, str]], mark: str = ",") -> str:
    return f"text{mark}label\n" + "".join(f"{row['text']}{mark}{row['label']}\n" for row in rows)


def to_json_lines(rows: list) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def replace_row(row: object, at: int = 6) -> list:
    return [*ROWS[:at], row, *ROWS[at + 1 :]]


def replace_text(text: object) -> list:
    return replace_row({**ROWS[6], "text": text})


def replace_label(label: object) -> list:
    return replace_row({**ROWS[6], "label": label})


def to_parquet(columns: dict, metadata: dict | None = None) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), file)
    return file.getvalue()


def to_arrow(columns: dict, metadata: dict | None = None, compression: str = "uncompressed") -> bytes:
    """An Arrow file, as `feather` writes it."""
    file = io.BytesIO()
    feather.write_feather(pa.table(columns).replace_schema_metadata(metadata), file, compression=compression)
    return file.getvalue()


def to_arrow_stream(columns: dict) -> bytes:
    file, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


CSV, TSV, JSON, LINES = to_csv(ROWS), to_csv(ROWS, "\t"), json.dumps(ROWS), to_json_lines(ROWS)
COLUMNS = {name: [row[name] for row in ROWS] for name in ("text", "label")}
PARQUET = to_parquet(COLUMNS)
ARROW, STREAM = to_arrow(COLUMNS), to_arrow_stream(COLUMNS)
DEEPLY_NESTED = "[" * 100_000
FIRST, REST = CSV.split("\n", 1)

DELIMITED = {
    "a header alone": expect_error("text,label\n", "header and no rows"),
    "a header without its end": expect_error("text,label", "header and no rows"),
    "a row too long": expect_error(CSV + "a,b,c\n", "row 31", "expected 2 fields (text, label), found 3"),
    "a row too short": expect_error(CSV + "a\n", "row 31", "found 1"),
    "a quote that does not close": expect_error(CSV + '"a,b\n', "row 31", "broken CSV"),
    "a quote in a quoted field": expect_error(CSV + '"a"b,c\n', "row 31", "broken CSV"),
    "a quote that does not close in the header": expect_error('"text,label\na,b\n', "broken CSV"),
    "an unquoted quote": expect_rows(CSV + 'an "odd" one,negative\n', NUM_ROWS + 1),
    "lines within quotes": expect_rows(CSV + '"two\nlines\r\nhere",negative\n', NUM_ROWS + 1),
    "the same column twice": expect_error("text,label,text\na,b,c\nd,e,f\n", "header names 'text' twice"),
    "two columns without a name": expect_rows(CSV.replace("\n", ",,\n"), NUM_ROWS),
    "lines that end in CR alone": expect_error(CSV.replace("\n", "\r"), "data.csv", "CR"),
    "lines of both kinds": expect_rows(CSV.replace("\n", "\r\n", 5), NUM_ROWS),
    "a byte order mark within": expect_rows(CSV + "\ufeffmore,negative\n", NUM_ROWS + 1),
    "a Unicode line separator within a line": expect_rows(CSV + "a\u2028b\x0c\x85c,negative\n", NUM_ROWS + 1),
    "no header": expect_rows(REST, NUM_ROWS),
    "semicolons": expect_rows(to_csv(ROWS, ";"), NUM_ROWS),
    "TABs": expect_rows(TSV, NUM_ROWS),
    "TABs with a row too long": expect_error(TSV + "a\tb\tc\n", "row 31", "found 3"),
    "TABs with a bare quote": expect_rows(TSV + '"a\tnegative\n', NUM_ROWS + 1),
    "no last line end": expect_rows(CSV.removesuffix("\n"), NUM_ROWS),
    "blank lines between rows": expect_rows(CSV.replace("\n", "\n\n"), NUM_ROWS),
    "a row of blanks": expect_rows(CSV + "   \n", NUM_ROWS),
    "a row of commas": expect_rows(CSV + ",\n", NUM_ROWS),
    "columns of other names": expect_rows(CSV.replace("text", "a", 1), NUM_ROWS),
    "a sentence in place of a table": expect_error("This is a sentence, no table\n" * 3, "--text-column"),
    "a field of a hundred thousand letters": expect_rows(CSV + "good " * 20_000 + ",negative\n", NUM_ROWS + 1),
    "a thousand columns": expect_error(",".join(f"c{n}" for n in range(1000)) + "\n" + "a," * 999 + "a\n", "column"),
    "labels of one kind": expect_error("text,label\na,x\nb,x\nc,x\n", "only the class 'x'"),
    "a script for a label": expect_rows(CSV + "more,<script>alert(1)</script>\n" * 1 + "yet more,<script>alert(1)</script>\n", NUM_ROWS + 2),
    "JSON in name alone": expect_error("so it is\n", "begins with neither", name="data.json"),
}  # fmt: skip

DOCUMENTS = {
    "JSON": expect_rows(JSON, NUM_ROWS),
    "JSON cut short": expect_error(JSON[:-20], "line 1", "broken JSON"),
    "JSON cut at a row's end": expect_error(JSON[: JSON.index("}") + 1], "broken JSON"),
    "JSON with more behind": expect_error(JSON + " x", "broken JSON"),
    "JSON with a comma too many": expect_error(JSON[:-1] + ",]", "broken JSON"),
    "JSON in single quotes": expect_error(str(ROWS), "broken JSON"),
    "JSON with a comment": expect_error("[ // rows\n" + JSON[1:], "broken JSON"),
    "JSON with a TAB in a text": expect_error(JSON.replace(" ", "\t"), "broken JSON"),
    "JSON of nothing": expect_error("[]", "no rows"),
    "JSON of an empty object": expect_error("{}", "column"),
    "JSON of empty objects": expect_error("[{}, {}]", "column"),
    "JSON of lists": expect_error(json.dumps([[1, 2], [3, 4]]), "row 1", "not a JSON object"),
    "JSON of numbers": expect_error("[1, 2, 3]", "row 1", "not a JSON object"),
    "JSON of null": expect_error("[null]", "row 1", "not a JSON object"),
    "JSON nested too deeply": expect_error(DEEPLY_NESTED, "nested too deeply"),
    "a JSON object nested too deeply": expect_error('{"a":' * 100_000, "nested too deeply"),
    "JSON with one row that is a list": expect_error(json.dumps(replace_row(["a", "b"])), "row 7", "not a JSON object"),
    "a text that is NaN": expect_error(json.dumps(replace_text(float("nan"))), "row 7", "nan, not a text"),
    "a text that is infinite": expect_error(json.dumps(replace_text(float("inf"))), "row 7", "inf, not a text"),
    "a text that is null": expect_error(json.dumps(replace_text(None)), "row 7", "no text"),
    "a text that is true": expect_error(json.dumps(replace_text(True)), "row 7", "True, not a text"),
    "a text that is a list": expect_error(json.dumps(replace_text(["a"])), "row 7", "not a text"),
    "a text that is an object": expect_error(json.dumps(replace_text({"a": "b"})), "row 7", "not a text"),
    "a text that is missing": expect_error(json.dumps(replace_row({"label": "negative"})), "row 7", "no text"),
    "a label that is missing": expect_error(json.dumps(replace_row({"text": "more"})), "row 7", "no label"),
    "a label that is null": expect_error(json.dumps(replace_label(None)), "row 7", "no label"),
    "a label that is an object": expect_error(json.dumps(replace_label({"a": "b"})), "row 7"),
    "a label that is a soft one": expect_rows(json.dumps(replace_label({"negative": 1})), NUM_ROWS),
    "a label that is a list": expect_rows(json.dumps(replace_label(["negative"])), NUM_ROWS),
    "a label that is NaN": expect_error(json.dumps(replace_label(float("nan"))), "row 7"),
    "a number of many digits": expect_error(json.dumps(replace_label(0)).replace('"label": 0', '"label": ' + "9" * 5000), "digits"),
    "half of a surrogate pair in a text": expect_rows(json.dumps(replace_text("half \ud83d of it")), NUM_ROWS),
    "half of a surrogate pair in a label": expect_error(json.dumps([*ROWS, *({"text": text, "label": "\ud83d"} for text in "ab")]), "surrogate"),
    "half of a surrogate pair in a name": expect_rows(json.dumps([{**row, "\ud83d": 1} for row in ROWS]), NUM_ROWS),
    "a zero in a text": expect_rows(json.dumps(replace_text("a\0b good")), NUM_ROWS),
    "a key twice in a row": expect_rows(JSON.replace('{"text": "', '{"text": "x", "text": "', 1), NUM_ROWS),
    "an object of columns": expect_rows(json.dumps(COLUMNS), NUM_ROWS),
    "an object of columns of unlike length": expect_error(json.dumps({**COLUMNS, "label": ["a"]}), "column"),
    "an object whose data is a number": expect_error('{"data": 5}', "column"),
    "an object of empty data": expect_error('{"data": []}', "no rows"),
}  # fmt: skip

JSON_LINES = {
    "JSON lines": expect_rows(LINES, NUM_ROWS),
    "a line cut short": expect_error(LINES[:-20], "row 30", "broken JSON"),
    "a line that is a list": expect_error(to_json_lines(replace_row([1])), "row 7", "not a JSON object"),
    "a line that is a number": expect_error(to_json_lines(replace_row(5)), "row 7", "not a JSON object"),
    "a line that is null": expect_error(to_json_lines(replace_row(None)), "row 7", "not a JSON object"),
    "a line that is a text": expect_error(to_json_lines(replace_row("{")), "row 7", "not a JSON object"),
    "a line nested too deeply": expect_error(LINES + '{"text":' + DEEPLY_NESTED + "\n", "row 31", "nested too deeply"),
    "two objects in a line": expect_error(LINES.replace("}\n", "} ", 1), "broken JSON"),
    "a comma behind a line": expect_error(LINES.replace("}\n", "},\n"), "row 1", "broken JSON"),
    "a CSV header before them": expect_error("text,label\n" + LINES, "row 1", "JSON object below a header"),
    "a line of rubbish": expect_error(LINES + "rubbish\n", "row 31", "broken JSON"),
    "a line with a number as text": expect_error(to_json_lines(replace_text(3.5)), "row 7", "3.5, not a text"),
    "a line without its columns": expect_error(to_json_lines(replace_row({})), "row 7"),
    "blank lines between objects": expect_rows(LINES.replace("\n", "\n\n"), NUM_ROWS),
    "one object": expect_error(to_json_lines(ROWS[:1]), "only"),
}  # fmt: skip

FEATURES = {
    "huggingface": json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a"]}}}})
}
TABLES = {
    "Parquet": expect_rows(PARQUET, NUM_ROWS),
    "Parquet without its end": expect_error(PARQUET[:-8], "broken Parquet"),
    "Parquet with a broken page": expect_error(replace_byte(PARQUET, 24, 255), "broken Parquet"),
    "Parquet without rows": expect_error(to_parquet({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}), "no rows"),
    "Parquet without columns": expect_error(to_parquet({}), "no rows"),
    "Parquet of other columns": expect_error(to_parquet({"a": [1, 2], "b": [3, 4]}), "column"),
    "Parquet with numbers for texts": expect_error(to_parquet({**COLUMNS, "text": list(range(NUM_ROWS))}), "row 1", "0, not a text"),
    "Parquet with a text that is null": expect_error(to_parquet({**COLUMNS, "text": [None, *COLUMNS["text"][1:]]}), "row 1", "no text"),
    "Parquet with bytes that are no text": expect_error(to_parquet({**COLUMNS, "text": pa.array([b"\xff"] * NUM_ROWS, pa.binary()).cast(pa.string(), safe=False)}), "UTF-8"),
    "Parquet with bytes for texts": expect_error(to_parquet({**COLUMNS, "text": [b"a"] * NUM_ROWS}), "row 1", "not a text"),
    "Parquet with a class of no name": expect_error(to_parquet({**COLUMNS, "label": [0] * (NUM_ROWS - 1) + [7]}, FEATURES), "row 30"),
    "Parquet with metadata that are no JSON": expect_rows(to_parquet(COLUMNS, {"huggingface": "{"}), NUM_ROWS),
    "Parquet with metadata that are a list": expect_rows(to_parquet(COLUMNS, {"huggingface": "[]"}), NUM_ROWS),
    "Parquet with features that are a list": expect_rows(to_parquet(COLUMNS, {"huggingface": '{"info": {"features": []}}'}), NUM_ROWS),
    "Parquet with features of no columns": expect_rows(to_parquet(COLUMNS, {"huggingface": '{"info": {"features": {"x": {"_type": "ClassLabel", "names": ["a"]}}}}'}), NUM_ROWS),
    "Parquet with names that are a number": expect_rows(to_parquet(COLUMNS, {"huggingface": '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 5}}}}'}), NUM_ROWS),
    "Arrow": expect_rows(ARROW, NUM_ROWS),
    "Arrow stream": expect_rows(STREAM, NUM_ROWS),
    "Feather with compression": expect_rows(to_arrow(COLUMNS, compression="lz4"), NUM_ROWS),
    "Arrow without its end": expect_error(ARROW[:-8], "broken Arrow"),
    "Arrow of seven bytes": expect_error(ARROW[:7], "broken Arrow"),
    "Arrow with a broken footer": expect_error(replace_byte(ARROW, len(ARROW) - 30, 255), "broken Arrow"),
    "Arrow stream that is cut short": expect_error(STREAM[: len(STREAM) // 2], "broken Arrow"),
    "Arrow stream of a schema alone": expect_error(to_arrow_stream({name: pa.array([], pa.string()) for name in COLUMNS}), "no rows"),
    "Arrow without rows": expect_error(to_arrow({name: pa.array([], pa.string()) for name in COLUMNS}), "no rows"),
    "Arrow of other columns": expect_error(to_arrow({"a": [1, 2], "b": [3, 4]}), "column"),
    "Arrow with numbers for texts": expect_error(to_arrow({**COLUMNS, "text": list(range(NUM_ROWS))}), "row 1", "0, not a text"),
    "Arrow with bytes that are no text": expect_error(to_arrow({**COLUMNS, "text": pa.array([b"\xff"] * NUM_ROWS, pa.binary()).cast(pa.string(), safe=False)}), "Invalid UTF8"),
    "Arrow with a class of no name": expect_error(to_arrow({**COLUMNS, "label": [0] * (NUM_ROWS - 1) + [7]}, FEATURES), "row 30"),
    "Arrow with metadata that are no JSON": expect_rows(to_arrow(COLUMNS, {"huggingface": "{"}), NUM_ROWS),
    "Feather of version 1": expect_error(b"FEA1" + bytes(60) + b"FEA1", "Feather file of version 1"),
    "Parquet in a zip archive": expect_rows(make_zip({"a": PARQUET}), NUM_ROWS),
}  # fmt: skip

CASES: dict[str, Case] = {
    **make_damage_cases(CSV.encode(), NUM_ROWS),
    **DELIMITED,
    **DOCUMENTS,
    **JSON_LINES,
    **TABLES,
}
