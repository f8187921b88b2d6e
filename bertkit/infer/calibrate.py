"""`calibrate`: fit a temperature and thresholds on labeled rows, and make them part of a finished run.

The temperature is folded into the output layer. The thresholds are stored in `config.json`.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data_objects import DataObject
from bertkit.errors import UserError, format_count
from bertkit.infer.configs import CalibrateConfig
from bertkit.recipes import list_passed_data
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.infer.predictor import Predictor
    from bertkit.metrics.calibration import Decisions
    from bertkit.metrics.thresholds import ThresholdCriterion
    from bertkit.tasks.base import Task
    from bertkit.tasks.evaluation import RowEvaluation

NUM_FOLDS = 5
MIN_ROWS = 10
MIN_RELIABLE_ROWS = 200  # with fewer rows, the temperature depends much on the choice of the rows
NUM_TEST_ROWS = 8
LOGIT_TOLERANCE = 1e-4  # maximum difference of a logit from its expected value, relative to the largest logit
# A smaller relative change of the temperature is rounding, and leaves the weights as they are.
MIN_CHANGE = 1e-6


@dataclass(frozen=True)
class CalibrationResult:
    """Result of `calibrate`.

    Attributes:
        output_dir: The run directory.
        temperature: The number that the logits of the trained model are divided by.
        calibration: Content of `calibration.json`.
    """

    output_dir: Path
    temperature: float
    calibration: dict[str, Any]


def calibrate(settings: Mapping[str, Any], reporter: Reporter | None = None) -> CalibrationResult:
    """Fit a temperature, and divide the output layer by it; with `threshold`, also fit thresholds.

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
    run, reporter = Path(config.run), reporter or Reporter()
    task = _load_task(run)
    criterion = require_criterion(task, config.threshold, run) if config.threshold is not None else None
    columns = collect_passed_columns(config, task, config.run)
    _check_data_flags(config, columns)
    with locks.lock_directory(run), silence_libraries(), use_reporter(reporter):
        predictor = load_predictor(run).use_batch_size(config.batch_size).use_columns(columns)
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
        if isinstance(evaluation, RowEvaluation) and evaluation.has_classes:
            return task
        kind = f"{kind} ({task.describe()})"
    raise UserError(
        f"{run}: is a run of {kind}, which cannot be calibrated; pass a run of classify with classes, nli, "
        "swag or ner"
    )


def _check_data_flags(config: CalibrateConfig, columns: Mapping[str, Any]) -> None:
    """Raise `UserError` if a flag describes `--data`, and `--data` is missing."""
    names = [*columns, *(["encoding"] if config.encoding else [])]
    if names and not config.data:
        flag = "--" + names[0].replace("_", "-")
        raise UserError(f"{flag}: applies only to --data; pass both or neither")


# ---- rows


def _load_rows(
    config: CalibrateConfig, predictor: "Predictor", reporter: Reporter
) -> tuple["LoadedDataset", "Rows"]:
    """Load the validation rows of the run, or the rows of `--data`."""
    from bertkit.infer.evaluate import load_new_rows
    from bertkit.pipeline.finished_run import reload_run_data

    run, passed = Path(config.run), config.data if isinstance(config.data, DataObject) else None
    if config.data is None or (passed and list_passed_data(predictor.task.config)):
        try:
            dataset, splits = reload_run_data(run, passed, "calibrate")
        except UserError as error:
            raise UserError(f"{error}; pass --data to calibrate on other rows") from error
    else:
        trained_config = predictor.task.config  # before the columns of new data are mapped
        dataset, splits = load_new_rows(predictor, config, reporter)
        _warn_about_training_rows(run, predictor.task, trained_config, splits["validation"], reporter)
    return dataset, splits["validation"]


def _warn_about_training_rows(
    run: Path, task: "Task", trained_config: Any, rows: "Rows", reporter: Reporter
) -> None:
    """Warn about rows that the model was trained on: it is more confident about them than about new rows."""
    from bertkit.infer.evaluate import count_overlap
    from bertkit.infer.predictor import add_renamed_columns
    from bertkit.pipeline.finished_run import reload_run_data

    try:
        _, splits = reload_run_data(run)
    except UserError:  # the training rows are not available any more
        return
    train = add_renamed_columns(splits["train"], trained_config, task.config)
    if overlap := count_overlap(task, train, rows):
        reporter.warn(
            f"{overlap:,} of {format_count(len(rows), 'row')} are also training rows, about which the model "
            "is too confident: the temperature does not fit new rows"
        )


