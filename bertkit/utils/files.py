"""Atomic writing of files and directories, and checksums that detect damaged files."""

import atexit
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import UserError
from bertkit.utils.serialization import replace_non_finite

PARTIAL = ".partial"  # name of directories, and suffix of files, while they are written
CHECKSUMS_FILE = ".checksums.json"
BLOCK_SIZE = 1 << 20  # bytes
# Windows error codes: access denied, and sharing violation. A virus scanner or an indexer may cause them by
# reading a new file.
BUSY_ERRORS = (5, 32)
MAX_REPLACE_SECONDS, REPLACE_POLL_SECONDS = 2.0, 0.05


def replace_path(source: Path, target: Path) -> None:
    """Rename a file or a directory, and replace an existing file atomically.

    Windows refuses to rename a path that a process has open. Processes that open it for a moment are waited
    for.

    Raises:
        OSError: The path cannot be renamed, for example because the target is a directory with files.
    """
    deadline = time.monotonic() + MAX_REPLACE_SECONDS
    while True:
        try:
            source.replace(target)
            return
        except PermissionError as error:
            is_busy = getattr(error, "winerror", None) in BUSY_ERRORS and not target.is_dir()
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(REPLACE_POLL_SECONDS)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a temporary file for writing, and rename it to `path` at the end of the block.

    Raises:
        UserError: The file cannot be written, because the disk is full or a permission is missing. The
            temporary file is removed.
    """
    if path.exists() and not path.is_file():  # such as a device, which the renaming would replace
        raise UserError(f"{path}: is not a regular file; choose another file")
    try:
        handle, partial = tempfile.mkstemp(PARTIAL, f".{path.name}-", path.parent)
    except OSError as error:
        raise _create_write_error(path, error) from error
    try:
        # UTF-8 cannot encode a lone surrogate. The escape \ud800 is written instead, which JSON reads
        # correctly. Lines end in \n on every system.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            yield file
        Path(partial).chmod(0o644)
        replace_path(Path(partial), path)
    except BaseException as error:
        Path(partial).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _create_write_error(path, error) from error
        raise


def _create_write_error(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be written ({error.strerror}); free disk space or choose another path")


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files of a process that was killed while it wrote them."""
    for path in folder.glob(f".*-*{PARTIAL}"):
        with suppress(OSError):  # if a permission is missing, the next write reports it
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
    """Provide a temporary directory, and move its content to `folder` at the end of the block.

    Args:
        folder: The existing target directory.
        what: Noun for the content, for the error message.
        hint: Fix, for the error message.
        errors: Exceptions of a failed write. PyTorch raises a RuntimeError if the disk is full.

    Raises:
        UserError: The files cannot be written. The temporary directory is removed.
    """
    from safetensors import SafetensorError

    write_errors: tuple[type[Exception], ...] = (*errors, SafetensorError)
    staging = folder / PARTIAL
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir()
        yield staging
        for path in filter(Path.is_file, staging.rglob("*")):
            path.chmod(0o644)  # safetensors makes its files readable only for their owner
        for path in staging.iterdir():
            if path.is_dir():  # cannot replace a directory with files, which an earlier attempt may have left
                shutil.rmtree(folder / path.name, ignore_errors=True)
            replace_path(path, folder / path.name)
    except write_errors as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: {what} cannot be written ({reason}); {hint}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


# ---- checksums
#
# They detect truncated files and zeroed blocks, which a power failure, a full disk or an incomplete copy may
# leave.


def write_checksums(folder: Path) -> None:
    """Write the size in bytes and the CRC-32 of each file of a complete directory into its checksum file."""
    (folder / CHECKSUMS_FILE).write_text(json.dumps(_compute_checksums(folder)), "utf-8")


def verify_checksums(folder: Path) -> str | None:
    """Compare all files of a directory with its checksum file.

    CRC-32 is computed at several gigabytes per second. It detects accidental damage, not manipulation.

    Returns:
        A description of the first problem, or None if there is no problem.
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
    """Return size and CRC-32 of each file by its path in the directory."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CHECKSUMS_FILE)
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, _compute_crc(path)] for path in files}


def _compute_crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_SIZE):
            crc = zlib.crc32(block, crc)
    return crc


def create_process_directory() -> Path:
    """Create a temporary directory that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
