"""The known data sets, read from `known.yaml`: the only list of them."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bertkit.data.readers import Dialect


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way a set is distributed: split -> file, and how its files depart from the usual."""

    splits: dict[str, str]
    header: bool = True
    quoting: bool | None = None
    ragged: bool = False
    columns: dict[str, str] = field(default_factory=dict)  # name in the file -> name here
    nested: dict[str, str] = field(default_factory=dict)  # column -> key inside its value
    class_folders: dict[str, str] = field(default_factory=dict)  # folder of .txt files -> label

    @property
    def dialect(self) -> Dialect | None:
        """None where the files are as usual, and so read by their content."""
        usual = Dialect()
        dialect = Dialect(header=self.header, quoting=self.quoting, ragged=self.ragged)
        return None if dialect == usual else dialect


@dataclass(frozen=True, kw_only=True)
class Known:
    """What bertkit knows of one data set. The fields are those of `known.yaml`."""

    name: str
    title: str
    defaults: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    best: str | None = None
    folders: list[str] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    package: dict[str, Any] | None = None
    hub: dict[str, Any] | None = None
    tried: list[str] = field(default_factory=list)

    @property
    def folder_names(self) -> set[str]:
        """Folder names under the data directory, without case, `-` and `_`."""
        return {plain(name) for name in (self.name, *self.folders)}


def plain(name: str) -> str:
    """A name without case, `-` and `_`: `SST-2` and `sst2` are the same."""
    return name.lower().replace("-", "").replace("_", "")


@cache
def known_sets() -> dict[str, Known]:
    """All known data sets by name."""
    table = yaml.safe_load((Path(__file__).parent / "known.yaml").read_text("utf-8"))
    return {name: _known(name, about) for name, about in table.items()}


def find_known(name: str) -> Known | None:
    """The known set of that name, without regard to case, `-` and `_`."""
    return next((known for known in known_sets().values() if plain(known.name) == plain(name)), None)


def _known(name: str, about: dict[str, Any]) -> Known:
    return Known(**{**about, "name": name, "layouts": [_layout(entry) for entry in about.get("layouts", [])]})


def _layout(entry: dict[str, Any]) -> Layout:
    options = {key: value for key, value in entry.items() if key in Layout.__dataclass_fields__}
    splits = {key: value for key, value in entry.items() if key not in options}
    return Layout(splits=splits, **options)
