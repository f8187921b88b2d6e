"""Load the list of known datasets from `registry.yaml`.

Shell completion loads this module, so its imports must be fast.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from bertkit.data.columns import require_column
from bertkit.data.readers.delimited import Dialect
from bertkit.data.readers.files import read_file
from bertkit.data.readers.text_files import Decoding, read_text
from bertkit.data.table import Rows, Splits
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.utils.text import read_yaml


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """How rows are filtered and columns are renamed after a file is read.

    Attributes:
        row_filter: Values by column of the file. Only rows with these values are kept.
        columns: Column in bertkit by column of the file.
        nested: Key by column in bertkit. The objects in the column are replaced by their values for this key.
    """

    row_filter: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    nested: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SplitFile(ColumnMapping, Dialect):
    """The file or folder of one split, and how it is read.

    Attributes:
        file: Path in the folder of the dataset.
        class_folders: Label by subfolder of .txt files, if `file` is a folder of class folders.
    """

    file: str
    class_folders: dict[str, str] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect | None:
        """The dialect; None if it is the default one, so that the format is detected from the content."""
        dialect = Dialect(**{item.name: getattr(self, item.name) for item in fields(Dialect)})
        return None if dialect == Dialect() else dialect


Layout = dict[str, SplitFile]  # files by split, in one of the forms in which a dataset is distributed


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A known dataset in one configuration. Most fields are keys of `registry.yaml`.

    Attributes:
        name: Name in the registry.
        run_name: Name of the default run directory: `xnli`, or `xnli-de` if the user passed a configuration.
        title: One-line description.
        defaults: Settings used unless the user passes others.
        labels: Names of the label ids 0, 1, ...
        label_aliases: Name in `labels` by alternative spelling in some files.
        config: The default configuration.
        configs: All configurations.
        best_metric: Metric that selects the checkpoint.
        folder_aliases: Alternative names of the folder in the data directory.
        requires_layout: Whether only files of a layout are read, because the folder may hold other datasets.
        layouts: The forms in which the dataset is distributed.
        package: Python package that contains the dataset.
        hub: Repository on the Hub.
        tested_sources: Sources from which this project has loaded the dataset.
    """

    name: str
    run_name: str
    title: str
    defaults: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    label_aliases: dict[str, str] = field(default_factory=dict)
    config: str | None = None
    configs: list[str] = field(default_factory=list)
    best_metric: str | None = None
    folder_aliases: list[str] = field(default_factory=list)
    requires_layout: bool = False
    layouts: list[Layout] = field(default_factory=list)
    package: dict[str, Any] | None = None
    hub: dict[str, Any] | None = None
    tested_sources: list[str] = field(default_factory=list)

    @property
    def folder_names(self) -> set[str]:
        """Normalized names of the folder in the data directory."""
        return {normalize_name(name) for name in (self.name, *self.folder_aliases)}

    def describe_download(self, data_dir: str | None = None) -> str:
        """Return advice on which files to put into which folder of the data directory."""
        split_files = self.layouts[0].values() if self.layouts else ()
        files = format_list(dict.fromkeys(split_file.file for split_file in split_files)) or "it"
        return f"put {files} into {(data_dir or 'BERTKIT_DATA_DIR').rstrip('/')}/{self.name}/"


def normalize_name(name: str) -> str:
    """Return a name in lower case without `-` and `_`; `SST-2` and `sst2` are thus the same name."""
    return name.lower().replace("-", "").replace("_", "")


def parse_column_mapping(entry: dict[str, Any]) -> ColumnMapping:
    """Return the column mapping that a Hub or package entry contains."""
    names = [item.name for item in fields(ColumnMapping)]
    return ColumnMapping(**{name: entry[name] for name in names if name in entry})


@cache
def load_registry() -> dict[str, dict[str, Any]]:
    """Return the entries of `registry.yaml` by dataset name."""
    return read_yaml(Path(__file__).parent / "registry.yaml", "registry of datasets", "install bertkit again")


