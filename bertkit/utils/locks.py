"""Locks that prevent two runs from writing into the same directory.

A lock is a file in the directory. The operating system releases it when its process ends, however it ends.
"""

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import LOCK_FILE, OUTPUT_DIR_FLAG, PARTIAL, create_directory

# Seconds until a new file of another host appears. NFS caches the entries of a directory.
MAX_DELAY_SECONDS = 10.0


class DirectoryInUse(UserError):
    """Another run holds the lock of a directory."""


@contextmanager
def lock_directory(folder: Path, is_new: bool = False) -> Iterator[Path]:
    """Create a directory if it does not exist, and lock it during the block.

    If the directory was created (by the caller, with its parent, if it is new) and is still empty at the end,
    it is removed. In a distributed run, the main process holds the lock for all ranks, all of which must see
    the directory.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_lock_and_clean_up(folder, is_new)))
        if distributed.has_several_hosts():
            _require_shared(folder)
        yield folder


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise UserError(
            f"{OUTPUT_DIR_FLAG} {path.parent}: cannot be written ({error.strerror}); choose another directory"
        ) from error


def _require_shared(folder: Path) -> None:
    """Check that all hosts of the run see a new file of the main process in the directory."""
    (name, *_) = distributed.gather_object(f".{uuid.uuid4().hex}-hosts{PARTIAL}")
    try:
        distributed.on_main_process(_touch, folder / name)
        deadline = time.monotonic() + MAX_DELAY_SECONDS
        with distributed.raise_on_all_ranks():
            # `exists` may read a stale cache of NFS
            while not (folder.is_dir() and any(path.name == name for path in folder.iterdir())):
                if time.monotonic() > deadline:
                    raise distributed.name_host(UserError(
                        f"{OUTPUT_DIR_FLAG} {folder}: this is another directory than that of rank 0; choose "
                        "a directory on a file system that all hosts share"
                    ))  # fmt: skip
                time.sleep(0.1)
    finally:
        if distributed.get_rank() == 0:
            (folder / name).unlink(missing_ok=True)


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
            for path in folder.glob(f".*-*{PARTIAL}"):  # of `replace_file`
                shutil.rmtree(path, ignore_errors=True)  # if permission is missing, the next write reports it
            yield
    finally:
        # Without the lock, `folder` itself belongs to another run, so only its parents may be removed.
        for path in created if has_lock else created[1:]:
            with suppress(OSError):  # not empty
                path.rmdir()


def require_unlocked(folder: Path) -> None:
    """Check that no other run holds the lock of a directory, which need not exist."""
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
    """Delete the lock file of a process that was killed; raise `DirectoryInUse` if a process holds it."""
    if path.exists():
        with suppress(FileNotFoundError), _hold(path):
            pass


def _acquire(path: Path) -> Any:
    """Return a `FileLock` of a file in an existing directory, or raise `DirectoryInUse`."""
    from filelock import FileLock, Timeout  # slow, and not needed for `--help`

    # Users who share a directory can lock its file, if their umask allows it.
    lock = FileLock(path, mode=0o666, thread_local=False)
    try:
        # A lock file may be deleted between opening and locking it. The library then tries again.
        lock.acquire(timeout=0.05)
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError) as error:
        # Without permission for a new file, the first write reports the problem. For all other errors, this
        # file system has no locks.
        if isinstance(error, Timeout) or (isinstance(error, PermissionError) and path.exists()):
            raise DirectoryInUse(
                f"{OUTPUT_DIR_FLAG} {path.parent}: another run is using this directory; wait for it, or "
                "choose another directory"
            ) from error
    return lock


def remove_if_unused(folder: Path) -> None:
    """Remove a directory that contains nothing but lock files, if the file system allows it."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    if all(path.name.startswith(LOCK_FILE) for path in paths):
        # Another process may use the directory, the parent may belong to another user, or a file is open.
        with suppress(OSError, DirectoryInUse):
            for path in paths:
                _remove_unlocked(path)
            folder.rmdir()
