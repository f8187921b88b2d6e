"""Stored tables have the same values as the rows that were stored, and columns read any part of them."""

import json
import math

import numpy as np
import pytest
from conftest import make_toy_rows, read_predictions, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import bertkit
from bertkit.data.readers.formats import read_file
from bertkit.data.table import (
    ComputedColumn,
    ConcatenatedColumn,
    DatasetColumn,
    ListColumn,
    Rows,
    SelectedColumn,
    combine_hashes,
    factorize,
    flatten_lists,
    hash_values,
    map_values,
    store_rows,
)
from bertkit.utils.cache import get_cache_directory

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None, categories=None), max_size=4),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=2), children, max_size=2)
    ),
    max_leaves=5,
)
TYPED = [st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.lists(st.text(max_size=2))]
columns = st.one_of(*(st.lists(st.none() | values, max_size=12) for values in [*TYPED, json_values]))


def store_in_parts(values, part_size):
    """Store a column in parts, and return it."""
    starts = range(0, len(values), part_size)
    parts = [Rows.from_columns({"x": values[start : start + part_size]}, "f", start + 1) for start in starts]
    return store_rows(lambda: iter(parts), "f", key=None)


@pytest.mark.slow
@settings(max_examples=60)
@given(values=columns.filter(bool), part_size=st.integers(1, 12))
def test_stored_values_are_those_of_the_rows_with_their_types(values, part_size):
    stored = store_in_parts(values, part_size)
    assert list(map(repr, stored["x"])) == list(map(repr, values))
    assert stored.row_numbers.tolist() == list(range(1, len(values) + 1))
    assert stored["x"].hashes.tolist() == hash_values(values).tolist()


def test_columns_that_appear_later_are_null_before():
    parts = [Rows.from_dicts([{"a": "x"}], "f"), Rows.from_dicts([{"a": 1, "b": [1, "y"]}], "f", 2)]
    stored = store_rows(lambda: iter(parts), "f", key=None)
    assert (list(stored["a"]), list(stored["b"])) == (["x", 1], [None, [1, "y"]])


def test_numbers_that_arrow_would_change_are_kept():
    assert list(store_in_parts([2**80, 1, math.inf], 1)["x"]) == [2**80, 1, math.inf]
    assert [type(value) for value in store_in_parts([1, 1.0, True, "1"], 4)["x"]] == [int, float, bool, str]


def test_column_names_may_contain_half_of_a_surrogate_pair():
    rows = Rows.from_columns({"a\ud800": ["x"], "b": [1]}, "f")
    stored = store_rows(lambda: iter([rows]), "f", key=None)
    assert {name: list(values) for name, values in stored.columns.items()} == {"a\ud800": ["x"], "b": [1]}


KINDS = ["list", "stored", "selected", "chained", "mapped", "computed", "flattened"]


def make_column(kind, values):
    """Return a column of each kind with these values."""
    values = list(values)
    half = len(values) // 2
    return {
        "list": lambda: ListColumn(values),
        "stored": lambda: store_in_parts(values, 7)["x"],
        "selected": lambda: SelectedColumn(ListColumn(values[::-1]), np.arange(len(values))[::-1]),
        "chained": lambda: ConcatenatedColumn([values[:half], ListColumn(values[half:])]),
        "mapped": lambda: map_values(values, list),
        "computed": lambda: ComputedColumn(
            "{}{}".format, [[value[:3] for value in values], [value[3:] for value in values]]
        ),
        "flattened": lambda: flatten_lists(ListColumn([values[:half], [], values[half:]])),
    }[kind]()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data(), size=st.integers(1, 40))
def test_every_kind_of_column_reads_like_a_list(kind, data, size):
    values = [f"text {number % 5}" for number in range(size)]
    column = make_column(kind, values)
    if data.draw(st.booleans()):
        order = np.arange(size)[::-1]
        column, values = column.select(order), values[::-1]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    indices = data.draw(st.lists(st.integers(0, size - 1), max_size=30))
    assert (len(column), list(column)) == (size, values)
    assert column.take(slice(start, stop)) == column[start:stop] == values[start:stop]
    assert column.take(np.array(indices, int)) == [values[index] for index in indices]
    assert (column[-1], column == values, column == values[1:]) == (values[-1], True, False)
    assert column.hashes.tolist() == hash_values(values).tolist()
    codes, distinct = factorize(column)
    assert ([distinct[code] for code in codes], len(set(distinct))) == (values, len(distinct))


def test_distant_rows_are_read_one_by_one():
    column = store_in_parts([str(number) for number in range(9000)], 1000)["x"]
    indices = np.array([8999, 3, 4500, 3])
    assert column.take(indices) == ["8999", "3", "4500", "3"]


def test_hashes_of_several_columns_depend_on_their_order():
    a, b = hash_values(["x", "y"]), hash_values(["y", "x"])
    assert combine_hashes([a, b])[0] != combine_hashes([b, a])[0]
    assert combine_hashes([a, b])[0] == combine_hashes([a, b])[0] != combine_hashes([a, a])[0]
    assert hash_values([1])[0] != hash_values(["1"])[0]


@pytest.fixture
def stored_on_disk(monkeypatch):
    """Store tables of any size on disk."""
    monkeypatch.setattr("bertkit.data.readers.formats.IN_MEMORY_BYTES", 0)


def test_a_file_is_read_once_and_then_mapped_from_the_cache(tmp_path, stored_on_disk, monkeypatch):
    path = write_rows(tmp_path / "rows.jsonl", make_toy_rows(50))
    first = read_file(path)
    assert isinstance(first["text"], DatasetColumn)
    assert list(get_cache_directory().glob("rows/*/rows.arrow"))
    assert first["text"].is_on_disk
    assert first.select([1])["text"].is_on_disk
    with monkeypatch.context() as patch:
        patch.setattr("bertkit.data.readers.formats.stream_rows", lambda *_: pytest.fail("read again"))
        again = read_file(path)
    assert again.columns == first.columns
    path.write_text(json.dumps({"text": "new", "label": "a"}) + "\n")
    assert list(read_file(path)["text"]) == ["new"]


def test_a_damaged_table_is_stored_again(tmp_path, stored_on_disk):
    path = write_rows(tmp_path / "rows.jsonl", make_toy_rows(50))
    before = list(read_file(path)["text"])
    [table] = get_cache_directory().glob("rows/*/rows.arrow")
    table.write_bytes(table.read_bytes()[:200])
    assert list(read_file(path)["text"]) == before


@pytest.mark.slow
def test_a_run_is_the_same_whether_its_rows_are_in_memory_or_on_disk(tmp_path, tiny, monkeypatch):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(60))
    settings = {"data": str(data), "model": str(tiny), "max_steps": 2, "batch_size": 4}
    for name, limit in (("memory", 1 << 30), ("disk", 0)):
        monkeypatch.setattr("bertkit.data.readers.formats.IN_MEMORY_BYTES", limit)
        bertkit.classify(**settings, output_dir=str(tmp_path / name))
    memory, disk = (tmp_path / name for name in ("memory", "disk"))
    assert read_predictions(memory) == read_predictions(disk)
    assert (memory / "model.safetensors").read_bytes() == (disk / "model.safetensors").read_bytes()
