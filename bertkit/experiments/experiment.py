"""An experiment: a plan of runs and one table. Studies and suites are experiments.

A planned run is plain data, and its experiment knows the rows that it is trained on. A worker process can
thus create the same experiment from its settings, and train any of its runs.
"""

import atexit
import copy
import dataclasses
import gc
import multiprocessing
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from types import TracebackType
from typing import Any, ClassVar

import torch
from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table

from bertkit.data.table import Splits
from bertkit.errors import RunInterrupted, TrainingFailed, UserError, format_count
from bertkit.experiments.config import SUITES, TASK_EXPERIMENTS, find_config
from bertkit.experiments.search import Trial
from bertkit.reports.tables import ResultTable
from bertkit.reports.terminal import print_run_json
from bertkit.run.baselines import fit_encoder_baselines
from bertkit.run.load_data import LoadedData, load_data, split_parsed_rows
from bertkit.run.prepare import PreparedRun, RunOptions, prepare
from bertkit.run.resolve_settings import resolve_settings
from bertkit.run.results import Run
from bertkit.run.train import require_unchanged_data, train_prepared
from bertkit.run_directory import EXPERIMENT, RunDir, create_default_directory
from bertkit.settings.declaration import RAY_SETTINGS
from bertkit.settings.recipes import Recipe
from bertkit.settings.run_settings import Candidate, RunConfig
from bertkit.stats.judgement import EXIT_STATUSES
from bertkit.stats.metric_modules import MetricModule, load_module
from bertkit.stats.significance import Scorer
from bertkit.training.callbacks import check_callbacks
from bertkit.training.failures import BATCH_SETTINGS, release_memory, report_out_of_memory
from bertkit.utils import devices, distributed, locks, system
from bertkit.utils.console import out_console
from bertkit.utils.files import check_output_directory, join_command
from bertkit.utils.reporting import Reporter, get_reporter, report_info, silence_libraries, use_reporter
from bertkit.utils.worker_processes import (
    WorkerProcess,
    divide_machine,
    enter_worker,
    require_one_executor,
)

LOADING_MEMORY = "out of memory while the model is loaded; use a smaller model, or a machine with more memory"
POLL_SECONDS = 0.1
PROGRESS_SECONDS = 60  # between two lines about the steps of a run in another process
# What most runs import. None of these modules initializes an accelerator when it is imported: a fork of the
# process could not use it.
PRELOADED = (
    "bertkit.experiments.experiment",
    "bertkit.training.trainer",
    "sklearn.metrics",
    "matplotlib.pyplot",
)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned."""

    folder: Path
    settings: Mapping[str, Any]  # of this run, in addition to those of its group
    seed: int
    metric: str  # name of its score on the console
    title: str = ""  # its name on the console; by default, the directory
    group: str = ""  # name of the runs with the same data, to which this run belongs
    recipe: str = ""  # this and the location of the data are listed by `--dry-run` of a suite
    data: str = ""
    trial: int | None = None  # number of the trial of a study; None for other runs
    fold: int | None = None  # that a run of a study or a ladder predicts; None without folds
    candidate: Candidate | None = None  # of a ladder


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    metrics: dict[str, Any]  # content of `metrics.json`; empty if the run failed
    reason: str | None = None  # why the run failed
    trial: Trial | None = None  # of a study, that has ended with this run
    is_interrupted: bool = False  # whether a signal arrived during the evaluation that ended a trial


# ---- runs with the same data


class RunReporter(Reporter):
    """A reporter for several runs: it passes on the progress, and each warning only once."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.messages: set[str] = set()  # that were passed on
        self.is_info_shown = False
        for name in ("on_train_begin", "on_step_end", "on_train_end", "track", "track_position"):
            setattr(self, name, getattr(reporter, name))

    @contextmanager
    def show_info(self, is_shown: bool = True) -> Iterator[None]:
        """Pass on information in the block."""
        self.is_info_shown = is_shown
        try:
            yield
        finally:
            self.is_info_shown = False

    def info(self, message: str) -> None:
        if self.is_info_shown:
            self.messages.add(message)
            self.reporter.info(message)

    def warn(self, message: str) -> None:
        if message not in self.messages:
            self.messages.add(message)
            self.reporter.warn(message)

    def relay(self, title: str, message: str, is_warning: bool) -> None:
        """Report a message of a worker process, unless this or another process has reported it."""
        if message not in self.messages:
            self.messages.add(message)
            report = self.reporter.warn if is_warning else self.reporter.info
            report(f"{title}: {message}")