@cache
def load_dataset_specs() -> dict[str, DatasetSpec]:
    """Return all known datasets by name, in their default configuration."""
    return {name: _make_spec(name, entry) for name, entry in load_registry().items()}


def find_dataset_spec(data: str) -> DatasetSpec | None:
    """Return the known dataset `NAME` or `NAME:CONFIG`; None for other names.

    Raises:
        UserError: The dataset has no such configuration.
    """
    name, colon, config = data.partition(":")
    specs = load_dataset_specs().values()
    spec = next((spec for spec in specs if normalize_name(spec.name) == normalize_name(name)), None)
    if spec is None or not colon:
        return spec
    if not spec.configs:
        raise UserError(f"--data {data}: {spec.name} has no configurations; pass --data {spec.name}")
    if config not in spec.configs:
        hint = f"{suggest_similar(config, spec.configs)}; it has {', '.join(spec.configs)}"
        raise UserError(f"--data {data}: {spec.name} has no configuration {config!r}{hint}")
    return _make_spec(spec.name, load_registry()[spec.name], config)


def _make_spec(name: str, entry: dict[str, Any], named_config: str | None = None) -> DatasetSpec:
    """Return the dataset in `named_config`, or in the default configuration if it is None."""
    layouts = entry.get("layouts", [])
    if named_config is not None:  # layouts without {config} do not depend on the configuration
        layouts = [layout for layout in layouts if "{config}" in str(layout)]
    config = named_config or entry.get("config", "")
    values = _fill_in_config({**entry, "layouts": []}, config)
    values["layouts"] = [_make_layout(layout, config) for layout in layouts]
    run_name = f"{name}-{named_config}" if named_config else name
    return DatasetSpec(name=name, run_name=run_name, **values)


def _fill_in_config(value: Any, config: str) -> Any:
    """Replace `{config}` in all strings of a nested value."""
    if isinstance(value, dict):
        return {key: _fill_in_config(item, config) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in_config(item, config) for item in value]
    return value.replace("{config}", config) if isinstance(value, str) else value


def _make_layout(entry: dict[str, Any], config: str) -> Layout:
    """Return a layout. The options of a layout apply to each split unless the split overrides them."""
    config_in_files = entry.get("configs", {}).get(config, config)
    entry = _fill_in_config(entry, config_in_files)
    options = {key: value for key, value in entry.items() if key in SplitFile.__dataclass_fields__}
    layout = {}
    for split, value in entry.items():
        if split not in options and split != "configs":
            overrides = value if isinstance(value, dict) else {"file": value}
            layout[split] = SplitFile(**{**options, **overrides})
    return layout


CONLL_SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes"}
DATA_SUFFIXES = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow", ".feather"} | CONLL_SUFFIXES
# Files that `datasets` writes next to its data files.
METADATA_FILES = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
COMPRESSED_SUFFIXES = (".gz", ".zst", ".zip")
SPLIT_KEYWORDS = {
    "train": "train", "training": "train",
    "dev": "validation", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test",
}  # fmt: skip

T = TypeVar("T")


class NamedFile(Protocol):
    """A file on disk, on the Hub or at a URL."""

    @property
    def name(self) -> str:
        """The file name without its folders."""


# ---- the layout of a known dataset


def has_layout(folder: Path, layout: Layout) -> bool:
    """Return whether a folder contains the training file of a layout; do not read the file."""
    return _find_split_file(folder, layout["train"]) is not None


def read_layout(folder: Path, layout: Layout, encoding: str | None = None) -> tuple[Splits, list[str]]:
    """Return those splits of a layout whose files exist.

    Args:
        folder: The folder of the dataset.
        layout: The files of the splits.
        encoding: Encoding of the files, as passed by the user; it takes precedence over those of the layout.

    Returns:
        The splits, and a note if the training file has the name of another split.
    """
    paths = {}
    for split, split_file in layout.items():
        if path := _find_split_file(folder, split_file):
            paths[split] = path
    named_split = infer_split(Path(layout["train"].file))
    notes = [] if named_split in (None, "train") else [_describe_only_file([paths["train"]])]
    files = {split: replace(layout[split], encoding=encoding) for split in paths}
    return {split: _read_split_file(path, files[split]) for split, path in paths.items()}, notes


