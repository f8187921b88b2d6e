"""The known data sets, read from `registry.yaml`: the only list of them."""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from bertkit.data.readers.files import Dialect
from bertkit.data.registry_table import load_registry
from bertkit.errors import UserError, format_list, suggest_similar


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """What is done with rows once they are read: which are kept, and what their columns are called."""

    row_filter: dict[str, str] = field(default_factory=dict)  # column in the file -> value of the rows kept
    columns: dict[str, str] = field(default_factory=dict)  # name in the file -> name here
    nested: dict[str, str] = field(default_factory=dict)  # column here -> key inside its value


@dataclass(frozen=True, kw_only=True)
class SplitFile(ColumnMapping):
    """The file of one split, and how it departs from the usual."""

    file: str
    header: bool = True
    quoting: bool | None = None
    ragged: bool = False
    conll: bool = False
    encoding: str | None = None
    class_folders: dict[str, str] = field(default_factory=dict)  # folder of .txt files -> label

    @property
    def dialect(self) -> Dialect | None:
        """None where the file is as usual, and so read by its content."""
        dialect = Dialect(**{item.name: getattr(self, item.name) for item in fields(Dialect)})
        return None if dialect == Dialect() else dialect


Layout = dict[str, SplitFile]  # one way a set is distributed: split -> its file


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """What bertkit knows of one data set. The fields are those of `registry.yaml`, configuration put in."""

    name: str
    run_name: str  # `xnli`; `xnli-de` where that configuration was asked for
    title: str
    defaults: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    label_aliases: dict[str, str] = field(default_factory=dict)
    config: str | None = None
    configs: list[str] = field(default_factory=list)
    best_metric: str | None = None
    folder_aliases: list[str] = field(default_factory=list)
    requires_layout: bool = False  # only the files of a layout are taken: other sets lie in the same folder
    layouts: list[Layout] = field(default_factory=list)
    package: dict[str, Any] | None = None
    hub: dict[str, Any] | None = None
    tested_sources: list[str] = field(default_factory=list)

    @property
    def folder_names(self) -> set[str]:
        """Folder names under the data directory, without case, `-` and `_`."""
        return {normalize_name(name) for name in (self.name, *self.folder_aliases)}

    @property
    def download_hint(self) -> str:
        """What to put where, so that the set is found in the data directory."""
        parts = self.layouts[0].values() if self.layouts else ()
        files = format_list(dict.fromkeys(part.file for part in parts)) or "it"
        return f"put {files} into BERTKIT_DATA_DIR/{self.name}/"


def normalize_name(name: str) -> str:
    """A name without case, `-` and `_`: `SST-2` and `sst2` are the same."""
    return name.lower().replace("-", "").replace("_", "")


def parse_column_mapping(about: dict[str, Any]) -> ColumnMapping:
    """The form among the keys of a Hub or package entry."""
    return ColumnMapping(
        **{item.name: about[item.name] for item in fields(ColumnMapping) if item.name in about}
    )


@cache
def load_dataset_specs() -> dict[str, DatasetSpec]:
    """All known data sets by name, in their usual configuration."""
    return {name: _known(name, about) for name, about in load_registry().items()}


def find_dataset_spec(data: str) -> DatasetSpec | None:
    """The known set `NAME` or `NAME:CONFIG`; the name without regard to case, `-` and `_`.

    Raises:
        UserError: the set has no such configuration.
    """
    name, colon, config = data.partition(":")
    known = next(
        (
            known
            for known in load_dataset_specs().values()
            if normalize_name(known.name) == normalize_name(name)
        ),
        None,
    )
    if known is None or not colon:
        return known
    if not known.configs:
        raise UserError(f"--data {data}: {known.name} has no configurations; say --data {known.name}")
    if config not in known.configs:
        there = f"{suggest_similar(config, known.configs)}; it has {', '.join(known.configs)}"
        raise UserError(f"--data {data}: {known.name} has no configuration {config!r}{there}")
    return _known(known.name, load_registry()[known.name], config)


def _known(name: str, about: dict[str, Any], asked: str | None = None) -> DatasetSpec:
    """The set in the configuration asked for, else in its usual one."""
    layouts = about.get("layouts", [])
    if asked is not None:  # files that know no configurations would answer any with the same rows
        layouts = [entry for entry in layouts if "{config}" in str(entry)]
    config = asked or about.get("config", "")
    filled = _filled({**about, "layouts": []}, config)
    filled["layouts"] = [_layout(entry, config) for entry in layouts]
    return DatasetSpec(name=name, run_name=f"{name}-{asked}" if asked else name, **filled)


def _filled(value: Any, config: str) -> Any:
    """The same value with the configuration in place of `{config}` in each of its texts."""
    if isinstance(value, dict):
        return {key: _filled(item, config) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, config) for item in value]
    return value.replace("{config}", config) if isinstance(value, str) else value


def _layout(entry: dict[str, Any], config: str) -> Layout:
    """A layout's own options hold for each of its splits, unless the split's entry has them too.

    Its `configs` are what its files call the configurations, where that is not what we do.
    """
    entry = _filled(entry, entry.get("configs", {}).get(config, config))
    options = {key: value for key, value in entry.items() if key in SplitFile.__dataclass_fields__}
    splits = {key: value for key, value in entry.items() if key not in (*options, "configs")}
    return {
        split: SplitFile(**{**options, **(about if isinstance(about, dict) else {"file": about})})
        for split, about in splits.items()
    }
