"""YAML and JSON: safe reading, lossless writing, and validation of the files that bertkit wrote."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import UserError

YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)  # ValueError: malformed dates and binary values


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML's safe loader, except that it refuses repeated keys instead of using the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in counts.items():
            if count > 1 and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is repeated", node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, kind: str = "run", hint: str = "run the training again") -> Any:
    """Return the content of a YAML file. No object other than plain data is ever constructed.

    Args:
        path: The file.
        kind: What the file should contain, for the error message.
        hint: How to fix it, for the error message.

    Raises:
        UserError: The file cannot be read, or is not YAML; the message has the line.
    """
    try:
        return yaml.load(path.read_text("utf-8-sig"), _UniqueKeyLoader)  # noqa: S506 (subclass of SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except YAML_ERRORS as error:
        is_too_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_too_deep else " ".join(str(error).split())
        raise UserError(f"{path}: is not a {kind}: cannot parse it as YAML ({reason}); {hint}") from error


def dump_yaml(content: Any) -> str:
    """Return `content` as YAML that reads back as the same content.

    PyYAML writes some line separators (U+0085) unescaped but reads them as spaces. If that happens, all
    non-ASCII characters are escaped.
    """
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if yaml.safe_load(text) == content:
        return text
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=False)


def replace_non_finite(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with null instead of NaN and infinity, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }


def validate(content: Any, schema: Any, where: object) -> Any:
    """Return the content of a file that bertkit wrote, converted to `schema`. Unknown keys are dropped.

    Args:
        content: Content of a JSON or YAML file, or of one line.
        schema: Any type that msgspec supports, such as a `TypedDict`.
        where: The file, and the line, for the error message.

    Raises:
        UserError: The content does not match the schema; the message has the key.
    """
    import msgspec

    try:
        return _convert(content, schema)
    except msgspec.ValidationError as error:
        problem = str(error).removesuffix(" - at `$`")
        raise UserError(
            f"{where}: was not written by bertkit, or is damaged ({problem}); run the training again"
        ) from error


def _convert(content: Any, schema: Any) -> Any:
    import msgspec

    try:
        return msgspec.convert(content, schema)
    except UnicodeEncodeError:  # a lone surrogate, for example in a key
        return msgspec.convert(_replace_surrogates(content), schema)


def _replace_surrogates(content: Any) -> Any:
    """Return the content with a question mark for each lone surrogate."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    if isinstance(content, dict):
        return {_replace_surrogates(key): _replace_surrogates(value) for key, value in content.items()}
    return [_replace_surrogates(value) for value in content] if isinstance(content, list) else content
