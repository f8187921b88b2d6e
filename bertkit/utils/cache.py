"""The cache: directories named after the content they were computed from. Deleting any of them is safe."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bertkit.utils.files import verify_checksums, write_checksums


def get_cache_directory() -> Path:
    """Return BERTKIT_CACHE_DIR, or by default the directory `bertkit` in the user's cache directory.

    An empty variable counts as unset.
    """
    directory = os.environ.get("BERTKIT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(directory).expanduser() if directory else Path(base).expanduser() / "bertkit"


def get_or_create(kind: str, key: str, write: Callable[[Path], None]) -> Path | None:
    """Return the directory `kind/key` of the cache.

    Args:
        kind: Kind of content, such as "vectors".
        key: Digest of what the content is computed from.
        write: Writes the content into an empty directory. Called if the directory is missing or damaged.

    Returns:
        The directory, or None if the cache cannot be written. A failing cache never stops a run.
    """
    entry = get_cache_directory() / kind / key
    if entry.is_dir():
        if verify_checksums(entry) is None:
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
        partial.replace(entry)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        # The disk is full, or another process created the entry first.
        return entry if verify_checksums(entry) is None else None
    return entry


def get_cache_size() -> int:
    """Return the size of the cache in bytes."""
    return sum(path.stat().st_size for path in get_cache_directory().rglob("*") if path.is_file())
