"""The results of a study: held-out predictions, scores, the ensemble and its gain, and the tables."""

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.table import Rows
from bertkit.errors import format_count
from bertkit.experiments.experiment import PlannedRun
from bertkit.experiments.held_out import HeldOutPredictions
from bertkit.experiments.search import format_settings, format_value
from bertkit.reports.tables import ResultTable
from bertkit.run.predictor import load_predictor
from bertkit.run_directory import RunDir
from bertkit.stats.scores import Scores
from bertkit.stats.significance import (
    average_values,
    compare_scorers,
    compute_intervals,
    compute_t_interval,
)
from bertkit.training.failures import OutOfMemory, release_memory, report_out_of_memory
from bertkit.utils.text import format_signed

SIGNIFICANCE_LEVEL = 0.05


# ---- scores of runs with the same settings


@dataclass(frozen=True)
class FinishedRuns:
    """The final runs of the same settings, with their metrics by directory."""

    runs: Sequence[PlannedRun]
    metrics: Mapping[Path, dict[str, Any]]

    def summarize(
        self, folder: Path, metric: str, predictions: HeldOutPredictions, seed: int
    ) -> dict[str, Any]:
        """Return the scores of runs and of the held-out rows that they predict, with 95 % intervals.

        `predictions` are those of some of the runs, and `seed` is that of the intervals over rows.
        """
        runs = predictions.runs
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
            "held_out": {
                "rows": len(predictions.index),
                "scores": predictions.scores,
                "intervals": compute_intervals(predictions.scorer, seed),
            },
        }  # fmt: skip


def compare(
    defaults: HeldOutPredictions, best: HeldOutPredictions, metric: str, seed: int
) -> dict[str, Any] | None:
    """Return the paired test of the best settings against the defaults on the same rows.

    None if bertkit cannot compute the score for a sample of the rows, as for modules of `--metric`.
    """
    assert np.array_equal(defaults.index, best.index)
    differences = compare_scorers(defaults.scorer, best.scorer, seed)
    if metric not in differences:
        return None
    result = asdict(differences[metric])
    return result | {"is_different": result["p"] < SIGNIFICANCE_LEVEL}


# ---- the ensemble


def write_ensemble_run(folder: Path, finished: FinishedRuns) -> None:
    """Write a directory that predicts with the mean of all runs.

    It has the settings, the config and the tokenizer of the first run, which are those of all runs.
    """
    runs = [run.folder for run in finished.runs]
    RunDir(folder).write_members(runs)
    for pattern in [RunDir.SETTINGS_FILE, *RunDir.MODEL_PATTERNS]:
        for path in runs[0].glob(pattern):
            if path.is_file() and ".safetensors" not in path.name:
                shutil.copyfile(path, folder / path.name)
    metrics = [finished.metrics[run] for run in runs]
    training = {"seconds": sum(member["training"]["seconds"] for member in metrics)}
    own_metrics = {name: metrics[0][name] for name in ("task", "data", "model")}
    sections: dict[str, Any] = {"validation": {}, "test": {}, "intervals": {}, "baselines": {}}
    RunDir(folder).write_metrics({**own_metrics, **sections, "training": training})


def measure_gain(ensemble: Path, metric: str, split: str, rows: Rows) -> dict[str, Any]:
    """Return the score of the ensemble beside those of its members, and the seconds for 1,000 rows.

    `reason` is why the gain cannot be measured; None if it was measured, and further keys then follow.
    """
    try:
        members = []
        for folder in RunDir(ensemble).find_members():
            members.append(_score(folder, rows))
            release_memory()
        scores, seconds = _score(ensemble, rows)
    except OutOfMemory as error:
        return {"reason": str(error)}
    finally:
        release_memory()
    if metric not in scores:
        return {"reason": f"{metric} is the score of a module of --metric"}
    member_scores = [member[metric] for member, _ in members]
    mean = statistics.fmean(member_scores)
    return {
        "reason": None,
        "split": split,
        "rows": len(rows),
        "score": scores[metric],
        "member_scores": member_scores,
        "mean_member_score": mean,
        "gain": scores[metric] - mean,
        "seconds_per_1000_rows": seconds,
        "mean_member_seconds_per_1000_rows": statistics.fmean(seconds for _, seconds in members),
    }


def _score(folder: Path, rows: Rows) -> tuple[Scores, float]:
    """Return the scores of a run or an ensemble, and its seconds for 1,000 tokenized rows."""
    with report_out_of_memory("all members together do not fit into memory"):
        predictor = load_predictor(folder)
        predictor.featurize(rows)  # stores the tokens, so that all are timed alike
        started = time.monotonic()
        outputs = predictor.compute_outputs(rows, "scoring the ensemble")
        seconds = time.monotonic() - started
    return predictor.task.evaluate(outputs).scores, 1000 * seconds / len(rows)


# ---- the tables


def format_number(value: float | None) -> str:
    """Format a score with four digits; None becomes an empty string."""
    return "" if value is None else f"{value:.4f}"


def _format_interval(interval: list[float] | None) -> str:
    """Format an interval as `0.412 to 0.461`; None becomes an empty string."""
    return "" if interval is None else " to ".join(f"{bound:.3f}" for bound in interval)


