"""The final runs: the best settings and the default settings, for each fold and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.run.prepare import RunOptions
from bertkit.studies.planned_runs import PlannedRun
from bertkit.studies.run_group import RunGroup
from bertkit.studies.splits import FinalSplits

FOLDS_DIR, SEEDS_DIR, DEFAULTS_DIR = "folds", "seeds", "defaults"
RUN_DIRS = [FOLDS_DIR, SEEDS_DIR, DEFAULTS_DIR]


@dataclass(frozen=True, kw_only=True)
class FinalRun(PlannedRun):
    """A final run.

    Attributes:
        fold: The fold that the run predicts; None without folds.
        test_rows: [test] indices of the test rows in the rows that all final runs predict.
    """

    fold: int | None
    test_rows: np.ndarray

    @property
    def title(self) -> str:
        """Fold and seed, for the console and the tables."""
        fold = "" if self.fold is None else f"fold {self.fold}, "
        return f"{fold}seed {self.seed}"


def plan_final_runs(
    run_group: RunGroup,
    folder: Path,
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    splits: Sequence[FinalSplits],
) -> list[FinalRun]:
    """Return a run for each fold and seed, in the directories `foldK-seedS`, or `seedS` without folds."""
    options = RunOptions(has_report=False, has_logits=True)
    runs = []
    for part in splits:
        for seed in seeds:
            fold = "" if part.fold is None else f"fold{part.fold}-"
            runs.append(FinalRun(
                folder=folder / f"{fold}seed{seed}", run_group=run_group, settings=settings, seed=seed,
                splits=part.splits, options=options, fold=part.fold, test_rows=part.rows,
            ))  # fmt: skip
    return runs
