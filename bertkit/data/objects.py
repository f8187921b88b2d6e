"""Convert objects of Python libraries to rows.

The columns of a `datasets.Dataset` and of a `pandas.DataFrame` are not copied. Their values are read and
hashed when they are needed.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import Any, NoReturn

import numpy as np

from bertkit.data.column_types import Column, hash_values
from bertkit.data.layouts import describe_unassigned_files, group_by_split
from bertkit.data.readers.class_names import read_class_names
from bertkit.data.readers.dataset_rows import get_metadata, replace_class_ids, rows_from_dataset
from bertkit.data.readers.parquet import require_distinct_names
from bertkit.data.rows import Rows, Splits, chunk_records
from bertkit.data.table_store import store_temporarily
from bertkit.data_objects import DataObject
from bertkit.errors import UserError, format_list, shorten_repr

STREAM_FIX = "pass a Dataset, such as Dataset.from_generator(lambda: iter(data)) or one without streaming"


# ---- data objects


def rows_from_object(data: DataObject, name: str, accepts_streams: bool = False) -> Rows:
    """Return the rows of a data object that has no splits.

    Args:
        data: The object.
        name: Name of the setting, for errors such as `data: row 12: ...`.
        accepts_streams: Whether to store the rows of an `IterableDataset` on disk instead of refusing it.

    Raises:
        UserError: The object is missing, has splits, has no rows, is a stream, or has an unusable column.
    """
    if data.is_missing:
        raise UserError(f"{name}: the {data} is not saved with the run; pass it again from Python")
    if data.kind == "Dataset":
        rows = rows_from_dataset(data.value, name)
    elif data.kind == "DataFrame":
        rows = _rows_from_frame(data.value, name)
    elif data.kind == "list of dictionaries":
        rows = Rows.from_dicts([_clean_row(row, name, i) for i, row in enumerate(data.value, 1)], name)
    elif data.kind == "IterableDataset" and accepts_streams:
        rows = _store_stream(data, name)
    elif data.kind == "IterableDataset":
        raise UserError(f"{name}: an IterableDataset can only be read once, row by row; {STREAM_FIX}")
    else:
        raise UserError(f"{name}: a {data.kind} has several splits; pass one of them")
    if not len(rows):
        _refuse_empty(data, name)
    return rows


def splits_from_object(
    data: DataObject, name: str, accepts_streams: bool = False
) -> tuple[Splits, list[str]]:
    """Return the rows of a data object by split, and notes on splits that are left out.

    The rows of an object without splits are training rows. The names of the splits of a `DatasetDict` are
    recognized by words such as "dev", as file names are.
    """
    if data.kind not in ("DatasetDict", "IterableDatasetDict"):
        return {"train": rows_from_object(data, name, accepts_streams)}, []
    datasets = _get_splits(data, name)
    by_split, unassigned = group_by_split({key: PurePath(key) for key in datasets})
    if by_split:
        notes = describe_unassigned_files([PurePath(key) for key in unassigned])
    else:
        is_merged = len(unassigned) > 1
        notes = [f"all splits are training rows: {format_list(unassigned)}"] if is_merged else []
    parts = {
        split: [rows_from_object(datasets[key], f"{name}[{key!r}]", accepts_streams) for key in keys]
        for split, keys in (by_split or {"train": unassigned}).items()
    }
    return {split: Rows.concatenate(rows) for split, rows in parts.items() if rows}, notes


def select_split(splits: Splits, split: str, name: str) -> Rows:
    """Return the rows of `splits` for the setting `validation` or `test`.

    Raises:
        UserError: There are several splits, and none of them has this name.
    """
    if split in splits:
        return splits[split]
    if len(splits) == 1:
        return next(iter(splits.values()))
    raise UserError(f"{name}: no {split} split among {format_list(splits)}; pass one of them")


def _store_stream(data: DataObject, name: str) -> Rows:
    def iter_parts() -> Iterator[Rows]:
        parts = iter_stream(data, name)
        assert parts is not None
        first = next(parts, None)
        if first is None:
            _refuse_empty(data, name)
        return chain([first], parts)

    return store_temporarily(iter_parts, name)


def _refuse_empty(data: DataObject, name: str) -> NoReturn:
    raise UserError(f"{name}: the {data.kind} has no rows; pass an object with rows")


def iter_stream(data: DataObject, name: str) -> Iterator[Rows] | None:
    """Return an iterator over the rows of an `IterableDataset` in chunks; None for other objects.

    An `IterableDatasetDict` is read from its split "test", else "validation", else its first split.
    """
    stream = data.value
    if data.kind == "IterableDatasetDict" and stream:
        stream = stream[next((key for key in ("test", "validation") if key in stream), next(iter(stream)))]
    elif data.kind != "IterableDataset":
        return None
    class_names = read_class_names(get_metadata(stream.features))
    chunks = chunk_records(map(dict, stream.with_format(None)), name)
    return (replace_class_ids(chunk, name, class_names) for chunk in chunks)


def choose_dataset_name(data: DataObject, name: str) -> str:
    """Return the name of the dataset for the default run directory; `name` if the object has none."""
    value = data.value
    if isinstance(value, dict):
        value = next(iter(value.values()), None)
    return str(getattr(getattr(value, "info", None), "dataset_name", None) or name)


def _get_splits(data: DataObject, name: str) -> dict[str, DataObject]:
    if not data.value:
        raise UserError(f"{name}: the {data.kind} has no splits; pass a DatasetDict with splits")
    kind: Any = data.kind.removesuffix("Dict")
    return {str(key): DataObject(kind, value) for key, value in data.value.items()}


# ---- data frames and lists


def _rows_from_frame(frame: Any, name: str) -> Rows:
    names = list(frame.columns)
    for column in names:
        _require_text_name(column, name, "column")
    require_distinct_names(name, names)
    columns = {column: FrameColumn(frame[column]) for column in names}
    return Rows.from_columns(columns, name) if columns else Rows.from_dicts([], name)


class FrameColumn(Column):
    """A column of a `pandas.DataFrame`. Missing values (NaN, NaT, NA) are None.

    Args:
        series: The column. The values of a categorical column are its categories.
    """

    def __init__(self, series: Any) -> None:
        self.series = series

    def __len__(self) -> int:
        return len(self.series)

    def read(self, start: int, stop: int) -> list[Any]:
        """Return the values of a range."""
        return _list_series(self.series.iloc[start:stop])

    def take(self, indices: np.ndarray) -> list[Any]:
        """Return the values at `indices`, in that order."""
        return _list_series(self.series.iloc[indices])

    @cached_property
    def hashes(self) -> np.ndarray:  # type: ignore[override]
        """[n] uint64 hash of each value."""
        return hash_values(self)


def _list_series(series: Any) -> list[Any]:
    pairs = zip(series.tolist(), series.isna().tolist(), strict=True)
    return [None if is_missing else _to_python(value) for value, is_missing in pairs]


def _clean_row(row: Mapping[Any, Any], name: str, number: int) -> dict[str, Any]:
    for key in row:
        _require_text_name(key, f"{name}: row {number}", "key")
    return {key: _to_python(value) for key, value in row.items()}


def _require_text_name(column: object, place: str, noun: str) -> None:
    if not isinstance(column, str):
        raise UserError(f"{place}: the {noun} {shorten_repr(column)} is not a text; rename it")


def _to_python(value: Any) -> Any:
    """Return a value in which NumPy arrays and scalars are Python values."""
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_to_python(item) for item in value]
    if isinstance(value, dict):
        return {key: _to_python(item) for key, item in value.items()}
    return value
