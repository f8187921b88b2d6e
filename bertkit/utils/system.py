"""The operating system, memory, processes and the variables of launchers.

Only modules of `bertkit.utils` distinguish operating systems; the others call them.
"""

import _thread
import ctypes
import gc
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import psutil

from bertkit.utils.compat import NEW_PROCESS_GROUP

IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
IS_WINDOWS = sys.platform == "win32"
# The C++ compiler that PyTorch uses unless the environment variable CXX names another one.
DEFAULT_COMPILER = "cl" if IS_WINDOWS else "clang++" if IS_MACOS else "g++"

# Devices, with any suffix; names whose end Windows removes; characters that no name may contain.
INVALID_WINDOWS_NAME = re.compile(
    r'(con|prn|aux|nul|com\d|lpt\d) *(\..*)?|.*[. ]|.*[<>:"|?*\x00-\x1f].*', re.IGNORECASE | re.DOTALL
)


def find_invalid_name(path: PurePath) -> str | None:
    """Return the part of a path that Windows does not accept or changes. On other systems, return None."""
    if not IS_WINDOWS:
        return None
    windows_path = PureWindowsPath(path)
    names = [name for name in windows_path.parts if name not in (windows_path.anchor, "..")]
    return next((name for name in names if INVALID_WINDOWS_NAME.fullmatch(name)), None)


def can_run_compiler(compiler: str) -> bool:
    """Return whether a C++ compiler runs."""
    arguments = [] if IS_WINDOWS else ["--version"]  # cl prints its version without arguments
    try:
        subprocess.run([compiler, *arguments], capture_output=True, check=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


# ---- memory and threads

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3) in glibc
MAX_BYTES = 2**31 - 1  # the largest int, the type of the values of mallopt


def keep_freed_memory() -> bool:
    """Make the C library reuse freed memory instead of returning it to the operating system.

    glibc returns large buffers to the operating system when they are freed. The kernel then fills the pages
    of the next buffer with zeros, which takes up to a quarter of the time of a training step on a CPU. Other
    libraries do not support this: nothing changes, and the result is false.
    """
    libc = ctypes.CDLL(None) if IS_LINUX else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        return False
    thresholds = (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)
    return all(libc.mallopt(threshold, MAX_BYTES) == 1 for threshold in thresholds)


