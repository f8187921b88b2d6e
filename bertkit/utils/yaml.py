"""YAML that people write: read without running anything, and without losing a key that stands twice."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from bertkit.errors import UserError

YAML_ERRORS = (yaml.YAMLError, ValueError, RecursionError)  # the second of dates and of bytes


class _Loader(yaml.SafeLoader):
    """PyYAML's safe one, which itself takes the last of several values of a key."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in names.items():
            if count > 1 and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} stands there twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, kind: str = "run", hint: str = "the run must be made again") -> Any:
    """What a YAML file says.

    Args:
        kind: what it should be of, and `fix` what to do where it is not, for the error.

    Raises:
        UserError: it cannot be read, or is no YAML; the file, the line, and what is wrong there.
    """
    try:
        return yaml.load(path.read_text("utf-8-sig"), _Loader)  # noqa: S506 (it is the safe one)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except YAML_ERRORS as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UserError(f"{path}: no {kind}, for it is not YAML ({why}); {hint}") from error