class RunGroup:
    """Runs of one task on the same data, which is loaded and parsed once, when the first run needs it.

    Information about the data and about the first run is reported; further runs report only new warnings.
    """

    def __init__(self, task_name: str, config: RunConfig, reporter: RunReporter) -> None:
        self.task_name, self.config, self.reporter = task_name, config, reporter
        self._has_prepared = False
        self._baselines: dict[str, Scorer] | None = None
        self._encoder_baselines: dict[tuple[str, int], dict[str, Scorer]] = {}  # by model and maximum length

    @cached_property
    def data(self) -> LoadedData:
        """The parsed data."""
        with use_reporter(self.reporter), self.reporter.show_info():
            return load_data(self.task_name, self.config)

    @cached_property
    def modules(self) -> Sequence[MetricModule]:
        """The modules of `--metric`."""
        return [load_module(value) for value in self.config.metric]

    @cached_property
    def splits(self) -> Splits:
        """The splits of a single run with these settings."""
        with use_reporter(self.reporter), self.reporter.show_info():
            return split_parsed_rows(self.data.task, self.data.dataset)

    def prepare(
        self, settings: Mapping[str, Any], splits: Splits | None = None, options: RunOptions | None = None
    ) -> PreparedRun:
        """Prepare a run on these splits, or on `self.splits`; no setting may change how rows are parsed."""
        config = dataclasses.replace(self.config, **settings)
        data = self.data.for_run(dict(settings), self.splits if splits is None else splits)
        with use_reporter(self.reporter), self.reporter.show_info(not self._has_prepared):
            prepared = prepare(self.task_name, config, self.modules, data)
        self._has_prepared = True
        prepared.options = options or RunOptions()
        if splits is None:
            fit = partial(self._fit_baselines, prepared)
            prepared.options = dataclasses.replace(prepared.options, fit_baselines=fit)
        return prepared

    def _fit_baselines(self, prepared: PreparedRun) -> dict[str, Scorer]:
        """Return the baselines, which all runs with the splits of the group share.

        Those that read vectors of the encoder are shared by the runs with the same model.
        """
        train, rows = prepared.splits["train"], prepared.splits["validation"]
        task = copy.copy(prepared.task)
        task.resolve(seed=self.config.seed)
        if self._baselines is None:
            self._baselines = task.fit_baselines(train, rows)
        encoder = (task.config.model, task.config.max_length)
        if encoder not in self._encoder_baselines:
            fitted = fit_encoder_baselines(task, train, rows, prepared.tokenizer)
            self._encoder_baselines[encoder] = fitted
        return self._baselines | self._encoder_baselines[encoder]


# ---- the experiment


