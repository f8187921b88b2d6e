"""A file read in chunks gives the same rows as the file read as a whole."""

import csv
import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases.run import CASES
from conftest import make_toy_rows, write_rows

from bertkit.data.readers.formats import Dialect, read_file, stream_rows
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.utils.arrays import iter_batches

NOTE = 'a "b", c\nd'
ROWS = [row | {"n": n, "note": NOTE if n % 3 else None} for n, row in enumerate(make_toy_rows(25))]


def jsonl(path):
    return write_rows(path, ROWS)


def as_csv(path, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def tsv(path):
    return as_csv(path, "\t")


def parquet(path):
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def document(path):
    path.write_text(json.dumps({"data": ROWS}), "utf-8")
    return path


@pytest.mark.parametrize("form", [jsonl, as_csv, tsv, parquet, document])
@pytest.mark.parametrize("size", [1, 7, 25, 100])
def test_chunks_concatenate_to_the_rows_of_the_file(tmp_path, form, size):
    path = form(tmp_path / "rows")
    parts = list(stream_rows(path, chunk_size=size, stream_above_bytes=0))
    assert [len(part) for part in parts] == [size] * (25 // size) + [25 % size] * bool(25 % size)
    whole, joined = read_file(path), Rows.concatenate(parts)
    assert joined.columns == whole.columns
    assert joined.row_numbers.tolist() == whole.row_numbers.tolist()
    assert joined.format_location(13) == whole.format_location(13)


def test_columns_of_the_first_chunk_are_in_every_chunk(tmp_path):
    rows = [{"text": "a", "note": "b"}, {"text": "c"}, {"text": "d", "more": 1}]
    parts = list(stream_rows(write_rows(tmp_path / "rows.jsonl", rows), chunk_size=1, stream_above_bytes=0))
    assert [part.columns.get("note") for part in parts] == [["b"], [None], [None]]


def test_conll_files_are_chunked_by_sentence(tmp_path):
    (tmp_path / "words.conll").write_text("a O\nb B-X\n\nc O\n", "utf-8")
    parts = list(
        stream_rows(tmp_path / "words.conll", Dialect(conll=True), chunk_size=1, stream_above_bytes=0)
    )
    assert [part["0"] for part in parts] == [[["a", "b"]], [["c"]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": "b"}\n{"text": \n', "row 3: broken JSON"),
        ('{"text": "a"}\n{"text": "b"}\n[1]\n', "row 3: not a JSON object"),
        ("text,label\na,b\nc\n", "row 2: expected 2 fields"),
        ("", "is empty"),
    ],
)
def test_errors_name_the_file_and_the_row(tmp_path, content, message):
    path = tmp_path / "rows"
    path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=message) as error:
        list(stream_rows(path, stream_above_bytes=0))
    assert str(path) in str(error.value)


@pytest.mark.slow
def test_memory_does_not_grow_with_a_conll_file(tmp_path):
    path = tmp_path / "many.conll"
    path.write_text("word O\nWord B-X\n\n" * 50_000, "utf-8")  # 0.8 MB, and 57 MB as lists of words
    tracemalloc.start()
    try:
        parts = stream_rows(path, Dialect(conll=True), stream_above_bytes=0)
        assert sum(map(len, parts)) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 36e6
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    path, row = tmp_path / "many.jsonl", json.dumps({"text": "word " * 200})
    path.write_text(f"{row}\n" * 8_000, "utf-8")  # 8 MB
    tracemalloc.start()
    try:
        assert sum(map(len, stream_rows(path, chunk_size=100, stream_above_bytes=0))) == 8_000
        assert tracemalloc.get_traced_memory()[1] < 6e6
    finally:
        tracemalloc.stop()


def test_a_batch_ends_with_the_item_that_reaches_a_limit():
    assert list(iter_batches(["a", "bcd", "", "e"], max_chars=3)) == [["a", "bcd"], ["", "e"]]
    assert list(iter_batches("abcde", max_chars=9, max_items=2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(iter_batches(["ab", "c"], max_chars=3)) == [["ab", "c"]]
    assert not list(iter_batches([], max_chars=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (CASES / "files").iterdir()))
def test_files_of_all_layouts_give_the_same_rows_in_chunks(name):
    """Recognition and conversion do not depend on how much of a file is read at a time."""
    for path in sorted((CASES / "files" / name).glob("*.*")):
        for task in ("classify", "ner", "swag", "qa") if path.suffix != ".sh" else ():
            dialect = Dialect(task=task, conll=task == "ner")
            try:
                whole = [dict(row) for row in read_file(path, dialect)]
            except UserError:
                continue
            chunks = stream_rows(path, dialect, chunk_size=7, stream_above_bytes=0)
            assert [dict(row) for chunk in chunks for row in chunk] == whole, path.name
