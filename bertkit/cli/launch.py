"""`--nproc`: the command again in several processes of this machine, and one line where one of them dies.

torchrun does the same, and prints a page. Nothing is loaded here but what starts processes.
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

POLL_SECONDS = 0.05  # seconds
GRACE_SECONDS = (
    3.0,
    6.0,
)  # seconds after one has failed in which others may end by themselves, or are asked to
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
EXIT_RANK_LOST = 1  # what a rank ends with, where another one is gone
EXIT_INTERRUPTED = 130


def launch(processes: int) -> int:
    """Run this very command in so many processes, and give the status it ends with.

    Raises:
        UserError: this machine has not as many devices, or cores.
    """
    check_process_count(processes)
    children, asked = _started(processes), []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: Any) -> None:
        asked.append(True)
        _send(children, signal.SIGTERM)  # as Ctrl-C; one that has just begun ends at once, without a word

    for number in before:  # they have a process group of their own, so Ctrl-C comes here alone
        signal.signal(number, stop)
    try:
        return _status(children, asked)
    finally:
        _send(children, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)


def check_process_count(processes: int) -> None:
    """Refuse more processes than there are GPUs, or cores where there is none."""
    devices = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if processes > (devices or _cores()):
        there = f"{devices} GPUs" if devices else f"{_cores()} cores, and no GPU"
        raise UserError(f"--nproc {processes}: this machine has {there}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started(processes: int) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = max(1, _cores() // processes)
    shared: dict[str, Any] = {
        "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, LAUNCHER_VARIABLE: os.getpid(),
    }  # fmt: skip
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | _texts(shared)
    command = [sys.executable, "-m", "bertkit", *sys.argv[1:]]
    return [
        subprocess.Popen(  # noqa: S603
            command, env=environment | _texts({"RANK": rank, "LOCAL_RANK": rank}), process_group=0
        )
        for rank in range(processes)
    ]


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _send(children: Sequence[subprocess.Popen], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _stopped(children: Sequence[subprocess.Popen]) -> int:
    """The status of a run that was asked to stop; who tells of it otherwise is the first rank."""
    if children[0].returncode != EXIT_INTERRUPTED:
        print("bertkit: stopped before it began; nothing was kept", file=sys.stderr)
    return EXIT_INTERRUPTED


def _status(children: Sequence[subprocess.Popen], asked: Sequence[bool]) -> int:
    """Wait for all; where one fails, for the others a few seconds. `asked`: by a signal, to stop."""
    while (rank := _failed(children)) is None:
        if all(child.returncode == 0 for child in children):
            return 0
        time.sleep(POLL_SECONDS)
    how = children[rank].returncode
    for number, grace in zip((signal.SIGTERM, signal.SIGKILL), GRACE_SECONDS, strict=True):
        stop = time.monotonic() + grace
        while time.monotonic() < stop and any(child.poll() is None for child in children):
            time.sleep(POLL_SECONDS)
        _send(children, number)
    if asked and how in (-signal.SIGTERM, EXIT_INTERRUPTED):
        return _stopped(children)
    return _told(rank, how) if how < 0 or how == EXIT_RANK_LOST else how


def _failed(children: Sequence[subprocess.Popen]) -> int | None:
    """The rank that failed; of several since the last look one that was killed, not one that lost another."""
    codes = {rank: code for rank, child in enumerate(children) if (code := child.poll())}
    return min(codes, key=lambda rank: (codes[rank] > 0, codes[rank] == EXIT_RANK_LOST), default=None)


def _told(rank: int, status: int) -> int:
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    ways = "--resume goes on from the last checkpoint, where there is one"
    print(f"bertkit: rank {rank} {how}, and the others were stopped; {ways}", file=sys.stderr)
    return EXIT_RANK_LOST


def exit_with_launcher() -> None:
    """In such a process: have it stop, as at SIGTERM, where the one that started it is killed (on Linux)."""
    if LAUNCHER_VARIABLE in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