class Experiment(ABC):
    """A plan of runs and one table.

    `run` first calls `prepare`. After that, a dry run calls `describe_runs`; otherwise, `execute` trains the
    runs with `self.executor`. A worker process calls only `train`.
    """

    command: str  # such as "glue" or "study classify"
    noun: ClassVar[str] = "runs"  # what the output directory contains, on the console
    # Patterns of the names that the command may write in addition to those of every run directory.
    output_names: ClassVar[Sequence[str]]

    def __init__(self, config: Any) -> None:
        self.config: Any = config
        self.run_reporter = RunReporter(get_reporter())
        self.started = time.monotonic()
        self.folder = Path(config.output_dir) if config.output_dir else None
        self.fingerprints: dict[str, str] = {}  # by split, of data that all runs have in common
        self._groups: dict[str, RunGroup] = {}
        self.callbacks: Sequence[Any] = ()  # of the user, which are called in all runs

    # ---- the plan

    @abstractmethod
    def prepare(self) -> list[str]:
        """Find data and models, or raise `UserError`; return name parts for the default output directory."""

    @abstractmethod
    def describe_runs(self) -> dict[str, Any]:
        """Return the planned runs, for `--dry-run`."""

    @abstractmethod
    def make_group(self, name: str) -> RunGroup:
        """Return the group with this name; its data is not loaded yet."""

    @abstractmethod
    def execute(self, folder: Path) -> dict[str, Any]:
        """Train the unfinished runs, write the results into the directory, and return its metrics."""

    @classmethod
    @abstractmethod
    def build_tables(cls, metrics: Mapping[str, Any], folder: Path) -> list[ResultTable]:
        """Return the tables for the console, from the content of `folder/metrics.json`."""

    def share_data(self) -> AbstractContextManager[None]:
        """Return the context in which the runs of one process are prepared."""
        return nullcontext()

    # ---- one run

    def get_group(self, name: str = "") -> RunGroup:
        """Return the group with this name."""
        if name not in self._groups:
            self._groups[name] = self.make_group(name)
        return self._groups[name]

    def train(self, run: PlannedRun) -> Outcome:
        """Train a run in its locked directory, and release the memory."""
        with locks.lock_directory(run.folder):
            outcome = self.attempt(run)
        release_memory()  # here, where no error keeps the tensors alive
        return outcome

    def attempt(self, run: PlannedRun) -> Outcome:
        """Train a run, and return how it ended."""
        try:
            return Outcome(self.train_run(run))
        except TrainingFailed as error:
            return Outcome({}, str(error))

    def train_run(
        self, run: PlannedRun, splits: Splits | None = None, options: RunOptions | None = None
    ) -> dict[str, Any]:
        """Train a run in its locked directory, resume it, or read its metrics; return `metrics.json`."""
        if (metrics := RunDir(run.folder).read_metrics()) is None:
            saved = _read_saved_settings(run.folder)
            settings = {**run.settings, "seed": run.seed, **saved, "output_dir": str(run.folder)}
            prepared = self.get_group(run.group).prepare(settings, splits, options)
            prepared.add_callbacks(self.callbacks)
            if saved:
                fingerprints = RunDir(run.folder).read_provenance()["data"]
                require_unchanged_data(run.folder, fingerprints, prepared.fingerprints)
            with report_out_of_memory(LOADING_MEMORY), use_reporter(self.run_reporter):
                metrics = train_prepared(prepared, run.folder).metrics
        # A finished run needs no checkpoints, and those of all runs could fill the disk.
        shutil.rmtree(run.folder / RunDir.CHECKPOINTS_DIR, ignore_errors=True)
        return metrics

    # ---- all runs

    def run(self, fingerprints: Mapping[str, str] | None) -> Run:
        """Train the unfinished runs, and write the results; or describe the runs.

        `fingerprints` are those of the data of the experiment to resume, by split, or None.
        """
        try:
            with self.share_data():
                name_parts = self.prepare()
                if fingerprints:
                    require_unchanged_data(self.folder, fingerprints, self.fingerprints)
                if self.config.dry_run:
                    return Run(None, self.describe_runs())
                with self._open_directory(name_parts) as folder, self._make_executor() as self.executor:
                    return Run(folder, self.execute(folder))
        except (RunInterrupted, KeyboardInterrupt) as error:
            if not (self.config.resume or self._has_runs()):
                raise
            resume = ["bertkit", *self.command.split(), "--resume", "--output-dir", str(self.folder)]
            resume += ["--jobs", str(self.config.jobs)] if self.config.jobs > 1 else []
            for name in RAY_SETTINGS:
                if (value := getattr(self.config, name)) is not None:
                    resume += [f"--{name.replace('_', '-')}", str(value)]
            raise RunInterrupted(f"interrupted; resume with: {join_command(resume)}") from error

    def _make_executor(self) -> Any:
        """Return what trains the runs: processes of this machine, or a Ray cluster."""
        if not self.config.ray:
            return LocalExecutor(self, self.config.jobs)
        return import_module("bertkit.experiments.ray_executor").RayExecutor(self)  # imports ray

    @contextmanager
    def _open_directory(self, name_parts: Sequence[str]) -> Iterator[Path]:
        """Create the directory of a new experiment; that of `--output-dir` is locked already.

        With `--overwrite`, the files of a previous experiment are in a backup until a run has started.
        """
        with ExitStack() as stack:
            if self.folder is None:
                default = create_default_directory(*self.command.split(), *name_parts)
                self.folder = stack.enter_context(locks.lock_directory(default, is_new=True))
            if not self.config.resume:
                check_output_directory(self.folder, EXPERIMENT, self.config.overwrite)
                for path in [*self._find_outputs(), *self._find_outputs("/*/")]:
                    locks.require_unlocked(path)
                RunDir(self.folder).back_up(self.output_names)
                RunDir(self.folder).write_settings(self.command, self.config, self.fingerprints)
                stack.callback(self._clean_up, self.folder)
            yield self.folder

    def _clean_up(self, folder: Path) -> None:
        """Delete the backup of the replaced runs, or restore the backup if no run has started."""
        if self._has_runs():
            RunDir(folder).delete_backup()
            return
        for path in self._find_outputs():
            shutil.rmtree(path, ignore_errors=True)
        RunDir(folder).discard_unstarted()

    def _find_outputs(self, pattern: str = "") -> list[Path]:
        """Return the outputs, or paths in them that match a pattern."""
        names, folder = self.output_names, self.folder
        return [path for name in names for path in folder.glob(name + pattern)] if folder else []

    def _has_runs(self) -> bool:
        """Return whether a run has started."""
        return bool(self._find_outputs(f"/**/{RunDir.SETTINGS_FILE}"))


