"""The results of a run: the scores of the task and of the modules of `--metric`, for `metrics.json`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from bertkit.data.columns import parse_column_names
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import assign_row_folds
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, combine_fingerprints
from bertkit.data.weights_and_soft_labels import compute_agreement
from bertkit.errors import UserError, format_count, format_list, shorten_repr, suggest_similar
from bertkit.run.load_data import summarize_split_columns
from bertkit.run_directory import RunDir
from bertkit.settings.run_settings import FineTuningConfig
from bertkit.stats.baseline_models import MAX_TFIDF_ROWS, TFIDF_BASELINES
from bertkit.stats.judgement import TrainingFacts, describe_overconfidence, judge
from bertkit.stats.linear_probe import LINEAR_PROBE, MAX_PROBE_ROWS
from bertkit.stats.metric_modules import DecodedPredictions, MetricModule, is_lower_better, name_scores
from bertkit.stats.scope_score import DEFAULT_COVERAGE, RECALL, fit_scope
from bertkit.stats.scores import Scores
from bertkit.stats.significance import (
    ScoreDifference,
    Scorer,
    bootstrap,
    compare_scorers,
    compute_intervals,
)
from bertkit.stats.slices import (
    Slice,
    score_slices,
    slice_by_agreement,
    slice_by_label,
    slice_by_length,
    slice_by_value,
)
from bertkit.tasks.base import Evaluation, Outputs, RowEvaluation, Task, iter_prediction_records
from bertkit.utils.reporting import report_info, report_warning


@dataclass(frozen=True)
class Run:
    """Result of a training command: a finished run, a dry run, or a preview of the training examples.

    Attributes:
        output_dir: The run directory, or None after a dry run or a preview, which write only to the cache.
        metrics: Content of `metrics.json`, measurements of a dry run, or statistics of a preview.
        samples: Training examples that a preview shows; otherwise empty.
    """

    output_dir: Path | None
    metrics: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what Jupyter displays: the scores and the charts."""
        from bertkit.reports.page import build_mime_bundle  # charts are slow to import

        return build_mime_bundle(self.output_dir, self.metrics)


LOSS = "loss"  # the validation loss, a score during training