def build_study_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """Return the table of the best settings and the defaults, with notes on the search and the test.

    `metrics` is the content of `study.json`.
    """
    metric, search, settings = metrics["metric"], metrics["search"], metrics["settings"]
    num_rows = format_count(settings["best"]["held_out"]["rows"], "row")
    if not metrics["folds"]:
        held_out = f"{num_rows} of the test split, which were not used to select settings or checkpoints"
    elif search:
        held_out = f"{num_rows} of all folds except fold 0, on which the trials were scored"
    else:
        held_out = f"{num_rows}, each predicted by runs that were not trained on it"
    baselines = ", ".join(
        f"{name} {format_number(scores[metric])}"
        for name, scores in metrics["baselines"].items()
        if scores.get(metric) is not None
    )
    baseline_rows = f" on fold {metrics['folds'] - 1}" if metrics["folds"] else ""
    rows = []
    for name, title in {"best": "best settings" if search else "all runs", "defaults": "defaults"}.items():
        if summary := settings.get(name):
            std = "" if summary["std"] is None else f" ± {format_number(summary['std'])}"
            rows.append([
                title, f"{len(summary['runs'])}", format_number(summary["mean"].get(metric)) + std,
                _format_interval(summary["interval"]),
                format_number(summary["held_out"]["scores"].get(metric)),
                _format_interval(summary["held_out"]["intervals"].get(metric)),
            ])  # fmt: skip
    runs = settings["best"]["runs"]
    return ResultTable(
        title=" · ".join([f"study {metrics['command']}", metrics["data"]["name"], metrics["model"]]),
        headings=["settings", "runs", "mean ± std", "95 % (runs)", "held-out", "95 % (rows)"],
        rows=rows,
        caption=f"Score: {metric}. Held-out: {held_out}. Baselines{baseline_rows}: {baselines}.",
        run_notes=[f"`{run['folder']}`: {metric} {format_number(run['score'])}" for run in runs],
        notes=[*describe_results(metrics), f"predict with all models: bertkit predict {folder}/ensemble"],
    )


def describe_results(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines about the best settings, the search, the paired test, and the ensemble."""
    search = metrics["search"]
    judgement = [metrics["judgement"]["text"].removesuffix(".")] if "judgement" in metrics else []
    if search is None:
        return [*judgement, _describe_gain(metrics)]
    settings = format_settings(search["best_settings"]) or "the defaults"
    saved = 1 - search["steps"] / max(1, search["steps_without_pruning"])
    counts = f"{search['complete']} complete, {search['pruned']} pruned, {search['failed']} failed"
    return [
        *judgement,
        f"best settings: {settings} (trial {search['best_trial']})",
        f"search: {format_count(search['trials'], 'trial')} ({counts}), "
        f"pruning saved {saved:.0%} of the steps",
        f"score in the search {format_number(search['best_score'])}, optimism of the search "
        f"{format_number(search['optimism'])}",
        _describe_comparison(metrics),
        _describe_gain(metrics),
    ]


def _describe_gain(metrics: Mapping[str, Any]) -> str:
    """Return one line on the gain and the cost of the ensemble."""
    ensemble, metric = metrics["ensemble"], metrics["metric"]
    name = f"ensemble of {format_count(ensemble['members'], 'model')}"
    if ensemble["reason"]:
        return f"{name}: the gain is not measured, because {ensemble['reason']}"
    return (
        f"{name}: {metric} {ensemble['score']:.4f} on {ensemble['rows']:,} rows of the {ensemble['split']} "
        f"split; a single model {ensemble['mean_member_score']:.4f} (mean), gain "
        f"{format_signed(ensemble['gain'], '+.4f')}; "
        f"{ensemble['seconds_per_1000_rows']:.2f} seconds for 1,000 rows, a single model "
        f"{ensemble['mean_member_seconds_per_1000_rows']:.2f}"
    )


def _describe_comparison(metrics: Mapping[str, Any]) -> str:
    """Return one line with the result of the paired test."""
    result = metrics["comparison"]
    if result is None:
        reason = "are the defaults" if not metrics["search"]["best_settings"] else "have no paired test"
        return f"best settings against the defaults: the best settings {reason}"
    verdict = "a difference is shown" if result["is_different"] else "no difference shown"
    p_value = f"p = {result['p']:.3f}" if result["p"] >= 0.001 else "p < 0.001"
    return (
        f"best settings against the defaults: {format_signed(result['difference'], '+.4f')} "
        f"{metrics['metric']} "
        f"({_format_interval(result['interval'])}), {p_value} ({result['test']}): {verdict}"
    )


def build_trial_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return the table of the trials in order."""
    search = metrics["search"]
    names, rows = list(search["space"]), []
    for trial in search["table"]:
        values = trial["settings"] or search["default_settings"]
        state = trial["state"] + (f": {trial['reason']}" if trial["reason"] else "")
        rows.append([
            str(trial["trial"]), *(format_value(values[name]) for name in names),
            format_number(trial["score"]), state, f"{trial['seconds']:.0f}",
        ])  # fmt: skip
    return ResultTable(
        title="Trials", headings=["trial", *names, metrics["metric"], "state", "seconds"], rows=rows,
        caption="Trial 0 has the default settings.", run_notes=[],
    )  # fmt: skip