def apply_column_mapping(rows: Rows, mapping: ColumnMapping) -> Rows:
    """Filter rows and rename their columns.

    Raises:
        UserError: The filter column does not exist, or no row has its value.
    """
    for column, value in mapping.row_filter.items():
        rows = _filter_rows(rows, column, value)
    new_names = _resolve_negative_columns(mapping.columns, rows)
    columns = {new_names.get(name, name): values for name, values in rows.columns.items()}
    for column, key in mapping.nested.items():
        columns[column] = [value[key] for value in columns[column]]
    return replace(rows, columns=columns)


def _find_split_file(folder: Path, split_file: SplitFile) -> Path | None:
    """Return the path of a split's file, which may be compressed."""
    suffixes = ("",) if split_file.class_folders else ("", *COMPRESSED_SUFFIXES)
    paths = (Path(f"{folder / split_file.file}{suffix}") for suffix in suffixes)
    return next((path for path in paths if path.exists()), None)


def _describe_only_file(paths: list[Path]) -> str:
    names = format_list(path.name for path in paths)
    return f"no training file: training and validation rows both come from {names}"


def _read_split_file(path: Path, split_file: SplitFile) -> Rows:
    """Return the rows of a split; in files without a header, columns without a name are dropped."""
    if split_file.class_folders:
        return _read_class_folders(path, split_file.class_folders, split_file.encoding)
    rows = apply_column_mapping(read_file(path, split_file.dialect), split_file)
    if split_file.header and not split_file.conll:
        return rows
    return replace(rows, columns={name: rows[name] for name in rows.columns if not name.isdigit()})


def _resolve_negative_columns(columns: dict[str, str], rows: Rows) -> dict[str, str]:
    """Replace negative column numbers in a mapping; "-1" is the last column.

    Negative numbers are for files with an unknown number of columns before the tags. If a file has a single
    column, positive numbers take precedence: the column holds the words.
    """
    num_columns = sum(name.isdigit() for name in rows.columns)
    positive_numbers = {
        str(num_columns + int(name)): new_name for name, new_name in columns.items() if name[:1] == "-"
    }
    return positive_numbers | columns


def _filter_rows(rows: Rows, column: str, value: str) -> Rows:
    require_column(rows, column, f"it selects the rows with {value!r}")
    selected = rows.select(index for index, cell in enumerate(rows[column]) if cell == value)
    if len(selected) == 0:
        values = format_list(sorted({str(cell) for cell in rows[column]}))
        raise UserError(
            f"{rows.files[0]}: no row has {value!r} in column {column!r}, which contains {values}; "
            "pass the original file of the dataset"
        )
    return selected


# ---- folders without a layout