class MetricModules:
    """The modules of a run, in the order of the flags, which score evaluations in addition to the task.

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

    def describe_difference(
        self, name: str, other: Evaluation, evaluation: Evaluation, seed: int
    ) -> dict[str, Any]:
        """Return the section "compared" of `metrics.json`: how an evaluation differs from another one.

        `other` is the evaluation of the run `name` on the same rows. The seed is that of the resampling.
        """
        differences: dict[str, ScoreDifference] = compare_scorers(other.scorer, evaluation.scorer, seed)
        for module, _, names in self._iter_scores(evaluation):
            other_scorer, scorer = (module.make_scorer(_decode(run)) for run in (other, evaluation))
            found = compare_scorers(other_scorer, scorer, seed)
            differences |= {names[score]: difference for score, difference in found.items() if score in names}
        return {
            "with": name,
            "validation": self.score(other),
            "difference": {score: asdict(difference) for score, difference in differences.items()},
        }

    def _iter_scores(self, evaluation: Evaluation) -> Iterator[tuple[MetricModule, Scores, dict[str, str]]]:
        """Yield each module that has finite scores, these scores, and their names in `metrics.json`."""
        if self.modules and evaluation not in self._scores:
            self._scores[evaluation] = [_score(module, evaluation) for module in self.modules]
        taken = {LOSS, *evaluation.scores}
        for module, scores in zip(self.modules, self._scores.get(evaluation, []), strict=True):
            if scores:
                yield module, scores, name_scores(module.name, list(scores), taken)


def _score(module: MetricModule, evaluation: Evaluation) -> Scores:
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

    Returns:
        The modules, and the names of all scores.
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
    """Select checkpoints by `--metric-for-best-model`, if it is set; `names` are those of all scores."""
    config: FineTuningConfig = task.config
    name, is_greater_better = config.metric_for_best_model, config.greater_is_better
    if name is None:
        if is_greater_better is not None:
            flag = "--greater-is-better" if is_greater_better else "--no-greater-is-better"
            raise UserError(f"{flag}: has no effect without --metric-for-best-model; add it, or omit it")
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


def summarize_data(
    task: Task, dataset: LoadedDataset, fingerprints: Mapping[str, str], splits: Splits
) -> dict[str, Any]:
    """Return the section "data" of `metrics.json`; unlabeled rows are left out of the fingerprint."""
    sizes = {split: len(rows) for split, rows in splits.items()}
    fingerprint = combine_fingerprints(
        {name: value for name, value in fingerprints.items() if name != UNLABELED_ROWS}
    )
    columns = summarize_split_columns(task, splits)
    return {"name": dataset.name, "source": dataset.source, "fingerprint": fingerprint, **sizes, **columns}


def compute_scores(
    task: Task, evaluations: Mapping[str, Evaluation], modules: MetricModules, has_intervals: bool = True
) -> dict[str, Any]:
    """Return the scores and details of each labeled split, and the intervals of validation."""
    labeled = {split: evaluation for split, evaluation in evaluations.items() if evaluation.has_gold}
    validation, seed = evaluations["validation"], task.config.seed
    intervals = {}
    if has_intervals:
        intervals = compute_intervals(validation.scorer, seed) | modules.compute_intervals(validation, seed)
    results: dict[str, Any] = {
        "validation": {},
        "test": {},
        **{split: modules.score(evaluation) for split, evaluation in labeled.items()},
        "intervals": intervals,
    }
    details = {split: evaluation.compute_details() for split, evaluation in labeled.items()}
    details = {split: split_details for split, split_details in details.items() if split_details}
    return results | ({"details": details} if details else {})


def summarize_baselines(baselines: Mapping[str, Scorer], num_rows: int) -> dict[str, Any]:
    """Return the section "baselines" of `metrics.json`: their scores.

    The section "baseline_rows" follows if a baseline is fitted on a sample of the training rows.
    """
    limits = {**dict.fromkeys(TFIDF_BASELINES, MAX_TFIDF_ROWS), LINEAR_PROBE: MAX_PROBE_ROWS}
    sampled = {name: limits[name] for name in baselines if limits.get(name, num_rows) < num_rows}
    scores = {name: baseline.score_all() for name, baseline in baselines.items()}
    return {"baselines": scores, **({"baseline_rows": sampled} if sampled else {})}


def choose_deciding_metric(task: Task, evaluation: Evaluation) -> tuple[str, int]:
    """Return the score by which models and slices are judged, and +1 if higher is better, else -1.

    It is the one that selects checkpoints, unless the scorer does not have it: a score of a module of
    `--metric` cannot decide, because the baselines do not have it.
    """
    name, sign = task.state.best_metric
    names = list(evaluation.scorer.score_all())
    return (name, sign) if name in names else (names[0], 1)


def summarize_judgement(
    task: Task,
    evaluation: Evaluation,
    others: Mapping[str, Scorer],
    training: TrainingFacts | None = None,
    calibration_command: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Return the section "judgement" of `metrics.json`: whether the model is better than others.

    It is empty if no other model has a score of the model. `model` is the name of this one, if the others
    are trained models, too. The key `calibration` is a sentence on overconfidence.
    """
    name, sign = choose_deciding_metric(task, evaluation)
    unit = task.definition.unit if task.definition.predicts_rows else "example"
    judgement = judge(
        evaluation.scorer,
        others,
        name,
        sign > 0,
        rows=format_count(evaluation.scorer.size, unit),
        training=training,
        name=model,
        seed=task.config.seed,
    )
    if judgement is None:
        return {}
    sentence = None
    if calibration_command and isinstance(evaluation, RowEvaluation) and evaluation.has_classes:
        sentence = describe_overconfidence(evaluation.make_decisions(), calibration_command)
    return {"judgement": asdict(judgement) | ({"calibration": sentence} if sentence else {})}


# ---- slices

# Of the texts, of classes, and of soft labels, whatever the columns of the data.
LENGTH, LABEL, AGREEMENT = "length", "label", "agreement"


