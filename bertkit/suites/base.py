"""The base class of suites, and the functions that run a suite.

A suite executes several runs in one directory. An interrupted suite can be resumed.
"""

import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bertkit import run_directory
from bertkit.data.loading import load_dataset
from bertkit.data.readers.delimited import Dialect
from bertkit.data.registry import normalize_name
from bertkit.errors import RunInterrupted, UserError, format_list, suggest_similar
from bertkit.pipeline.run import Run, train
from bertkit.pipeline.settings import fill_data_dir, resolve_settings
from bertkit.recipes import list_passed_data, serialize_settings
from bertkit.reports.result_table import ResultTable
from bertkit.suites import SUITES, suite_class
from bertkit.training import defaults
from bertkit.utils import locks
from bertkit.utils.files import write_text
from bertkit.utils.output_paths import check_output_directory
from bertkit.utils.reporting import Reporter

# ---- the runs


@dataclass(frozen=True)
class DataSources:
    """Datasets of a suite that were found, and datasets that are missing.

    Attributes:
        found: Location of each dataset that was found, by name.
        missing: Names of the datasets that were not found.
        reason: The error message for the first missing dataset; empty if none is missing.
    """

    found: dict[str, str]
    missing: list[str]
    reason: str


def find_data(
    datasets: Iterable[tuple[str, str]], data_dir: str | None, encoding: str | None = None
) -> DataSources:
    """Find datasets, so that missing ones are reported before the first run.

    Args:
        datasets: Pairs of a dataset and the task that it is loaded for.
        data_dir: The directory of `--data-dir`.
        encoding: The value of `--encoding`.
    """
    dialect = Dialect(encoding=encoding)
    found: dict[str, str] = {}
    missing: list[str] = []
    reason = ""
    for name, task_name in datasets:
        try:
            found[name] = load_dataset(name, task_name, data_dir, dialect).source
        except UserError as error:
            missing.append(name)
            reason = reason or str(error)
    return DataSources(found, missing, reason)