def _read_saved_settings(folder: Path) -> dict[str, Any]:
    """Return the settings with which an interrupted run is resumed; empty if the run has not started.

    Its batches are smaller than those of a new run if memory ran out.
    """
    if not (folder / RunDir.SETTINGS_FILE).exists():
        return {}
    saved = RunDir(folder).read_settings()
    return {"resume": True, **{name: saved[name] for name in BATCH_SETTINGS if name in saved}}


# ---- training, in this process or in several


class LocalExecutor:
    """Trains runs on this machine, and stops them if the block ends with an error.

    A single job is trained in this process. With several, each worker process has a part of the cores and, on
    a machine with GPUs, one GPU.
    """

    def __init__(self, experiment: Experiment, jobs: int) -> None:
        self.experiment, self.jobs = experiment, jobs
        self._workers: list[_Worker] = []

    def run(self, runs: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Train runs, and yield each with its outcome, in the order in which they end.

        A run is taken from the iterable when it can begin, so it may depend on the outcomes before it.
        """
        if self.jobs == 1:
            for run in runs:
                yield run, self.experiment.train(run)
            return
        remaining = iter(runs)
        while True:
            busy = {worker.future: worker for worker in self._workers if worker.future is not None}
            while len(busy) < self.jobs and (next_run := next(remaining, None)) is not None:
                idle = (worker for worker in self._workers if worker.future is None)
                worker = next(idle, None) or self._add_worker()
                busy[worker.begin(next_run)] = worker
            if not busy:
                return
            ended, _ = wait(busy, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            self._relay_messages()
            for future in ended:
                yield busy[future].end()

    def _add_worker(self) -> "_Worker":
        uses_gpu = self.experiment.config.device in (devices.AUTO, "cuda")
        variables = divide_machine(len(self._workers), self.jobs, uses_gpu)
        self._workers.append(_Worker(self.experiment, variables))
        return self._workers[-1]

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
                if worker.is_busy():
                    worker.process.terminate()
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


class _Worker(WorkerProcess):
    """A process that trains one run at a time."""

    def __init__(self, experiment: Experiment, variables: Mapping[str, str]) -> None:
        self.run: Any = None
        self.future: Future[Any] | None = None
        self._messages, sender = multiprocessing.Pipe(duplex=False)
        callbacks = pickle_callbacks(experiment.callbacks, f"--jobs {experiment.config.jobs}")
        arguments = (sender, experiment.command, experiment.config, callbacks)
        super().__init__(PRELOADED, variables, _initialize, *arguments)
        sender.close()  # only the worker writes

    def begin(self, run: PlannedRun) -> Future[Any]:
        """Begin to train a run."""
        self.run, self.future = run, self.submit(_train, run)
        return self.future

    def end(self) -> Any:
        """Return the run that has ended, and its outcome; raise `UserError` if the process was killed."""
        assert self.future is not None
        future, self.future = self.future, None
        try:
            return self.run, future.result()
        except BrokenProcessPool:
            raise UserError(
                f"{self.run.folder}: its process {self.describe_end('--jobs')}, and the other runs were "
                "stopped; resume with --resume, and with fewer --jobs if memory ran out"
            ) from None

    def is_busy(self) -> bool:
        """Return whether a run is being trained."""
        return self.future is not None and not self.future.done()

    def iter_messages(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the messages since the last call: title of the run, text, and whether it is a warning."""
        with suppress(EOFError, OSError):  # the process has ended
            while self._messages.poll():
                yield self._messages.recv()


# ---- in a worker process


class SendingReporter(Reporter):
    """A reporter that sends messages to the main process, and a line about the steps once a minute.

    `send` receives the title of the run, the text, and whether it is a warning.
    """

    def __init__(self, send: Callable[[tuple[str, str, bool]], Any]) -> None:
        self.send = send
        self.title = ""
        self.total_steps = 0
        self.last_progress = 0.0

    def info(self, message: str) -> None:
        self.send((self.title, message, False))

    def warn(self, message: str) -> None:
        self.send((self.title, message, True))

    def on_train_begin(self, total: int, done: int) -> None:
        self.total_steps, self.last_progress = total, time.monotonic()

    def on_step_end(self, step: int, **metrics: Any) -> None:
        if "loss" in metrics and time.monotonic() - self.last_progress >= PROGRESS_SECONDS:
            self.last_progress = time.monotonic()
            self.info(f"step {step:,} of {self.total_steps:,}, loss {metrics['loss']:.4f}")


_reporter: SendingReporter
_arguments: tuple[str, Any, bytes]
_experiment: Experiment | None = None
_is_stopped = False
_contexts = ExitStack()  # until the process ends


def _initialize(
    sender: Connection, command: str, config: Any, callbacks: bytes, environment: Mapping[str, str]
) -> None:
    global _reporter, _arguments
    _reporter, _arguments = SendingReporter(sender.send), (command, config, callbacks)
    for number in system.STOP_SIGNALS:
        signal.signal(number, _stop_later)
    enter_worker(environment)  # the main process decides what Ctrl-C means
    torch.set_num_threads(system.read_int("OMP_NUM_THREADS", 0) or torch.get_num_threads())
    gc.freeze()  # the objects of the libraries are needed until the process ends


def _stop_later(number: int, frame: Any) -> None:  # noqa: ARG001
    """Note a signal that arrives before a run begins or after it has ended."""
    global _is_stopped
    _is_stopped = True


def _train(run: PlannedRun) -> Outcome:
    """Train a run, which SIGTERM stops.

    The first one creates the experiment of the main process again, without checking its inputs again.
    """
    global _experiment
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if _is_stopped:
            raise KeyboardInterrupt
        if _experiment is None:
            _contexts.enter_context(silence_libraries())
            _contexts.enter_context(use_reporter(_reporter))
            _experiment = restore_experiment(*_arguments, "--jobs")
        _reporter.title = run.title or str(run.folder)
        return _experiment.train(run)
    finally:
        signal.signal(signal.SIGTERM, _stop_later)


def restore_experiment(command: str, config: Any, callbacks: bytes, flag: str) -> Experiment:
    """Create the experiment of the main process in a process that `flag` has started."""
    devices.request_device(config.device)
    experiment = find_experiment(command)(config)
    try:
        experiment.callbacks = ForkingPickler.loads(callbacks)
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"{flag}: callbacks: cannot be loaded in another process ({error}); define the class in a "
            f"module, or omit {flag}"
        ) from error
    atexit.register(_contexts.close)
    _contexts.enter_context(experiment.share_data())
    return experiment


