"""Objects with rows that Python code passes as data, such as a `datasets.Dataset` or a `pandas.DataFrame`.

This module only recognizes the objects, without importing their libraries; `bertkit.data.sources` reads them.
"""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bertkit.errors import UserError, format_list, shorten_repr, suggest_similar
from bertkit.settings.setting import ConfigT, Setting, get_flag, get_settings

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
    """The value of a setting such as `data` that is not a name.

    Attributes:
        kind: Class of the object, for messages.
        value: The object. None for the settings of a finished run, which do not contain the object.
    """

    kind: ObjectKind
    value: Any = None

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
        for kind in DATASET_CLASSES:
            if _is_instance(value, "datasets", kind):
                return cls(kind, value)
        if _is_instance(value, "pandas", "DataFrame"):
            return cls("DataFrame", value)
        if isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
            return cls("list of dictionaries", value)
        return None


def _is_instance(value: object, package: str, class_name: str) -> bool:
    """Return whether a value is an instance of a class of a package, without importing the package."""
    return any(
        base.__name__ == class_name and base.__module__.partition(".")[0] == package
        for base in type(value).__mro__
    )


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


TYPE_DESCRIPTIONS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def validate_settings(
    config: type[ConfigT], values: Mapping[str, Any], origin: str | None = None
) -> dict[str, Any]:
    """Return `values`, each converted to the type of its setting.

    Args:
        config: Class that declares the settings.
        values: Values by setting.
        origin: Source of the values for error messages: the path of a recipe, or "classify()" for a call from
            Python. None for the command line, which has no unknown keys: messages then name the flag.

    Raises:
        UserError: A key is unknown, or a value has the wrong type or is out of bounds.
    """
    known = get_settings(config)
    for key in values:
        if key not in known:
            hint = suggest_similar(key, known) or f"; the settings are {format_list(known)}"
            raise UserError(f"{origin}: unknown setting {str(key)!r}{hint}")
    converted = {}
    for key, value in values.items():
        kind, setting, _ = known[key]
        where = f"{origin}: {key}" if origin else get_command_line_name(key, setting)
        converted[key] = convert_value(value, kind, setting, where)
    return converted


def get_command_line_name(name: str, setting: Setting) -> str:
    """Return the name of a setting on the command line: its flag, or its name in capitals if positional."""
    return name.upper() if setting.is_positional else get_flag(name, setting)


def convert_value(value: Any, kind: Any, setting: Setting, where: str) -> Any:
    """Return a value converted to the type of its setting.

    Args:
        value: The value, possibly a string from the command line.
        kind: Type of the setting, such as `int | None` or `Literal["a", "b"]`.
        setting: Metadata of the setting, with its bounds.
        where: Start of the error message, which names the setting and the source of the value.

    Raises:
        UserError: The value is empty, has another type, is out of bounds, or is invalid for another reason.
    """
    members = _list_union_members(kind)
    if value is None and type(None) in members:
        return None
    if isinstance(value, str) and not value:
        raise UserError(f"{where}: is empty; pass a value or leave it out ({setting.help})")
    members = tuple(member for member in members if member is not type(None))
    for member in members:
        converted = _convert(value, member)
        if converted is not None:
            _check_bounds(converted, setting, where)
            if setting.describe_problem and (problem := setting.describe_problem(converted)):
                raise UserError(f"{where} {converted}: {problem}")
            return converted
    if DataObject in members:
        raise UserError(f"{where}: {describe_unsupported(value)}")
    expected = " or ".join(_describe_type(member) for member in members)
    found = repr(value) if isinstance(value, str) else " ".join(shorten_repr(value).split())
    raise UserError(f"{where}: {found} is not {expected}{_suggest_choice(value, members)}")


def parse_flag(text: str, kind: Any, setting: Setting, where: str) -> Any:
    """Return the value of a flag.

    Integers are parsed here, because `convert_value` accepts floats as text, but not integers.

    Raises:
        UserError: See `convert_value`.
    """
    value: Any = text
    if int in _list_union_members(kind):
        with suppress(ValueError):
            value = int(text)
    return convert_value(value, kind, setting, where)


def get_choices(kind: Any) -> tuple[str, ...]:
    """Return the values of a `Literal`, or of the `Literal` members of a union; empty for other types."""
    literals = (member for member in _list_union_members(kind) if typing.get_origin(member) is Literal)
    return tuple(str(choice) for literal in literals for choice in typing.get_args(literal))


def _list_union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union such as `int | None`, or the type itself if it is not a union."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _convert(value: Any, kind: Any) -> Any:
    """Convert a value to a type, or return None if it cannot be converted. A boolean is never a number."""
    if kind is DataObject:
        return DataObject.recognize(value)
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else None
    if typing.get_origin(kind) is list:
        return _convert_list(value, typing.get_args(kind)[0])
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else None
    if kind in (int, float):
        return _convert_number(value, kind)
    if kind is str and isinstance(value, (int, Path)):
        return str(value)
    return value if isinstance(value, kind) else None


def _convert_list(value: Any, item_kind: Any) -> list[Any] | None:
    """Convert each item of a list; a single value counts as a list of one item."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    converted = [_convert(item, item_kind) for item in items]
    return None if None in converted else converted


def _convert_number(value: Any, kind: type) -> Any:
    """Convert a number; a float may be text, because YAML 1.1 reads `2e-5` as a string."""
    if kind is int and not isinstance(value, int):
        return None
    if not isinstance(value, (int, float, str)):
        return None
    try:
        return kind(value)
    except (ValueError, OverflowError):
        return None


def _check_bounds(value: Any, setting: Setting, where: str) -> None:
    is_below = setting.min is not None and value < setting.min
    is_above = setting.max is not None and value > setting.max
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_below or is_above or is_infinite:
        finite = "finite and " if is_infinite and setting.max is None and setting.min is not None else ""
        raise UserError(f"{where}: {value!r} is out of bounds; it must be {finite}{describe_bounds(setting)}")


def describe_bounds(setting: Setting) -> str:
    """Return the valid range of a number in words: `at least 1`, `from 0 to 0.9`."""
    if setting.min is None:
        return "finite" if setting.max is None else f"at most {setting.max:g}"
    return f"at least {setting.min:g}" if setting.max is None else f"from {setting.min:g} to {setting.max:g}"


def _suggest_choice(value: Any, members: tuple[Any, ...]) -> str:
    """Return a hint with the valid choice that is most similar to `value`, or the empty string."""
    return suggest_similar(value, [choice for member in members for choice in get_choices(member)])


def _describe_type(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    return "a list" if typing.get_origin(kind) is list else TYPE_DESCRIPTIONS[kind]
