"""Run commands of `bertkit` on Linux without what Windows lacks.

For modules of bertkit and of filelock, modules, functions and signals of POSIX are absent. Other packages
test for `sys.platform`, so they keep them. Processes are spawned, and files obey rules of Windows: an open
file can neither be renamed, replaced nor deleted, and some names are invalid. Opening a file in text mode
without an encoding is an error in modules of bertkit.

`python -X warn_default_encoding tests/simulated_windows.py COMMANDS` reads commands from a JSON
file and prints their exit statuses. A command is a list of arguments. If the first one is a number, Ctrl-C
interrupts the command after this training step.
"""

import builtins
import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"}
ABSENT = {
    "os": {
        "fork", "forkpty", "register_at_fork", "symlink", "getuid", "geteuid", "getgid", "getegid", "getpgid",
        "killpg", "setsid", "setpgid", "uname", "mkfifo", "sched_getaffinity", "getloadavg", "chown",
        "O_NONBLOCK", "statvfs", "pread", "posix_spawn",
    },
    "signal": {
        "SIGKILL", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGSTOP",
        "alarm", "setitimer", "pthread_kill", "pthread_sigmask",
    },
}  # fmt: skip
AFFECTED = ("bertkit", "filelock")
INVALID_NAME = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
SHARING_VIOLATION, INVALID_PATH = 32, 123  # error codes of Windows
MAX_LENGTH = 259  # characters of a path, with a home directory of 60 characters
HOME_LENGTH = 60


def is_affected(frame: Any) -> bool:
    """Return whether code belongs to a package for which POSIX is absent."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in AFFECTED


class PartialModule(types.ModuleType):
    """A module without some of its attributes, for the code of some packages."""

    def __getattribute__(self, name: str) -> Any:
        if name in ABSENT.get(super().__getattribute__("__name__"), ()) and is_affected(sys._getframe(1)):
            raise AttributeError(f"{name} does not exist on Windows")
        return super().__getattribute__(name)


def remove_posix() -> None:
    """Remove modules, functions and signals of POSIX for some packages, and `fork` for all."""
    original_import = builtins.__import__

    def import_module(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in MODULES and is_affected(sys._getframe(1)):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original_import(name, *args, **kwargs)

    builtins.__import__ = import_module
    os.__class__ = signal.__class__ = PartialModule  # type: ignore[misc,assignment]
    for method in ("fork", "forkserver"):
        multiprocessing.context._concrete_contexts.pop(method)  # type: ignore[attr-defined]
    multiprocessing.set_start_method("spawn", force=True)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]


def list_open_files(root: str) -> set[str]:
    """Return the paths of the files in a directory that this process has open or mapped into memory."""
    files = set()
    for link in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{link}")
            if stat.S_ISREG(os.stat(f"/proc/self/fd/{link}").st_mode):
                files.add(target)
        except OSError:  # the descriptor of the directory itself
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files |= {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if f" {root}" in line}
    return {file for file in files if file.startswith(root + os.sep)}


def fail(code: int, path: Any) -> None:
    """Raise the error of Windows with this code."""
    error = PermissionError(13, "The process cannot access the file", str(path))
    error.winerror = code  # type: ignore[attr-defined]
    raise error


class FileRules:
    """An audit hook that enforces rules of Windows for files in a directory.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root.resolve())
        self.is_active = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Check an operation on a file before it is carried out."""
        if self.is_active or event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            return
        self.is_active = True
        try:
            self._check(event, arguments)
        finally:
            self.is_active = False

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        paths = [os.fsdecode(path) for path in arguments[: 2 if event == "os.rename" else 1]
                 if isinstance(path, (str, bytes, os.PathLike))]  # fmt: skip
        paths = [
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)) for path in paths
        ]
        paths = [path for path in paths if path.startswith(self.root + os.sep)]
        if event in ("open", "os.mkdir", "os.rename"):
            for path in paths:
                self._check_name(path)
        if paths and event in ("os.rename", "os.remove", "os.rmdir"):
            open_files = list_open_files(self.root)
            for path in paths:
                if any(file == path or file.startswith(path + os.sep) for file in open_files):
                    fail(SHARING_VIOLATION, path)

    def _check_name(self, path: str) -> None:
        relative = os.path.relpath(path, self.root)
        is_invalid = any(INVALID_NAME.search(part) for part in relative.split(os.sep))
        folder, name = os.path.split(path)
        others = os.listdir(folder) if os.path.isdir(folder) else []
        has_twin = name not in others and name.lower() in {other.lower() for other in others}
        if is_invalid or has_twin or HOME_LENGTH + len(relative) > MAX_LENGTH:
            fail(INVALID_PATH, path)


def run(arguments: list[Any]) -> int:
    """Run a command of bertkit and return its exit status."""
    from bertkit.cli.app import main
    from bertkit.training.callbacks import ReporterCallback

    last_step = arguments.pop(0) if isinstance(arguments[0], int) else None
    on_step_end = ReporterCallback.on_step_end

    def interrupt(callback: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        on_step_end(callback, args, state, control, **kwargs)
        if state.global_step == last_step:
            signal.raise_signal(signal.SIGINT)

    ReporterCallback.on_step_end = interrupt  # type: ignore[method-assign]
    sys.argv = ["bertkit", *arguments]
    try:
        main()
    except SystemExit as error:
        return int(error.code or 0)
    finally:
        ReporterCallback.on_step_end = on_step_end  # type: ignore[method-assign]
    return 0


if __name__ == "__main__":
    remove_posix()
    from bertkit.utils.system import postpone_collection

    postpone_collection()  # before torch is imported, as the command line does
    # imports filelock, which must not find fcntl
    from conftest import costly_parts, freeze_libraries, make_runs_cheap

    sys.addaudithook(FileRules(Path.cwd()))
    warnings.filterwarnings("error", category=EncodingWarning, module="bertkit")
    make_runs_cheap(pytest.MonkeyPatch())
    for command in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        with costly_parts(*["charts"] * (command[0] == "report")):
            print("exit status", run(command), flush=True)
        freeze_libraries()