def _assign_folds(task: "Task", rows: "Rows", source: str) -> "np.ndarray":
    """Return [rows] the fold of each row; rows that must stay together are in one fold.

    Raises:
        UserError: There are too few rows.
    """
    import numpy as np

    from bertkit.data.split import assign_folds

    keys = task.split_keys(rows)
    count = len(np.unique(keys.group))
    if count < MIN_ROWS:
        unit = keys.group_unit or f"different {keys.unit}"
        raise UserError(
            f"{source}: {format_count(count, unit)} to calibrate on, and at least {MIN_ROWS} are needed; "
            "pass more labeled rows with --data"
        )
    return assign_folds(keys.group, keys.stratum, NUM_FOLDS, task.config.seed)


# ---- temperature


@dataclass(frozen=True)
class _Fit:
    """A temperature, and the decisions that it was fitted on.

    Attributes:
        trained: The decisions of the model as it was trained, without any temperature.
        calibrated: The same decisions; the logits of each fold are divided by the temperature of other folds.
        fold_temperatures: The temperature of each fold.
        temperature: The temperature that is fitted on all rows.
    """

    trained: "Decisions"
    calibrated: "Decisions"
    fold_temperatures: list[float]
    temperature: float


def _calibrate(
    config: CalibrateConfig,
    predictor: "Predictor",
    criterion: "ThresholdCriterion | None",
    reporter: Reporter,
) -> CalibrationResult:
    from bertkit.data.rows import fingerprint_splits
    from bertkit.infer.thresholds import ThresholdRows, fit_thresholds
    from bertkit.modeling.temperature import read_temperature

    run, task = Path(config.run), predictor.task
    previous = read_temperature(run)
    dataset, rows = _load_rows(config, predictor, reporter)
    folds = _assign_folds(task, rows, f"{dataset.name} ({dataset.source})")
    if len(rows) < MIN_RELIABLE_ROWS:
        reporter.warn(f"{format_count(len(rows), 'row')} are few: the temperature depends on their choice")
    evaluation: Any = task.evaluate(predictor.compute_outputs(rows, reporter, "calibrating"))
    fit = _fit(run, evaluation.make_decisions().scale(previous), folds)
    has_changed = abs(fit.temperature / previous - 1) > MIN_CHANGE
    if not has_changed:
        fit = dataclasses.replace(fit, temperature=previous)
    fingerprint = fingerprint_splits({"validation": rows})["validation"]
    data = {"name": dataset.name, "source": dataset.source, "fingerprint": fingerprint, "rows": len(rows)}
    calibration = {**_describe_fit(fit, task.config.seed), "data": data}
    if criterion:
        threshold_rows = ThresholdRows(evaluation.outputs.logits * previous, evaluation.gold, folds)
        temperatures = fit.temperature, fit.fold_temperatures
        thresholds = fit_thresholds(evaluation.label_type, threshold_rows, criterion, *temperatures, reporter)
        calibration["threshold"] = {"criterion": config.threshold, **thresholds}
    divisor = fit.temperature / previous if has_changed else 1.0
    _write(run, predictor, evaluation, divisor, calibration, reporter)
    return CalibrationResult(run, fit.temperature, calibration)


def _fit(run: Path, decisions: "Decisions", folds: "np.ndarray") -> _Fit:
    from bertkit.metrics.temperature import cross_fit, fit_temperature, is_at_bound

    temperature = fit_temperature(decisions)
    if is_at_bound(temperature):
        problem = _explain_bound(decisions, temperature)
        raise UserError(f"{run}: {problem}; pass other labeled rows with --data")
    fold_temperatures, calibrated = cross_fit(decisions, folds)
    return _Fit(decisions, calibrated, fold_temperatures, temperature)


def _explain_bound(decisions: "Decisions", temperature: float) -> str:
    """Return why the rows do not determine a temperature."""
    if temperature > 1:
        return "the predictions are not better than guessing"
    _, is_correct = decisions.compute_confidence()
    if is_correct.all():
        return "all rows are classified correctly, which does not show how confident the model should be"
    return "the logits hardly differ between classes, because the model is hardly trained"


