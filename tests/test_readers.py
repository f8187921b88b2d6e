"""File formats are detected by content, and rows are read as they were written."""

import csv
import gzip
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.readers.formats import Dialect, read_file
from bertkit.errors import UserError

ROWS = [{"text": 'a, "b"\tc', "label": "x"}, {"text": "Ünï – 한국어", "label": "y"}]


def as_csv(rows, delimiter=",", newline="\n"):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator=newline)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def as_zst(raw):
    return pa.Codec("zstd").compress(raw, asbytes=True)


def as_zip(files, method=zipfile.ZIP_DEFLATED):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return sink.getvalue()


BESIDE = {"a/": b"", "__MACOSX/a/._data": b"x", "a/.DS_Store": b"x"}
FORMATS = {
    "csv": as_csv(ROWS),
    "tsv": as_csv(ROWS, "\t"),
    "semicolons": as_csv(ROWS, ";"),
    "crlf": as_csv(ROWS, newline="\r\n"),
    "bom": b"\xef\xbb\xbf" + as_csv(ROWS),
    "json": json.dumps(ROWS).encode(),
    "json data": json.dumps({"version": 1, "data": ROWS}, indent=1).encode(),
    "json columns": json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}).encode(),
    "jsonl": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(),
    "parquet": as_parquet(ROWS),
    "gzip": gzip.compress(as_csv(ROWS)),
    "zstd": as_zst(as_csv(ROWS)),
    "zip": as_zip({"data.csv": as_csv(ROWS)}),
    "zip of Parquet": as_zip({"x": as_parquet(ROWS)}, zipfile.ZIP_STORED),
    "zip from a Mac": as_zip(BESIDE | {"a/data": as_csv(ROWS)}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, name):
    path = tmp_path / "data.bin"  # the name does not show the format
    path.write_bytes(FORMATS[name])
    rows = read_file(path)
    assert list(rows) == ROWS
    assert rows.format_location(1) == f"{path}: row 2"


cell = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


@pytest.mark.slow
@given(rows=st.lists(st.fixed_dictionaries({"text": cell.map("t".__add__), "label": cell}), min_size=1))
def test_csv_files_are_read_as_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(as_csv(rows))
    assert list(read_file(path)) == rows


@pytest.mark.slow
@given(texts=st.lists(st.text(st.sampled_from("ab\"' ,"), max_size=8).map("t".__add__), min_size=1))
def test_bare_quotes_in_tsv_are_kept(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("tsv") / "data.tsv"
    path.write_text("label\ttext\n" + "".join(f"1\t{text}\n" for text in texts))
    assert read_file(path)["text"] == texts


def test_an_unclosed_quote_in_tsv_is_not_quoting(tmp_path):
    path = tmp_path / "mrpc.txt"
    path.write_text('\ufeffQuality\tA\n1\t"Yes , he said .\n0\tHe said " no .\n1\t"All of it"\n', "utf-8")
    assert read_file(path)["A"] == ['"Yes , he said .', 'He said " no .', '"All of it"']


def test_ragged_rows_and_no_header_by_dialect(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text("a\tb\tc\nd\te\tf\tg\th\n")
    rows = read_file(path, Dialect(header=False, quoting=False, ragged=True))
    assert list(rows) == [{"0": "a", "1": "b", "2": "c"}, {"0": "d", "1": "e", "2": "f"}]


def write_hub_table(path, features, **columns):
    """A Parquet file with the metadata that `datasets` writes."""
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


CLASSES = {"names": ["no", "yes"], "_type": "ClassLabel"}


def test_class_names_in_parquet_metadata_become_labels(tmp_path):
    write_hub_table(tmp_path / "x", {"label": CLASSES}, text=["a", "b", "c"], label=[1, 0, -1])
    assert read_file(tmp_path / "x")["label"] == ["yes", "no", None]


@pytest.mark.parametrize(
    "feature",
    [
        {"feature": CLASSES, "_type": "List"},
        {"feature": CLASSES, "_type": "LargeList"},
        {"feature": CLASSES, "length": -1, "_type": "Sequence"},
        [CLASSES],
    ],
)
def test_class_names_of_lists_become_labels(tmp_path, feature):
    other = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
    tags = [[1, 0], [], None, [-1, None, 2]]
    write_hub_table(tmp_path / "x", {"tags": feature, "heads": other}, tags=tags, heads=tags)
    rows = read_file(tmp_path / "x")
    assert rows["tags"] == [["yes", "no"], [], None, [-1, None, 2]]
    assert rows["heads"] == tags


BROKEN = {
    "empty": (b"", "empty"),
    "blank": (b"\n \n", "empty"),
    "header only": (b"text,label\n", "no rows"),
    "open quote": (b'text,label\na,b\n"c,d\n', "row 2"),
    "too many fields": (b"text,label\na,b\nc,d,e\n", "row 2: expected 2 fields .text, label., found 3"),
    "json row": (b'{"text": "a"}\n{"text": }\n', "row 2: broken JSON"),
    "json no object": (b'[{"text": "a"}, 5]', "row 2"),
    "json list broken": (b'[{"text": "a"},\n', "broken JSON"),
    "latin1": ("text,label\ncafé,1\n".encode("latin1"), "line 2: not UTF-8"),
    "zero byte": (b"text\0label", "zero byte"),
    "utf-16 without its mark": ("text,label".encode("utf-16-le"), "zero byte"),
    "broken zip": (b"PK\x03\x04rest", r"cannot be read \(File is not a zip file\)"),
    "cut zip": (as_zip({"data.csv": as_csv(ROWS)})[:-30], "cannot be read"),
    "zip of none": (as_zip(BESIDE), "zip archive of one file, found no file; unpack it"),
    "empty zip": (as_zip({}), "found no file; unpack it"),
    "zip of two": (
        as_zip({"a.csv": b"x", "b/c.csv": b"y"}),
        r"several files \(a.csv, b/c.csv\).*; unpack it",
    ),
    "zip in a zip": (as_zip({"a.zip": as_zip({"b": b"x"})}), "a nested or remote zip archive; unpack it"),
    "Excel": (
        as_zip({"[Content_Types].xml": b"<x/>", "xl/workbook.xml": b""}),
        "spreadsheet; save it as CSV",
    ),
    "OpenDocument": (as_zip({"mimetype": b"x", "content.xml": b""}), "spreadsheet; save it as CSV"),
    "cut gzip": (gzip.compress(as_csv(ROWS))[:-9], "cannot be read"),
    "cut zstd": (as_zst(as_csv(ROWS * 99))[:-9], "cannot be read"),
    "cut parquet": (as_parquet(ROWS)[:-9], "broken Parquet"),
    "same name twice": (b"text,text\na,b\n", "twice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_files_give_an_error_of_one_line(tmp_path, name):
    raw, words = BROKEN[name]
    path = tmp_path / "broken"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=words) as error:
        read_file(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
