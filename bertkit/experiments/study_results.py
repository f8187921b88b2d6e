"""The results of a study: held-out predictions, scores, the ensemble and its gain, and the tables."""

import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertkit.data.split import sample_rows
from bertkit.data.table import Rows
from bertkit.errors import format_count
from bertkit.experiments.experiment import PlannedRun
from bertkit.experiments.search import format_settings, format_value
from bertkit.experiments.splits import get_split_seed, parse_labeled_rows
from bertkit.reports.tables import ResultTable
from bertkit.run.predictor import load_predictor
from bertkit.run.prepare import PreparedRun
from bertkit.run_directory import RunDir
from bertkit.stats.scores import Scores
from bertkit.stats.significance import (
    Scorer,
    average_values,
    compare_scorers,
    compute_intervals,
    compute_t_interval,
)
from bertkit.tasks.evaluation import Evaluation, Outputs, merge_prediction
from bertkit.training.failures import OutOfMemory, release_memory, report_out_of_memory
from bertkit.utils.arrays import concat_ranges

if TYPE_CHECKING:
    from bertkit.experiments.study import Study

SIGNIFICANCE_LEVEL = 0.05
# Why the gain of an ensemble is not measured.
NO_ROWS = "the data has no labeled validation or test split"
OVERLAP = "with --keep-overlap, the members may have been trained on the rows of other splits"
MEMORY = "all members together do not fit into memory"


# ---- predictions for held-out rows