def _describe_fit(fit: _Fit, seed: int) -> dict[str, Any]:
    """Return the content of `calibration.json`, without the data."""
    from bertkit.metrics.calibration import ProbabilityScorer, compute_calibration

    parts = {"before": fit.trained, "after": fit.calibrated}
    return {
        "method": "temperature",
        "temperature": fit.temperature,
        "fold_temperatures": fit.fold_temperatures,
        "seed": seed,
        "decisions": len(fit.trained.gold),
        "scores": {name: ProbabilityScorer(part).score_all() for name, part in parts.items()},
        "reliability": {
            name: compute_calibration(*part.compute_confidence()).to_dict() for name, part in parts.items()
        },
    }


# ---- output


def _write(
    run: Path,
    predictor: "Predictor",
    evaluation: "RowEvaluation",
    divisor: float,
    calibration: dict[str, Any],
    reporter: Reporter,
) -> None:
    """Write the weights, the thresholds, `calibration.json` and the model card.

    The run is valid at any time. `calibration.json` and the thresholds belong to the weights. They are
    removed before the weights are replaced, and written after them.
    """
    from bertkit.modeling.temperature import write_divided_weights
    from bertkit.reports.model_card import add_calibration
    from bertkit.run_directory import CALIBRATION_FILE, CARD_FILE
    from bertkit.utils.files import stage_files, write_text

    if divisor != 1:
        names = _divide_and_verify(run, predictor, evaluation, divisor)
        with stage_files(run, "the calibrated weights", "free disk space, and calibrate again") as staging:
            write_divided_weights(run, staging, names, divisor, calibration["temperature"])
            (run / CALIBRATION_FILE).unlink(missing_ok=True)
            _write_thresholds(run, {})
    _write_thresholds(run, calibration.get("threshold", {}).get("thresholds", {}))
    write_text(run / CALIBRATION_FILE, json.dumps(calibration, indent=2, ensure_ascii=False) + "\n")
    card = run / CARD_FILE
    if card.exists():
        write_text(card, add_calibration(card.read_text("utf-8"), calibration))
    _update_page(run, reporter)
    if divisor != 1:
        _warn_about_export(run, reporter)


def _write_thresholds(run: Path, thresholds: Mapping[str, float]) -> None:
    """Replace the thresholds in `config.json`."""
    from bertkit.tasks.sequence import THRESHOLDS_KEY
    from bertkit.utils.files import write_text

    path = run / "config.json"
    config = json.loads(path.read_text("utf-8"))
    if config.pop(THRESHOLDS_KEY, {}) == thresholds:
        return
    config |= {THRESHOLDS_KEY: dict(thresholds)} if thresholds else {}
    write_text(path, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _divide_and_verify(
    run: Path, predictor: "Predictor", evaluation: "RowEvaluation", divisor: float
) -> list[str]:
    """Divide the output layer of the loaded model, and return the names of its parameters.

    Raises:
        UserError: The logits of some rows are not divided by the same number.
    """
    import numpy as np

    from bertkit.modeling.temperature import divide_output_layer

    rows = evaluation.outputs.rows
    rows = rows.select(range(min(NUM_TEST_ROWS, len(rows))))
    before = predictor.compute_outputs(rows).logits
    names = divide_output_layer(predictor.model, divisor)
    after = predictor.compute_outputs(rows).logits
    exists = np.isfinite(before)
    expected = before[exists] / divisor
    if np.abs(after[exists] - expected).max() > LOGIT_TOLERANCE * max(1.0, np.abs(expected).max()):
        raise UserError(
            f"{run}: the logits of {predictor.model.config.model_type} are not a linear function of the "
            "parameters of its last layer, so this architecture cannot be calibrated; train another model"
        )
    return names


def _update_page(run: Path, reporter: Reporter) -> None:
    """Write `report.html` again, with the reliability before and after calibration."""
    from bertkit.reports.page import write_page
    from bertkit.run_directory import REPORT_FILE, require_metrics

    if not (run / REPORT_FILE).exists():
        return
    try:
        write_page(run, require_metrics(run))
    except UserError as error:  # a file that only the page needs is damaged
        reporter.warn(f"{run / REPORT_FILE} does not show the calibration ({error})")


def _warn_about_export(run: Path, reporter: Reporter) -> None:
    """Warn about an ONNX model in the run, which still has the former output layer."""
    from bertkit.infer.onnx_runtime import find_onnx_model
    from bertkit.run_directory import ONNX_DIR

    if find_onnx_model(run / ONNX_DIR):
        reporter.warn(
            f"{run / ONNX_DIR}: was exported before this calibration; run bertkit export {run} --overwrite"
        )
