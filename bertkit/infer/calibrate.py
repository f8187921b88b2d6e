"""`calibrate`: fit probabilities and decisions on labeled rows, and make them part of a finished run.

The temperature is folded into the output layer. All other fitted numbers are stored in `config.json`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError, format_count
from bertkit.infer.configs import CalibrateConfig
from bertkit.setting import expand_path_settings
from bertkit.utils import devices
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    import numpy as np

    from bertkit.infer.calibration_files import CalibrationChanges
    from bertkit.infer.calibration_fit import RowConfidence
    from bertkit.infer.calibration_rows import CalibrationRows
    from bertkit.infer.predictor import Predictor
    from bertkit.metrics.thresholds import ThresholdCriterion
    from bertkit.tasks.base import Task

MIN_RELIABLE_ROWS = 200  # with fewer rows, the fitted numbers depend much on the choice of the rows


@dataclass(frozen=True)
class CalibrationResult:
    """Result of `calibrate`.

    Attributes:
        output_dir: The run directory.
        temperature: The number that the logits of the trained model are divided by; None for `qa`.
        calibration: Content of `calibration.json`.
    """

    output_dir: Path
    temperature: float | None
    calibration: dict[str, Any]


def calibrate(settings: Mapping[str, Any], reporter: Reporter | None = None) -> CalibrationResult:
    """Fit a temperature, and divide the output layer by it; with their settings, also fit decisions.

    For `qa`, fit the probability that an answer is right.

    Raises:
        UserError: The run is not finished or has no classes, or the rows do not determine a temperature or
            thresholds. The run is not changed.
    """
    from bertkit.infer.columns import collect_passed_columns
    from bertkit.infer.predictor import load_predictor
    from bertkit.infer.thresholds import require_criterion
    from bertkit.utils import locks
    from bertkit.utils.reporting import silence_libraries, use_reporter

    config = CalibrateConfig(**validate_settings(CalibrateConfig, settings, "calibrate()"))
    config = expand_path_settings(config, "run")
    run, reporter = Path(config.run), reporter or Reporter()
    devices.request_device(config.device)
    task = _load_task(run)
    criterion = require_criterion(task, config.threshold, run) if config.threshold is not None else None
    columns = collect_passed_columns(config, task, config.run)
    _check_data_flags(config, columns)
    with locks.lock_directory(run), silence_libraries(), use_reporter(reporter):
        predictor = load_predictor(run).use_batch_size(config.batch_size).use_columns(columns)
        devices.report_device(reporter, predictor.model)
        predictor.task.use_cache = True  # unlike in prediction, whole splits are tokenized
        return _calibrate(config, predictor, criterion, reporter)


def _load_task(run: Path) -> "Task":
    """Load the task of a run.

    Raises:
        UserError: The run is not finished, is an exported model, or does not choose between classes.
    """
    import numpy as np

    from bertkit.data.rows import Rows
    from bertkit.infer.onnx_runtime import find_onnx_model
    from bertkit.modeling.loading import ModelSource, load_config
    from bertkit.pipeline.finished_run import load_run_task
    from bertkit.tasks.evaluation import Outputs, RowEvaluation

    task = load_run_task(run)
    if find_onnx_model(run):
        raise UserError(f"{run}: is an exported model; calibrate the run, and export it again")
    kind = task.spec.name
    if task.spec.predicts_rows:
        task.load_state(load_config(ModelSource(run.name, run)))
        evaluation = task.evaluate(Outputs(np.empty((0, 0)), None, Rows.from_dicts([], "")))
        if isinstance(evaluation, RowEvaluation) and evaluation.calibration_method:
            return task
        kind = f"{kind} ({task.describe()})"
    raise UserError(
        f"{run}: is a run of {kind}, which cannot be calibrated; pass a run of classify with classes, nli, "
        "swag, ner or qa"
    )


def _check_data_flags(config: CalibrateConfig, columns: Mapping[str, Any]) -> None:
    """Raise `UserError` if a flag describes `--data`, and `--data` is missing."""
    names = [*columns, *(["encoding"] if config.encoding else [])]
    if names and not config.data:
        flag = "--" + names[0].replace("_", "-")
        raise UserError(f"{flag}: applies only to --data; pass both or neither")


def _calibrate(
    config: CalibrateConfig,
    predictor: "Predictor",
    criterion: "ThresholdCriterion | None",
    reporter: Reporter,
) -> CalibrationResult:
    from bertkit.infer.calibration_files import write_calibration
    from bertkit.infer.calibration_rows import assign_folds, load_rows

    run, task = Path(config.run), predictor.task
    loaded = load_rows(config, predictor, reporter)
    rows = loaded.rows
    folds = assign_folds(task, rows, f"{loaded.dataset.name} ({loaded.dataset.source})")
    if len(rows) < MIN_RELIABLE_ROWS:
        reporter.warn(f"{format_count(len(rows), 'row')} are few: the result depends on their choice")
    evaluation: Any = task.evaluate(predictor.compute_outputs(rows, reporter, "calibrating"))
    if evaluation.calibration_method == "answers":
        changes = _fit_answers(config, evaluation, folds)
    else:
        changes = _fit_classes(config, evaluation, folds, criterion, reporter)
    changes.calibration.update(seed=task.config.seed, data=_describe_data(loaded))
    write_calibration(run, predictor, evaluation, changes, reporter)
    return CalibrationResult(run, changes.calibration.get("temperature"), changes.calibration)


def _fit_classes(
    config: CalibrateConfig,
    evaluation: Any,
    folds: "np.ndarray",
    criterion: "ThresholdCriterion | None",
    reporter: Reporter,
) -> "CalibrationChanges":
    """Fit a temperature, prediction sets and, with their flags, thresholds and abstention."""
    from bertkit.infer.abstention import fit_sets
    from bertkit.infer.calibration_files import CalibrationChanges
    from bertkit.infer.calibration_fit import fit_run_temperature
    from bertkit.infer.thresholds import ThresholdRows, fit_thresholds
    from bertkit.modeling.temperature import read_temperature

    run = Path(config.run)
    previous = read_temperature(run)
    fit = fit_run_temperature(run, evaluation.make_decisions().scale(previous), folds)
    fit = fit.keep_unchanged(previous)
    calibration = fit.describe() | _describe_abstention(config, fit.compute_confidence())
    for part, factor in (("before", 1.0), ("after", fit.cross_fitted_factors)):
        calibration["scores"][part] |= evaluation.score_scaled(previous * factor)
    if evaluation.has_sets:
        calibration["prediction_sets"] = fit_sets(fit)
    if criterion:
        rows = ThresholdRows(evaluation.outputs.logits * previous, evaluation.gold, folds)
        temperatures = fit.temperature, fit.fold_temperatures
        thresholds = fit_thresholds(evaluation.label_type, rows, criterion, *temperatures, reporter)
        calibration["threshold"] = {"criterion": config.threshold, **thresholds}
    return CalibrationChanges(calibration, fit.temperature / previous)


def _fit_answers(config: CalibrateConfig, evaluation: Any, folds: "np.ndarray") -> "CalibrationChanges":
    """Fit the probability that an answer is right and, with its flag, abstention."""
    from bertkit.infer.calibration_files import CalibrationChanges
    from bertkit.infer.calibration_fit import fit_answers

    fit = fit_answers(Path(config.run), evaluation, folds)
    return CalibrationChanges(fit.describe() | _describe_abstention(config, fit.confidence))


def _describe_abstention(config: CalibrateConfig, confidence: "RowConfidence") -> dict[str, Any]:
    """Return the risk-coverage curve and, with `--coverage`, the fitted confidence."""
    from bertkit.infer.abstention import describe_risk_coverage, fit_abstention

    calibration = {"risk_coverage": describe_risk_coverage(confidence)}
    if config.coverage is not None:
        calibration["abstention"] = fit_abstention(confidence, config.coverage)
    return calibration


def _describe_data(loaded: "CalibrationRows") -> dict[str, Any]:
    from bertkit.data.rows import fingerprint_splits

    return {
        "name": loaded.dataset.name,
        "source": loaded.dataset.source,
        "is_validation_split": loaded.is_validation_split,
        "fingerprint": fingerprint_splits({"validation": loaded.rows})["validation"],
        "rows": len(loaded.rows),
    }
