"""Checks of output paths before a command begins its work, so that its results can be written."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import UserError, format_list
from bertkit.utils import system
from bertkit.utils.files import PARTIAL

OUTPUT_DIR_FLAG = "--output-dir"
LOCK_PREFIX = ".bertkit-lock"  # begins the names of the files that `bertkit.utils.locks` locks


def is_lock_file(name: str) -> bool:
    """Return whether a file name belongs to a lock. Such a file can neither be moved nor deleted."""
    return name.startswith(LOCK_PREFIX)


@dataclass(frozen=True)
class OutputKind:
    """Kind of output that a command writes into a directory.

    Attributes:
        name: Name with its article, such as "a run", for messages.
        hint: Fix if a directory already contains output of this kind, for the error message.
        find_foreign_files: Given the file names in a directory, returns those that do not belong to this kind
            of output.
    """

    name: str
    hint: str
    find_foreign_files: Callable[[set[str]], set[str]]


def check_output_directory(
    folder: Path, kind: OutputKind | None = None, overwrite: bool = False, flag: str = OUTPUT_DIR_FLAG
) -> None:
    """Check that a command can write into a directory, which need not exist.

    Args:
        folder: The directory.
        kind: Kind of output that the directory may already contain. If None, its content is not checked.
        overwrite: Whether existing output of this kind may be replaced.
        flag: The flag, for the error message.

    Raises:
        UserError: The path is invalid, is a file, is not writable, or contains files that must not be
            replaced.
    """
    _check_name(folder, flag)
    with report_creation_errors(folder, flag):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{flag} {folder}: is a file; choose a directory")
    parent = _find_existing_parent(folder)
    if not parent.is_dir() or not os.access(parent, os.R_OK | os.W_OK | os.X_OK):
        raise UserError(f"{flag} {folder}: is not writable (no access to {parent}); choose another directory")
    if kind is not None and folder.is_dir():
        _check_content(folder, kind, overwrite, flag)


def _check_content(folder: Path, kind: OutputKind, overwrite: bool, flag: str) -> None:
    """Refuse a directory that contains other files, or output that must not be replaced."""
    names = {path.name for path in folder.iterdir() if not is_lock_file(path.name)} - {PARTIAL}
    if not names:
        return
    if foreign_files := kind.find_foreign_files(names):
        problem = f"contains files that are not part of {kind.name} ({format_list(sorted(foreign_files))})"
        raise UserError(f"{flag} {folder}: {problem}; choose another directory")
    if not overwrite:
        raise UserError(f"{flag} {folder}: already contains {kind.name}; {kind.hint}")


def check_output_file(
    path: Path,
    overwrite: bool,
    flag: str = "--output",
    suffixes: tuple[str, ...] = (),
    conflict: str = "already exists; pass --overwrite to replace it",
) -> None:
    """Check that a command can write a file.

    Args:
        path: The file.
        overwrite: Whether an existing file may be replaced.
        flag: The flag, for the error message. Empty if the path does not come from a flag.
        suffixes: Valid file name suffixes. If empty, any suffix is valid.
        conflict: Problem and fix for the error message if the file exists.

    Raises:
        UserError: The name or the suffix is invalid, the parent directory does not exist, or the path exists
            and must not be replaced.
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


def create_directory(folder: Path, flag: str = OUTPUT_DIR_FLAG, exist_ok: bool = True) -> None:
    """Create a directory and its parents.

    Raises:
        FileExistsError: The directory exists, and `exist_ok` is false.
        UserError: The directory cannot be created.
    """
    with report_creation_errors(folder, flag):
        try:
            folder.mkdir(parents=True, exist_ok=exist_ok)
            return
        except FileExistsError:
            if exist_ok:  # the path is a file
                raise
    raise FileExistsError(folder)


@contextmanager
def report_creation_errors(folder: Path, flag: str = OUTPUT_DIR_FLAG) -> Iterator[None]:
    """Turn errors of the file system into a `UserError` that names the output directory."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{flag} {folder}: cannot be created ({error.strerror}); choose another directory"
        ) from error


def require_disk_space(
    folder: Path, num_bytes: int, purpose: str, hint: str, flag: str = OUTPUT_DIR_FLAG
) -> None:
    """Check the free disk space for a directory, which need not exist.

    Args:
        folder: The directory.
        num_bytes: Required space in bytes.
        purpose: Noun for the content that needs the space, in plural, for the error message.
        hint: Fix, for the error message.
        flag: The flag or environment variable, for the error message.

    Raises:
        UserError: The free space is too small.
    """
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