@dataclass(frozen=True)
class HeldOutPredictions:
    """The predictions of final runs with the same settings for the test rows of these runs.

    Each row is predicted once per seed, by a run that was not trained on it.

    Attributes:
        runs: The runs.
        test_rows: [test] indices of the test rows of each run in the rows that all final runs predict.
        prepared: The rows as the splits "train" and "validation" of a run, with their features.
        index: [n] index of each row in the rows that all final runs predict.
        fold: [n] fold of each row.
    """

    runs: Sequence[PlannedRun]
    test_rows: Sequence[np.ndarray]
    prepared: PreparedRun
    index: np.ndarray
    fold: np.ndarray

    @classmethod
    def load(cls, study: "Study", runs: Sequence[PlannedRun]) -> "HeldOutPredictions":
        """Collect the predictions of finished runs."""
        rows = study.splits.rows
        test_rows = [study.get_final_splits(run).rows for run in runs]
        fold_by_row = np.full(len(rows), -1)
        for run, test in zip(runs, test_rows, strict=True):
            fold_by_row[test] = run.fold or 0
        index = np.flatnonzero(fold_by_row >= 0)
        selected = rows.select(index)
        splits = {"train": selected, "validation": selected}
        prepared = study.get_group().prepare(runs[0].settings, splits)
        return cls(runs, test_rows, prepared, index, fold_by_row[index])

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return list(dict.fromkeys(run.seed for run in self.runs))

    def _evaluate(self, logits: np.ndarray, fitted_params: Mapping[str, float]) -> Evaluation:
        task = self.prepared.task
        task.state.fitted_params = dict(fitted_params)
        features = self.prepared.features["validation"]
        return task.evaluate(Outputs(logits, features, self.prepared.splits["validation"]))

    def _collect_logits(self, seed: int) -> tuple[np.ndarray, dict[str, float]]:
        """Return the logits of all rows, and the means of the fitted parameters of the runs."""
        runs = [pair for pair in zip(self.runs, self.test_rows, strict=True) if pair[0].seed == seed]
        contents = [RunDir(run.folder).read_logits() for run, _ in runs]
        features = self.prepared.features["validation"]
        # [n + 1] index of the first logits of each row, which may have several windows
        windows, offsets = getattr(features, "window_offsets", None), features.logit_offsets
        offsets = offsets if windows is None else offsets[windows]
        num_outputs = max(logits.shape[-1] for logits, _ in contents)
        joined = np.full((offsets[-1], *contents[0][0].shape[1:-1], num_outputs), -np.inf, np.float32)
        for (_, test), (logits, _) in zip(runs, contents, strict=True):
            rows = np.searchsorted(self.index, test)
            joined[concat_ranges(offsets[rows], offsets[rows + 1]), ..., : logits.shape[-1]] = logits
        return joined, average_values([params for _, params in contents])

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """The evaluation of all rows, for each seed."""
        return [self._evaluate(*self._collect_logits(seed)) for seed in self.seeds]

    # ---- scores

    @cached_property
    def scores(self) -> Scores:
        """The scores of all rows, as the mean over the seeds."""
        return average_values([evaluation.scores for evaluation in self.evaluations])

    def make_scorer(self) -> Scorer:
        """Return a scorer of the rows; with several seeds, it averages their scores."""
        scorers = [evaluation.make_scorer() for evaluation in self.evaluations]
        if len(scorers) == 1:
            return scorers[0]

        def score(rows: np.ndarray) -> Scores:
            return average_values([scorer.score(rows) for scorer in scorers])

        return Scorer(score, scorers[0].size, num_resamples=scorers[0].num_resamples)

    # ---- records

    def iter_records(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of `out_of_fold.jsonl`: predictions with the mean probabilities of all seeds."""
        task, rows = self.prepared.task, self.prepared.splits["validation"]
        hidden_columns = task.input_schema.hidden_columns
        predictions = zip(rows, self._iter_predictions(), self.fold.tolist(), strict=True)
        for number, (row, prediction, fold) in enumerate(predictions):
            yield merge_prediction(number, row, hidden_columns, {**prediction, "fold": fold})

    def _iter_predictions(self) -> Iterator[dict[str, Any]]:
        first, *others = self.evaluations
        if not first.has_comparable_logits:
            records = zip(*(member.iter_full_records() for member in self.evaluations), strict=True)
            return map(first.merge_records, records)
        return (self._average() if others else first).iter_full_records()

    def _average(self) -> Evaluation:
        """Return the evaluation of the mean predictions of all seeds."""
        members = [self._collect_logits(seed) for seed in self.seeds]
        params = average_values([params for _, params in members])
        logits = torch.from_numpy(np.stack([logits for logits, _ in members]))
        return self._evaluate(self.prepared.task.combine_logits(logits).numpy(), params)


# ---- scores of runs with the same settings


@dataclass(frozen=True)
class FinishedRuns:
    """The final runs of the same settings, with their metrics.

    Attributes:
        runs: The runs.
        metrics: The metrics of each run, by directory.
    """

    runs: Sequence[PlannedRun]
    metrics: Mapping[Path, dict[str, Any]]

    def summarize(
        self, folder: Path, metric: str, predictions: HeldOutPredictions, seed: int
    ) -> dict[str, Any]:
        """Return the scores of runs and of the held-out rows that they predict, with 95 % intervals.

        Args:
            folder: Directory of the study.
            metric: Name of the score that selects settings.
            predictions: Predictions of some of the runs.
            seed: Seed of the intervals over rows.
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
                "intervals": compute_intervals(predictions.make_scorer(), seed),
            },
        }  # fmt: skip


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
    for pattern in [RunDir.SETTINGS_FILE, *RunDir.MODEL_PATTERNS]:
        for path in runs[0].glob(pattern):
            if ".safetensors" not in path.name:
                shutil.copyfile(path, folder / path.name)
    metrics = [finished.metrics[run] for run in runs]
    training = {"seconds": sum(member["training"]["seconds"] for member in metrics)}
    own_metrics = {name: metrics[0][name] for name in ("task", "data", "model")}
    sections: dict[str, Any] = {"validation": {}, "test": {}, "intervals": {}, "baselines": {}}
    RunDir(folder).write_metrics({**own_metrics, **sections, "training": training})


# ---- the gain of the ensemble