def read_folder(
    folder: Path, dialect: Dialect | None = None, fallback_train_split: str | None = None
) -> tuple[Splits, list[str]]:
    """Return the splits of a folder without a known layout.

    Files are assigned to splits by words in their paths (`train-00000-of-00001.parquet`, `test/a.csv`). If no
    path contains such a word, all rows are training rows. If all files are .txt files in subfolders, the
    subfolders are classes, except for CoNLL files.

    Args:
        folder: The folder; its subfolders are searched too.
        dialect: How to read text files.
        fallback_train_split: The split to train on if there is no training file.

    Returns:
        The splits, and notes on the choice of files.

    Raises:
        UserError: There are no data files, or none of them is for training.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if is_data_file(path.relative_to(folder))]
    if not paths:
        suffixes = format_list([*sorted(DATA_SUFFIXES), *COMPRESSED_SUFFIXES])
        raise UserError(f"{folder}: no data files in this folder ({suffixes}); pass another folder or a file")
    is_conll = dialect is not None and dialect.conll
    if not is_conll and all(path.suffix == ".txt" and path.parent != folder for path in paths):
        return _read_text_tree(folder, paths, dialect.encoding if dialect else None), []
    by_split, unassigned = group_by_split({path: path.relative_to(folder) for path in paths})
    if not by_split:
        return {"train": _read_all(unassigned, dialect)}, []
    notes = describe_unassigned_files(unassigned)
    if "train" not in by_split and fallback_train_split in by_split:
        by_split["train"] = by_split.pop(fallback_train_split)
        notes.append(_describe_only_file(by_split["train"]))
    if "train" not in by_split:
        names = format_list(path.name for path in paths)
        raise UserError(f"{folder}: no training file among {names}; rename one, or pass the file itself")
    return {split: _read_all(files, dialect) for split, files in by_split.items()}, notes


def group_by_split(names: Mapping[T, PurePath]) -> tuple[dict[str, list[T]], list[T]]:
    """Group files by the split that their names contain.

    Args:
        names: Path in the folder, by file.

    Returns:
        The files of each split, and the files whose names contain no split.
    """
    by_split: dict[str, list[T]] = defaultdict(list)
    unassigned: list[T] = []
    for file, name in names.items():
        split = infer_split(name)
        (unassigned if split is None else by_split[split]).append(file)
    return by_split, unassigned


def describe_unassigned_files(unassigned: Iterable[NamedFile]) -> list[str]:
    """Return a note on the files without a split; an empty list if there are none."""
    names = [file.name for file in unassigned]
    return [f"left out, not named after a split: {format_list(names)}"] if names else []


def infer_split(path: PurePath) -> str | None:
    """Return the split in the name of a file or of the closest folder; None if no name contains one."""
    for part in (path.name, *(parent.name for parent in path.parents)):
        words = re.split(r"[^a-z]+", part.lower())
        for word in words:
            if word in SPLIT_KEYWORDS:
                return SPLIT_KEYWORDS[word] + ("_mismatched" if "mismatched" in words else "")
    return None


def is_data_file(path: PurePath) -> bool:
    """Return whether a path has the suffix of a data file; hidden files and descriptions have no data."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    is_hidden = any(part.startswith(".") for part in path.parts)
    has_data_suffix = bool(suffixes) and suffixes[-1] in DATA_SUFFIXES
    is_description = path.stem.lower() == "readme" or path.name in METADATA_FILES
    return not is_hidden and has_data_suffix and not is_description


def _read_all(paths: list[Path], dialect: Dialect | None) -> Rows:
    return Rows.concatenate([read_file(path, dialect) for path in paths])


def _read_text_tree(folder: Path, paths: list[Path], encoding: str | None) -> Splits:
    """Return the splits of `{train,test}/{pos,neg}/*.txt`, or the training rows of `{pos,neg}/*.txt`."""
    roots = sorted({path.relative_to(folder).parts[0] for path in paths})
    splits = {root: SPLIT_KEYWORDS[root.lower()] for root in roots if root.lower() in SPLIT_KEYWORDS}
    if not splits:
        return {"train": _read_class_folders(folder, {root: root for root in roots}, encoding)}
    rows_by_split = {}
    for root, split in splits.items():
        classes = {path.name: path.name for path in sorted((folder / root).iterdir()) if path.is_dir()}
        rows_by_split[split] = _read_class_folders(folder / root, classes, encoding)
    return rows_by_split


def _read_class_folders(folder: Path, classes: dict[str, str], encoding: str | None) -> Rows:
    """Return one row per .txt file.

    Args:
        folder: The folder that contains the class folders.
        classes: Label by name of the class folder.
        encoding: Encoding of the files, as passed by the user.
    """
    decoding = Decoding(encoding)
    parts = [
        Rows.from_columns({"text": ["".join(read_text(path, decoding))], "label": [label]}, str(path))
        for name, label in classes.items()
        for path in sorted((folder / name).glob("*.txt"))
    ]
    if not parts:
        raise UserError(f"{folder}: no .txt files in {format_list(classes)}; put one text into each file")
    return Rows.concatenate(parts)
