"""The cache of computed content. Each entry is a directory, and can be deleted at any time.

An entry is named after the digest of the content that it was computed from.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bertkit.errors import UserError
from bertkit.utils.distributed import is_local_main_process
from bertkit.utils.files import (
    create_process_directory,
    expand_home,
    replace_path,
    verify_checksums,
    write_checksums,
)


def get_cache_directory() -> Path:
    """Return the directory BERTKIT_CACHE_DIR, by default `bertkit` in the user's cache directory."""
    if directory := os.environ.get("BERTKIT_CACHE_DIR"):
        return expand_home(directory)
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expand_home(user_cache) / "bertkit"


def get_or_create(kind: str, key: str, write: Callable[[Path], None]) -> Path | None:
    """Return the cache directory `kind/key`; create it if it is missing or damaged.

    `key` is the digest of the data that the content is computed from. `write` writes the content into an
    empty directory. The result is None if the cache cannot be written: a failing cache does not stop a run.
    """
    entry = get_cache_directory() / kind / key
    if entry.is_dir():
        # Ranks prepare after the first one of their machine, which has read and verified the entry.
        if not is_local_main_process() or verify_checksums(entry) is None:
            return entry
        shutil.rmtree(entry, ignore_errors=True)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=entry.parent))
    except OSError:
        return None
    try:
        write(partial)
        write_checksums(partial)
        replace_path(partial, entry)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        # Either the disk is full, or another process has created the entry in the meantime.
        return entry if verify_checksums(entry) is None else None
    return entry


def cache_or_write(kind: str, key: str, write: Callable[[Path], None], what: str) -> Path:
    """Return the cache directory `kind/key`, or a temporary directory if the cache cannot be written."""
    return get_or_create(kind, key, write) or write_to_temporary(write, what)


def write_to_temporary(write: Callable[[Path], None], what: str) -> Path:
    """Write content into a temporary directory, which is deleted when the process ends; `what` is a noun."""
    folder = create_process_directory()
    try:
        write(folder)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write {what} ({error.strerror}); set BERTKIT_CACHE_DIR to a directory with "
            "free space"
        ) from error
    return folder


def get_cache_size() -> int:
    """Return the size of the cache in bytes."""
    return sum(path.stat().st_size for path in get_cache_directory().rglob("*") if path.is_file())
