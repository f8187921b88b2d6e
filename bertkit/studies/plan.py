"""The plan of a study: its data, splits, search space and runs, before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit.data.table import Rows, fingerprint_splits
from bertkit.errors import UserError, format_count
from bertkit.run.load_data import LoadedData
from bertkit.run.prepare import PreparedRun, score_baselines
from bertkit.settings.run_settings import RunConfig
from bertkit.studies.config import make_run_config
from bertkit.studies.final_runs import DEFAULTS_DIR, FOLDS_DIR, SEEDS_DIR, FinalRun, plan_final_runs
from bertkit.studies.run_group import RunGroup
from bertkit.studies.search import TRIALS_DIR
from bertkit.studies.space import Dimension, make_default_space
from bertkit.studies.splits import (
    TRIAL_FOLD,
    StudySplits,
    hold_out_test_rows,
    split_into_folds,
    split_without_folds,
)
from bertkit.utils.reporting import report_info

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class StudyPlan:
    """Everything that a study determines before its first run.

    Attributes:
        task_name: The task.
        config: The settings of the study.
        splits: The splits of all runs.
        prepared: A prepared run with the default settings and the splits of a trial.
        space: The search space; empty without trials.
        run_group: The group of all runs of the study.
        fingerprints: Fingerprints of the parsed rows by split.
    """

    task_name: str
    config: Any
    splits: StudySplits
    prepared: PreparedRun
    space: list[Dimension]
    run_group: RunGroup
    fingerprints: dict[str, str]

    @classmethod
    def create(cls, task_name: str, config: RunConfig, space: list[Dimension]) -> "StudyPlan":
        """Load and split the data, prepare a run, and choose the search space."""
        run_config = make_run_config(task_name, config)
        run_group = RunGroup(task_name, run_config)
        fingerprints = fingerprint_splits(run_group.data.dataset.splits)
        splits = _split(run_group.data, config)
        prepared = run_group.prepare({}, splits.search)
        study_config: Any = config
        if study_config.trials:
            space = space or make_default_space(run_config, prepared.config)
            report_info(f"search space: {', '.join(map(str, space))}")
        return cls(task_name, config, splits, prepared, space, run_group, fingerprints)

    @property
    def metric(self) -> str:
        """Name of the score that selects settings and checkpoints."""
        return self.prepared.task.state.best_metric[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final runs."""
        return [self.config.seed + offset for offset in range(self.config.seeds)]

    @cached_property
    def default_settings(self) -> dict[str, Any]:
        """The default values of the settings in the search space."""
        return {dimension.name: getattr(self.prepared.config, dimension.name) for dimension in self.space}

    @cached_property
    def baselines(self) -> dict[str, Any]:
        """The scores of the baselines, on the test rows of the last fold or on the test split."""
        splits, prepared = self.splits.final[-1].splits, self.prepared
        return score_baselines(prepared.task, splits["train"], splits["test"], prepared.tokenizer)

    def plan_final_runs(self, folder: Path, settings: Mapping[str, Any]) -> list[FinalRun]:
        """Return the runs with the best settings."""
        name = FOLDS_DIR if self.config.folds else SEEDS_DIR
        return plan_final_runs(self.run_group, folder / name, settings, self.seeds, self.splits.final)

    def plan_default_runs(self, folder: Path) -> list[FinalRun]:
        """Return the runs with the default settings, for the comparison with the best settings."""
        unbiased = [part for part in self.splits.final if part.fold != TRIAL_FOLD]
        return plan_final_runs(self.run_group, folder / DEFAULTS_DIR, {}, self.seeds, unbiased)

    def describe_runs(self) -> dict[str, Any]:
        """Return the planned runs, for `--dry-run`."""
        folder = Path()
        final = [*self.plan_final_runs(folder, {}), *(self.plan_default_runs(folder) if self.space else [])]
        planned = [(f"{TRIALS_DIR}/{number:03d}", self.splits.search) for number in range(self.config.trials)]
        planned += [(run.folder.as_posix(), run.splits or {}) for run in final]
        runs = [
            {"folder": name, **{split: str(len(splits.get(split, ()))) for split in SPLITS}}
            for name, splits in planned
        ]
        space = [str(dimension) for dimension in self.space]
        return {"task": "study", "model": self.prepared.model_source.name, "space": space, "runs": runs}


def _split(data: LoadedData, config: Any) -> StudySplits:
    """Return the splits of all runs."""
    if config.folds:
        splits = split_into_folds(data, config.folds)
    else:
        if parse_labeled_rows(data, "test") is None:
            data = hold_out_test_rows(data)
            rows = format_count(len(data.dataset.splits["test"]), data.task.definition.unit)
            report_info(f"{rows} of the training data are held out as test split, which has no labels")
        splits = split_without_folds(data)
    for note in splits.notes:
        report_info(note)
    return splits


def parse_labeled_rows(data: LoadedData, split: str) -> Rows | None:
    """Return the rows of a split of the dataset if all of them have labels, else None."""
    rows = data.dataset.splits.get(split)
    if rows is None:
        return None
    try:
        labeled, _ = data.task.parse_rows(rows, split, require_labels=True)
    except UserError:
        return None
    return labeled if len(labeled) == len(rows) else None
