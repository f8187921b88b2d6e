"""A forked `bertkit ARGS`, which tells what it is at."""

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

TIMEOUT = 300  # seconds until a process that hangs is a fault of its own
PHASES = {  # what a process is at -> the function in which it is
    "training": "transformers.Trainer._inner_training_loop",
    "a checkpoint": "bertkit.training.trainer.BertkitTrainer._save_checkpoint",
    "scoring": "bertkit.training.scoring.predict_logits",
    "the run directory": "bertkit.pipeline.run._write_model",
}


@dataclass
class ForkedProcess:
    """A forked `bertkit ARGS`: its number, where it tells of phases, and what it prints."""

    pid: int
    phase_pipe: int
    output_file: Path
    status: int | None = None

    def wait(self) -> int:
        """Its exit status; minus the signal that ended it."""
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
        """Wait until it is in a phase for so many times; False: it ended before."""
        seen = 0
        while line := _line(self.phase_pipe):
            seen += line == phase
            if seen == times:
                return True
        return False

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is gone."""
        if self.status is None:
            os.kill(self.pid, number)

    @property
    def last_line(self) -> str:
        """The last that it printed."""
        return (self.output_file.read_text("utf-8", "replace").strip().splitlines() or [""])[-1]


def import_recorded_modules() -> None:
    """What the last process imported, so that the next ones have it already."""
    for name in _modules().read_text().split("\n"):
        with suppress(ImportError, AttributeError):
            importlib.import_module(name)


def _modules() -> Path:
    return Path(tempfile.gettempdir()) / "modules"


def _line(handle: int) -> str:
    found = b""
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        found += byte
    return found.decode()


def start_bertkit(args: list[str], before: Callable[[], object] | None = None) -> ForkedProcess:
    """Start `bertkit ARGS` in a fork; `before` happens in it first."""
    told, tell = os.pipe()
    printed = Path(tempfile.mkstemp(prefix="printed-")[1])
    pid = os.fork()
    if pid:
        os.close(tell)
        return ForkedProcess(pid, told, printed)
    status = 1
    try:
        os.close(told)
        with printed.open("w") as out, redirect_stdout(out), redirect_stderr(out):
            _announce(tell)
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


def _announce(tell: int) -> None:
    """Have the functions of phases tell when they are called."""
    for phase, name in PHASES.items():
        owner, _, last = name.rpartition(".")
        try:
            place = importlib.import_module(owner)
        except ModuleNotFoundError:
            module, _, kind = owner.rpartition(".")
            place = getattr(importlib.import_module(module), kind)
        setattr(place, last, _telling(getattr(place, last), phase, tell))


def _telling(function: Callable, phase: str, tell: int) -> Callable:
    def told(*args: object, **named: object) -> object:
        os.write(tell, f"{phase}\n".encode())
        return function(*args, **named)

    return told
