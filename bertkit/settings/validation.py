"""Conversion of the values of settings: flags, keys of recipes, and arguments of Python functions.

Python code may pass objects with rows as data, such as a `datasets.Dataset` or a `pandas.DataFrame`. This
module only recognizes them, without importing their libraries; `bertkit.data.sources` reads them.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.settings.declaration import ConfigT, Setting, Settings, get_flag, get_settings

ObjectKind = Literal[
    "Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict", "DataFrame", "list of dictionaries"
]
DATASET_CLASSES: tuple[ObjectKind, ...] = (
    "Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict",
)  # fmt: skip
ACCEPTED_DATA = (
    "a name or path, a datasets.Dataset or DatasetDict, a pandas.DataFrame, or a list of dictionaries"
)


@dataclass(frozen=True, eq=False, repr=False)
class DataObject:
    """The value of a setting such as `data` that is not a name."""

    kind: ObjectKind  # class of the object, for messages
    value: Any = None  # None for the settings of a finished run, which do not contain the object

    def __repr__(self) -> str:
        return f"{self.kind} passed from Python"

    @property
    def is_missing(self) -> bool:
        """Whether the object has to be passed again."""
        return self.value is None

    @classmethod
    def recognize(cls, value: object) -> "DataObject | None":
        """Return a value as a data object, or None if its type is not supported."""
        if isinstance(value, cls):
            return value
        for base in type(value).__mro__:
            package = base.__module__.partition(".")[0]
            for kind in DATASET_CLASSES:
                if (package, base.__name__) == ("datasets", kind):
                    return cls(kind, value)
            if (package, base.__name__) == ("pandas", "DataFrame"):
                return cls("DataFrame", value)
        if isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
            return cls("list of dictionaries", value)
        return None


def describe_unsupported(value: object) -> str:
    """Return why a value cannot be data, and what can."""
    found = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if isinstance(value, (list, tuple)):
        position, row = next(
            (position, row) for position, row in enumerate(value, start=1) if not isinstance(row, Mapping)
        )
        return f"row {position} is of type {type(row).__qualname__}, not a dictionary; pass {ACCEPTED_DATA}"
    return f"cannot read rows from an object of type {found}; pass {ACCEPTED_DATA}"


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
    from pandas import DataFrame

    DataSource: TypeAlias = (
        str
        | Dataset
        | DatasetDict
        | IterableDataset
        | IterableDatasetDict
        | DataFrame
        | Sequence[Mapping[str, Any]]
        | DataObject
    )
else:  # settings are converted to one of these types
    DataSource = str | DataObject


TYPE_DESCRIPTIONS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list",
}  # fmt: skip


class ConvertedSettings(dict[str, Any]):
    """Values by setting from the command line, which has converted each flag already."""


def validate_settings(config: type[ConfigT], values: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return `values`, each converted to the type of its setting, or raise `UserError`.

    `origin` is their source for error messages: the path of a recipe, or "classify()" for a call from Python.
    """
    if isinstance(values, ConvertedSettings):
        return dict(values)
    known = get_settings(config)
    for key in values:
        if key not in known:
            hint = suggest_similar(key, known) or f"; the settings are {format_list(known)}"
            raise UserError(f"{origin}: unknown setting {str(key)!r}{hint}")
    return {
        key: convert_value(value, known[key].type, known[key].metadata, f"{origin}: {key}")
        for key, value in values.items()
    }


def get_command_line_name(name: str, setting: Setting) -> str:
    """Return the name of a setting on the command line: its flag, or its name in capitals if positional."""
    return name.upper() if setting.is_positional else get_flag(name, setting)


def convert_value(value: Any, kind: Any, setting: Setting, where: str) -> Any:
    """Return a value converted to the type of its setting, such as `int | None`, or raise `UserError`.

    `where` is the start of the error message, which names the setting and the source of the value.
    """
    members = list_union_members(kind)
    if value is None and type(None) in members:
        return None
    if isinstance(value, str) and not value:
        raise UserError(f"{where}: is empty; pass a value or omit it ({setting.help})")
    members = tuple(member for member in members if member is not type(None))
    if setting.parse_text and isinstance(value, str) and (parsed := setting.parse_text(value)) is not None:
        value = parsed
    for member in members:
        converted = _convert(value, member)
        if converted is not None:
            _check_bounds(converted, setting, where)
            if setting.describe_problem and (problem := setting.describe_problem(converted)):
                raise UserError(f"{where} {converted}: {problem}")
            return converted
    if DataObject in members:
        raise UserError(f"{where}: {describe_unsupported(value)}")
    expected = " or ".join(
        f"one of {', '.join(map(str, typing.get_args(member)))}"
        if typing.get_origin(member) is Literal
        else TYPE_DESCRIPTIONS[typing.get_origin(member) or member]
        for member in members
    )
    found = repr(value) if isinstance(value, str) else " ".join(shorten_repr(value).split())
    raise UserError(f"{where}: {found} is not {expected}{suggest_similar(value, get_choices(kind))}")


def parse_flag(text: Any, kind: Any, setting: Setting, where: str) -> Any:
    """Return the value of a flag. Defaults, which Typer passes too, are already values.

    Integers are parsed here, because `convert_value` accepts floats as text, but not integers.
    """
    if not isinstance(text, str):
        return text
    value: Any = text
    if int in list_union_members(kind):
        with suppress(ValueError):
            value = int(text)
    return convert_value(value, kind, setting, where)


def get_choices(kind: Any) -> tuple[str, ...]:
    """Return the values of a `Literal`, or of the `Literal` members of a union; empty for other types."""
    literals = (member for member in list_union_members(kind) if typing.get_origin(member) is Literal)
    return tuple(str(choice) for literal in literals for choice in typing.get_args(literal))


def list_union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union such as `int | None`, or the type itself if it is not a union."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def find_undeclarable(config: type[Settings]) -> str | None:
    """Return the first field of a plugin's config that cannot be a setting, or None."""
    kinds = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        if field.name in config.excluded_settings:
            continue
        members = [kind for kind in list_union_members(kinds[field.name]) if kind is not types.NoneType]
        items = [typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind for kind in members]
        has_type = all(
            typing.get_origin(kind) is Literal or kind in (*TYPE_DESCRIPTIONS, DataObject) for kind in items
        )
        if not isinstance(field.metadata.get("setting"), Setting) or not has_type:
            return field.name
    return None


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to a type, or return None if it cannot be converted. A boolean is never a number."""
    if kind is DataObject:
        return DataObject.recognize(value)
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else None
    if typing.get_origin(kind) is list:  # a single value counts as a list of one item
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        converted = [_convert(item, typing.get_args(kind)[0]) for item in items]
        return None if None in converted else converted
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else None
    if kind in (int, float):
        # A float may be text, because YAML 1.1 reads `2e-5` as a string.
        if not isinstance(value, int if kind is int else (int, float, str)):
            return None
        try:
            return kind(value)
        except (ValueError, OverflowError):
            return None
    if kind is str and isinstance(value, (int, Path)):
        return str(value)
    return value if isinstance(value, kind) else None


def _check_bounds(value: Any, setting: Setting, where: str) -> None:
    low, high = setting.min, setting.max
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if not is_infinite and (low is None or value >= low) and (high is None or value <= high):
        return
    if low is None:
        bounds = "finite" if high is None else f"at most {high:g}"
    else:
        bounds = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
        if is_infinite and high is None:
            bounds = f"finite and {bounds}"
    raise UserError(f"{where}: {value!r} is out of bounds; it must be {bounds}")
