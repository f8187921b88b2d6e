"""The start of worker processes: on Linux forks of a server, which has imported the libraries."""

import atexit
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize

from bertkit.utils import system


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
    """Give a worker process its environment and its own process group, as if it were not a fork."""
    system.leave_process_group()
    if system.IS_LINUX:
        os.environ.clear()  # of the time when the server was started
        os.environ.update(environment)
        atexit._clear()  # of functions of the server
        Finalize(None, atexit._run_exitfuncs, exitpriority=0)  # a fork ends without them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, system.STOP_SIGNALS)
