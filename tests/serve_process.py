"""`bertkit serve` in a new process, without the imports that take most of the time of a new Python."""

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from bertkit.cli.app import main
from bertkit.utils import worker_processes


def run_serve(pipes, environment, args):
    """Run `bertkit serve ARGS` in this process, with standard output and error to named pipes."""
    sys.stdout, sys.stderr = pipes[0].open("w"), pipes[1].open("w", buffering=1)  # as Python opens them
    worker_processes.enter_worker(environment)
    sys.argv = ["bertkit", "serve", *args]
    main()


@contextmanager
def start_server(*args):
    """Start `bertkit serve`; yield the process, the file of its standard error, and its URL."""
    from bertkit.experiments.experiment import PRELOADED

    args = [*map(str, args), "--port", "0", "--json"]
    context = worker_processes.get_worker_context(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        pipes = [Path(folder, name) for name in ("stdout", "stderr")]
        for pipe in pipes:
            os.mkfifo(pipe)
        process = context.Process(target=run_serve, args=(pipes, dict(os.environ), args))
        process.start()
        with pipes[0].open() as stdout, pipes[1].open() as stderr:
            try:
                yield process, stderr, json.loads(stdout.readline())["url"]
            finally:
                process.kill()
                process.join()
