"""The cache: folders named by the content they were made from, whole or not there, safe to delete."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bertkit.utils.checksums import verify_checksums, write_checksums


def get_cache_directory() -> Path:
    """BERTKIT_CACHE_DIR, else the user's cache folder; empty counts as unset."""
    named = os.environ.get("BERTKIT_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named).expanduser() if named else Path(base).expanduser() / "bertkit"


def get_or_create(kind: str, key: str, write: Callable[[Path], None]) -> Path | None:
    """The folder `kind/key` in the cache, made by `write(folder)` the first time, and again if it is damaged.

    Returns None where the cache cannot be written: a cache is a convenience, never a reason to stop.
    """
    final = get_cache_directory() / kind / key
    if final.is_dir():
        if verify_checksums(final) is None:
            return final
        shutil.rmtree(final, ignore_errors=True)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=final.parent))
    except OSError:
        return None
    try:
        write(partial)
        write_checksums(partial)
        partial.replace(final)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, OSError):  # a full disk, or another process was first
            raise
        return final if verify_checksums(final) is None else None
    return final


def get_cache_size() -> int:
    """Bytes in the cache."""
    return sum(path.stat().st_size for path in get_cache_directory().rglob("*") if path.is_file())
