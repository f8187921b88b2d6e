"""Planned runs, and the function that trains them in one or several processes."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertkit import run_directory
from bertkit.data.table import Splits
from bertkit.errors import TrainingFailed, format_count
from bertkit.run.prepare import RunOptions
from bertkit.run.train import require_unchanged_data, train_prepared
from bertkit.studies.run_group import RunGroup
from bertkit.training.failures import BATCH_SETTINGS, release_memory, report_out_of_memory
from bertkit.utils.locks import POLL_SECONDS, try_lock
from bertkit.utils.reporting import report_info, use_reporter

LOADING_MEMORY = "out of memory while the model is loaded; use a smaller model, or a machine with more memory"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned.

    Attributes:
        folder: The run directory.
        run_group: Runs with the same data, to which this run belongs.
        settings: Settings of this run, in addition to those of the group.
        seed: Seed of the run.
        splits: Rows by split; by default, those of the group.
        options: Options of this run.
    """

    folder: Path
    run_group: RunGroup
    settings: Mapping[str, Any]
    seed: int
    splits: Splits | None = None
    options: RunOptions = field(default_factory=RunOptions)

    def train(self) -> dict[str, Any]:
        """Train in the locked directory, resume the run, or read its metrics if it is finished.

        Afterwards, the caller releases the memory, because an error may keep the tensors alive.

        Returns:
            Content of `metrics.json`.
        """
        if (metrics := run_directory.read_metrics(self.folder)) is None:
            saved = _read_saved_settings(self.folder)
            settings = {**self.settings, "seed": self.seed, **saved, "output_dir": str(self.folder)}
            prepared = self.run_group.prepare(settings, self.splits, self.options)
            if saved:
                fingerprints = run_directory.read_provenance(self.folder)["data"]
                require_unchanged_data(self.folder, fingerprints, prepared.fingerprints)
            with report_out_of_memory(LOADING_MEMORY), use_reporter(self.run_group.reporter):
                metrics = train_prepared(prepared, self.folder).metrics
        # A finished run needs no checkpoints, and those of all runs could fill the disk.
        shutil.rmtree(self.folder / run_directory.CHECKPOINTS_DIR, ignore_errors=True)
        return metrics


def _read_saved_settings(folder: Path) -> dict[str, Any]:
    """Return the settings with which an interrupted run is resumed; empty if the run has not started.

    Its batches are smaller than those of a new run if memory ran out.
    """
    if not (folder / run_directory.SETTINGS_FILE).exists():
        return {}
    saved = run_directory.read_settings(folder)
    return {"resume": True, **{name: saved[name] for name in BATCH_SETTINGS if name in saved}}


@dataclass
class Wait:
    """A wait for the runs of other processes.

    Attributes:
        noun: What a run is called.
    """

    noun: str
    has_begun: bool = False

    def sleep(self, num_runs: int) -> None:
        """Wait a moment; other processes train this number of runs."""
        if not self.has_begun:
            self.has_begun = True
            report_info(f"waiting for {format_count(num_runs, self.noun)} of other processes")
        time.sleep(POLL_SECONDS)


PlannedRunT = TypeVar("PlannedRunT", bound=PlannedRun)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        metrics: Content of `metrics.json`; empty if the run failed.
        reason: Why the run failed.
    """

    metrics: dict[str, Any]
    reason: str | None = None


def train_runs(
    runs: Sequence[PlannedRunT],
    on_begin: Callable[[PlannedRunT], None],
    on_end: Callable[[PlannedRunT, Outcome], None],
) -> dict[Path, Outcome]:
    """Train all runs that no other process trains, and wait for the others.

    Args:
        runs: The runs.
        on_begin: Receives each run when this process has locked its directory.
        on_end: Receives each run when it has ended.

    Returns:
        The outcome of each run, by directory.
    """
    outcomes: dict[Path, Outcome] = {}
    wait = Wait("run")
    while len(outcomes) < len(runs):
        num_outcomes = len(outcomes)
        for run in runs:
            with ExitStack() as stack:
                if run.folder in outcomes or not try_lock(stack, run.folder):
                    continue
                on_begin(run)
                outcomes[run.folder] = _train(run)
            release_memory()  # here, where no error keeps the tensors alive
            on_end(run, outcomes[run.folder])
        if len(outcomes) == num_outcomes:  # other processes train all remaining runs
            wait.sleep(len(runs) - len(outcomes))
    return {run.folder: outcomes[run.folder] for run in runs}


def _train(run: PlannedRun) -> Outcome:
    try:
        return Outcome(run.train())
    except TrainingFailed as error:
        return Outcome({}, str(error))
