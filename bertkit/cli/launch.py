"""Processes and signals: `--nproc` runs a command in several processes on this machine.

torchrun does the same, but prints a long traceback if a process fails; this launcher prints one line. The
module has few imports, so that processes start quickly.
"""

import _thread
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

from bertkit.utils.distributed import LAUNCHER_VARIABLE
from bertkit.utils.system import (
    EXIT_INTERRUPTED,
    STOP_SIGNALS,
    count_cores,
    describe_exit,
    exit_with_parent,
    forget_stop_signal,
    handle_console_close,
    note_stop_signal,
    request_stop,
    start_process_group,
    was_interrupted,
)

POLL_SECONDS = 0.05
# Seconds after the failure of a rank until the other ranks are asked to stop, and then until they are killed.
GRACE_SECONDS = (3.0, 6.0)
RETRY_SECONDS = 0.05  # until a dropped interrupt is sent again
EXIT_LOST_CONNECTION = 1  # exit status of a rank that lost the connection to another rank


def launch(processes: int, device: str) -> int:
    """Run the current command line in several processes, and return the exit status."""
    from bertkit.utils.worker_processes import check_process_count  # imports multiprocessing

    check_process_count(processes, device)
    children = _start_processes(processes)
    received_signals: list[int] = []
    original_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def forward_signal(number: int, _: Any) -> None:
        for child in children:
            # The first signal may reach a child that is still importing: SIGTERM ends it without a traceback.
            request_stop(child, is_urgent=bool(received_signals) and number == signal.SIGINT)
        received_signals.append(number)

    # Each child has its own process group. Ctrl-C therefore reaches only this process.
    for number in original_handlers:
        signal.signal(number, forward_signal)
    try:
        return _wait(children, received_signals)
    finally:
        for child in children:
            child.kill()
        for number, handler in original_handlers.items():
            signal.signal(number, handler)


def _start_processes(processes: int) -> list[subprocess.Popen]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    threads = max(1, count_cores() // processes)
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), LAUNCHER_VARIABLE: str(os.getpid()),
    }  # fmt: skip
    command = [sys.executable, "-m", "bertkit", *sys.argv[1:]]
    return [
        start_process_group(command, environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]


def _wait(children: Sequence[subprocess.Popen], received_signals: Sequence[int]) -> int:
    """Wait until all processes end, and return the exit status; if one fails, terminate the others.

    The processes are in the order of their ranks. A signal handler adds the signals that are received.
    """
    while (rank := _find_failed_rank(children)) is None:
        if all(child.returncode == 0 for child in children):
            return 0
        time.sleep(POLL_SECONDS)
    status = children[rank].returncode
    ends: tuple[Callable[[Any], None], ...] = (request_stop, methodcaller("kill"))
    for end, grace in zip(ends, GRACE_SECONDS, strict=True):
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and any(child.poll() is None for child in children):
            time.sleep(POLL_SECONDS)
        for child in children:
            end(child)
    if received_signals and was_interrupted(status):
        if children[0].returncode != EXIT_INTERRUPTED:  # then rank 0 has printed no message
            print("bertkit: interrupted before training began; nothing was saved", file=sys.stderr)
        return EXIT_INTERRUPTED
    if status < 0 or status == EXIT_LOST_CONNECTION:
        print(
            f"bertkit: rank {rank}: {describe_exit(status)}, and the other ranks were stopped; "
            "if there is a checkpoint, resume with --resume",
            file=sys.stderr,
        )
        return EXIT_LOST_CONNECTION
    return status  # the failed rank has printed an error message


def _find_failed_rank(children: Sequence[subprocess.Popen]) -> int | None:
    """Return the rank that most likely failed first; None if no rank has failed.

    Ranks that were killed come first, and ranks that lost the connection to another rank come last.
    """
    statuses = {rank: status for rank, child in enumerate(children) if (status := child.poll())}
    return min(
        statuses, key=lambda rank: (statuses[rank] > 0, statuses[rank] == EXIT_LOST_CONNECTION), default=None
    )


def exit_with_launcher() -> None:
    """Make a process of `launch` receive SIGTERM when its launcher is killed (Linux only)."""
    if LAUNCHER_VARIABLE in os.environ:
        exit_with_parent()


@contextmanager
def handle_signals() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for every signal in `STOP_SIGNALS`, and do not lose any interrupt.

    Python prints and drops an exception that is raised in a finalizer (`__del__`, or the callback of a weak
    reference). A dropped interrupt is sent again until it reaches ordinary code. Outside of the main thread,
    this function does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    original_hook = sys.unraisablehook
    forget_stop_signal()

    def interrupt(number: int, frame: Any) -> None:
        if not note_stop_signal(number):
            signal.default_int_handler(number, frame)

    original_handlers = {
        number: signal.signal(number, interrupt)
        for number in STOP_SIGNALS
        if number != signal.SIGINT  # has this handler, unless the process was started in the background
    }

    def resend_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            original_hook(unraisable)
            return
        forget_stop_signal()
        timer = threading.Timer(RETRY_SECONDS, _thread.interrupt_main, [signal.SIGTERM])
        timer.daemon = True
        timer.start()

    sys.unraisablehook = resend_interrupt
    try:
        with handle_console_close():
            yield
    finally:
        sys.unraisablehook = original_hook
        for number, handler in original_handlers.items():
            signal.signal(number, handler)
