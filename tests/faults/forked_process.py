"""A forked `bertkit ARGS` that reports the phase it is in."""

import gc
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

from bertkit.cli.app import main as command_line

TIMEOUT = 300  # seconds until a process counts as hanging
PHASES = {  # phase -> the function that starts it
    "training": "transformers.Trainer._inner_training_loop",
    "a checkpoint": "bertkit.training.trainer.BertkitTrainer._save_checkpoint",
    "scoring": "bertkit.training.scoring.predict_logits",
    "the run directory": "bertkit.run.session.Session.write_model",
}


@dataclass
class ForkedProcess:
    """A forked `bertkit ARGS`.

    Attributes:
        pid: process ID.
        phase_pipe: file descriptor from which the phases are read.
        output_file: everything the process prints.
        status: exit status, once it is known.
    """

    pid: int
    phase_pipe: int
    output_file: Path
    status: int | None = None

    def wait(self) -> int:
        """Wait for the exit status, which is negative if a signal ended the process."""
        deadline = time.monotonic() + TIMEOUT
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                deadline += TIMEOUT
            else:
                time.sleep(0.005)
        return self.status

    def wait_for_phase(self, phase: str, times: int = 1) -> bool:
        """Wait until a phase has begun this many times; return False if the process ends before."""
        count = 0
        while line := _read_line(self.phase_pipe):
            count += line == phase
            if count == times:
                return True
        return False

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.status is None:
            os.kill(self.pid, number)

    @property
    def last_line(self) -> str:
        """The last line of its output."""
        return (self.output_file.read_text("utf-8", "replace").strip().splitlines() or [""])[-1]


def import_recorded_modules() -> None:
    """Import the modules that the last process imported, so that the next forks have them.

    Garbage collection ignores them. In a fork, it would otherwise copy the memory of all their objects.
    """
    for name in _modules().read_text().split("\n"):
        with suppress(ImportError, AttributeError):
            importlib.import_module(name)
    gc.freeze()


def _modules() -> Path:
    return Path(tempfile.gettempdir()) / "modules"


def _read_line(handle: int) -> str:
    line = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def start_bertkit(args: list[str], before: Callable[[], object] | None = None) -> ForkedProcess:
    """Start `bertkit ARGS` in a fork, and call `before` in it first."""
    read_end, write_end = os.pipe()
    printed = Path(tempfile.mkstemp(prefix="printed-")[1])
    pid = os.fork()
    if pid:
        os.close(write_end)
        return ForkedProcess(pid, read_end, printed)
    status = 1
    try:
        os.close(read_end)
        with printed.open("w") as out, redirect_stdout(out), redirect_stderr(out):
            _report_phases(write_end)
            if before:
                before()
            sys.argv = ["bertkit", *args]
            try:
                command_line()
            except SystemExit as end:
                status = end.code
            finally:
                traceback.print_exc() if status == 1 else None
                _modules().write_text("\n".join(sys.modules))
    finally:
        os._exit(status)


def _report_phases(pipe: int) -> None:
    """Patch the functions of all phases to write the phase into a pipe."""
    for phase, name in PHASES.items():
        owner, _, last = name.rpartition(".")
        try:
            place = importlib.import_module(owner)
        except ModuleNotFoundError:
            module, _, kind = owner.rpartition(".")
            place = getattr(importlib.import_module(module), kind)
        setattr(place, last, _report_call(getattr(place, last), phase, pipe))


def _report_call(function: Callable, phase: str, pipe: int) -> Callable:
    def patched(*args: object, **kwargs: object) -> object:
        os.write(pipe, f"{phase}\n".encode())
        return function(*args, **kwargs)

    return patched
