"""Worker processes: on Linux forks of a server, which has imported the libraries."""

import atexit
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from bertkit.errors import UserError, format_count
from bertkit.utils import system
from bertkit.utils.compat import require_extra

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def require_one_executor(config: Any, name: str) -> str:
    """Refuse flags that contradict each other; return the flag that starts processes, or "" without one.

    `name` is the setting with the number of processes of this machine.
    """
    processes = getattr(config, name)
    if config.ray:
        flag = f"--ray {config.ray}"
        require_extra("ray", ["ray"], flag)
        if processes > 1:
            raise UserError(
                f"--{name} {processes}: cannot be combined with --ray, which uses all CPUs or GPUs of the "
                "nodes; pass one of them"
            )
        from bertkit.utils import ray_cluster  # imports ray

        ray_cluster.check_address(config)
        return flag
    for other in ("num_cpus", "num_gpus"):
        if getattr(config, other) is not None:
            raise UserError(f"--{other.replace('_', '-')}: applies only to --ray; pass both or neither")
    return f"--{name} {processes}" if processes > 1 else ""


# ---- the cores and the GPUs of this machine


def count_gpus() -> int:
    """Return the number of GPUs of this machine that CUDA shows to programs, without importing PyTorch.

    CUDA reads the names in CUDA_VISIBLE_DEVICES up to the first invalid one. If a name is
    repeated, it shows no GPU.
    """
    num_gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = os.environ.get(GPU_VARIABLE)
    if visible is None:
        return num_gpus
    names = []
    for name in map(str.strip, visible.split(",")):
        if not (name.startswith(("GPU-", "MIG-")) or (name.isdecimal() and int(name) < num_gpus)):
            break
        names.append(name)
    return min(num_gpus, len(names)) if len(set(names)) == len(names) else 0


def check_process_count(processes: int, device: str) -> None:
    """Raise `UserError` if there are more processes than GPUs or, on the CPU, than cores."""
    num_gpus = 0 if device == "cpu" else count_gpus()
    max_processes = num_gpus or system.count_cores()
    if processes > max_processes:
        cores = format_count(max_processes, "core") + (" and no GPU" if device != "cpu" else "")
        devices = format_count(num_gpus, "GPU") if num_gpus else cores
        fix = "omit it" if max_processes == 1 else f"pass at most {max_processes}"
        raise UserError(f"--nproc {processes}: this machine has {devices}; {fix}")


def divide_machine(number: int, count: int, uses_gpu: bool) -> dict[str, str]:
    """Return variables with a fraction 1/count of the cores, and with one GPU; the user's own ones win."""
    threads = max(1, system.count_cores() // count)
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if uses_gpu and (num_gpus := count_gpus()):
        visible = os.environ.get(GPU_VARIABLE, ",".join(map(str, range(num_gpus)))).split(",")
        variables[GPU_VARIABLE] = visible[number % num_gpus].strip()
    return variables


# ---- the processes


class WorkerProcess:
    """A process that calls one function at a time.

    It is a pool of one process, so that it is known which calls a killed process has not ended.

    Args:
        modules: What the process imports, if it is started as a fork.
        variables: Of the environment, in addition to those of this process.
        initialize: The function that the process calls first, with `arguments` and its environment. It calls
            `enter_worker`.
    """

    def __init__(
        self,
        modules: Sequence[str],
        variables: Mapping[str, str],
        initialize: Callable[..., None],
        *arguments: Any,
    ) -> None:
        others = set(multiprocessing.active_children())
        with _set_variables(variables):  # PyTorch reads them when it is loaded
            context = get_worker_context(modules)
            self.pool = ProcessPoolExecutor(1, context, initialize, (*arguments, dict(os.environ)))
            self._started = self.pool.submit(os.getpid)
        [self.process] = set(multiprocessing.active_children()) - others

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the process, after the calls that were submitted before."""
        return self.pool.submit(function, *arguments)

    def describe_end(self, flag: str) -> str:
        """Return how the process ended; raise `UserError` if it could not be started."""
        if self._started.exception() is not None:
            raise UserError(
                f"{flag}: a worker process could not be started; in a Python script, call bertkit below "
                "`if __name__ == '__main__':`"
            )
        self.process.join()
        return system.describe_exit(self.process.exitcode or 0)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.pool.shutdown(cancel_futures=True)


@contextmanager
def _set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def get_worker_context(modules: Sequence[str]) -> BaseContext:
    """Return the context that starts worker processes. A worker process first calls `enter_worker`.

    On Linux, worker processes are forks of a server, which imports the modules once. Ctrl-C is sent to all
    processes of a terminal, so signals to stop are blocked in the server, and in a fork until `enter_worker`.
    """
    if not system.IS_LINUX:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    resource_tracker.ensure_running()  # otherwise, the server would start it, and unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, system.STOP_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def enter_worker(environment: Mapping[str, str]) -> None:
    """Give a worker process its environment and its own process group, as if it were not a fork.

    The process ends when the main process has ended.
    """
    system.leave_process_group()
    if system.IS_LINUX:
        os.environ.clear()  # of the time when the server was started
        os.environ.update(environment)
        atexit._clear()  # of functions of the server
        Finalize(None, atexit._run_exitfuncs, exitpriority=0)  # a fork ends without them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, system.STOP_SIGNALS)
    Thread(target=_exit_with_main_process, daemon=True).start()


def _exit_with_main_process() -> None:
    """Wait until the main process has ended, and end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        psutil.Process().kill()
