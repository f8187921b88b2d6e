"""Signals and child processes, on every operating system."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from bertkit.utils.compat import NEW_PROCESS_GROUP
from bertkit.utils.system import IS_LINUX

PR_SET_PDEATHSIG = 1  # constant of <linux/prctl.h>
WINDOWS_INTERRUPTED = 0xC000013A  # exit status of a Windows process that Ctrl-C or Ctrl-Break has ended
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141  # status that shells report for a program which SIGPIPE (13) has ended
# Requests to stop that a person or a scheduler sends. Windows sends SIGBREAK for Ctrl-Break, and when the
# console is closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
_CTRL_BREAK = getattr(signal, "CTRL_BREAK_EVENT", None)  # only on Windows


def start_process_group(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
    """Start a process in its own process group, so that Ctrl-C in the terminal does not reach it."""
    if _CTRL_BREAK is None:
        return subprocess.Popen(command, env=environment, **NEW_PROCESS_GROUP)  # noqa: S603
    # PyTorch for Windows is built without libuv, which some of its versions would use for their store.
    flags = subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
    return subprocess.Popen(  # noqa: S603
        command, env={"USE_LIBUV": "0"} | dict(environment), creationflags=flags
    )


def request_stop(process: subprocess.Popen) -> None:
    """Ask a process of `start_process_group` to stop; it can save its work."""
    if process.poll() is None:
        # On Windows, SIGTERM would end the process at once.
        process.send_signal(signal.SIGTERM if _CTRL_BREAK is None else _CTRL_BREAK)


def kill(process: subprocess.Popen) -> None:
    """End a process at once."""
    if process.poll() is None:
        process.kill()


def was_interrupted(status: int) -> bool:
    """Return whether a process with this exit status was ended by `request_stop`."""
    return status in (-signal.SIGTERM, EXIT_INTERRUPTED, WINDOWS_INTERRUPTED)


def describe_exit(status: int) -> str:
    """Return how a process ended, such as "was killed by SIGKILL"."""
    if status < 0:
        # most real-time signals have no name
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {names.get(-status, f'signal {-status}')}"
    return f"exited with status {status}"


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exit_with_parent() -> None:
    """Make this process receive SIGTERM when its parent is killed (Linux only)."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
