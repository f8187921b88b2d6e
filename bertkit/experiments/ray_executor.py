"""`--ray`: the runs of an experiment are tasks of a Ray cluster.

Ray starts a task again if its process or its node dies. The task then resumes its run from the last
checkpoint, as `--resume` does, so the output directory must be on a file system that all nodes share.
"""

import os
import signal
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
import torch

from bertkit.experiments.experiment import (
    POLL_SECONDS,
    Experiment,
    Outcome,
    PlannedRun,
    SendingReporter,
    pickle_callbacks,
    restore_experiment,
)
from bertkit.run_directory import RunDir
from bertkit.settings.declaration import get_settings
from bertkit.utils import ray_cluster
from bertkit.utils.locks import DirectoryInUse
from bertkit.utils.reporting import silence_libraries, use_reporter

# Seconds until the processes of a node that has died notice it, and unlock the directories of their runs.
MAX_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class SharedInputs:
    """What the tasks of an experiment have in common; Ray sends it to each node once."""

    key: str  # of the experiment
    command: str
    config: Any
    callbacks: bytes
    folder: str  # in which relative paths are valid
    threads: int
    mailbox: Any  # receives the messages of the tasks


class RayExecutor:
    """Trains runs on a Ray cluster, and stops them if the block ends with an error."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._runs: dict[Any, PlannedRun] = {}  # that are being trained, by the reference of their outcome
        self._connection = ExitStack()

    def __enter__(self) -> "RayExecutor":
        experiment, config = self.experiment, self.experiment.config
        with ExitStack() as stack:
            self.cluster = stack.enter_context(ray_cluster.connect(config))
            values = [getattr(config, name) for name in get_settings(type(config))]
            paths = [value for value in values if isinstance(value, str) and value and Path(value).exists()]
            settings = RunDir(Path(experiment.folder or "")).settings_file
            self.cluster.check_nodes(paths, settings)
            self._mailbox = ray_cluster.start_mailbox()
            inputs = SharedInputs(
                uuid.uuid4().hex, experiment.command, config, pickle_callbacks(experiment.callbacks, "--ray"),
                str(Path.cwd()), self.cluster.num_cpus, self._mailbox,
            )  # fmt: skip
            self._inputs = ray.put(inputs)
            self._train = self.cluster.as_task(_train)
            self._connection = stack.pop_all()
        return self

    def run(self, runs: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Train runs, and yield each with its outcome, in the order in which they end.

        A run is taken from the iterable when it can begin, so it may depend on the outcomes before it.
        """
        remaining = iter(runs)
        while True:
            while (
                len(self._runs) < max(1, self.cluster.count_slots())
                and (run := next(remaining, None)) is not None
            ):
                self._runs[self._train.remote(self._inputs, run)] = run
            if not self._runs:
                return
            ended, _ = ray.wait(list(self._runs), timeout=POLL_SECONDS)
            self._relay_messages()
            for reference in ended:
                run = self._runs.pop(reference)
                yield (
                    run,
                    ray_cluster.get_result(
                        reference, str(run.folder), "the other runs were stopped",
                        "resume with --resume, and with more --num-cpus for each run if memory ran out",
                    ),
                )  # fmt: skip

    def _relay_messages(self) -> None:
        for title, message, is_warning in ray.get(self._mailbox.take.remote()):
            self.experiment.run_reporter.relay(title, message, is_warning)

    def __exit__(
        self, error_type: type | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the runs that are still being trained; they save a checkpoint first."""
        try:
            for reference in self._runs:
                ray.cancel(reference)
            while self._runs:
                ended, _ = ray.wait(list(self._runs), timeout=POLL_SECONDS)
                for reference in ended:
                    del self._runs[reference]
                self._relay_messages()
            self._relay_messages()  # of a process that was killed, which may arrive after its error
        finally:  # also after a second Ctrl-C: the user does not want to wait for the checkpoints
            self._connection.close()


# ---- on a node

_experiment: tuple[str, Experiment, SendingReporter] | None = None  # with its key


def _train(inputs: SharedInputs, run: PlannedRun) -> Outcome:
    """Train a run, which `ray.cancel` stops. Its messages are in the mailbox before its outcome is known."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `ray.cancel` sends it
    os.chdir(inputs.folder)
    torch.set_num_threads(inputs.threads)
    try:
        return _train_when_unlocked(inputs, run)
    finally:
        ray.get(inputs.mailbox.wait.remote())


def _train_when_unlocked(inputs: SharedInputs, run: PlannedRun) -> Outcome:
    """Train a run. The first one in a process creates the experiment again, without checking its inputs."""
    global _experiment
    if _experiment is None or _experiment[0] != inputs.key:
        reporter = SendingReporter(inputs.mailbox.add.remote)
        with use_reporter(reporter), silence_libraries():
            arguments = (inputs.command, inputs.config, inputs.callbacks)
            _experiment = inputs.key, restore_experiment(*arguments, "--ray"), reporter
    _, experiment, reporter = _experiment
    reporter.title = run.title or str(run.folder)
    deadline = time.monotonic() + MAX_LOCK_SECONDS
    with use_reporter(reporter), silence_libraries():
        while True:
            try:
                return experiment.train(run)
            except DirectoryInUse:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