# PyTorch computes with several threads, and OpenMP's threads wait for each other at the end of each operator.
# They spin (loop without work) before they sleep: in GNU's runtime (libgomp, in PyTorch's wheels for Linux)
# 300,000 iterations, about 5 to 10 ms, and in Intel's and LLVM's (macOS, Windows, conda) 200 ms. A spinning
# thread takes a core from another process. Without spinning, each operator would wake up sleeping threads.
SPIN_LIMITS = {
    "GOMP_SPINCOUNT": "1000",  # iterations, about 20 to 30 microseconds
    "KMP_BLOCKTIME": "0",  # milliseconds; LLVM 14 refuses smaller units, and 1 ms is too long
}
# Variables with which users set the same: the limits then keep the defaults of the runtime.
USER_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Limit the spinning of OpenMP's waiting threads, unless the user has set it.

    A runtime reads the variables when it is loaded. After the import of torch, they have no effect on this
    process, so they are not set.
    """
    if "torch" in sys.modules or any(name in environment for name in USER_VARIABLES):
        return
    environment.update(SPIN_LIMITS)


def silence_native_warnings(environment: MutableMapping[str, str] = os.environ) -> None:
    """Hide the warnings of PyTorch's C++ code, unless the user has set their level. Errors are still shown.

    PyTorch reads the variable when it is loaded. With several processes, each would print a warning about a
    setting of Trainer.
    """
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def get_peak_memory() -> int:
    """Return the peak memory use of this process in bytes, or its current use if the peak is unknown."""
    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return int(memory.peak_wset)
    try:
        import resource
    except ImportError:
        return int(memory.rss)
    unit = 1 if IS_MACOS else 1024  # ru_maxrss is in bytes on macOS, and in KiB on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def get_process_seconds() -> float:
    """Return the seconds since this process was started.

    psutil takes the time when the system was booted, which Linux gives in whole seconds, as their origin.
    """
    if not IS_LINUX:
        return time.time() - psutil.Process().create_time()
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    start = int(fields[19])  # in ticks since the system was booted
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")


# ---- garbage collection

# Number of new objects after which garbage is collected. The libraries create fewer. Without a limit, garbage
# could fill the memory.
STARTUP_THRESHOLD = 1_000_000
_default_thresholds = gc.get_threshold()


def postpone_collection() -> None:
    """Postpone garbage collection until `resume_collection`, unless torch is imported already.

    Only the command line calls this, because the setting holds for the whole process.
    """
    if "torch" not in sys.modules:
        gc.set_threshold(STARTUP_THRESHOLD, *_default_thresholds[1:])


def resume_collection() -> None:
    """Collect garbage as usual again, but ignore all current objects, because nearly all of them are needed.

    This does nothing if collection is not postponed: the garbage of a notebook must not be ignored.
    """
    if gc.get_threshold()[0] == STARTUP_THRESHOLD:
        gc.freeze()
        gc.set_threshold(*_default_thresholds)


# ---- the console and processes

# Events that end the process as soon as their handler returns: the window is closed, the user logs off, and
# the system shuts down.
END_EVENTS = (2, 5, 6)
MAX_WAIT_SECONDS = 30.0  # longer than Windows waits for a handler


@contextmanager
def handle_console_close() -> Iterator[None]:
    """Raise `KeyboardInterrupt` in the main thread when the console is closed during the block.

    Windows ends the process when the handler of such an event returns, or after some seconds. The handler
    waits, so that the main thread can save a checkpoint. On other systems, the terminal sends a signal.
    """
    windows = getattr(ctypes, "windll", None)
    if windows is None:
        yield
        return
    handler_type = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)  # type: ignore[attr-defined]
    handler = handler_type(_handle_event)
    windows.kernel32.SetConsoleCtrlHandler(handler, True)
    try:
        yield
    finally:
        windows.kernel32.SetConsoleCtrlHandler(handler, False)


def _handle_event(event: int, sleep: Any = time.sleep) -> bool:
    """Handle an event, in a thread that Windows starts; return whether no other handler is needed."""
    if event not in END_EVENTS:
        return False
    _thread.interrupt_main(signal.SIGTERM)
    sleep(MAX_WAIT_SECONDS)
    return True


PR_SET_PDEATHSIG = 1  # constant of <linux/prctl.h>
WINDOWS_INTERRUPTED = 0xC000013A  # exit status of a Windows process that Ctrl-C or Ctrl-Break has ended
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_CLOSED = 141  # status that shells report for a program which SIGPIPE (13) has ended
# Requests to stop that a person or a scheduler sends. Slurm sends SIGUSR1 before the end of a job if the job
# asks for it. Windows sends SIGBREAK for Ctrl-Break, and when the console is closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGBREAK") if hasattr(signal, name)
)
REPEAT_SECONDS = 5.0
_last_stop_signal = -math.inf  # when it arrived


def note_stop_signal(number: int) -> bool:
    """Return whether a signal of `STOP_SIGNALS` only repeats the previous one; each Ctrl-C is a new request.

    Slurm signals every process of a job. torchrun is one of them, and signals its own processes again.
    """
    global _last_stop_signal
    now, previous = time.monotonic(), _last_stop_signal
    _last_stop_signal = now
    return number != signal.SIGINT and now - previous < REPEAT_SECONDS


def forget_stop_signal() -> None:
    """Treat the next signal as a new request."""
    global _last_stop_signal
    _last_stop_signal = -math.inf


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


def leave_process_group() -> None:
    """Give this process a group of its own, so that Ctrl-C in the terminal does not reach it.

    On Windows, where this is possible only when a process is started, Ctrl-C reaches it.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def request_stop(process: subprocess.Popen, is_urgent: bool = False) -> None:
    """Ask a process of `start_process_group` to stop; it can save its work.

    A request that `is_urgent` never counts as a repetition of the one before: see `note_stop_signal`.
    """
    if process.poll() is None:
        # On Windows, SIGTERM would end the process at once.
        stop = signal.SIGINT if is_urgent else signal.SIGTERM
        process.send_signal(stop if _CTRL_BREAK is None else _CTRL_BREAK)


def was_interrupted(status: int) -> bool:
    """Return whether a process with this exit status was ended by `request_stop`."""
    return status in (-signal.SIGTERM, -signal.SIGINT, EXIT_INTERRUPTED, WINDOWS_INTERRUPTED)


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


# ---- the environment of a launcher


def read_int(name: str, default: int) -> int:
    """Return the value of an environment variable, or the default if it is not a number."""
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def get_launched_world_size() -> int:
    """Return the number of processes that were started for this run."""
    return read_int("WORLD_SIZE", 1) if "RANK" in os.environ else 1


def get_local_rank() -> int:
    """Return the number of this process on its machine."""
    return read_int("LOCAL_RANK", 0) if get_launched_world_size() > 1 else 0