def measure_gain(study: "Study", ensemble: Path) -> dict[str, Any]:
    """Return the score of the ensemble beside those of its members, and the seconds for 1,000 rows.

    Args:
        study: The study.
        ensemble: Directory of the ensemble.

    Returns:
        `members` and `reason`. The reason is None if the gain was measured; further keys then follow.
    """
    folders, metric = RunDir(ensemble).find_members(), study.metric
    result: dict[str, Any] = {"members": len(folders), "reason": "it has a single member"}
    if len(folders) == 1:
        return result
    if study.config.keep_overlap:
        return result | {"reason": OVERLAP}
    split, rows = _find_labeled_rows(study)
    if rows is None:
        return result | {"reason": NO_ROWS}
    try:
        members = []
        for folder in folders:
            members.append(_score(folder, rows))
            release_memory()
        scores, seconds = _score(ensemble, rows)
    except OutOfMemory as error:
        return result | {"reason": str(error)}
    finally:
        release_memory()
    if metric not in scores:
        return result | {"reason": f"{metric} is the score of a module of --metric"}
    member_scores = [member[metric] for member, _ in members]
    mean = statistics.fmean(member_scores)
    return {
        **result,
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


def _find_labeled_rows(study: "Study") -> tuple[str, Rows | None]:
    """Return a labeled split that no final run was trained on; with folds, that is a split of the dataset."""
    if not study.config.folds:
        return "test", study.splits.final[0].splits["test"]
    for split in ("test", "validation"):
        if (rows := parse_labeled_rows(study.get_group().data, split)) is not None:
            return split, sample_rows(rows, study.config.max_eval_samples, get_split_seed(study.config))
    return "", None


def _score(folder: Path, rows: Rows) -> tuple[Scores, float]:
    """Return the scores of a run or an ensemble, and its seconds for 1,000 tokenized rows."""
    with report_out_of_memory(MEMORY):
        predictor = load_predictor(folder)
        predictor.task.featurize(rows, predictor.tokenizer)  # stores the tokens, so that all are timed alike
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


def _format_p(p: float) -> str:
    """Format a p-value as `p = 0.012` or `p < 0.001`."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def build_study_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """Return the table of the best settings and the defaults, with notes on the search and the test.

    Args:
        metrics: Content of `study.json`.
        folder: Directory of the study.
    """
    metric, search, settings = metrics["metric"], metrics["search"], metrics["settings"]
    rows = []
    for name, title in {"best": "best settings" if search else "all runs", "defaults": "defaults"}.items():
        if summary := settings.get(name):
            std = "" if summary["std"] is None else f" ± {format_number(summary['std'])}"
            held_out = summary["held_out"]
            rows.append([
                title, f"{len(summary['runs'])}", format_number(summary["mean"].get(metric)) + std,
                _format_interval(summary["interval"]), format_number(held_out["scores"].get(metric)),
                _format_interval(held_out["intervals"].get(metric)),
            ])  # fmt: skip
    runs = settings["best"]["runs"]
    return ResultTable(
        title=" · ".join([f"study {metrics['command']}", metrics["data"]["name"], metrics["model"]]),
        headings=["settings", "runs", "mean ± std", "95 % (runs)", "held-out", "95 % (rows)"],
        rows=rows,
        caption=f"Score: {metric}. {_describe_rows(metrics)} {_describe_baselines(metrics)}",
        run_notes=[f"`{run['folder']}`: {metric} {format_number(run['score'])}" for run in runs],
        notes=[*describe_results(metrics), f"predict with all models: bertkit predict {folder}/ensemble"],
    )


def _describe_rows(metrics: Mapping[str, Any]) -> str:
    rows = format_count(metrics["settings"]["best"]["held_out"]["rows"], "row")
    if not metrics["folds"]:
        return f"Held-out: {rows} of the test split, which were not used to select settings or checkpoints."
    if metrics["search"]:
        return f"Held-out: {rows} of all folds except fold 0, on which the trials were scored."
    return f"Held-out: {rows}, each predicted by runs that were not trained on it."


def _describe_baselines(metrics: Mapping[str, Any]) -> str:
    scores = {name: scores.get(metrics["metric"]) for name, scores in metrics["baselines"].items()}
    listed = ", ".join(
        f"{name} {format_number(score)}" for name, score in scores.items() if score is not None
    )
    rows = f" on fold {metrics['folds'] - 1}" if metrics["folds"] else ""
    return f"Baselines{rows}: {listed}."


def describe_results(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines about the best settings, the search, the paired test, and the ensemble."""
    search = metrics["search"]
    if search is None:
        return [_describe_gain(metrics)]
    settings = format_settings(search["best_settings"]) or "the defaults"
    saved = 1 - search["steps"] / max(1, search["steps_without_pruning"])
    counts = f"{search['complete']} complete, {search['pruned']} pruned, {search['failed']} failed"
    return [
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
        f"split; a single model {ensemble['mean_member_score']:.4f} (mean), gain {ensemble['gain']:+.4f}; "
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
    return (
        f"best settings against the defaults: {result['difference']:+.4f} {metrics['metric']} "
        f"({_format_interval(result['interval'])}), {_format_p(result['p'])} ({result['test']}): {verdict}"
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
