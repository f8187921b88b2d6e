"""The scores of the modules that `--metric` names, and the metric that selects the best checkpoint."""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, combine_fingerprints
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.stats.baselines import MAX_TFIDF_ROWS, TFIDF_BASELINES
from bertkit.stats.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS
from bertkit.stats.metric_modules import DecodedPredictions, MetricModule, is_lower_better, name_scores
from bertkit.stats.scores import Scores
from bertkit.stats.significance import ScoreDifference, bootstrap, compare_scorers
from bertkit.tasks.base import Task
from bertkit.tasks.evaluation import Evaluation, Outputs, RowEvaluation, iter_prediction_records
from bertkit.utils.files import replace_file, write_chunks, write_jsonl
from bertkit.utils.reporting import report_info, report_warning

LOSS = "loss"  # the validation loss, a score during training


class MetricModules:
    """The modules of a run, which score evaluations in addition to the task.

    Attributes:
        modules: The modules, in the order of the flags.

    A module that fails after the check before training does not stop the run: its scores are left out, with a
    warning.
    """

    def __init__(self, modules: Sequence[MetricModule] = ()) -> None:
        self.modules = list(modules)
        # The finite scores of each module: a slow module scores all rows of an evaluation only once.
        self._scores: WeakKeyDictionary[Evaluation, list[Scores]] = WeakKeyDictionary()

    def score(self, evaluation: Evaluation) -> Scores:
        """Return the scores of the task and those of the modules; see `name_scores`."""
        scores = dict(evaluation.scores)
        for _, module_scores, names in self._iter_scores(evaluation):
            scores |= {names[name]: value for name, value in module_scores.items()}
        return scores

    def compute_intervals(self, evaluation: Evaluation, seed: int) -> dict[str, list[float]]:
        """Return the 95 % bootstrap intervals of the scores of the modules."""
        intervals: dict[str, list[float]] = {}
        for module, _, names in self._iter_scores(evaluation):
            found = bootstrap(module.make_scorer(_decode(evaluation)), seed)
            intervals |= {names[name]: interval for name, interval in found.items() if name in names}
        return intervals

    def compare(self, first: Evaluation, second: Evaluation, seed: int) -> dict[str, ScoreDifference]:
        """Return the differences of two runs in the scores of the modules."""
        differences: dict[str, ScoreDifference] = {}
        for module, _, names in self._iter_scores(second):
            first_scorer, second_scorer = (module.make_scorer(_decode(run)) for run in (first, second))
            found = compare_scorers(first_scorer, second_scorer, seed)
            differences |= {names[name]: difference for name, difference in found.items() if name in names}
        return differences

    def _iter_scores(self, evaluation: Evaluation) -> Iterator[tuple[MetricModule, Scores, dict[str, str]]]:
        """Yield each module that has scores, its scores, and the names of the scores in `metrics.json`."""
        if self.modules and evaluation not in self._scores:
            self._scores[evaluation] = [self._compute(module, evaluation) for module in self.modules]
        taken = {LOSS, *evaluation.scores}
        for module, scores in zip(self.modules, self._scores.get(evaluation, []), strict=True):
            if scores:
                yield module, scores, name_scores(module.name, list(scores), taken)

    def _compute(self, module: MetricModule, evaluation: Evaluation) -> Scores:
        """Return the finite scores of one module, or none if it fails."""
        try:
            scores, _ = module.compute(_decode(evaluation))
        except UserError as error:
            report_warning(f"{error} (its scores are left out)")
            return {}
        undefined = [name for name, value in scores.items() if not math.isfinite(value)]
        if undefined:
            report_warning(f"{module.flag}: not a finite number, left out: {format_list(undefined)}")
        return {name: value for name, value in scores.items() if name not in undefined}


def _decode(evaluation: Evaluation) -> DecodedPredictions:
    assert isinstance(evaluation, RowEvaluation)
    return evaluation.decode()