# ---- the commands


def find_experiment(command: str) -> type[Experiment]:
    """Return the class of an experiment, given by its command, such as "glue" or "study classify"."""
    name = command.partition(" ")[0]
    target = SUITES[name].target if name in SUITES else TASK_EXPERIMENTS[name]
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def run_experiment(
    command: str,
    settings: Mapping[str, Any],
    recipe: str | Recipe | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Run an experiment, resume it, or return the metrics of a finished one.

    Settings take precedence over those of the recipe. Studies and ladders also accept the recipes of their
    task.
    """
    resolve = partial(resolve_settings, command, find_config(command), settings, recipe)
    check_callbacks(callbacks)
    config, fingerprints = resolve()
    flag = require_one_executor(config, "jobs")
    if finished := _load_finished(config):
        return finished
    with silence_libraries(), distributed.use_process_group(), ExitStack() as stack:
        if config.output_dir:  # before preparation, so that a second experiment fails at once
            stack.enter_context(locks.lock_directory(Path(config.output_dir)))
        if config.resume:  # another process may have replaced the runs until they were locked
            config, fingerprints = resolve(is_locked=True)
            if finished := _load_finished(config):
                return finished
        experiment = find_experiment(command)(config)
        experiment.callbacks = callbacks
        if flag:
            pickle_callbacks(callbacks, flag)
        return experiment.run(fingerprints)


def pickle_callbacks(callbacks: Sequence[Any], flag: str) -> bytes:
    """Return the callbacks for other processes; raise `UserError` if this is impossible."""
    try:
        return bytes(ForkingPickler.dumps(callbacks))
    except (AttributeError, TypeError, PicklingError) as error:
        raise UserError(
            f"{flag}: callbacks: cannot be sent to other processes ({error}); define the class in a "
            f"module, or omit {flag.split()[0]}"
        ) from error


def _load_finished(config: RunConfig) -> Run | None:
    """Return the metrics if all runs of the experiment to resume are finished, else None."""
    folder = Path(config.output_dir or "")
    metrics = RunDir(folder).read_metrics() if config.resume else None
    # the other study may have changed, and a ladder may have to train the model that it keeps
    has_more = getattr(config, "against", None) or getattr(config, "keep", False)
    if not metrics or metrics.get("failed") or has_more:
        return None
    report_info(f"{folder}: all runs are already finished; showing their scores")
    return Run(folder, metrics)


def run_command(command: str, settings: dict[str, Any], as_json: bool, recipe: Recipe | None) -> int:
    run = run_experiment(command, settings, recipe)
    if as_json:
        print_run_json(run)
    elif run.output_dir is None:
        print_plan(run.metrics)
    else:
        experiment = find_experiment(command)
        for table in experiment.build_tables(run.metrics, run.output_dir):
            _print_result_table(table)
        out_console.print(f"{experiment.noun}: {run.output_dir}", markup=False, soft_wrap=True)
    is_compared = bool(settings.get("against")) and run.output_dir is not None
    return EXIT_STATUSES[run.metrics["judgement"]["verdict"]] if is_compared else 0


def print_plan(metrics: Mapping[str, Any]) -> None:
    """Print one line for each planned run, or several runs. Lines are not wrapped, so paths can be copied."""
    plan: Sequence[Mapping[str, str]] = metrics["runs"]
    num_runs = sum(int(row.get("runs", 1)) for row in plan)
    model = f" with {metrics['model']}" if metrics["model"] else ""
    title = f"dry run of {format_count(num_runs, 'run')}{model}: nothing was written"
    out_console.print(title, markup=False, soft_wrap=True)
    lines = [list(plan[0]), *(list(run.values()) for run in plan)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        line = "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
        )
        out_console.print(line.rstrip(), markup=False, soft_wrap=True)


def _print_result_table(result: ResultTable) -> None:
    """Print the table of a suite, its caption and its notes."""
    table = Table(title=result.title, title_justify="left", caption=result.caption, caption_justify="left")
    for index, column in enumerate(zip(result.headings, *result.rows, strict=True)):
        justify: JustifyMethod = "left" if index < result.text_columns else "right"
        longest_word = max(len(word) for cell in column for word in cell.split() or [""])
        table.add_column(column[0], justify=justify, overflow="fold", min_width=longest_word)
    for cells in result.rows:
        table.add_row(*cells)
    out_console.print(table)
    for note in [*result.notes, *result.describe_failures()]:
        out_console.print(note, soft_wrap=True)
