"""Text: surrogates, encodings, durations, YAML, and the validation of content that bertkit wrote."""

import ast
import json
import math
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import UserError

# Characters that JSON allows in a string, but UTF-8 cannot encode.
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text contains a lone surrogate."""
    return not text.isascii() and LONE_SURROGATE.search(text) is not None


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate by `?`. The length stays the same, and a tokenizer accepts the text."""
    return text.encode("utf-8", "replace").decode("utf-8")


# Each control character is replaced by its Unicode picture (U+241B for escape). The C1 controls of 8-bit
# terminals have no pictures and become U+FFFD. White space becomes a space.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
CONTROL_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
CONTROL_PICTURES |= dict.fromkeys(map(ord, "\t\n\v\f\r\x85\u2028\u2029"), ord(" "))


def replace_control_characters(text: str) -> str:
    """Return `text` with each control character replaced by one visible character.

    A terminal would execute control characters in the data. Only printed text is changed; JSON, CSV and
    other files keep the original text.
    """
    return text.translate(CONTROL_PICTURES)


def describe_unknown_encoding(name: str) -> str | None:
    """Return the problem with the name of an encoding, and the fix; None if Python has such an encoding."""
    try:
        "a".encode(name)
    except (LookupError, ValueError):  # ValueError: the codec cannot encode text, such as `undefined`
        return "no such encoding; use utf-8, cp949, latin-1 or another Python codec"
    return None


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes, hours or days: `45 s`, `12 min`, `3.4 h` or `15 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    hours = minutes / 60
    if hours >= 48:
        return f"{hours / 24:,.0f} days"
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"


# ---- YAML and JSON

# The loader in C is ten times as fast. Packages of PyYAML may lack it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(_SafeLoader):
    """Safe loader of PyYAML that refuses repeated keys, instead of using the last value."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in counts.items():
            if count > 1 and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is repeated", node.start_mark
                )
        return super().construct_mapping(node, deep)


def format_signed(number: float, spec: str) -> str:
    """Format a number that may be negative; one that is rounded to 0 has no minus sign."""
    text = format(number, spec)
    return text if float(text) else format(0.0, spec)


def read_yaml(path: Path, kind: str = "run", hint: str = "run the training again") -> Any:
    """Return the content of a YAML file. The loader constructs only plain data, never other objects.

    `kind` is a noun for the expected content, and `hint` is the fix, for the error message.
    """
    try:
        return yaml.load(path.read_text("utf-8-sig"), _UniqueKeyLoader)  # noqa: S506 (subclass of SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: invalid dates
        is_too_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_too_deep else " ".join(str(error).split())
        raise UserError(f"{path}: is not a {kind}: cannot parse it as YAML ({reason}); {hint}") from error


def dump_yaml(content: Any) -> str:
    """Return YAML that has exactly the value `content` when it is read again.

    PyYAML writes some line separators (U+0085) without escaping them, and reads them as spaces. If the
    content contains one, all non-ASCII characters are escaped.
    """
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if yaml.load(text, _SafeLoader) == content:  # noqa: S506 (a safe loader)
        return text
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=False)


def replace_non_finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with None instead of NaN and infinity, which JSON cannot represent."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def validate(content: Any, schema: Any, where: object, fix: str = "run the training again") -> Any:
    """Convert parsed content that bertkit wrote to a type that msgspec supports, without unknown keys.

    `where` is the file, and the line if there are several.
    """
    import msgspec

    try:
        try:
            return msgspec.convert(content, schema)
        except UnicodeEncodeError:  # lone surrogates, for example in a key
            return msgspec.convert(_replace_in_content(content), schema)
    except msgspec.ValidationError as error:
        problem = str(error).removesuffix(" - at `$`")
        raise UserError(f"{where}: was not written by bertkit, or is damaged ({problem}); {fix}") from error


def _replace_in_content(content: Any) -> Any:
    """Return the content with `?` instead of each lone surrogate."""
    if isinstance(content, str):
        return replace_surrogates(content)
    if isinstance(content, dict):
        return {_replace_in_content(key): _replace_in_content(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_replace_in_content(value) for value in content]
    return content


# ---- values in cells of text

# Errors of `ast.literal_eval` and `json.loads`; too deep nesting gives a `MemoryError` or `RecursionError`.
LITERAL_ERRORS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
NUMPY_ITEM = re.compile(r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+)""")
ADJACENT_STRINGS = re.compile(r"""(?<=['"])\s+(?=['"])""")


def parse_literal(text: str) -> Any:
    """Return the value in a text, in the notation of JSON, or else of Python; None if there is none."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(*LITERAL_ERRORS):
            return parse(text)
    return None


def parse_list(cell: Any) -> list[Any] | None:
    """Return the list in a cell of text, in the notation of JSON, Python or NumPy; None for other cells.

    A set in the notation of Python is a list, too.
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if text[:1] + text[-1:] not in ("[]", "{}"):
        return None
    # Python would join the adjacent strings of NumPy's `['a' 'b']`.
    value = None if ADJACENT_STRINGS.search(text) else parse_literal(text)
    if isinstance(value, (list, tuple, set)):
        return sorted(value, key=str) if isinstance(value, set) else list(value)
    if text[0] == "{":
        return None
    items, rest = [], text[1:-1].rstrip()
    while rest:
        match = NUMPY_ITEM.match(rest)
        if match is None:
            return None
        items.append(parse_literal(match[1]))
        rest = rest[match.end() :]
    return items
