"""From what `--data` names to rows by split, and to a line that says where they were found.

The order is part of the command-line contract: an existing path; then, for a known name, the data
directory, a Python package that carries it, the Hugging Face cache and the Hub.
"""

import importlib.util
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertkit.data.labels import map_label_ids, map_tag_ids
from bertkit.data.layouts import apply_column_mapping, has_layout, read_folder, read_layout
from bertkit.data.readers.files import Dialect, read_file
from bertkit.data.registry import (
    DatasetSpec,
    Layout,
    find_dataset_spec,
    load_dataset_specs,
    normalize_name,
    parse_column_mapping,
)
from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, suggest_similar
from bertkit.hub.client import download_snapshot

SAMPLES_DIR = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class LoadedDataset:
    """Rows by split as found, before any share is set aside.

    Attributes:
        name: what the default run directory is called after.
        source: where the rows were found, for people.
        defaults: settings to use where the user says nothing.
        labels: names of the label numbers 0, 1, ..., where the set is known.
        best: the metric that chooses the checkpoint, where the set has its own.
        spellings: labels as some files spell them -> their names in `labels`.
    """

    name: str
    source: str
    splits: Splits
    defaults: dict[str, Any] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    best_metric: str | None = None
    notes: list[str] = field(default_factory=list)
    label_aliases: dict[str, str] = field(default_factory=dict)

    def add_splits(self, splits: Splits) -> "LoadedDataset":
        """With further splits, their label numbers by name; -1, the Hub's "no label", becomes none."""
        for role, by_name in (("label_column", map_label_ids), ("tag_column", map_tag_ids)):
            column = self.defaults.get(role)
            for name, rows in splits.items():
                if self.labels and column in rows.columns:
                    named = by_name(rows[column], self.labels, self.label_aliases)
                    splits = {**splits, name: rows.with_column(column, named)}
        return replace(self, splits={**self.splits, **splits})


def load_dataset(
    data: str, task: str, data_dir: str | None = None, dialect: Dialect | None = None
) -> LoadedDataset:
    """The rows that `--data` names; text files in the task's dialect, unless a known set has its own.

    Raises:
        UserError: nothing is found, or it cannot be read: what was tried and the way out.
    """
    path = Path(data).expanduser()
    if path.exists():
        return _from_path(path, dialect)
    if data == "sample":
        return _from_sample(task, dialect)
    known = find_dataset_spec(data)
    if known is not None:
        return _from_known(known, data_dir, dialect)
    if hub := parse_hub_name(data):
        return _from_hub(data, hub, dialect)
    if path.suffix or "/" in data:
        raise UserError(f"--data {data}: no such file or folder")
    raise UserError(
        f"--data {data}: neither a file nor a known data set{suggest_similar(data, [*load_dataset_specs(), 'sample'])} "
        "(bertkit data ls lists them)"
    )


def parse_hub_name(data: str) -> dict[str, Any] | None:
    """The repository and configuration that `ORG/NAME[:CONFIG]` names; None: it is no such name."""
    repo, _, config = data.partition(":")
    plain_name = repo.count("/") == 1 and not Path(repo).suffix and "*" not in repo
    return {"id": repo, "config": config} if plain_name and not repo.startswith((".", "/", "~")) else None


def resolve_hub_dataset(
    data: str, data_dir: str | None = None
) -> tuple[DatasetSpec | None, dict[str, Any]] | None:
    """The known set, if it is one, and its place on the Hub, where `--data` means a set there and nowhere
    nearer; nothing is read.
    """
    if Path(data).expanduser().exists():
        return None
    known = find_dataset_spec(data)
    if known is None:
        hub = parse_hub_name(data)
        return (None, hub) if hub else None
    near = describe_source(known, data_dir) != f"Hub: {(known.hub or {}).get('id')}"
    return None if near or known.hub is None else (known, known.hub)


def describe_source(known: DatasetSpec, data_dir: str | None = None) -> str:
    """Where a known set would be taken from, for `data ls`; nothing is read."""
    place = _known_place(known, data_dir)
    if place is not None:
        return str(place[0])
    if known.package is not None and importlib.util.find_spec(known.package["module"]):
        return f"package {known.package['module'].replace('_', '-')}"
    return f"Hub: {known.hub['id']}" if known.hub else "nowhere"


