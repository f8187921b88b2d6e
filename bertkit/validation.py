"""Settings given as plain values, from a recipe or from Python: known keys, right types, within bounds."""

import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from bertkit.config import ConfigT, Setting, get_flag, get_settings
from bertkit.errors import UserError, format_list, suggest_similar


def validate_settings(
    config: type[ConfigT], values: Mapping[str, Any], origin: str | None = None
) -> dict[str, Any]:
    """`values` with each key known and each value of its type and within its bounds.

    `origin` is named in the error: a recipe's path, or "classify()" for a call from Python; None names the
    flag. Raises `UserError` for an unknown key, a wrong type or a value out of bounds.
    """
    known = get_settings(config)
    for key in values:
        if key not in known:
            raise UserError(
                f"{origin}: unknown setting {str(key)!r}{suggest_similar(key, known) or f' (known: {format_list(known)})'}"
            )
    return {
        key: _converted(value, *known[key][:2], f"{origin}: {key}" if origin else _typed(key, known[key][1]))
        for key, value in values.items()
    }


def _typed(name: str, about: Setting) -> str:
    return name.upper() if about.positional else get_flag(name, about)


def _converted(value: Any, wanted: Any, about: Setting, where: str) -> Any:
    choices = (
        typing.get_args(wanted) if typing.get_origin(wanted) in (typing.Union, types.UnionType) else (wanted,)
    )
    if value is None and type(None) in choices:
        return None
    if value == "":
        raise UserError(f"{where}: is empty; leave it out, or give what it is: {about.help}")
    kinds = [kind for kind in choices if kind is not type(None)]
    for kind in kinds:
        fitted = _fitted(value, kind)
        if fitted is not None:
            _check_bounds(fitted, about, where)
            return fitted
    raise UserError(
        f"{where}: {value!r} is not {' or '.join(_described(kind) for kind in kinds)}{_near(value, kinds)}"
    )


def _fitted(value: Any, kind: Any) -> Any:
    """`value` as a `kind`, or None where it is not one; a number is never a bool or a string."""
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else None
    if typing.get_origin(kind) is list:
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        fitted = [_fitted(item, typing.get_args(kind)[0]) for item in items]
        return None if None in fitted else fitted
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 2e-5 as a string
        return _float_or_none(value)
    if kind is str and isinstance(value, (int, Path)) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) else None


def _float_or_none(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_bounds(value: Any, about: Setting, where: str) -> None:
    low = about.min is not None and value < about.min
    high = about.max is not None and value > about.max
    infinite = isinstance(value, float) and not math.isfinite(value)
    if low or high or infinite:
        bounds = f"at least {about.min:g}" if about.max is None else f"from {about.min:g} to {about.max:g}"
        raise UserError(f"{where}: {value!r} is out of bounds; it must be {bounds}")


def _near(value: Any, kinds: list[Any]) -> str:
    """What a choice may have been meant as."""
    return suggest_similar(value, [str(name) for kind in kinds for name in _choices(kind)])


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _described(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is list:
        return "a list"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
