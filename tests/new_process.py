"""A new process, without the imports that take most of the time of a new Python."""

import contextlib
import gc
import json
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from bertkit.utils import worker_processes

STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}


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


class NewProcess:
    """What `subprocess.Popen` returns for a Python program, started as in `call_in_new_process`.

    It has its own process group.

    Args:
        command: The interpreter, and a script or `-m` and a module, with arguments.
        cwd, env, stdin, stdout, stderr, text: As for `Popen`; other options have no effect. Each stream is a
            file, a pipe, or inherited.
    """

    def __init__(self, command, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None, text=False, **_):
        from bertkit.experiments.experiment import PRELOADED

        self.args, self.returncode, mode = command, None, "" if text else "b"
        streams, opened = [stdin, stdout, stderr], []
        self.stdin = self.stdout = self.stderr = None
        for number, (name, stream) in enumerate(zip(STREAMS, streams, strict=True)):
            if stream == subprocess.PIPE:
                reader, writer = os.pipe()
                ours, theirs = (writer, reader) if name == "stdin" else (reader, writer)
                setattr(self, name, os.fdopen(ours, ("w" if name == "stdin" else "r") + mode))
            else:
                theirs = os.dup(number if stream is None else stream.fileno())
            opened.append(theirs)
        connections = [Connection(file) for file in opened]  # the context duplicates them in the process
        environment = {str(name): str(value) for name, value in (os.environ if env is None else env).items()}
        arguments = ([*map(str, command[1:])], connections, str(cwd or Path.cwd()), environment)
        self.process = worker_processes.get_worker_context(PRELOADED).Process(
            target=_run_program, args=arguments
        )
        self.process.start()
        self.pid = self.process.pid
        for connection in connections:
            connection.close()
        with contextlib.suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:
                self.process.join(0.001)

    def poll(self):
        self.returncode = self.process.exitcode
        return self.returncode

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.process.terminate()

    def kill(self):
        self.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()


def _run_program(arguments, connections, folder, environment):
    worker_processes.enter_worker(environment)
    gc.freeze()  # the objects of the libraries are needed until the process ends
    for number, (name, mode) in enumerate(STREAMS.items()):
        os.dup2(connections[number].fileno(), number)
        setattr(sys, name, os.fdopen(number, mode, closefd=False))
    os.chdir(folder)
    if arguments[0] == "-m":
        module, sys.argv = arguments[1], arguments[1:]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path = arguments, [str(Path(arguments[0]).parent), *sys.path]
        runpy.run_path(arguments[0], run_name="__main__")


@contextlib.contextmanager
def start_server(*args):
    """Start `bertkit serve ARGS` on a free port; yield the process, its standard error, and its URL."""
    command = [sys.executable, "-m", "bertkit", "serve", *args, "--port", "0", "--json"]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with NewProcess(command, text=True, **pipes) as process:
        try:
            yield process, process.stderr, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def end_server():
    """End the server, so that its time counts as that of this process."""
    forkserver._forkserver._stop()
