"""The executor: trains the runs of an experiment on this machine, in this process or in several."""

import atexit
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil
import torch

from bertkit.errors import UserError
from bertkit.experiments.config import find_experiment
from bertkit.utils import devices
from bertkit.utils.reporting import Reporter, get_reporter, silence_libraries, use_reporter
from bertkit.utils.system import (
    STOP_SIGNALS,
    count_cores,
    describe_exit,
    leave_process_group,
    postpone_collection,
)

if TYPE_CHECKING:
    from bertkit.experiments.experiment import Experiment, Outcome, PlannedRun

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 60  # between two lines about the steps of a run in another process
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


class LocalExecutor:
    """Trains runs on this machine, and stops them if the block ends with an error.

    With several jobs, each worker process has a part of the cores and, on a machine with GPUs, one GPU.

    Args:
        experiment: The experiment of the runs.
        jobs: Number of runs that are trained at the same time; one is trained in this process.
    """

    def __init__(self, experiment: "Experiment", jobs: int) -> None:
        self.experiment, self.jobs = experiment, jobs
        self._workers: list[_Worker] = []

    def run(self, runs: Iterable["PlannedRun"]) -> "Iterator[tuple[PlannedRun, Outcome]]":
        """Train runs, and yield each with its outcome, in the order in which they end.

        Args:
            runs: The runs. A run is taken from the iterable when it can begin, so it may depend on
                the outcomes that were yielded before.
        """
        if self.jobs == 1:
            for run in runs:
                yield run, self.experiment.train(run)
            return
        remaining = iter(runs)
        while True:
            busy = {worker.future: worker for worker in self._workers if worker.future is not None}
            while len(busy) < self.jobs and (next_run := next(remaining, None)) is not None:
                worker = self._get_idle_worker()
                busy[worker.begin(next_run)] = worker
            if not busy:
                return
            ended, _ = wait(busy, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            self._relay_messages()
            for future in ended:
                yield busy[future].end()

    def _get_idle_worker(self) -> "_Worker":
        """Return a worker without a run, which is started if there is none."""
        for worker in self._workers:
            if worker.future is None:
                return worker
        self._workers.append(_Worker(self.experiment, self._choose_environment(len(self._workers))))
        return self._workers[-1]

    def _choose_environment(self, index: int) -> dict[str, str]:
        """Return the variables that give a worker its cores and its GPU; the user's own variables win."""
        threads = max(1, count_cores() // self.jobs)
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        uses_gpu = self.experiment.config.device in (devices.AUTO, "cuda")
        if uses_gpu and (num_gpus := torch.cuda.device_count()):
            visible = os.environ.get(GPU_VARIABLE, ",".join(map(str, range(num_gpus)))).split(",")
            variables[GPU_VARIABLE] = visible[index % num_gpus].strip()
        return variables

    def _relay_messages(self) -> None:
        for worker in self._workers:
            for title, message, is_warning in worker.iter_messages():
                self.experiment.run_reporter.relay(title, message, is_warning)

    def __enter__(self) -> "LocalExecutor":
        return self

    def __exit__(
        self, error_type: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the workers; those that still train save a checkpoint first."""
        try:
            for worker in self._workers:
                worker.stop()
            while any(worker.is_busy() for worker in self._workers):
                time.sleep(POLL_SECONDS)
                self._relay_messages()  # so that no worker waits for a reader
        except KeyboardInterrupt:  # the user does not want to wait for the checkpoints
            for worker in self._workers:
                worker.process.kill()
            raise
        finally:
            for worker in self._workers:
                worker.pool.shutdown()


class _Worker:
    """A process that trains one run at a time.

    It is a pool of one process, so that it is known which run a killed process has trained.
    """

    def __init__(self, experiment: "Experiment", environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._messages, sender = context.Pipe(duplex=False)
        arguments = (sender, experiment.command, experiment.config)
        self.pool = ProcessPoolExecutor(1, context, _initialize, arguments)
        self.run: Any = None
        self.future: Future[Any] | None = None
        others = set(multiprocessing.active_children())
        with _set_variables(environment):  # PyTorch reads them when it is loaded
            self._started = self.pool.submit(os.getpid)
        [self.process] = set(multiprocessing.active_children()) - others
        sender.close()  # only the worker writes

    def begin(self, run: "PlannedRun") -> Future[Any]:
        """Begin to train a run."""
        self.run, self.future = run, self.pool.submit(_train, run)
        return self.future

    def end(self) -> Any:
        """Return the run that has ended, and its outcome.

        Raises:
            UserError: The process was killed.
        """
        assert self.future is not None
        future, self.future = self.future, None
        try:
            return self.run, future.result()
        except BrokenProcessPool:
            if self._started.exception() is not None:
                raise UserError(
                    "--jobs: a worker process could not be started; in a Python script, call bertkit below "
                    "`if __name__ == '__main__':`"
                ) from None
            self.process.join()
            raise UserError(
                f"{self.run.folder}: its process {describe_exit(self.process.exitcode or 0)}, and the other "
                "runs were stopped; resume with --resume, and with fewer --jobs if memory ran out"
            ) from None

    def is_busy(self) -> bool:
        """Return whether a run is being trained."""
        return self.future is not None and not self.future.done()

    def stop(self) -> None:
        """Ask the process to save a checkpoint of its run and to stop."""
        if self.is_busy():
            self.process.terminate()

    def iter_messages(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the messages since the last call: title of the run, text, and whether it is a warning."""
        with suppress(EOFError, OSError):  # the process has ended
            while self._messages.poll():
                yield self._messages.recv()


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


# ---- in a worker process


class _SendingReporter(Reporter):
    """A reporter that sends messages to the main process, and a line about the steps once a minute."""

    def __init__(self, sender: Connection) -> None:
        self.sender = sender
        self.title = ""
        self.total_steps = 0
        self.last_progress = 0.0

    def info(self, message: str) -> None:
        self.sender.send((self.title, message, False))

    def warn(self, message: str) -> None:
        self.sender.send((self.title, message, True))

    def on_train_begin(self, total: int, done: int) -> None:
        self.total_steps, self.last_progress = total, time.monotonic()

    def on_step_end(self, step: int, **metrics: Any) -> None:
        if "loss" in metrics and time.monotonic() - self.last_progress >= PROGRESS_SECONDS:
            self.last_progress = time.monotonic()
            self.info(f"step {step:,} of {self.total_steps:,}, loss {metrics['loss']:.4f}")


_sender: Connection
_arguments: tuple[str, Any]
_experiment: "Experiment | None" = None
_is_stopped = False
_contexts = ExitStack()  # until the process ends


def _initialize(sender: Connection, command: str, config: Any) -> None:
    global _sender, _arguments
    _sender, _arguments = sender, (command, config)
    postpone_collection()
    atexit.register(_contexts.close)
    leave_process_group()  # the main process decides what Ctrl-C means
    for number in STOP_SIGNALS:
        signal.signal(number, _stop_later)
    Thread(target=_exit_with_parent, daemon=True).start()


def _stop_later(number: int, frame: Any) -> None:  # noqa: ARG001
    """Note a signal that arrives before a run begins or after it has ended."""
    global _is_stopped
    _is_stopped = True


def _exit_with_parent() -> None:
    """Wait until the main process has ended, and end this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    psutil.Process().kill()


def _train(run: "PlannedRun") -> "Outcome":
    """Train a run, which SIGTERM stops."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if _is_stopped:
            raise KeyboardInterrupt
        experiment = _experiment or _create_experiment()
        get_reporter().title = run.title or str(run.folder)  # type: ignore[attr-defined]
        return experiment.train(run)
    finally:
        signal.signal(signal.SIGTERM, _stop_later)


def _create_experiment() -> "Experiment":
    """Create the experiment of the main process again, without checking its inputs again."""
    global _experiment
    command, config = _arguments
    devices.request_device(config.device)
    _contexts.enter_context(silence_libraries())
    _contexts.enter_context(use_reporter(_SendingReporter(_sender)))
    _experiment = find_experiment(command)(config)
    _contexts.enter_context(_experiment.share_data())
    return _experiment
