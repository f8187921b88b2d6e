"""What suites share: several runs in one directory, gone on with where they were stopped."""

import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bertkit import run_directory
from bertkit.config import RunConfig, fill_unset, serialize_settings
from bertkit.data.loading import resolve_data_dir
from bertkit.data.registry import normalize_name
from bertkit.errors import RunInterrupted, UserError, format_list, suggest_similar
from bertkit.pipeline.prepare import resolve_settings
from bertkit.pipeline.run import Run, train
from bertkit.suites.result_table import ResultTable
from bertkit.training import defaults
from bertkit.utils import locks
from bertkit.utils.files import write_text
from bertkit.utils.reporting import Reporter


class Suite(ABC):
    """Several runs and what they come to. Methods are called in the order they stand here.

    Attributes:
        name: the command.
        own: settings that are the suite's, and not handed on to its runs.
        leaves: what it may leave beside the files of a run: what --overwrite removes.
        parts: the folders of the runs, or of several runs each.
    """

    name: ClassVar[str]
    Config: ClassVar[type[RunConfig]]
    suite_settings: ClassVar[frozenset[str]]
    output_names: ClassVar[list[str]]
    run_dirs: list[str]

    def __init__(self, config: Any, reporter: Reporter) -> None:
        defaults.check_precision(config)
        directory = resolve_data_dir(config.data_dir)
        self.config: Any = fill_unset(config, {"data_dir": str(directory) if directory else None})
        self.reporter = reporter

    @abstractmethod
    def resolve_inputs(self) -> list[str]:
        """What all runs need must be at hand; gives what the default directory is called after.

        Raises:
            UserError: naming what is not.
        """

    @abstractmethod
    def plan_runs(self) -> list[dict[str, Any]]:
        """What each run would be: its `folder`, its `recipe`, the `data`, and what else tells it apart."""

    @abstractmethod
    def execute_runs(self, folder: Path) -> dict[str, Any]:
        """Make the runs that are not finished yet: what each of `parts` left."""

    @abstractmethod
    def compute_metrics(self, folder: Path, results: dict[str, Any]) -> dict[str, Any]:
        """The content of the suite's `metrics.json`."""

    @staticmethod
    @abstractmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """What a person sees of the content of `folder/metrics.json`."""

    def run(self, name_parts: list[str]) -> Run:
        """All runs that are not finished yet, then what they come to."""
        named = self.config.output_dir
        with locks.lock_directory(
            Path(named) if named else run_directory.create_default_directory(self.name, *name_parts)
        ) as folder:
            return self._run(folder)

    def _run(self, folder: Path) -> Run:
        if not self.config.resume:
            run_directory.check_run_directory(folder, self.config.overwrite)
            run_directory.back_up_run(folder, self.output_names)
            run_directory.write_settings(folder, self.name, self.config, {})
        try:
            results = self.execute_runs(folder)
        except (RunInterrupted, KeyboardInterrupt) as error:
            if not self._has_runs(folder):
                raise
            way_on = f"bertkit {self.name} --resume --output-dir {shlex.quote(str(folder))}"
            raise RunInterrupted(f"stopped; go on with: {way_on}") from error
        finally:
            self._settle(folder)
        metrics = self.compute_metrics(folder, results)
        write_text(folder / "README.md", self.build_table(metrics, folder).to_markdown())
        run_directory.write_metrics(folder, metrics)
        return Run(folder, metrics)

    def select_shared_settings(self, task_name: str) -> dict[str, Any]:
        """The suite's settings that it hands on to runs of task `kind`."""
        return {
            key: value
            for key, value in serialize_settings(self.config).items()
            if key not in self.suite_settings
        }

    def train(
        self, task_name: str, recipe: str | None, run_settings: Mapping[str, Any], output_dir: Path
    ) -> Run:
        """One run of task `kind`, or the rest of it; `own` goes before the suite's settings."""
        if finished := run_directory.read_metrics(output_dir):
            self.reporter.info("finished before")
            run = Run(output_dir, finished)
        elif (output_dir / run_directory.SETTINGS_FILE).exists():
            run = train(task_name, {"resume": True, "output_dir": str(output_dir)}, None, self.reporter)
        else:
            given = {**self.select_shared_settings(task_name), **run_settings, "output_dir": str(output_dir)}
            run = train(task_name, given, recipe, self.reporter)
        shutil.rmtree(output_dir / run_directory.CHECKPOINTS_DIR, ignore_errors=True)  # it is finished
        return run

    def _settle(self, folder: Path) -> None:
        """Leave nothing of a suite whose first run was refused, and else nothing of the one it replaces."""
        if self._has_runs(folder):
            run_directory.delete_backup(folder)
            return
        for part in self.run_dirs:
            shutil.rmtree(folder / part, ignore_errors=True)
        run_directory.discard_unstarted_run(folder)

    def _has_runs(self, folder: Path) -> bool:
        return any(
            found
            for part in self.run_dirs
            for found in folder.glob(f"{part}/**/{run_directory.SETTINGS_FILE}")
        )


def run_suite(
    suite_class: type[Suite], given: Mapping[str, Any], recipe: str | None, reporter: Reporter | None
) -> Run:
    """Make the runs of a suite, or what is left of them.

    Raises:
        UserError: anything the user can mend; what all runs need is looked for before any of them.
        RunInterrupted: Ctrl-C or SIGTERM; what is finished stays, and `--resume` goes on.
    """
    reporter = reporter or Reporter()
    config, _ = resolve_settings(suite_class.name, suite_class.Config, given, recipe, Reporter())
    finished = run_directory.read_metrics(Path(config.output_dir or "")) if config.resume else None
    if finished:
        reporter.info("all runs are finished; these are their scores")
        return Run(Path(config.output_dir or ""), finished)
    suite = suite_class(config, reporter)
    called = suite.resolve_inputs()
    if config.dry_run:
        return Run(None, {"task": suite_class.name, "model": suite.config.model, "runs": suite.plan_runs()})
    return suite.run(called)


def select_names(flag: str, names: Sequence[str] | None, choices: Sequence[str], noun: str) -> list[str]:
    """The names of `known` that `flag` gives, repeated or parted by commas, in the order of `known`.

    Raises:
        UserError: a name that is none, or no name at all.
    """
    parts = [part.strip() for name in names or choices for part in name.split(",") if part.strip()]
    for part in parts:
        if normalize_name(part) not in map(normalize_name, choices):
            raise UserError(
                f"{flag} {part}: no {noun}{suggest_similar(part, choices)} ({format_list(choices)})"
            )
    if not parts:
        raise UserError(f"{flag}: names none of {format_list(choices)}")
    return [name for name in choices if normalize_name(name) in map(normalize_name, parts)]
