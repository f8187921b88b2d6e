"""An experiment: a plan of runs and one table. Studies and suites are experiments.

A planned run is plain data, and its experiment knows the rows that it is trained on. A worker process can
thus create the same experiment from its settings, and train any of its runs.
"""

import copy
import dataclasses
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.table import Splits
from bertkit.errors import RunInterrupted, TrainingFailed
from bertkit.experiments.config import find_config, find_experiment
from bertkit.experiments.executor import LocalExecutor
from bertkit.experiments.search import Trial
from bertkit.reports.tables import ResultTable
from bertkit.run.load_data import LoadedData, load_data, split_parsed_rows
from bertkit.run.prepare import PreparedRun, RunOptions, prepare, score_encoder_baselines
from bertkit.run.results import Run
from bertkit.run.settings import resolve_settings
from bertkit.run.train import require_unchanged_data, train_prepared
from bertkit.run_directory import RUN, RunDir, create_default_directory
from bertkit.settings.recipes import Recipe
from bertkit.settings.run_settings import RunConfig
from bertkit.stats.metric_modules import MetricModule, load_module
from bertkit.stats.scores import Scores
from bertkit.training.failures import BATCH_SETTINGS, release_memory, report_out_of_memory
from bertkit.utils import distributed, locks
from bertkit.utils.files import check_output_directory, join_command
from bertkit.utils.reporting import (
    Reporter,
    get_reporter,
    report_info,
    silence_libraries,
    use_reporter,
)

LOADING_MEMORY = "out of memory while the model is loaded; use a smaller model, or a machine with more memory"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned.

    Attributes:
        folder: The run directory.
        settings: Settings of this run, in addition to those of its group.
        seed: Seed of the run.
        metric: Name of its score on the console.
        title: Name of the run on the console; by default, the directory.
        group: Name of the runs with the same data, to which this run belongs.
        recipe: Name of its recipe, and `data` the location of its data, for `--dry-run` of a suite.
        trial: Number of the trial of a study; None for other runs.
        fold: The fold that a run of a study predicts; None without folds.
    """

    folder: Path
    settings: Mapping[str, Any]
    seed: int
    metric: str
    title: str = ""
    group: str = ""
    recipe: str = ""
    data: str = ""
    trial: int | None = None
    fold: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        metrics: Content of `metrics.json`; empty if the run failed.
        reason: Why the run failed.
        trial: The trial of a study that has ended with this run.
        is_interrupted: Whether a signal arrived during the evaluation that ended a trial.
    """

    metrics: dict[str, Any]
    reason: str | None = None
    trial: Trial | None = None
    is_interrupted: bool = False


# ---- runs with the same data


class RunReporter(Reporter):
    """A reporter for several runs: it passes on the progress, and each warning only once.

    Attributes:
        messages: The messages that were passed on.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.messages: set[str] = set()
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

    Args:
        task_name: The task.
        config: The settings that the runs have in common.
        reporter: The reporter of the runs.
    """

    def __init__(self, task_name: str, config: RunConfig, reporter: RunReporter) -> None:
        self.task_name, self.config, self.reporter = task_name, config, reporter
        self._has_prepared = False
        self._baselines: dict[str, Scores] | None = None
        self._encoder_baselines: dict[tuple[str, int], dict[str, Scores]] = {}  # by model and maximum length

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
        """Prepare a run.

        Args:
            settings: Settings of this run. They must not change how rows are parsed.
            splits: Rows by split; by default, `self.splits`.
            options: Options of this run.
        """
        config = dataclasses.replace(self.config, **settings)
        options = options or RunOptions()
        data = self.data.for_run(dict(settings), self.splits if splits is None else splits)
        with use_reporter(self.reporter), self.reporter.show_info(not self._has_prepared):
            prepared = prepare(self.task_name, config, self.modules, data)
        self._has_prepared = True
        if splits is None:
            options = dataclasses.replace(options, score_baselines=partial(self._score_baselines, prepared))
        prepared.options = options
        return prepared

    def _score_baselines(self, prepared: PreparedRun) -> dict[str, Scores]:
        """Return the scores of the baselines.

        All runs with the splits of the group share them. Those that read vectors of the encoder are shared by
        the runs with the same model.
        """
        train, rows = prepared.splits["train"], prepared.splits["validation"]
        task = copy.copy(prepared.task)
        task.resolve(seed=self.config.seed)
        if self._baselines is None:
            self._baselines = task.score_baselines(train, rows)
        encoder = (task.config.model, task.config.max_length)
        if encoder not in self._encoder_baselines:
            scores = score_encoder_baselines(task, train, rows, prepared.tokenizer)
            self._encoder_baselines[encoder] = scores
        return self._baselines | self._encoder_baselines[encoder]


