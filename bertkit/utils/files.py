"""Files: atomic writing, checksums that detect damage, checks of output paths, and names of paths."""

import atexit
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import UserError, format_list
from bertkit.utils import system
from bertkit.utils.system import IS_WINDOWS
from bertkit.utils.text import replace_non_finite

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
    for. A directory with files is not replaced.
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
def replace_file(path: Path) -> Iterator[Path]:
    """Provide a path in a new directory next to a file, and rename it to the file at the end of the block."""
    folder = Path(tempfile.mkdtemp(PARTIAL, f".{path.name}-", path.parent))
    try:
        partial = folder / path.name
        yield partial
        partial.chmod(0o644)
        replace_path(partial, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_atomic(path: Path) -> Iterator[TextIO]:
    """Open a temporary text file for writing, and rename it to `path` at the end of the block."""
    if path.exists() and not path.is_file():  # such as a device, which the renaming would replace
        raise UserError(f"{path}: is not a regular file; choose another file")
    try:
        # UTF-8 cannot encode a lone surrogate. The escape \ud800 is written instead, which JSON reads
        # correctly. Lines end in \n on every system.
        with (
            replace_file(path) as partial,
            partial.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
        ):
            yield file
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); free disk space or choose another path"
        ) from error


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
    """Provide a temporary directory, and move its content to the existing `folder` at the end of the block.

    `what` and `hint` are the content and the fix in the message for `errors`, with which writing may fail.
    PyTorch raises a RuntimeError if the disk is full.
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
    """Compare all files of a directory with its checksum file; return the first problem, or None.

    CRC-32 is computed at several gigabytes per second. It detects accidental damage, not manipulation.
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
    checksums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != CHECKSUMS_FILE:
            crc = 0
            with path.open("rb") as file:
                while block := file.read(BLOCK_SIZE):
                    crc = zlib.crc32(block, crc)
            checksums[path.relative_to(folder).as_posix()] = [path.stat().st_size, crc]
    return checksums


def create_process_directory() -> Path:
    """Create a temporary directory that is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="bertkit-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


# ---- output paths

OUTPUT_DIR_FLAG = "--output-dir"
LOCK_FILE = ".bertkit-lock"  # which `bertkit.utils.locks` locks, so that it can be neither moved nor deleted


@dataclass(frozen=True)
class OutputKind:
    """Kind of output that a command writes into a directory."""

    name: str  # with its article, such as "a run"
    hint: str  # fix if a directory already contains output of this kind
    find_foreign_files: Callable[[set[str]], set[str]]  # of all file names, returns those of another kind


def check_output_directory(folder: Path, kind: OutputKind | None = None, overwrite: bool = False) -> None:
    """Check that a command can write into a directory, which need not exist.

    The directory may contain output of this kind if `overwrite` is true; any content if `kind` is None.
    """
    _check_name(folder, OUTPUT_DIR_FLAG)
    with report_creation_errors(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{OUTPUT_DIR_FLAG} {folder}: is a file; choose a directory")
    parent = _find_existing_parent(folder)
    if not parent.is_dir() or not os.access(parent, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(
            f"{OUTPUT_DIR_FLAG} {folder}: is not writable (no access to {parent}); choose another directory"
        )
    if kind is None or not folder.is_dir():
        return
    names = {path.name for path in folder.iterdir() if not path.name.startswith(LOCK_FILE)} - {PARTIAL}
    if not names:
        return
    if foreign_files := kind.find_foreign_files(names):
        problem = f"contains files that are not part of {kind.name} ({format_list(sorted(foreign_files))})"
        raise UserError(f"{OUTPUT_DIR_FLAG} {folder}: {problem}; choose another directory")
    if not overwrite:
        raise UserError(f"{OUTPUT_DIR_FLAG} {folder}: already contains {kind.name}; {kind.hint}")


def check_output_file(
    path: Path,
    overwrite: bool,
    flag: str = "--output",
    suffixes: tuple[str, ...] = (),
    conflict: str = "already exists; pass --overwrite to replace it",
) -> None:
    """Check that a command can write a file, whose name must end in one of the suffixes, if there are any.

    `flag` is empty if the path does not come from a flag. `conflict` is the problem if the file exists, and
    the fix.
    """
    where = f"{flag} {path}".strip()
    _check_name(path, flag)
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{where}: unsupported file type; use a name that ends in {format_list(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{where}: directory {path.parent} does not exist; create it first")
    if path.is_dir():
        raise UserError(f"{where}: is a directory; choose a file in it")
    if path.exists() and not overwrite:
        raise UserError(f"{where}: {conflict}")


def _check_name(path: Path, flag: str) -> None:
    """Refuse a path that this operating system does not accept, or stores under another name."""
    if (name := system.find_invalid_name(path)) is not None:
        where = f"{flag} {path}".strip()
        raise UserError(f"{where}: {name!r} is not a valid name on Windows; choose another name")


def create_directory(folder: Path, exist_ok: bool = True) -> None:
    """Create a directory and its parents. Raise `FileExistsError` if it exists and `exist_ok` is false."""
    with report_creation_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=exist_ok)
            return
        except FileExistsError:
            if exist_ok:  # the path is a file
                raise
    raise FileExistsError(folder)


@contextmanager
def report_creation_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into a `UserError` that names the output directory."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{OUTPUT_DIR_FLAG} {folder}: cannot be created ({error.strerror}); choose another directory"
        ) from error


def require_disk_space(
    folder: Path, num_bytes: int, purpose: str, hint: str, flag: str = OUTPUT_DIR_FLAG
) -> None:
    """Check the free disk space for a directory, which need not exist; `purpose` is a noun in the plural."""
    free = shutil.disk_usage(_find_existing_parent(folder)).free
    if free < num_bytes:
        raise UserError(
            f"{flag} {folder}: {purpose} need {num_bytes / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are "
            f"free; {hint}"
        )


def _find_existing_parent(folder: Path) -> Path:
    """Return the directory itself if it exists, else its nearest parent that exists."""
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


# ---- names of paths

DRIVE = re.compile(r"[A-Za-z]:(?=[\\/])")


def expand_home(path: str | Path) -> Path:
    """Return a path with a home directory in place of `~` or `~NAME`; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - unlike `Path.expanduser`, this never raises


def split_at_colon(value: str) -> tuple[str, str]:
    """Split `NAME:REST` at its first colon, but not after the letter of a drive, as in `C:/NAME:REST`."""
    drive = DRIVE.match(value)
    start = drive.end() if drive else 0
    name, _, rest = value[start:].partition(":")
    return value[:start] + name, rest


def is_path_syntax(name: str) -> bool:
    """Return whether a name can only be a path, because names on the Hub do not look like it."""
    return name.startswith((".", "/", "~")) or "\\" in name or DRIVE.match(name) is not None


def make_relative(path: Path, folder: Path) -> str:
    """Return a path relative to a directory, with slashes; an absolute path if it is on another drive."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def join_command(arguments: Sequence[str]) -> str:
    """Return a command line for the shell of this operating system."""
    return subprocess.list2cmdline(arguments) if IS_WINDOWS else shlex.join(arguments)
