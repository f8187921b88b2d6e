"""The final runs: the best settings and the default settings, for each fold and seed."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.pipeline.prepare import StudyPart
from bertkit.run_directory import LOGITS_FILE
from bertkit.studies.runner import Runner
from bertkit.studies.splits import FinalSplits
from bertkit.training.memory import release_memory
from bertkit.utils.locks import POLL_SECONDS, try_lock

FOLDS_DIR, SEEDS_DIR, DEFAULTS_DIR = "folds", "seeds", "defaults"
RUN_DIRS = [FOLDS_DIR, SEEDS_DIR, DEFAULTS_DIR]


@dataclass(frozen=True)
class FinalRun:
    """A final run.

    Attributes:
        folder: The run directory.
        settings: Settings of this run.
        seed: Seed of the run.
        splits: The splits of the run.
    """

    folder: Path
    settings: Mapping[str, Any]
    seed: int
    splits: FinalSplits

    @property
    def title(self) -> str:
        """Fold and seed, for the console and the tables."""
        fold = "" if self.splits.fold is None else f"fold {self.splits.fold}, "
        return f"{fold}seed {self.seed}"


def plan_final_runs(
    folder: Path, settings: Mapping[str, Any], seeds: Sequence[int], splits: Sequence[FinalSplits]
) -> list[FinalRun]:
    """Return a run for each fold and seed, in the directories `foldK-seedS`, or `seedS` without folds."""
    runs = []
    for part in splits:
        for seed in seeds:
            fold = "" if part.fold is None else f"fold{part.fold}-"
            runs.append(FinalRun(folder / f"{fold}seed{seed}", settings, seed, part))
    return runs


def train_final_runs(
    runner: Runner, runs: Sequence[FinalRun], report: Callable[[FinalRun, dict[str, Any]], None]
) -> dict[Path, dict[str, Any]]:
    """Train all runs that no other process trains, and wait for the others.

    Args:
        runner: Trains the runs.
        runs: The runs.
        report: Receives each run of this process with its metrics.

    Returns:
        The metrics of each run, by directory.
    """
    results: dict[Path, dict[str, Any]] = {}
    while len(results) < len(runs):
        num_results = len(results)
        for run in runs:
            with ExitStack() as stack:
                if run.folder in results or not try_lock(stack, run.folder):
                    continue
                settings = {**run.settings, "seed": run.seed}
                part = StudyPart(logits_file=LOGITS_FILE)
                results[run.folder] = runner.train(run.folder, settings, run.splits.splits, part)
            release_memory()
            report(run, results[run.folder])
        if len(results) == num_results:  # other processes train all remaining runs
            time.sleep(POLL_SECONDS)
    return results