# ---- the experiment


class Experiment(ABC):
    """A plan of runs and one table.

    `run` first calls `prepare`. After that, a dry run calls `describe_runs`; otherwise, `execute` trains the
    runs with `self.executor`. A worker process calls only `train`.

    Attributes:
        command: The command, such as "glue" or "study classify".
        noun: What the output directory contains, on the console.
        output_names: Patterns of the names of files and directories that the command may write in addition to
            those of every run directory. `--overwrite` removes them.
        fingerprints: Fingerprints by split of the data that all runs have in common, after `prepare`.
    """

    command: str
    noun: ClassVar[str] = "runs"
    output_names: ClassVar[Sequence[str]]

    def __init__(self, config: Any) -> None:
        self.config: Any = config
        self.run_reporter = RunReporter(get_reporter())
        self.started = time.monotonic()
        self.folder = Path(config.output_dir) if config.output_dir else None
        self.fingerprints: dict[str, str] = {}
        self._groups: dict[str, RunGroup] = {}

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
        """Train a run, resume it, or read its metrics if it is finished.

        Args:
            run: The run, whose directory is locked.
            splits: Rows by split; by default, those of the group.
            options: Options of this run.

        Returns:
            Content of `metrics.json`.
        """
        if (metrics := RunDir(run.folder).read_metrics()) is None:
            saved = _read_saved_settings(run.folder)
            settings = {**run.settings, "seed": run.seed, **saved, "output_dir": str(run.folder)}
            prepared = self.get_group(run.group).prepare(settings, splits, options)
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
                with (
                    self._open_directory(name_parts) as folder,
                    LocalExecutor(self, self.config.jobs) as self.executor,
                ):
                    return Run(folder, self.execute(folder))
        except (RunInterrupted, KeyboardInterrupt) as error:
            if not (self.config.resume or self._has_runs()):
                raise
            resume = ["bertkit", *self.command.split(), "--resume", "--output-dir", str(self.folder)]
            resume += ["--jobs", str(self.config.jobs)] if self.config.jobs > 1 else []
            raise RunInterrupted(f"interrupted; resume with: {join_command(resume)}") from error

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
                check_output_directory(self.folder, RUN, self.config.overwrite)
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


def run_experiment(command: str, settings: Mapping[str, Any], recipe: str | Recipe | None = None) -> Run:
    """Run an experiment, resume it, or return the metrics of a finished one.

    Args:
        command: The command, such as "glue" or "study classify".
        settings: Settings of the user, which take precedence over those of the recipe.
        recipe: A recipe for the command, or its name or path; a study also accepts the recipes of its task.

    Raises:
        UserError: The experiment cannot succeed. Settings, data and models are checked before the first run.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the experiment; finished runs are kept for `--resume`.
    """
    resolve = partial(resolve_settings, command, find_config(command), settings, recipe)
    config, fingerprints = resolve()
    if finished := _load_finished(config):
        return finished
    with silence_libraries(), distributed.use_process_group(), ExitStack() as stack:
        if config.output_dir:  # before preparation, so that a second experiment fails at once
            stack.enter_context(locks.lock_directory(Path(config.output_dir)))
        if config.resume:  # another process may have replaced the runs until they were locked
            config, fingerprints = resolve(is_locked=True)
            if finished := _load_finished(config):
                return finished
        return find_experiment(command)(config).run(fingerprints)


def _load_finished(config: RunConfig) -> Run | None:
    """Return the metrics if all runs of the experiment to resume are finished, else None."""
    folder = Path(config.output_dir or "")
    metrics = RunDir(folder).read_metrics() if config.resume else None
    if not metrics or metrics.get("failed"):
        return None
    report_info(f"{folder}: all runs are already finished; showing their scores")
    return Run(folder, metrics)
