"""The base class of suites, their result tables, and the functions that run them.

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
from bertkit.config import serialize_settings
from bertkit.data.loading import load_dataset
from bertkit.data.registry import normalize_name
from bertkit.errors import RunInterrupted, UserError, format_list, suggest_similar
from bertkit.pipeline.run import Run, train
from bertkit.pipeline.settings import fill_data_dir, resolve_settings
from bertkit.suites import SUITES, suite_class
from bertkit.training import defaults
from bertkit.utils import locks
from bertkit.utils.files import write_text
from bertkit.utils.output_paths import check_output_directory
from bertkit.utils.reporting import Reporter

# ---- the result table


@dataclass(frozen=True)
class ResultTable:
    """A table with its caption and notes.

    Attributes:
        title: The title of the printed table.
        headings: The column headings.
        rows: The cells of each row.
        caption: The metrics and their source.
        run_notes: One line for each row or task about its runs.
        text_columns: How many of the first columns hold text instead of numbers.
        page_title: The Markdown title of the page; empty for `title`.
        notes: Lines below the printed table.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    run_notes: Sequence[str]
    text_columns: int = 1
    page_title: str = ""
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """Return the table, its caption and the notes on runs as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in self.run_notes)
        return f"# {self.page_title or self.title}\n\n{table}\n\n{self.caption}\n\n## Runs\n\n{runs}\n"


def format_score(percent: float | None, digits: int = 1) -> str:
    """Return a score that is in percent already (`84.6`), or an empty string for None."""
    return "" if percent is None else f"{percent:.{digits}f}"


def format_percent(value: float | None, std: float | None = None) -> str:
    """Return a fraction in percent (`84.6` or `84.6 ± 0.3`), or an empty string for None."""
    if value is None:
        return ""
    return format_score(100 * value) + ("" if std is None else f" ± {format_score(100 * std)}")


# ---- the runs


@dataclass(frozen=True)
class DataSources:
    """Where the data of a suite's tasks was found.

    Attributes:
        found: Dataset -> its location.
        missing: The datasets that were not found.
        reason: The error message for the first missing dataset.
    """

    found: dict[str, str]
    missing: list[str]
    reason: str


def find_data(datasets: Iterable[tuple[str, str]], data_dir: str | None) -> DataSources:
    """Find datasets before any run needs them.

    Args:
        datasets: (dataset, task) pairs.
        data_dir: The directory of `--data-dir`.
    """
    found: dict[str, str] = {}
    missing: list[str] = []
    reason = ""
    for name, task_name in datasets:
        try:
            found[name] = load_dataset(name, task_name, data_dir).source
        except UserError as error:
            missing.append(name)
            reason = reason or str(error)
    return DataSources(found, missing, reason)


class Suite(ABC):
    """Several runs and the table that they make.

    `run_suite` calls `resolve_inputs` first. A dry run then calls `plan_runs`. Otherwise `execute_runs`,
    `compute_metrics` and `build_table` follow.

    Attributes:
        name: The command.
        suite_settings: Settings that are not passed on to the runs.
        output_names: Files and directories that a suite may write in addition to those of a run.
            `--overwrite` removes them.
        run_dirs: The directories of the runs, or of groups of runs.
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
        """Find data and models, and return the parts of the default directory's name.

        Raises:
            UserError: An input that all runs need does not exist.
        """

    @abstractmethod
    def plan_runs(self) -> list[dict[str, Any]]:
        """Return the `folder`, the `recipe` and the `data` of each run."""

    @abstractmethod
    def execute_runs(self, folder: Path) -> dict[str, Any]:
        """Execute the runs that are not finished yet, and return the results of all runs by group."""

    @abstractmethod
    def compute_metrics(self, folder: Path, results: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the suite's `metrics.json`."""

    @staticmethod
    @abstractmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return the table for the content of `folder/metrics.json`."""

    def run(self, name_parts: list[str]) -> Run:
        """Execute the unfinished runs and write the table."""
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
        """Return the settings of the suite that apply to its runs of a task."""
        return {
            name: value
            for name, value in serialize_settings(self.config).items()
            if name not in self.suite_settings
        }

    def train(
        self, task_name: str, recipe: str | None, run_settings: Mapping[str, Any], output_dir: Path
    ) -> Run:
        """Train one run, resume it, or return it if it is finished.

        Args:
            task_name: The task.
            recipe: The recipe of the run, if any.
            run_settings: Settings of this run; they override those of the suite.
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
        # A finished run is never resumed, and the checkpoints of all runs would fill the disk.
        shutil.rmtree(output_dir / run_directory.CHECKPOINTS_DIR, ignore_errors=True)
        return run

    def _clean_up(self, folder: Path) -> None:
        """Delete the replaced suite, or restore it if no run of this one has started."""
        if self._has_runs(folder):
            run_directory.delete_backup(folder)
            return
        for run_dir in self.run_dirs:
            shutil.rmtree(folder / run_dir, ignore_errors=True)
        run_directory.discard_unstarted_run(folder)

    def _has_runs(self, folder: Path) -> bool:
        return any(
            path
            for run_dir in self.run_dirs
            for path in folder.glob(f"{run_dir}/**/{run_directory.SETTINGS_FILE}")
        )


def run_suite(
    name: str, settings: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None
) -> Run:
    """Execute the runs of a suite that are not finished yet, and return the suite's metrics.

    Raises:
        UserError: The user can fix the problem; what all runs need is checked before the first run.
        RunInterrupted: Ctrl-C or SIGTERM; finished runs are kept, and `--resume` continues.
    """
    reporter = reporter or Reporter()
    config, _ = resolve_settings(name, SUITES[name].config, settings, recipe, Reporter())
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
        flag: The flag, for error messages.
        values: Its values, each with one or more names separated by commas; None or empty for all choices.
        choices: The known names.
        noun: What a choice is, for error messages.

    Raises:
        UserError: A name is unknown, or there is no name at all.
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
