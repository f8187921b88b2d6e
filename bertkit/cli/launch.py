"""`--nproc`: several copies of the command on this machine, with one error line if a process fails.

torchrun launches processes in the same way, but prints a page of traceback. This module imports only what
starting processes needs.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.errors import UserError
from bertkit.utils.distributed import LAUNCHER_VARIABLE

POLL_SECONDS = 0.05
# After one rank fails, the others may end by themselves, then on SIGTERM, before they are killed.
GRACE_SECONDS = (3.0, 6.0)
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
EXIT_RANK_LOST = 1  # the status of a rank that lost the connection to another rank
EXIT_INTERRUPTED = 130


def launch(processes: int) -> int:
    """Run the current command line in `processes` processes and return the exit status.

    Raises:
        UserError: This machine has fewer GPUs, or fewer cores if it has no GPU.
    """
    check_process_count(processes)
    children, interrupts = _start_processes(processes), []
    original_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(*_: Any) -> None:
        interrupts.append(True)
        _send_signal(children, signal.SIGTERM)

    # The children have their own process groups, so only this process receives Ctrl-C.
    for number in original_handlers:
        signal.signal(number, interrupt)
    try:
        return _wait(children, interrupts)
    finally:
        _send_signal(children, signal.SIGKILL)
        for number, handler in original_handlers.items():
            signal.signal(number, handler)


def check_process_count(processes: int) -> None:
    """Raise `UserError` for more processes than GPUs, or than cores on a machine without a GPU."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    available = gpus or _count_cores()
    if processes > available:
        devices = f"{gpus} GPUs" if gpus else f"{available} cores and no GPU"
        raise UserError(f"--nproc {processes}: this machine has {devices}; pass at most {available}")


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_processes(processes: int) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    threads = max(1, _count_cores() // processes)
    shared: dict[str, Any] = {
        "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, LAUNCHER_VARIABLE: os.getpid(),
    }  # fmt: skip
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | _to_strings(shared)
    command = [sys.executable, "-m", "bertkit", *sys.argv[1:]]
    return [
        subprocess.Popen(  # noqa: S603
            command, env=environment | _to_strings({"RANK": rank, "LOCAL_RANK": rank}), process_group=0
        )
        for rank in range(processes)
    ]


def _to_strings(values: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _send_signal(children: Sequence[subprocess.Popen], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _wait(children: Sequence[subprocess.Popen], interrupts: Sequence[bool]) -> int:
    """Wait until all processes end, or end the others after one fails; return the exit status.

    Args:
        children: The processes, by rank.
        interrupts: Not empty once this process received a signal.
    """
    while (rank := _find_failed_rank(children)) is None:
        if all(child.returncode == 0 for child in children):
            return 0
        time.sleep(POLL_SECONDS)
    status = children[rank].returncode
    _terminate(children)
    if interrupts and status in (-signal.SIGTERM, EXIT_INTERRUPTED):
        return _report_interrupt(children)
    if status < 0 or status == EXIT_RANK_LOST:
        return _report_failed_rank(rank, status)
    return status  # the failed rank has printed its own error


def _terminate(children: Sequence[subprocess.Popen]) -> None:
    for number, grace in zip((signal.SIGTERM, signal.SIGKILL), GRACE_SECONDS, strict=True):
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(child.poll() is None for child in children):
            time.sleep(POLL_SECONDS)
        _send_signal(children, number)


def _find_failed_rank(children: Sequence[subprocess.Popen]) -> int | None:
    """Return the rank that failed first, as far as the exit statuses show it.

    A rank that was killed comes before a rank that ended by itself. A rank that lost another one comes last.
    """
    statuses = {rank: status for rank, child in enumerate(children) if (status := child.poll())}
    return min(
        statuses,
        key=lambda rank: (statuses[rank] > 0, statuses[rank] == EXIT_RANK_LOST),
        default=None,
    )


def _report_interrupt(children: Sequence[subprocess.Popen]) -> int:
    """Return the status of an interrupted run; print a message if rank 0 could not print its own."""
    if children[0].returncode != EXIT_INTERRUPTED:
        print("bertkit: interrupted before training began; nothing was saved", file=sys.stderr)
    return EXIT_INTERRUPTED


def _report_failed_rank(rank: int, status: int) -> int:
    problem = (
        f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    )
    print(
        f"bertkit: rank {rank}: {problem}, and the other ranks were stopped; "
        "if there is a checkpoint, resume with --resume",
        file=sys.stderr,
    )
    return EXIT_RANK_LOST


def exit_with_launcher() -> None:
    """Have the kernel send SIGTERM to a launched process if its launcher is killed (Linux only)."""
    if LAUNCHER_VARIABLE in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
