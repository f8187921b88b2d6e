"""Locks that prevent two runs from writing into the same directory."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import remove_partial_files
from bertkit.utils.output_paths import OUTPUT_DIR_FLAG, create_directory

POLL_SECONDS = 0.2


class DirectoryInUse(UserError):
    """Another run holds the lock of a directory."""


@contextmanager
def lock_directory(folder: Path) -> Iterator[Path]:
    """Create a directory if it does not exist, and lock it during the block.

    If the directory was created and is still empty at the end, it is removed. In a distributed run, the main
    process holds the lock for all ranks.

    Raises:
        DirectoryInUse: Another run holds the lock.
        UserError: The directory cannot be created.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_lock_and_clean_up(folder)))
        yield folder


@contextmanager
def _lock_and_clean_up(folder: Path) -> Iterator[None]:
    """Lock a directory in this process, and remove partial files of killed processes."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = None
    try:
        while lock is None:
            create_directory(folder)
            lock = _acquire_lock(folder)
        remove_partial_files(folder)
        yield
    finally:
        # Without the lock, `folder` itself belongs to another run, so only its parents may be removed.
        removable = created if lock is not None else created[1:]
        for path in removable:
            with suppress(OSError):  # not empty
                path.rmdir()
        if lock is not None:
            os.close(lock)


@contextmanager
def wait_for_lock(folder: Path) -> Iterator[None]:
    """Lock a directory during the block, after waiting for other processes to release it."""
    with ExitStack() as stack:
        while not try_lock(stack, folder):
            time.sleep(POLL_SECONDS)
        yield


def try_lock(stack: ExitStack, folder: Path) -> bool:
    """Lock a directory until the stack is closed; return whether that succeeded."""
    try:
        stack.enter_context(lock_directory(folder))
    except DirectoryInUse:
        return False
    return True


def require_unlocked(path: Path) -> None:
    """Check that no other run holds a lock of a directory, or of a file in the directory of several runs.

    Raises:
        DirectoryInUse: Another run holds a lock.
    """
    if not distributed.is_main_process():  # the main process of the same run may hold the lock
        return
    with suppress(OSError):  # if the directory is not readable, `lock_directory` reports it
        lock = _acquire_lock(path)
        if lock is not None:
            os.close(lock)


@contextmanager
def share_lock(file: Path) -> Iterator[None]:
    """Hold a shared lock of a file during the block; several processes can hold it at the same time.

    Raises:
        DirectoryInUse: A process is replacing the file.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_share_lock(file)))
        yield


@contextmanager
def _share_lock(file: Path) -> Iterator[None]:
    lock = _acquire_lock(file, fcntl.LOCK_SH)
    if lock is None:
        raise _make_error(file)
    try:
        yield
    finally:
        os.close(lock)


def _make_error(path: Path) -> DirectoryInUse:
    folder = path if path.is_dir() else path.parent
    return DirectoryInUse(
        f"{OUTPUT_DIR_FLAG} {folder}: another run is using this directory; wait for it, or choose another "
        "directory"
    )


def _acquire_lock(path: Path, operation: int = fcntl.LOCK_EX) -> int | None:
    """Open and lock a directory or a file.

    A lock on the directory itself needs no lock file, and ends with the process.

    Args:
        path: The directory or the file.
        operation: The kind of lock, as for `fcntl.flock`.

    Returns:
        The file descriptor, or None if the path does not exist because another run has removed it.

    Raises:
        DirectoryInUse: Another run holds the lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _make_error(path) from error
    except OSError:  # the file system does not support locks
        return descriptor
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    os.close(descriptor)
    return None
