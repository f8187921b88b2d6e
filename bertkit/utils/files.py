"""Files that appear whole or not at all."""

import atexit
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import UserError

PARTIAL = ".partial"  # the name of a folder, or the end of the name of a file, that is being written


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """A file to write, which takes its name only when it is complete.

    Raises:
        UserError: it cannot be written (a full disk, no right to); nothing is left behind.
    """
    if path.exists() and not path.is_file():  # a device would be replaced, not written to
        raise UserError(f"{path}: is no file; name another")
    try:
        handle, partial = tempfile.mkstemp(PARTIAL, f".{path.name}-", path.parent)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        # Half a surrogate pair, which UTF-8 has not, as \ud800: in JSON that is the same text.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException as error:
        Path(partial).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
        raise


def remove_partial_files(folder: Path) -> None:
    """Remove the beginnings of files that a process left which was killed while it wrote."""
    for path in folder.glob(f".*-*{PARTIAL}"):
        with suppress(OSError):  # a folder, or one that may not be written: told of when a file is written
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    write_chunks(path, [text])


def write_chunks(path: Path, parts: Iterable[str]) -> None:
    """Write a text file whole, part by part."""
    with open_atomic(path) as file:
        file.writelines(parts)


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    with open_atomic(path) as file:
        for record in records:
            file.write(json.dumps(replace_non_finite(record), ensure_ascii=False, default=str) + "\n")


def replace_non_finite(record: dict[str, Any]) -> dict[str, Any]:
    """A record without NaN and infinity, which JSON does not know; they become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def dump_yaml(content: Any) -> str:
    """YAML that reads back as `content`, readable where it can be.

    PyYAML writes some line separators (U+0085) plainly and reads them as blanks; they are escaped then.
    """
    import yaml

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if yaml.safe_load(text) == content:
        return text
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=False)


def make_process_folder() -> Path:
    """Return a new temporary directory that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
