"""The base class of suites, and the functions that run a suite.

The runs of a suite are trained like those of a study: in one or several processes, and resumed after an
interruption.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bertkit import run_directory
from bertkit.charts import Chart
from bertkit.data.readers.formats import Dialect
from bertkit.data.sources import load_dataset, normalize_name
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.report.tables import ResultTable, render_suite_page
from bertkit.run.settings import fill_data_dir, resolve_settings
from bertkit.run.train import Run
from bertkit.settings.recipes import list_passed_data, serialize_settings
from bertkit.settings.setting import get_settings
from bertkit.studies.planned_runs import Outcome, PlannedRun, train_runs
from bertkit.studies.run_group import RunGroup, RunReporter
from bertkit.studies.runs_directory import RunsDirectory, join_if_resumed, name_resuming_command
from bertkit.suites import SUITES, suite_class
from bertkit.tasks import task_spec
from bertkit.training import arguments
from bertkit.utils import distributed, locks
from bertkit.utils.files import write_text
from bertkit.utils.reporting import get_reporter, report_info, report_warning, silence_libraries

RunMetrics = dict[Path, dict[str, Any]]  # content of `metrics.json`, by run directory


def find_data(
    datasets: Iterable[tuple[str, str]], data_dir: str | None, encoding: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Find datasets, so that missing ones are reported before the first run.

    Args:
        datasets: Pairs of a dataset and the task that it is loaded for.
        data_dir: The directory of `--data-dir`.
        encoding: The value of `--encoding`.

    Returns:
        The location of each dataset that was found, and the error message for each missing one, by name.
    """
    found, errors = {}, {}
    for name, task_name in datasets:
        try:
            found[name] = load_dataset(name, task_name, data_dir, Dialect(encoding=encoding)).source
        except UserError as error:
            errors[name] = str(error)
    return found, errors


@dataclass(frozen=True, kw_only=True)
class SuiteRun(PlannedRun):
    """A planned run of a suite.

    Attributes:
        recipe: Name of the recipe of the run; empty without one.
        data: Location of the data.
        metric: Name of the validation score on the console.
    """

    recipe: str
    data: str
    metric: str


