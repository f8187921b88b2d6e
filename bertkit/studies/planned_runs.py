"""The function that trains planned runs, in one or several processes."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertkit.errors import TrainingFailed
from bertkit.studies.runner import PlannedRun
from bertkit.training.memory import release_memory
from bertkit.utils.locks import POLL_SECONDS, try_lock

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
    try:
        return Outcome(run.train())
    except TrainingFailed as error:
        return Outcome({}, str(error))
