"""The results of a study: scores over its runs, the held-out score of the best settings, and its files."""

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.run_directory import RunDir
from bertkit.stats.significance import average_values, compare_scorers, compute_intervals, compute_t_interval
from bertkit.studies.final_runs import FinalRun
from bertkit.studies.held_out import HeldOutPredictions

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True)
class FinishedRuns:
    """The final runs of the same settings, with their metrics.

    Attributes:
        runs: The runs.
        metrics: The metrics of each run, by directory.
    """

    runs: Sequence[FinalRun]
    metrics: Mapping[Path, dict[str, Any]]

    def summarize(self, folder: Path, metric: str, runs: Sequence[FinalRun]) -> dict[str, Any]:
        """Return the scores of runs, their mean, standard deviation and 95 % interval.

        Args:
            folder: Directory of the study.
            metric: Name of the score that selects settings.
            runs: Some of the runs.
        """
        tests = [self.metrics[run.folder]["test"] for run in runs]
        scores = [test[metric] for test in tests if metric in test]
        return {
            "runs": [
                {
                    "folder": run.folder.relative_to(folder).as_posix(), "fold": run.fold,
                    "seed": run.seed, "score": test.get(metric),
                }
                for run, test in zip(runs, tests, strict=True)
            ],
            "mean": average_values(tests),
            "std": statistics.stdev(scores) if len(scores) > 1 else None,
            "interval": compute_t_interval(scores),
            "seconds": sum(self.metrics[run.folder]["training"]["seconds"] for run in runs),
        }  # fmt: skip


def score_held_out(predictions: HeldOutPredictions, seed: int) -> dict[str, Any]:
    """Return the scores of the held-out rows, and their 95 % intervals over rows."""
    return {
        "rows": len(predictions.index),
        "scores": predictions.scores,
        "intervals": compute_intervals(predictions.make_scorer(), seed),
    }


def compare(
    defaults: HeldOutPredictions, best: HeldOutPredictions, metric: str, seed: int
) -> dict[str, Any] | None:
    """Return the paired test of the best settings against the defaults on the same rows.

    None if bertkit cannot compute the score for a sample of the rows, as for modules of `--metric`.
    """
    assert np.array_equal(defaults.index, best.index)
    differences = compare_scorers(defaults.make_scorer(), best.make_scorer(), seed)
    if metric not in differences:
        return None
    result = differences[metric].to_dict()
    return result | {"is_different": result["p"] < SIGNIFICANCE_LEVEL}


# ---- the ensemble


def write_ensemble_run(folder: Path, finished: FinishedRuns) -> None:
    """Write a directory that predicts with the mean of all runs.

    It has the settings, the config and the tokenizer of the first run, which are those of all runs.

    Args:
        folder: Directory of the ensemble, next to those of the runs.
        finished: The runs.
    """
    runs = [run.folder for run in finished.runs]
    RunDir(folder).write_members(runs)
    for path in _list_settings_files(runs[0]):
        shutil.copyfile(path, folder / path.name)
    metrics = [finished.metrics[run] for run in runs]
    training = {"seconds": sum(member["training"]["seconds"] for member in metrics)}
    own_metrics = {name: metrics[0][name] for name in ("task", "data", "model")}
    sections: dict[str, Any] = {"validation": {}, "test": {}, "intervals": {}, "baselines": {}}
    RunDir(folder).write_metrics({**own_metrics, **sections, "training": training})


def _list_settings_files(run: Path) -> list[Path]:
    """Return the files of a run that describe its settings, its model and its tokenizer, without weights."""
    patterns = [RunDir.SETTINGS_FILE, *RunDir.MODEL_PATTERNS]
    paths = {path for pattern in patterns for path in run.glob(pattern)}
    return sorted(path for path in paths if ".safetensors" not in path.name)