def find_slices(task: Task, rows: Rows, by: Sequence[str] = ()) -> dict[str, list[Slice]]:
    """Return the slices of parsed rows by column.

    `by` are the values of `--by`, which may be separated by commas. Without any, the slices are those by
    length and, if there are classes, by label; by agreement, if labels have probabilities. A column of the
    data with one of these names has priority.
    """
    if not task.definition.predicts_rows:
        return {}
    schema, has_classes = task.input_schema, bool(task.state.label_type and task.state.labels)
    agreement = compute_agreement(rows, *schema.gold_columns) if has_classes else None
    columns = [LENGTH, *([LABEL] if has_classes else ()), *([AGREEMENT] if agreement is not None else ())]
    if by:
        hidden = schema.hidden_columns - (schema.gold_columns if has_classes else set())
        known = {name: values for name, values in rows.columns.items() if name not in hidden}
        known = dict.fromkeys(columns, ()) | known
        columns = parse_column_names(rows.replace_columns(known), by, "--by")
    slices = {}
    for column in columns:
        is_read = bool(by) and column in rows.columns
        if has_classes and (column in schema.gold_columns or (column == LABEL and not is_read)):
            parts = slice_by_label(task.get_labels(rows))
        elif column == LENGTH and not is_read:
            texts = [rows[name] for name in schema.text_columns if name in rows.columns]
            parts = slice_by_length(texts)
        elif column == AGREEMENT and not is_read:
            assert agreement is not None
            parts = slice_by_agreement(agreement)
        else:
            parts = slice_by_value(rows[column])
            if len(parts) > 1 and len(parts[0].rows) == 1:
                raise UserError(
                    f"--by {column}: no value occurs twice in {format_count(len(rows), 'row')}; name a "
                    "column whose values repeat"
                )
        if len(parts) > 1:
            slices[column] = parts
        elif by:
            raise UserError(
                f"--by {column}: all rows have the value {shorten_repr(parts[0].value)}; name a column with "
                "several values"
            )
    return slices


def summarize_slices(
    task: Task, evaluation: Evaluation, slices: Mapping[str, Sequence[Slice]]
) -> dict[str, Any]:
    """Return the sections "slices" and "worst_slice" of `metrics.json`; the latter only if there is one.

    Slices by label are judged by accuracy: F1 and correlations need rows with several labels.
    """
    if not slices:
        return {}
    assert isinstance(evaluation, RowEvaluation)
    metric, has_accuracy = choose_deciding_metric(task, evaluation), "accuracy" in evaluation.scores
    label_columns = {LABEL, *task.input_schema.gold_columns}
    found, worst = score_slices(
        evaluation.scorer,
        slices,
        lambda column: ("accuracy", 1) if has_accuracy and column in label_columns else metric,
        evaluation.compute_correct(),
        unit=task.definition.unit,
        seed=task.config.seed,
    )
    columns = {column: [asdict(part) for part in parts] for column, parts in found.items()}
    return {"slices": columns, **({"worst_slice": asdict(worst)} if worst else {})}


NUM_FOLDS = 5  # by which fitted numbers are scored on rows that they are not fitted on


def fit_scope_of_texts(
    task: Task, evaluation: RowEvaluation, outside: Rows, features: Sequence[np.ndarray],
    coverage: float | None,
) -> dict[str, Any]:  # fmt: skip
    """Fit which texts are out of scope; see `fit_scope`, whose result is returned.

    Args:
        evaluation: The predictions of rows in scope.
        outside: The texts out of scope.
        features: Those of these rows, of these texts, and of the shipped texts, if there are any.
        coverage: Fraction of the rows in scope that are accepted; None for the default.
    """
    keys = task.split_keys(evaluation.outputs.rows), task.make_split_keys(outside)
    first, second = (assign_row_folds(part, NUM_FOLDS, task.config.seed) for part in keys)
    is_correct = evaluation.compute_correct()
    found = fit_scope(features, is_correct, (first, second), coverage or DEFAULT_COVERAGE)
    recall, chance = found[RECALL], 1 - found["coverage"]
    if recall <= chance:
        raise UserError(
            f"--out-of-scope: the model cannot tell these texts from rows in scope: it finds {recall:.1%} "
            f"of them, and {chance:.1%} of those rows by mistake; pass other texts"
        )
    return found


def write_predictions(run: RunDir, task: Task, evaluations: Mapping[str, Evaluation]) -> None:
    """Write the prediction files of each split."""
    for split, evaluation in evaluations.items():
        records = iter_prediction_records(task, evaluation)
        run.write_predictions(task.definition.predictions_name, split, records, evaluation.format_files())
