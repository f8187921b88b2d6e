"""Planned runs, and the function that trains them in one or several processes."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertkit.data.rows import Splits
from bertkit.errors import TrainingFailed
from bertkit.pipeline.prepare import RunOptions
from bertkit.studies.runner import Runner
from bertkit.training.memory import release_memory
from bertkit.utils.locks import POLL_SECONDS, try_lock


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is planned.

    Attributes:
        folder: The run directory.
        runner: Trains the run.
        settings: Settings of this run, in addition to those of the runner.
        seed: Seed of the run.
        splits: Rows by split; by default, those of the runner.
        options: Options of this run.
    """

    folder: Path
    runner: Runner
    settings: Mapping[str, Any]
    seed: int
    splits: Splits | None = None
    options: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        metrics: Content of `metrics.json`; empty if the run failed.
        reason: Why the run failed.
    """

    metrics: dict[str, Any]
    reason: str | None = None


PlannedRunT = TypeVar("PlannedRunT", bound=PlannedRun)


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
            time.sleep(POLL_SECONDS)
    return {run.folder: outcomes[run.folder] for run in runs}


def _train(run: PlannedRun) -> Outcome:
    settings = {**run.settings, "seed": run.seed}
    try:
        return Outcome(run.runner.train(run.folder, settings, run.splits, run.options))
    except TrainingFailed as error:
        return Outcome({}, str(error))
