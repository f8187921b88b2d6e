"""Locks that keep two runs from writing into the same directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import remove_partial_files
from bertkit.utils.output_paths import OUTPUT_DIR_FLAG, create_directory


@contextmanager
def lock_directory(folder: Path) -> Iterator[Path]:
    """Create a directory if it does not exist, and lock it; remove it at the end if it is still empty.

    In a distributed run the main process holds the lock for all.

    Raises:
        UserError: The directory cannot be created, or another run holds the lock.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_lock_and_clean_up(folder)))
        yield folder


@contextmanager
def _lock_and_clean_up(folder: Path) -> Iterator[None]:
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = None
    try:
        while lock is None:
            create_directory(folder)
            lock = _acquire_lock(folder)
        remove_partial_files(folder)
        yield
    finally:
        # Without the lock, the directory itself belongs to the run that created it meanwhile.
        for path in created if lock is not None else created[1:]:
            with suppress(OSError):  # not empty
                path.rmdir()
        if lock is not None:
            os.close(lock)


def require_unlocked(folder: Path) -> None:
    """Check that no other run holds the lock of a directory.

    Raises:
        UserError: Another run holds it.
    """
    if not distributed.is_main_process():  # the main process of the same run may hold the lock
        return
    with suppress(OSError):  # an unreadable directory is reported when it is created
        lock = _acquire_lock(folder)
        if lock is not None:
            os.close(lock)


def _acquire_lock(folder: Path) -> int | None:
    """Open and lock the directory itself: this leaves no lock file, and the lock ends with the process.

    Returns:
        The file descriptor, or None if another run removed the directory meanwhile.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UserError(
            f"{OUTPUT_DIR_FLAG} {folder}: another run is using this directory; wait for it, or choose "
            "another directory"
        ) from error
    except OSError:  # the file system does not support locks
        return handle
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
    os.close(handle)
    return None