class Suite(ABC):
    """A group of runs and the table of their results.

    `run_suite` first calls `resolve_inputs`. After that, a dry run calls `plan_runs`; otherwise
    `execute_runs`, `compute_metrics`, `build_table` and `build_details` are called.

    Attributes:
        name: Name of the command.
        suite_settings: Names of the settings that are not passed to the runs.
        output_names: Files and directories that the suite may write in addition to those of every run
            directory. `--overwrite` removes them.
        failures: Why runs have failed, by run directory.
    """

    name: ClassVar[str]
    suite_settings: ClassVar[frozenset[str]]
    output_names: ClassVar[list[str]]

    def __init__(self, config: Any) -> None:
        arguments.check_precision(config)
        self.config: Any = fill_data_dir(config)
        self.run_reporter = RunReporter(get_reporter())
        self.failures: dict[Path, str] = {}

    @abstractmethod
    def resolve_inputs(self) -> list[str]:
        """Find data and models, and return name parts for the default output directory.

        Raises:
            UserError: An input that all runs need does not exist.
        """

    @abstractmethod
    def plan_runs(self, folder: Path) -> list[SuiteRun]:
        """Return the runs of the suite in a directory; settings that depend on other runs may be missing."""

    def execute_runs(self, folder: Path) -> RunMetrics:
        """Execute the unfinished runs, and return the metrics of each finished run by directory."""
        return self.train_runs(self.plan_runs(folder))

    @abstractmethod
    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the content of the suite's `metrics.json` from what `execute_runs` has returned."""

    @staticmethod
    @abstractmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return the table for `metrics`, the content of `folder/metrics.json`."""

    @staticmethod
    def build_details(metrics: Mapping[str, Any]) -> tuple[dict[str, ResultTable], list[Chart]]:  # noqa: ARG004
        """Return further tables by heading, and the charts, for the page and the README of the suite."""
        return {}, []

    def run(self, name_parts: list[str]) -> Run:
        """Execute the unfinished runs, and write the table and the metrics."""
        folder = Path(
            self.config.output_dir or run_directory.create_default_directory(self.name, *name_parts)
        )
        with RunsDirectory(folder, self.name, self.output_names).open(self.config, {}):
            results = self.execute_runs(folder)
            with locks.wait_for_lock(folder):
                metrics = run_directory.read_metrics(folder)  # another process may have written them
                if metrics is None or metrics.get("failed"):
                    metrics = self._write_results(folder, results)
        return Run(folder, metrics)

    def _write_results(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        failed = {path.relative_to(folder).as_posix(): reason for path, reason in self.failures.items()}
        if not results:
            name, reason = next(iter(failed.items()))
            raise UserError(f"{self.name}: all runs have failed ({name}: {reason}); change the settings")
        metrics = {**self.compute_metrics(folder, results), "failed": failed}
        details, charts = self.build_details(metrics)
        table = self.build_table(metrics, folder)
        tables = {"Scores": table, **details}
        sections = [detail.to_markdown(f"## {heading}") for heading, detail in details.items()]
        write_text(folder / run_directory.CARD_FILE, "\n".join([table.to_markdown(), *sections]))
        names = [path.relative_to(folder).as_posix() for path in results]
        write_text(folder / run_directory.REPORT_FILE, render_suite_page(tables, charts, names))
        run_directory.write_metrics(folder, metrics)
        return metrics

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """Return the settings of the suite that apply to its runs of this task."""
        settings = serialize_settings(self.config)
        shared = {name: value for name, value in settings.items() if name not in self.suite_settings}
        return select_task_settings(task_name, shared)

    def make_run_group(self, task_name: str, recipe: str | None, settings: Mapping[str, Any]) -> RunGroup:
        """Return a group for runs of a task on the same data.

        Args:
            task_name: The task.
            recipe: The recipe of the runs, if they have one.
            settings: Settings of these runs, which override those of the suite.
        """
        values = {**self.select_shared_settings(task_name), **settings}
        config_class = task_spec(task_name).config
        config, _ = resolve_settings(task_name, config_class, values, recipe)
        return RunGroup(task_name, config, self.run_reporter)

    def train_runs(self, runs: Sequence[SuiteRun]) -> RunMetrics:
        """Train the unfinished runs, and return the metrics of each finished run by directory.

        A line is reported at the beginning and at the end of each run.
        """
        already_finished: set[Path] = set()

        def announce(run: SuiteRun) -> None:
            if (run.folder / run_directory.METRICS_FILE).exists():
                already_finished.add(run.folder)
            else:
                report_info(str(run.folder))

        def report(run: SuiteRun, outcome: Outcome) -> None:
            if outcome.reason:
                self.failures[run.folder] = outcome.reason
                report_warning(f"{run.folder} failed: {outcome.reason}")
                return
            score = f"{run.metric} {outcome.metrics['validation'][run.metric]:.4f}"
            note = " (already finished)" if run.folder in already_finished else ""
            report_info(f"{run.folder}: {score}{note}")

        outcomes = train_runs(runs, announce, report)
        return {path: outcome.metrics for path, outcome in outcomes.items() if not outcome.reason}


def run_suite(name: str, settings: Mapping[str, Any], recipe: str | None = None) -> Run:
    """Execute the unfinished runs of a suite, and return the suite with its metrics.

    Raises:
        UserError: The user can fix the problem; data and models are checked before the first run.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the suite; finished runs are kept for `--resume`.
    """
    resolve = partial(resolve_settings, name, SUITES[name].config, settings, recipe)
    config, _ = resolve()
    for setting_name, kind in list_passed_data(config).items():
        raise UserError(
            f"{name}: {setting_name}: expected a name or a path, found a {kind}; save the data, for example "
            "with Dataset.save_to_disk, and pass the directory"
        )
    folder = Path(config.output_dir or "")
    metrics = run_directory.read_metrics(folder) if config.resume else None
    if metrics and not metrics.get("failed"):
        report_info(f"{folder}: all runs are already finished; showing their scores")
        return Run(folder, metrics)
    with (
        silence_libraries(), distributed.use_process_group(),
        name_resuming_command(name, folder, lambda: config.resume), join_if_resumed(config, folder),
    ):  # fmt: skip
        if config.resume:
            config, _ = resolve(is_locked=True)
        suite = suite_class(name)(config)
        name_parts = suite.resolve_inputs()
        if config.dry_run:
            return Run(None, {"task": name, "model": suite.config.model, "runs": _describe_runs(suite)})
        return suite.run(name_parts)


def select_task_settings(task_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a task has. For example, the task `ner` has no `pooling`."""
    available = get_settings(task_spec(task_name).config)
    return {name: value for name, value in settings.items() if name in available}


def _describe_runs(suite: Suite) -> list[dict[str, str]]:
    """Return a line for each planned run, for `--dry-run`."""
    return [
        {"folder": run.folder.as_posix(), "recipe": run.recipe, "data": run.data}
        for run in suite.plan_runs(Path())
    ]


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
            hint = suggest_similar(name, choices) or ";"
            raise UserError(f"{flag} {name}: is not a {noun}{hint} choose from {format_list(choices)}")
    if not names:
        raise UserError(f"{flag}: is empty; choose from {format_list(choices)}")
    selected = [normalize_name(name) for name in names]
    return [choice for choice in choices if normalize_name(choice) in selected]