def resolve_data_dir(flag: str | None) -> Path | None:
    """`--data-dir`, else BERTKIT_DATA_DIR; empty counts as unset. Raises where it is no folder."""
    named = flag or os.environ.get("BERTKIT_DATA_DIR")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise UserError(f"{'--data-dir' if flag else 'BERTKIT_DATA_DIR'} {named}: no such folder")
    return folder


def _from_path(path: Path, dialect: Dialect | None) -> LoadedDataset:
    if path.is_dir():
        splits, notes = read_folder(path, dialect)
        return LoadedDataset(path.resolve().name, str(path), splits, notes=notes)
    return LoadedDataset(path.name.split(".")[0], str(path), {"train": read_file(path, dialect)})


def _from_sample(task: str, dialect: Dialect | None) -> LoadedDataset:
    splits, notes = read_folder(SAMPLES_DIR / task, dialect)
    return LoadedDataset("sample", "the sample shipped with bertkit", splits, notes=notes)


def _from_known(known: DatasetSpec, data_dir: str | None, dialect: Dialect | None) -> LoadedDataset:
    place = _known_place(known, data_dir)
    if place is not None:
        return _found(known, str(place[0]), *_known_files(known, *place, dialect))
    if known.package is not None and importlib.util.find_spec(known.package["module"]):
        return _found(known, describe_source(known), {"train": _from_package(known.package)}, [])
    if known.hub is None:
        raise UserError(f"--data {known.name}: not found; {known.download_hint}")
    return _known_from_hub(known, known.hub, dialect)


def _known_files(
    known: DatasetSpec, folder: Path, layout: Layout | None, dialect: Dialect | None
) -> tuple[Splits, list[str]]:
    """The splits in a known set's folder: in the layout, else any files, and notes on those.

    A set with configurations takes no other files: they would be of any configuration, or of several.
    """
    if layout is not None:
        return read_layout(folder, layout)
    if known.configs:
        files = " or ".join(layout["train"].file for layout in known.layouts)
        raise UserError(f"{folder}: no training file of {known.run_name}; put {files} there")
    return read_folder(folder, dialect)


def _known_from_hub(known: DatasetSpec, hub: dict[str, Any], dialect: Dialect | None) -> LoadedDataset:
    ways = [known.download_hint]
    if known.package is not None:
        ways.append("pip install 'bertkit[offline]'")
    found = _from_hub(known.name, hub, dialect, " or ".join(ways))
    splits = {
        split: apply_column_mapping(rows, parse_column_mapping(hub)) for split, rows in found.splits.items()
    }
    known = replace(known, defaults={**known.defaults, **hub.get("defaults", {})})
    return _found(known, found.source, splits, found.notes)


def _found(known: DatasetSpec, source: str, splits: Splits, notes: list[str]) -> LoadedDataset:
    found = LoadedDataset(
        known.run_name,
        source,
        {},
        known.defaults,
        known.labels,
        known.best_metric,
        notes,
        known.label_aliases,
    )
    return found.add_splits(splits)


def _known_place(known: DatasetSpec, data_dir: str | None) -> tuple[Path, Layout | None] | None:
    """The folder to take a known set from, and the layout that it is in there; None: any files in it.

    Several folders may have its name: the earliest of its layouts goes before the first of them.
    """
    directory = resolve_data_dir(data_dir)
    folders = sorted(path for path in directory.iterdir() if path.is_dir()) if directory else []
    folders = [path for path in folders if normalize_name(path.name) in known.folder_names]
    for layout in known.layouts:
        for folder in folders:
            if has_layout(folder, layout):
                return folder, layout
    return (folders[0], None) if folders and not known.requires_layout else None


def _from_package(package: dict[str, Any]) -> Rows:
    """A set inside an installed package, without importing the package (it loads its data on import)."""
    spec = importlib.util.find_spec(package["module"])
    assert spec is not None
    assert spec.origin is not None
    return apply_column_mapping(
        read_file(Path(spec.origin).parent / package["file"]), parse_column_mapping(package)
    )


def _from_hub(name: str, hub: dict[str, Any], dialect: Dialect | None, other_way: str = "") -> LoadedDataset:
    """A repository's files; `hub` has its id, and may have a configuration, a revision, and the split
    to train on where the repository has no training rows.
    """
    where = (hub["id"], "dataset", hub.get("revision"), hub.get("config"))
    folder = download_snapshot(*where, flag=f"--data {name}", alternative=other_way)
    splits, notes = read_folder(folder, dialect, hub.get("train"))
    return LoadedDataset(name.split("/")[-1].replace(":", "-"), f"Hub: {hub['id']}", splits, notes=notes)
