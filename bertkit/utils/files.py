"""Files and directories that are written completely or not at all, and checksums that detect damage."""

import atexit
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import UserError
from bertkit.utils.serialization import replace_non_finite

PARTIAL = ".partial"  # name of a directory, or suffix of a file, that is being written
CHECKSUMS_FILE = ".checksums.json"
BLOCK_SIZE = 1 << 20  # bytes


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a file for writing that gets its name only when it is complete.

    Raises:
        UserError: It cannot be written (full disk, missing permission); nothing is left behind.
    """
    if path.exists() and not path.is_file():  # a device would be replaced instead of written to
        raise UserError(f"{path}: is not a regular file; choose another file")
    try:
        handle, partial = tempfile.mkstemp(PARTIAL, f".{path.name}-", path.parent)
    except OSError as error:
        raise _write_error(path, error) from error
    try:
        # UTF-8 cannot encode a lone surrogate. It is written as \ud800, which is the same text in JSON.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException as error:
        Path(partial).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _write_error(path, error) from error
        raise


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written ({error.strerror}); free disk space or choose another path")


def remove_partial_files(folder: Path) -> None:
    """Remove partial files left by a process that was killed while it wrote them."""
    for path in folder.glob(f".*-*{PARTIAL}"):
        with suppress(OSError):  # a missing permission is reported when a file is written
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_chunks(path, [text])


def write_chunks(path: Path, chunks: Iterable[str]) -> None:
    """Write a text file atomically, chunk by chunk."""
    with open_atomic(path) as file:
        file.writelines(chunks)


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line, atomically."""
    with open_atomic(path) as file:
        for record in records:
            file.write(json.dumps(replace_non_finite(record), ensure_ascii=False, default=str) + "\n")


@contextmanager
def stage_files(
    folder: Path,
    what: str = "the model",
    hint: str = "free disk space, then use --resume",
    errors: tuple[type[Exception], ...] = (OSError, RuntimeError),
) -> Iterator[Path]:
    """Provide a temporary directory whose content moves to `folder` at the end, if no error occurred.

    Args:
        folder: The existing target directory.
        what: What is written, for the error message.
        hint: How to fix it, for the error message.
        errors: What a failed write may raise. PyTorch raises a RuntimeError if the disk is full.

    Raises:
        UserError: The files cannot be written; none of them is left behind.
    """
    from safetensors import SafetensorError

    write_errors: tuple[type[Exception], ...] = (*errors, SafetensorError)
    staging = folder / PARTIAL
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir()
        yield staging
        for path in staging.iterdir():
            if path.is_file():
                path.chmod(0o644)  # safetensors creates files that only their owner can read
            path.replace(folder / path.name)
    except write_errors as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: {what} cannot be written ({reason}); {hint}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# ---- checksums: a power failure, a full disk or an incomplete copy may leave truncated or zeroed files


def write_checksums(folder: Path) -> None:
    """Record name -> [size in bytes, CRC-32] of all files in a directory, which is complete."""
    (folder / CHECKSUMS_FILE).write_text(json.dumps(_compute_checksums(folder)), "utf-8")


def verify_checksums(folder: Path) -> str | None:
    """Describe the first file that differs from its checksum; return None if there is none.

    CRC-32 runs at several gigabytes per second. It detects accidents, not manipulation.
    """
    try:
        recorded = json.loads((folder / CHECKSUMS_FILE).read_text("utf-8"))
        actual = _compute_checksums(folder)
    except (OSError, ValueError):
        return f"{CHECKSUMS_FILE} cannot be read"
    if not isinstance(recorded, dict):
        return f"{CHECKSUMS_FILE} is damaged"
    for name in sorted(recorded.keys() | actual.keys()):
        if name not in actual:
            return f"{name} is missing"
        if name not in recorded:
            return f"{name} has no checksum"
        if recorded[name] != actual[name]:
            return f"{name} is damaged"
    return None


def _compute_checksums(folder: Path) -> dict[str, list[int]]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CHECKSUMS_FILE)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _compute_crc(path)] for path in files}


def _compute_crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_SIZE):
            crc = zlib.crc32(block, crc)
    return crc


def make_process_folder() -> Path:
    """Return a new temporary directory that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
