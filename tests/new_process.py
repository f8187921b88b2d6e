"""A new process, without the imports that take most of the time of a new Python."""

import os
import subprocess
import tempfile
from multiprocessing import forkserver
from pathlib import Path

from bertkit.utils import worker_processes


def call_in_new_process(function, *args):
    """Call a function in a process that has imported the libraries and computed nothing.

    On Linux, it is a fork of a server that does the same for the worker processes of `--jobs`.

    Returns:
        The exit status, and what was printed to standard output and to standard error.
    """
    from bertkit.experiments.experiment import PRELOADED

    context = worker_processes.get_worker_context(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_call, args=(paths, dict(os.environ), function, args))
        process.start()
        process.join()
        return subprocess.CompletedProcess(
            args, process.exitcode, *(path.read_text("utf-8") for path in paths)
        )


def _call(paths, environment, function, args):
    for number, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    worker_processes.enter_worker(environment)
    function(*args)


def end_server():
    """End the server, so that its time counts as that of this process."""
    forkserver._forkserver._stop()
