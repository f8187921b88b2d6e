"""Results of a run: the scores for `metrics.json`, and the prediction files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import UNLABELED_ROWS, Splits, combine_fingerprints
from bertkit.metrics.baselines import MAX_TFIDF_ROWS, TFIDF_BASELINES
from bertkit.metrics.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS
from bertkit.pipeline.metric_modules import MetricModules
from bertkit.tasks.base import Scores, Task
from bertkit.tasks.evaluation import Evaluation, Outputs, iter_prediction_records
from bertkit.utils.files import write_chunks, write_jsonl


def summarize_data(dataset: LoadedDataset, fingerprints: Mapping[str, str], splits: Splits) -> dict[str, Any]:
    """Return the section "data" of `metrics.json`.

    Args:
        dataset: The dataset.
        fingerprints: Fingerprints of the rows by split. Those of unlabeled rows are left out.
        splits: Rows by split.

    Returns:
        Name, source and fingerprint of the data, and the number of rows of each split.
    """
    sizes = {split: len(rows) for split, rows in splits.items()}
    fingerprint = combine_fingerprints(
        {name: value for name, value in fingerprints.items() if name != UNLABELED_ROWS}
    )
    return {"name": dataset.name, "source": dataset.source, "fingerprint": fingerprint, **sizes}


def evaluate_splits(task: Task, outputs: Mapping[str, Outputs]) -> dict[str, Evaluation]:
    """Fit the decision parameters of a task on the validation split, and evaluate every split with them.

    The validation split is evaluated only once, before the fit. The result is the same as after the fit:
    without fitted parameters, `evaluate` already uses the parameters that fit the evaluated split best.
    """
    validation = task.evaluate(outputs["validation"])
    task.fit_decision(validation)
    return {
        split: validation if split == "validation" else task.evaluate(split_outputs)
        for split, split_outputs in outputs.items()
    }


def compute_scores(
    task: Task,
    evaluations: Mapping[str, Evaluation],
    modules: MetricModules,
    has_intervals: bool = True,
) -> dict[str, Any]:
    """Return the scores and details of each labeled split, and the intervals of validation.

    Args:
        task: The task.
        evaluations: Evaluations by split; "validation" is required.
        modules: The modules of `--metric`.
        has_intervals: Whether to compute the intervals, which takes up to some seconds.
    """
    labeled = {split: evaluation for split, evaluation in evaluations.items() if evaluation.has_gold}
    validation, seed = evaluations["validation"], task.config.seed
    intervals = {}
    if has_intervals:
        intervals = validation.compute_intervals(seed) | modules.compute_intervals(validation, seed)
    results: dict[str, Any] = {
        "validation": {},
        "test": {},
        **{split: modules.score(evaluation) for split, evaluation in labeled.items()},
        "intervals": intervals,
    }
    details = {split: evaluation.compute_details() for split, evaluation in labeled.items()}
    details = {split: split_details for split, split_details in details.items() if split_details}
    return results | ({"details": details} if details else {})


def compare_evaluations(
    name: str, other: Evaluation, evaluation: Evaluation, modules: MetricModules, seed: int
) -> dict[str, Any]:
    """Return the section "compared" of `metrics.json`: how an evaluation differs from another one.

    Args:
        name: Name of the other run.
        other: Evaluation of the other run on the same rows.
        evaluation: Evaluation of this run.
        modules: The modules of `--metric`.
        seed: Seed of the resampling.
    """
    from bertkit.metrics.significance import compare_scorers

    differences = compare_scorers(other.make_scorer(), evaluation.make_scorer(), seed)
    differences |= modules.compare(other, evaluation, seed)
    return {
        "with": name,
        "validation": modules.score(other),
        "difference": {score: difference.to_dict() for score, difference in differences.items()},
    }


def summarize_baselines(baselines: Mapping[str, Scores], num_rows: int) -> dict[str, Any]:
    """Return the section "baselines" of `metrics.json`.

    The section "baseline_rows" follows if a baseline is fitted on a sample of the training rows.

    Args:
        baselines: Scores by baseline.
        num_rows: Number of training rows.
    """
    limits = {**dict.fromkeys(TFIDF_BASELINES, MAX_TFIDF_ROWS), LINEAR_PROBE: MAX_PROBE_ROWS}
    sampled = {name: limits[name] for name in baselines if limits.get(name, num_rows) < num_rows}
    return {"baselines": baselines, **({"baseline_rows": sampled} if sampled else {})}


def write_predictions(folder: Path, task: Task, evaluations: Mapping[str, Evaluation]) -> None:
    """Write the prediction files of each split; their names end in `-SPLIT`, except for validation."""
    for split, evaluation in evaluations.items():
        suffix = "" if split == "validation" else f"-{split}"
        records = iter_prediction_records(task, evaluation)
        write_jsonl(folder / f"{task.spec.predictions_name}{suffix}.jsonl", records)
        for name, lines in evaluation.format_files().items():
            stem, dot, extension = name.partition(".")
            write_chunks(folder / f"{stem}{suffix}{dot}{extension}", lines)