def bind_modules(loaded: Sequence[MetricModule], task: Task, rows: Rows) -> tuple[MetricModules, list[str]]:
    """Choose the inputs of the modules for a task, and call each module with a few correct predictions.

    Args:
        loaded: The modules.
        task: The task, with its labels.
        rows: Parsed and labeled rows of the task.

    Returns:
        The modules, and the names of all scores.

    Raises:
        UserError: A module does not accept the predictions of the task, or fails.
    """
    evaluation = task.evaluate(Outputs(np.empty((0, 0)), None, rows))
    assert isinstance(evaluation, RowEvaluation)
    examples, names = evaluation.make_examples(), [LOSS, *evaluation.list_scores()]
    modules, taken = [module.bind(examples) for module in loaded], set(names)
    for module in modules:
        scores, left_out = module.compute(examples)
        if left_out:
            report_info(f"{module.flag}: values that are not numbers are left out: {format_list(left_out)}")
        names += name_scores(module.name, list(scores), taken).values()
    return MetricModules(modules), names


def set_best_metric(task: Task, names: Sequence[str]) -> None:
    """Select checkpoints by `--metric-for-best-model`, if it is set.

    Args:
        task: The task, whose `state.best_metric` is replaced.
        names: Names of all scores.

    Raises:
        UserError: There is no score of this name, or a direction is set without a metric.
    """
    config: FineTuningConfig = task.config
    name, is_greater_better = config.metric_for_best_model, config.greater_is_better
    if name is None:
        if is_greater_better is not None:
            flag = "--greater-is-better" if is_greater_better else "--no-greater-is-better"
            raise UserError(f"{flag}: has no effect without --metric-for-best-model; add it, or leave it out")
        return
    if name not in names:
        raise UserError(
            f"--metric-for-best-model {name}: no such score{suggest_similar(name, names)}; choose one of "
            f"{', '.join(names)}"
        )
    if is_greater_better is None:
        is_greater_better = not is_lower_better(name)
    task.state.best_metric = (name, 1 if is_greater_better else -1)
    report_info(f"best checkpoint: {'highest' if is_greater_better else 'lowest'} {name}")


def require_named_modules(origin: str, saved: Sequence[str], named: Sequence[str]) -> None:
    """Refuse modules that a file of a run names unless the user names them, too.

    The directory may come from somebody else, so `run.yaml` must not decide which code is executed.

    Args:
        origin: What names the modules, for the error message.
        saved: The modules in `run.yaml`.
        named: The modules that the user names.
    """
    missing = [value for value in saved if value not in named]
    if missing:
        flags = " ".join(f"--metric {value}" for value in missing)
        raise UserError(
            f"{origin}: the run executes the code of {format_list(missing)}; if you trust it, add {flags}"
        )


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
        write_jsonl(folder / f"{task.definition.predictions_name}{suffix}.jsonl", records)
        for name, lines in evaluation.format_files().items():
            stem, dot, extension = name.partition(".")
            write_chunks(folder / f"{stem}{suffix}{dot}{extension}", lines)


LOGITS_KEY = "logits"
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def write_logits(path: Path, logits: np.ndarray, fitted_params: Mapping[str, float]) -> None:
    """Write logits and the fitted parameters of their run, atomically.

    Args:
        path: The file.
        logits: The logits, as `bertkit.tasks.evaluation.Outputs` has them.
        fitted_params: `Task.fitted_params`.
    """
    try:
        with replace_file(path) as partial, partial.open("wb") as file:
            np.savez(file, **{LOGITS_KEY: logits, **fitted_params})  # type: ignore[arg-type]
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); free disk space") from error


def read_logits(path: Path) -> tuple[np.ndarray, dict[str, float]]:
    """Return the logits and the fitted parameters that `write_logits` wrote.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        # numpy does not close a damaged file that it opened itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            params = {name: float(arrays[name]) for name in arrays.files if name != LOGITS_KEY}
            return arrays[LOGITS_KEY], params
    except READ_ERRORS as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: cannot be read ({reason}); delete its directory to train it again"
        ) from error
