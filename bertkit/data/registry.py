"""Load the list of known datasets from `registry.yaml`.

Shell completion loads this module, so its imports must be fast.
"""

from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from bertkit.data.readers.delimited import Dialect
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.utils.serialization import read_yaml


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