class Suite(ABC):
    """A group of runs and the table of their results.

    `run_suite` first calls `resolve_inputs`. After that, a dry run calls `plan_runs`; otherwise
    `execute_runs`, `compute_metrics` and `build_table` are called.

    Attributes:
        name: Name of the command.
        suite_settings: Names of the settings that are not passed to the runs.
        output_names: Files and directories that the suite may write in addition to those of every run
            directory. `--overwrite` removes them.
        run_dirs: Directories that contain the selected runs.
    """

    name: ClassVar[str]
    suite_settings: ClassVar[frozenset[str]]
    output_names: ClassVar[list[str]]
    run_dirs: list[str]

    def __init__(self, config: Any, reporter: Reporter) -> None:
        defaults.check_precision(config)
        self.config: Any = fill_data_dir(config)
        self.reporter = reporter

    @abstractmethod
    def resolve_inputs(self) -> list[str]:
        """Find data and models, and return name parts for the default output directory.

        Raises:
            UserError: An input that all runs need does not exist.
        """

    @abstractmethod
    def plan_runs(self) -> list[dict[str, Any]]:
        """Return the `folder`, the `recipe` and the `data` of each planned run."""

    @abstractmethod
    def execute_runs(self, folder: Path) -> dict[str, Any]:
        """Execute the unfinished runs, and return the results of all runs by row or task of the table."""

    @abstractmethod
    def compute_metrics(self, folder: Path, results: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the suite's `metrics.json`."""

    @staticmethod
    @abstractmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return the table for `metrics`, the content of `folder/metrics.json`."""

    def run(self, name_parts: list[str]) -> Run:
        """Execute the unfinished runs, and write the table and the metrics."""
        output_dir = self.config.output_dir
        if output_dir is None:
            output_dir = run_directory.create_default_directory(self.name, *name_parts)
        with locks.lock_directory(Path(output_dir)) as folder:
            return self._run(folder)

    def _run(self, folder: Path) -> Run:
        if not self.config.resume:
            check_output_directory(folder, run_directory.RUN, self.config.overwrite)
            run_directory.back_up_run(folder, self.output_names)
            run_directory.write_settings(folder, self.name, self.config, {})
        try:
            results = self.execute_runs(folder)
        except (RunInterrupted, KeyboardInterrupt) as error:
            if not self._has_runs(folder):
                raise
            command = f"bertkit {self.name} --resume --output-dir {shlex.quote(str(folder))}"
            raise RunInterrupted(f"interrupted; resume with: {command}") from error
        finally:
            self._clean_up(folder)
        metrics = self.compute_metrics(folder, results)
        write_text(folder / "README.md", self.build_table(metrics, folder).to_markdown())
        run_directory.write_metrics(folder, metrics)
        return Run(folder, metrics)

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings of the suite that apply to its runs of this task."""
        return {
            name: value
            for name, value in serialize_settings(self.config).items()
            if name not in self.suite_settings
        }

    def train(
        self, task_name: str, recipe: str | None, run_settings: Mapping[str, Any], output_dir: Path
    ) -> Run:
        """Train a run, resume an interrupted run, or return a finished run.

        Args:
            task_name: The task.
            recipe: The recipe of the run, if it has one.
            run_settings: Settings of this run, which override those of the suite.
            output_dir: The run directory.
        """
        if metrics := run_directory.read_metrics(output_dir):
            self.reporter.info(f"{output_dir}: already finished")
            run = Run(output_dir, metrics)
        elif (output_dir / run_directory.SETTINGS_FILE).exists():
            run = train(task_name, {"resume": True, "output_dir": str(output_dir)}, None, self.reporter)
        else:
            settings = {
                **self.select_shared_settings(task_name),
                **run_settings,
                "output_dir": str(output_dir),
            }
            run = train(task_name, settings, recipe, self.reporter)
        # A finished run needs no checkpoints, and those of all runs could fill the disk.
        shutil.rmtree(output_dir / run_directory.CHECKPOINTS_DIR, ignore_errors=True)
        return run

    def _clean_up(self, folder: Path) -> None:
        """Delete the backup of the replaced suite, or restore the backup if no new run has started."""
        if self._has_runs(folder):
            run_directory.delete_backup(folder)
            return
        for run_dir in self.run_dirs:
            shutil.rmtree(folder / run_dir, ignore_errors=True)
        run_directory.discard_unstarted_run(folder)

    def _has_runs(self, folder: Path) -> bool:
        """Return whether a run of the suite has started."""
        patterns = [f"{run_dir}/**/{run_directory.SETTINGS_FILE}" for run_dir in self.run_dirs]
        return any(any(folder.glob(pattern)) for pattern in patterns)


def run_suite(
    name: str, settings: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Execute the unfinished runs of a suite, and return the suite with its metrics.

    Raises:
        UserError: The user can fix the problem; data and models are checked before the first run.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the suite; finished runs are kept for `--resume`.
    """
    reporter = reporter or Reporter()
    config, _ = resolve_settings(name, SUITES[name].config, settings, recipe, Reporter())
    for setting_name, kind in list_passed_data(config).items():
        raise UserError(
            f"{name}: {setting_name}: expected a name or a path, found a {kind}; save the data, for example "
            "with Dataset.save_to_disk, and pass the directory"
        )
    metrics = run_directory.read_metrics(Path(config.output_dir or "")) if config.resume else None
    if metrics:
        reporter.info(f"{config.output_dir}: all runs are already finished; showing their scores")
        return Run(Path(config.output_dir or ""), metrics)
    suite = suite_class(name)(config, reporter)
    name_parts = suite.resolve_inputs()
    if config.dry_run:
        return Run(None, {"task": name, "model": suite.config.model, "runs": suite.plan_runs()})
    return suite.run(name_parts)


def select_names(flag: str, values: Sequence[str] | None, choices: Sequence[str], noun: str) -> list[str]:
    """Return the choices that a flag names, in the order of `choices`.

    Args:
        flag: Name of the flag for error messages.
        values: Values of the flag, each with one or more names separated by commas. Without values, all
            choices are returned.
        choices: All valid names.
        noun: Noun for a choice in error messages, such as "GLUE task".

    Raises:
        UserError: A name is unknown, or the values contain no name.
    """
    names = [name.strip() for value in values or choices for name in value.split(",") if name.strip()]
    known = [normalize_name(choice) for choice in choices]
    for name in names:
        if normalize_name(name) not in known:
            raise UserError(
                f"{flag} {name}: is not a {noun}{suggest_similar(name, choices)} "
                f"(choose from {format_list(choices)})"
            )
    if not names:
        raise UserError(f"{flag}: is empty; choose from {format_list(choices)}")
    selected = [normalize_name(name) for name in names]
    return [choice for choice in choices if normalize_name(choice) in selected]
