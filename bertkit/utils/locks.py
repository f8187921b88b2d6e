"""A directory belongs to one run at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bertkit.errors import UserError
from bertkit.utils import distributed
from bertkit.utils.files import remove_partial_files


@contextmanager
def lock_directory(folder: Path) -> Iterator[Path]:
    """Make a directory, unless it is there, and keep other runs out of it; made for nothing, it goes again.

    Of several ranks the first holds it for all.

    Raises:
        UserError: it cannot be made, or another run holds it.
    """
    with ExitStack() as stack:
        distributed.on_main_process(lambda: stack.enter_context(_held(folder)))
        yield folder


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = None
    try:
        while lock is None:
            _make(folder)
            lock = _lock(folder)
        remove_partial_files(folder)
        yield
    finally:
        for path in missing if lock is not None else missing[1:]:  # not one that another made meanwhile
            with suppress(OSError):  # not empty
                path.rmdir()
        if lock is not None:
            os.close(lock)


def require_unlocked(folder: Path) -> None:
    """Refuse, before any work, a directory that another run holds."""
    if not distributed.is_main_process():  # it would meet the first rank's own lock
        return
    with suppress(OSError):  # what cannot be opened is told of where it is made
        lock = _lock(folder)
        if lock is not None:
            os.close(lock)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output-dir {folder}: cannot be made there ({error.strerror}); name another directory"
        ) from error


def _lock(folder: Path) -> int | None:
    """The directory, open and locked: that leaves no file in it, and ends with the process.

    None where it is gone: a run that left nothing took it away.
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
            f"--output-dir {folder}: another run is at work in it; wait for it, or name another directory"
        ) from error
    except OSError:  # a file system without locks
        return handle
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
    os.close(handle)
    return None
