"""Locks that prevent two runs from writing into the same directory.

A lock is a file in the directory. The operating system releases it when its process ends, however it ends.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import (
    LOCK_PREFIX,
    OUTPUT_DIR_FLAG,
    create_directory,
    is_lock_file,
    remove_partial_files,
)

if TYPE_CHECKING:
    from filelock import FileLock

LOCK_FILE = LOCK_PREFIX
# A lock file may be deleted between opening and locking it. The library then tries again.
ACQUIRE_SECONDS = 0.05
MODE = 0o666  # users who share a directory can lock its file, if their umask allows it


class DirectoryInUse(UserError):
    """Another run holds the lock of a directory."""


@contextmanager
def lock_directory(folder: Path, is_new: bool = False) -> Iterator[Path]:
    """Create a directory if it does not exist, and lock it during the block.

    If the directory was created and is still empty at the end, it is removed. In a distributed run, the main
    process holds the lock for all ranks.

    Args:
        folder: The directory.
        is_new: Whether the caller has just created the directory and its parent.

    Raises:
        DirectoryInUse: Another run holds the lock.
        UserError: The directory cannot be created.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_lock_and_clean_up(folder, is_new)))
        yield folder


@contextmanager
def _lock_and_clean_up(folder: Path, is_new: bool) -> Iterator[None]:
    """Lock a directory in this process, and remove partial files of killed processes."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    created = created or [folder, folder.parent] * is_new
    has_lock = False
    try:
        with ExitStack() as stack:
            while not has_lock:
                create_directory(folder)
                with suppress(FileNotFoundError):  # another run has just removed the directory
                    stack.enter_context(_hold(folder / LOCK_FILE))
                    has_lock = True
            remove_partial_files(folder)
            yield
    finally:
        # Without the lock, `folder` itself belongs to another run, so only its parents may be removed.
        for path in created if has_lock else created[1:]:
            with suppress(OSError):  # not empty
                path.rmdir()


def require_unlocked(folder: Path) -> None:
    """Check that no other run holds the lock of a directory, which need not exist.

    Raises:
        DirectoryInUse: Another run holds the lock.
    """
    if distributed.is_main_process():  # the main process of the same run may hold the lock
        _remove_unlocked(folder / LOCK_FILE)


@contextmanager
def _hold(path: Path) -> Iterator[None]:
    """Hold the lock of a file during the block, and delete the file at the end.

    A file that another process has created in its place meanwhile is not deleted.
    """
    lock = _acquire(path)
    locked = _identify(path)
    try:
        yield
    finally:
        with suppress(OSError):  # not supported for an open file; the library deletes it in `release` then
            if lock.is_locked and _identify(path) == locked:
                path.unlink()
        lock.release()


def _identify(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from a later one with the same name; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _remove_unlocked(path: Path) -> None:
    """Delete the lock file of a process that was killed.

    Raises:
        DirectoryInUse: A process holds the lock.
    """
    if path.exists():
        with suppress(FileNotFoundError), _hold(path):
            pass


def _acquire(path: Path) -> "FileLock":
    """Lock a file, which is created if it does not exist.

    Raises:
        DirectoryInUse: Another process holds the lock.
        FileNotFoundError: The directory does not exist.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, mode=MODE, thread_local=False)
    try:
        lock.acquire(timeout=ACQUIRE_SECONDS)
    except Timeout as error:
        raise _create_error(path) from error
    except FileNotFoundError:
        raise
    except PermissionError as error:  # for a new file, the first write reports the problem
        if path.exists():
            raise _create_error(path) from error
    except (OSError, NotImplementedError):  # this file system has no locks
        pass
    return lock


def _create_error(path: Path) -> DirectoryInUse:
    return DirectoryInUse(
        f"{OUTPUT_DIR_FLAG} {path.parent}: another run is using this directory; wait for it, or choose "
        "another directory"
    )


def remove_if_unused(folder: Path) -> None:
    """Remove a directory that contains nothing but lock files, if the file system allows it."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    if all(is_lock_file(path.name) for path in paths):
        # Another process may use the directory, the parent may belong to another user, or a file is open.
        with suppress(OSError, DirectoryInUse):
            for path in paths:
                _remove_unlocked(path)
            folder.rmdir()
