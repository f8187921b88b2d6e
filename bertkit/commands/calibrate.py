"""`calibrate`: fit probabilities and decisions on labeled rows, and make them part of a finished run.

The temperature is folded into the output layer. All other fitted numbers are stored in `config.json`.
"""

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.commands.configs import CalibrateConfig, collect_passed_columns
from bertkit.commands.evaluate import count_overlap, load_new_rows
from bertkit.data.columns import add_renamed_columns
from bertkit.data.table import Rows, fingerprint_splits
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.heads import divide_output_layer, read_temperature, write_divided_weights
from bertkit.models.loading import ModelSource, load_config
from bertkit.report.card import add_calibration
from bertkit.run.finished_run import load_run_task, reload_run_data
from bertkit.run.predictor import find_onnx_model, load_predictor
from bertkit.run_directory import CALIBRATION_FILE, CARD_FILE, ONNX_DIR, REPORT_FILE, require_metrics
from bertkit.settings.recipes import list_passed_data
from bertkit.settings.setting import expand_path_settings
from bertkit.settings.validation import DataObject, validate_settings
from bertkit.stats.calibration import (
    SET_LEVEL,
    ProbabilityScorer,
    SelectiveScorer,
    ThresholdCriterion,
    compute_calibration,
    compute_risk_coverage,
    cross_fit,
    describe_coverage,
    find_members,
    fit_min_confidence,
    fit_set_margin,
    fit_temperature,
    is_at_bound,
    make_yes_no_decisions,
    parse_criterion,
    score_sets,
)
from bertkit.stats.scores import Scores
from bertkit.tasks.base import CONFIDENCE_KEY, FittedConfidence
from bertkit.tasks.evaluation import Outputs, RowEvaluation
from bertkit.tasks.qa.spans import compute_answer_probability, fit_answer_weights
from bertkit.tasks.text.task import THRESHOLDS_KEY
from bertkit.utils import devices, locks
from bertkit.utils.files import stage_files, write_text
from bertkit.utils.reporting import report_warning, silence_libraries

if TYPE_CHECKING:
    from bertkit.data.sources import LoadedDataset
    from bertkit.data.table import Rows
    from bertkit.run.predictor import Predictor
    from bertkit.stats.calibration import Decisions, ThresholdCriterion
    from bertkit.tasks.base import Task
    from bertkit.tasks.evaluation import RowEvaluation
    from bertkit.tasks.qa.predictions import QaEvaluation
    from bertkit.tasks.text.labels import LabelType


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


def calibrate(settings: Mapping[str, Any]) -> CalibrationResult:
    """Fit a temperature, and divide the output layer by it; with their settings, also fit decisions.

    For `qa`, fit the probability that an answer is right.

    Raises:
        UserError: The run is not finished or has no classes, or the rows do not determine a temperature or
            thresholds. The run is not changed.
    """
    config = CalibrateConfig(**validate_settings(CalibrateConfig, settings, "calibrate()"))
    config = expand_path_settings(config, "run")
    run = Path(config.run)
    devices.request_device(config.device)
    task = _load_task(run)
    criterion = require_criterion(task, config.threshold, run) if config.threshold is not None else None
    columns = collect_passed_columns(config, task, config.run)
    _check_data_flags(config, columns)
    with locks.lock_directory(run), silence_libraries():
        predictor = load_predictor(run).use_batch_size(config.batch_size).use_columns(columns)
        devices.report_device(predictor.model)
        predictor.task.use_cache = True  # unlike in prediction, whole splits are tokenized
        return _calibrate(config, predictor, criterion)


def _load_task(run: Path) -> "Task":
    """Load the task of a run.

    Raises:
        UserError: The run is not finished, is an exported model, or does not choose between classes.
    """
    task = load_run_task(run)
    if find_onnx_model(run):
        raise UserError(f"{run}: is an exported model; calibrate the run, and export it again")
    kind = task.definition.name
    if task.definition.predicts_rows:
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
    criterion: ThresholdCriterion | None,
) -> CalibrationResult:
    run, task = Path(config.run), predictor.task
    loaded = load_rows(config, predictor)
    rows = loaded.rows
    folds = assign_folds(task, rows, f"{loaded.dataset.name} ({loaded.dataset.source})")
    if len(rows) < MIN_RELIABLE_ROWS:
        report_warning(f"{format_count(len(rows), 'row')} are few: the result depends on their choice")
    evaluation: Any = task.evaluate(predictor.compute_outputs(rows, "calibrating"))
    if evaluation.calibration_method == "answers":
        changes = _fit_answers(config, evaluation, folds)
    else:
        changes = _fit_classes(config, evaluation, folds, criterion)
    changes.calibration.update(seed=task.config.seed, data=_describe_data(loaded))
    write_calibration(run, predictor, evaluation, changes)
    return CalibrationResult(run, changes.calibration.get("temperature"), changes.calibration)


def _fit_classes(
    config: CalibrateConfig,
    evaluation: Any,
    folds: np.ndarray,
    criterion: ThresholdCriterion | None,
) -> "CalibrationChanges":
    """Fit a temperature, prediction sets and, with their flags, thresholds and abstention."""
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
        thresholds = fit_thresholds(evaluation.label_type, rows, criterion, *temperatures)
        calibration["threshold"] = {"criterion": config.threshold, **thresholds}
    return CalibrationChanges(calibration, fit.temperature / previous)


def _fit_answers(config: CalibrateConfig, evaluation: Any, folds: np.ndarray) -> "CalibrationChanges":
    """Fit the probability that an answer is right and, with its flag, abstention."""
    fit = fit_answers(Path(config.run), evaluation, folds)
    return CalibrationChanges(fit.describe() | _describe_abstention(config, fit.confidence))


def _describe_abstention(config: CalibrateConfig, confidence: "RowConfidence") -> dict[str, Any]:
    """Return the risk-coverage curve and, with `--coverage`, the fitted confidence."""
    calibration = {"risk_coverage": describe_risk_coverage(confidence)}
    if config.coverage is not None:
        calibration["abstention"] = fit_abstention(confidence, config.coverage)
    return calibration


def _describe_data(loaded: "CalibrationRows") -> dict[str, Any]:
    return {
        "name": loaded.dataset.name,
        "source": loaded.dataset.source,
        "is_validation_split": loaded.is_validation_split,
        "fingerprint": fingerprint_splits({"validation": loaded.rows})["validation"],
        "rows": len(loaded.rows),
    }


NUM_TEST_ROWS = 8
LOGIT_TOLERANCE = 1e-4  # maximum difference of a logit from its expected value, relative to the largest logit


@dataclass(frozen=True)
class CalibrationChanges:
    """What `calibrate` changes in a run.

    Attributes:
        calibration: Content of `calibration.json`.
        divisor: Number that the output layer is divided by; 1 to leave the weights as they are.
    """

    calibration: dict[str, Any]
    divisor: float = 1.0

    def make_config_values(self) -> dict[str, Any]:
        """Return the values of `config.json`; a value that is empty is removed from the file."""
        fitted = FittedConfidence(
            self.calibration.get("abstention", {}).get("min_confidence"),
            self.calibration.get("prediction_sets", {}).get("margin"),
            self.calibration.get("weights"),
        )
        thresholds = self.calibration.get("threshold", {}).get("thresholds", {})
        return {THRESHOLDS_KEY: thresholds, CONFIDENCE_KEY: fitted.to_dict()}


NO_CHANGES = CalibrationChanges({})


def write_calibration(
    run: Path,
    predictor: "Predictor",
    evaluation: RowEvaluation,
    changes: CalibrationChanges,
) -> None:
    """Write the weights, `config.json`, `calibration.json`, the model card and the page.

    The run is valid at any time. `calibration.json` and the values in `config.json` belong to the weights.
    They are removed before the weights are replaced, and written after them.
    """
    divisor, calibration = changes.divisor, changes.calibration
    if divisor != 1:
        names = _divide_and_verify(run, predictor, evaluation, divisor)
        with stage_files(run, "the calibrated weights", "free disk space, and calibrate again") as staging:
            write_divided_weights(run, staging, names, divisor, calibration["temperature"])
            (run / CALIBRATION_FILE).unlink(missing_ok=True)
            _write_config(run, NO_CHANGES)
    _write_config(run, changes)
    write_text(run / CALIBRATION_FILE, json.dumps(calibration, indent=2, ensure_ascii=False) + "\n")
    card = run / CARD_FILE
    if card.exists():
        write_text(card, add_calibration(card.read_text("utf-8"), calibration))
    _update_page(run)
    _warn_about_export(run)


def _write_config(run: Path, changes: CalibrationChanges) -> None:
    """Replace the values of `calibrate` in `config.json`."""
    path = run / "config.json"
    old = json.loads(path.read_text("utf-8"))
    values = changes.make_config_values()
    new = {name: value for name, value in old.items() if name not in values}
    new |= {name: value for name, value in values.items() if value}
    if new != old:
        write_text(path, json.dumps(new, indent=2, sort_keys=True) + "\n")


def _divide_and_verify(
    run: Path, predictor: "Predictor", evaluation: RowEvaluation, divisor: float
) -> list[str]:
    """Divide the output layer of the loaded model, and return the names of its parameters.

    Raises:
        UserError: The logits of some rows are not divided by the same number.
    """
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


def _update_page(run: Path) -> None:
    """Write `report.html` again, with the reliability before and after calibration."""
    from bertkit.report.page import write_page

    if not (run / REPORT_FILE).exists():
        return
    try:
        write_page(run, require_metrics(run))
    except UserError as error:  # a file that only the page needs is damaged
        report_warning(f"{run / REPORT_FILE} does not show the calibration ({error})")


def _warn_about_export(run: Path) -> None:
    """Warn about an ONNX model in the run, which still has the former output layer and `config.json`."""
    if find_onnx_model(run / ONNX_DIR):
        report_warning(
            f"{run / ONNX_DIR}: was exported before this calibration; run bertkit export {run} --overwrite"
        )


# A smaller relative change of the temperature is rounding, and leaves the weights as they are.
MIN_CHANGE = 1e-6


@dataclass(frozen=True)
class RowConfidence:
    """The calibrated confidence in the prediction of each row.

    Attributes:
        fitted: [rows] confidence by the numbers that are fitted on all rows.
        by_fold: [folds, rows] confidence by the numbers that are fitted on all folds except this one.
        folds: [rows] index of the fold of each row.
        is_correct: [rows] bool, whether the prediction is correct.
    """

    fitted: np.ndarray
    by_fold: np.ndarray
    folds: np.ndarray
    is_correct: np.ndarray

    @property
    def cross_fitted(self) -> np.ndarray:
        """[rows] confidence by numbers that are fitted without the row's fold."""
        return self.by_fold[self.folds, np.arange(len(self.folds))]


# ---- temperature


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and the decisions that it was fitted on.

    Attributes:
        trained: The decisions of the model as it was trained, without any temperature.
        calibrated: The same decisions; the logits of each fold are divided by the temperature of other folds.
        fold_temperatures: The temperature of each fold.
        temperature: The temperature that is fitted on all rows.
        folds: [rows] index of the fold of each row.
    """

    trained: "Decisions"
    calibrated: "Decisions"
    fold_temperatures: list[float]
    temperature: float
    folds: np.ndarray

    def keep_unchanged(self, previous: float) -> "TemperatureFit":
        """Return the fit with the previous temperature of the run if the new one differs only by rounding."""
        has_changed = abs(self.temperature / previous - 1) > MIN_CHANGE
        return self if has_changed else dataclasses.replace(self, temperature=previous)

    @property
    def cross_fitted_factors(self) -> np.ndarray:
        """[decisions] the factors from `trained` to `calibrated`."""
        return 1 / np.array(self.fold_temperatures)[self.folds[self.trained.row]]

    def compute_confidence(self) -> RowConfidence:
        """Return the confidence in the prediction of each row."""
        fitted, is_correct = self.trained.scale(1 / self.temperature).compute_row_confidence()
        by_fold = [
            self.trained.scale(1 / temperature).compute_row_confidence()[0]
            for temperature in self.fold_temperatures
        ]
        return RowConfidence(fitted, np.stack(by_fold), self.folds, is_correct)

    def describe(self) -> dict[str, Any]:
        """Return the part of `calibration.json` about the temperature."""
        parts = {"before": self.trained, "after": self.calibrated}
        return {
            "method": "temperature",
            "temperature": self.temperature,
            "fold_temperatures": self.fold_temperatures,
            "decisions": len(self.trained.gold),
            "scores": {name: ProbabilityScorer(part).score_all() for name, part in parts.items()},
            "reliability": {
                name: compute_calibration(*part.compute_confidence()).to_dict()
                for name, part in parts.items()
            },
        }


def fit_run_temperature(run: Path, decisions: "Decisions", folds: np.ndarray) -> TemperatureFit:
    """Fit a temperature on all decisions, and score it by cross-fitting.

    Args:
        run: The run, for errors.
        decisions: The decisions of the model as it was trained.
        folds: [rows] index of the fold of each row.

    Raises:
        UserError: The decisions do not determine a temperature.
    """
    temperature = fit_temperature(decisions)
    if is_at_bound(temperature):
        problem = _explain_bound(decisions, temperature)
        raise UserError(f"{run}: {problem}; pass other labeled rows with --data")
    fold_temperatures, calibrated = cross_fit(decisions, folds)
    return TemperatureFit(decisions, calibrated, fold_temperatures, temperature, folds)


def _explain_bound(decisions: "Decisions", temperature: float) -> str:
    """Return why the rows do not determine a temperature."""
    if temperature > 1:
        return "the predictions are not better than guessing"
    _, is_correct = decisions.compute_confidence()
    if is_correct.all():
        return "all rows are classified correctly, which does not show how confident the model should be"
    return "the logits hardly differ between classes, because the model is hardly trained"


# ---- answers


@dataclass(frozen=True)
class AnswerFit:
    """The probability that an answer is right.

    Attributes:
        weights: The weights that are fitted on all rows; see `bertkit.tasks.qa.spans`.
        confidence: The probability of each answer.
        before: [rows] probability of each answer in its n-best list.
    """

    weights: Mapping[str, float]
    confidence: RowConfidence
    before: np.ndarray

    def describe(self) -> dict[str, Any]:
        """Return the part of `calibration.json` about the probabilities."""
        is_correct = self.confidence.is_correct
        parts = {"before": self.before, "after": self.confidence.cross_fitted}
        decisions = {name: make_yes_no_decisions(part, is_correct) for name, part in parts.items()}
        return {
            "method": "logistic regression",
            "weights": dict(self.weights),
            "decisions": len(is_correct),
            "scores": {name: ProbabilityScorer(part).score_all() for name, part in decisions.items()},
            "reliability": {
                name: compute_calibration(part, is_correct).to_dict() for name, part in parts.items()
            },
        }


def fit_answers(run: Path, evaluation: "QaEvaluation", folds: np.ndarray) -> AnswerFit:
    """Fit the probability that an answer is right.

    Args:
        run: The run, for errors.
        evaluation: The answers to the questions.
        folds: [questions] index of the fold of each question.

    Raises:
        UserError: All answers are right, or all are wrong.
    """
    features, is_correct = evaluation.answer_features, evaluation.compute_correct()
    by_fold = []
    for fold in [*range(folds.max() + 1), -1]:  # the last fit is that on all rows
        is_used = folds != fold
        if len(set(is_correct[is_used].tolist())) < 2:
            word = "right" if is_correct[is_used][0] else "wrong"
            raise UserError(
                f"{run}: almost all answers are {word}, which does not show when they are not; pass other "
                "questions with --data"
            )
        selected = {name: values[is_used] for name, values in features.items()}
        weights = fit_answer_weights(selected, is_correct[is_used])
        by_fold.append(compute_answer_probability(features, weights))
    confidence = RowConfidence(by_fold[-1], np.stack(by_fold[:-1]), folds, is_correct)
    return AnswerFit(weights, confidence, evaluation.compute_nbest_probability())


NUM_FOLDS = 5
MIN_ROWS = 10


@dataclass(frozen=True)
class CalibrationRows:
    """Labeled rows to calibrate on.

    Attributes:
        dataset: The dataset.
        rows: The rows.
        is_validation_split: Whether these are the validation rows of the run.
    """

    dataset: "LoadedDataset"
    rows: Rows
    is_validation_split: bool


def load_rows(config: CalibrateConfig, predictor: "Predictor") -> CalibrationRows:
    """Load the validation rows of the run, or the rows of `--data`."""
    run = Path(config.run)
    passed = config.data if isinstance(config.data, DataObject) else None
    if config.data is None or (passed and list_passed_data(predictor.task.config)):
        try:
            dataset, splits = reload_run_data(run, passed, "calibrate")
            return CalibrationRows(dataset, splits["validation"], is_validation_split=True)
        except UserError as error:
            if config.data is None:
                raise UserError(f"{error}; pass --data to calibrate on other rows") from error
        report_warning(
            "`data` is not the data of this run, so its rows are used as new rows; the calibration is wrong "
            "if the model was trained on them"
        )
    trained_config = predictor.task.config  # before the columns of new data are mapped
    dataset, splits = load_new_rows(predictor, config)
    _warn_about_training_rows(run, predictor.task, trained_config, splits["validation"])
    return CalibrationRows(dataset, splits["validation"], is_validation_split=False)


def _warn_about_training_rows(run: Path, task: "Task", trained_config: Any, rows: Rows) -> None:
    """Warn about rows that the model was trained on: it is more confident about them than about new rows."""
    try:
        _, splits = reload_run_data(run)
    except UserError:  # the training rows are not available any more
        return
    train = add_renamed_columns(splits["train"], trained_config, task.config)
    if overlap := count_overlap(task, train, rows):
        report_warning(
            f"{overlap:,} of {format_count(len(rows), 'row')} are also training rows, about which the model "
            "is too confident: the temperature does not fit new rows"
        )


def assign_folds(task: "Task", rows: Rows, source: str) -> np.ndarray:
    """Return [rows] the fold of each row; equal rows and rows of one group are in one fold.

    Raises:
        UserError: There are too few rows.
    """
    from bertkit.data.split import assign_folds, join_groups

    keys = task.split_keys(rows)
    groups = join_groups(keys)
    count = len(np.unique(groups))
    if count < MIN_ROWS:
        unit = keys.group_unit or f"different {keys.unit}"
        raise UserError(
            f"{source}: {format_count(count, unit)} to calibrate on, and at least {MIN_ROWS} are needed; "
            "pass more labeled rows with --data"
        )
    return assign_folds(groups, keys.stratum, NUM_FOLDS, task.config.seed)


def describe_risk_coverage(confidence: RowConfidence) -> dict[str, Any]:
    """Return the cross-fitted risk-coverage curve, and the area under it."""
    values, is_correct = confidence.cross_fitted, confidence.is_correct
    scores = SelectiveScorer(values, is_correct, 0.0).score(np.arange(len(values)))
    return {**compute_risk_coverage(values, is_correct), "aurc": scores["aurc"]}


def fit_abstention(confidence: RowConfidence, coverage: float) -> dict[str, Any]:
    """Fit the confidence below which the model abstains, and score it by cross-fitting.

    Args:
        confidence: The confidence in each row.
        coverage: Fraction of the rows to answer.

    Returns:
        `min_confidence`, the `requested` coverage, and the `scores` "before" and "after".
    """
    folds = confidence.folds
    min_confidences = np.array([
        fit_min_confidence(values[folds != fold], coverage) for fold, values in enumerate(confidence.by_fold)
    ])  # fmt: skip
    return {
        "requested": coverage,
        "min_confidence": fit_min_confidence(confidence.fitted, coverage),
        "scores": describe_coverage(
            confidence.cross_fitted, confidence.is_correct, min_confidences[folds]
        ),
    }  # fmt: skip


def fit_sets(fit: TemperatureFit) -> dict[str, Any]:
    """Fit the margin of prediction sets, and score it by cross-fitting.

    The margin is that of calibrated logits. Each row must have one decision.

    Returns:
        `level`, `margin`, and the scores of the sets.
    """
    logits, gold = fit.trained.logits, fit.trained.gold
    folds = range(fit.folds.max() + 1)
    margins = [fit_set_margin(logits[fit.folds != fold], gold[fit.folds != fold]) for fold in folds]
    is_member = find_members(logits, np.array(margins)[fit.folds, None])
    margin = fit_set_margin(logits, gold) / fit.temperature
    return {"level": SET_LEVEL, "margin": margin, "scores": score_sets(is_member, gold)}


CURVE_THRESHOLDS = [round(0.05 * step, 2) for step in range(1, 20)]


@dataclass(frozen=True)
class ThresholdRows:
    """The rows that thresholds are fitted on.

    Attributes:
        logits: [rows, outputs] logits of the model as it was trained.
        gold: Encoded gold labels.
        folds: [rows] index of the fold of each row.
    """

    logits: np.ndarray
    gold: np.ndarray
    folds: np.ndarray


def require_criterion(task: "Task", text: str, run: object) -> ThresholdCriterion:
    """Return the criterion that `--threshold` names.

    Raises:
        UserError: The text is not a criterion, or the labels of the run have no thresholds.
    """
    criterion = parse_criterion(text)
    label_type = task.state.label_type
    if label_type is None or not label_type.labels_with_threshold:
        raise UserError(
            f"--threshold {text}: {run} predicts the most probable class; leave it out, or pass a run of "
            "classify with a positive label (--problem binary) or with label sets"
        )
    return criterion


def fit_thresholds(
    label_type: "LabelType",
    rows: ThresholdRows,
    criterion: ThresholdCriterion,
    temperature: float,
    fold_temperatures: Sequence[float],
) -> dict[str, Any]:
    """Fit the thresholds on all rows, and score them by cross-fitting.

    Each fold is predicted with the temperature and the thresholds that are fitted on the other folds.

    Args:
        label_type: The labels of the run.
        rows: The rows.
        criterion: What the thresholds are chosen for.
        temperature: The temperature that is fitted on all rows.
        fold_temperatures: The temperature that is fitted on all rows except those of the fold, by fold.

    Returns:
        `thresholds` by label, the `scores` "before" (default decisions) and "after" (cross-fitted), and the
        `curve` of the scores by threshold.

    Raises:
        UserError: No threshold meets the criterion.
    """
    fitted = label_type.fit_thresholds(rows.logits / temperature, rows.gold, criterion)
    thresholds = {label: value for label, value in fitted.items() if value is not None}
    if not thresholds:
        raise UserError(
            f"--threshold: no threshold reaches a {criterion.name} of {criterion.minimum} on these rows; "
            "pass a lower value, or rows with all labels"
        )
    if missing := [label for label in fitted if label not in thresholds]:
        report_warning(f"no threshold meets the criterion for {format_list(missing)}, which keep 0.5")
    default = _with_thresholds(label_type, {})
    predicted = default.predict(rows.logits)
    before = _score(default, rows.gold, predicted)
    for fold, fold_temperature in enumerate(fold_temperatures):
        members, logits = rows.folds == fold, rows.logits / fold_temperature
        fold_thresholds = default.fit_thresholds(logits[~members], rows.gold[~members], criterion)
        known = {label: value for label, value in fold_thresholds.items() if value is not None}
        predicted[members] = _with_thresholds(label_type, known).predict(logits[members])
    scores = {"before": before, "after": _score(default, rows.gold, predicted)}
    curve = _sweep_scores(default, rows.logits / temperature, rows.gold)
    return {"thresholds": thresholds, "scores": scores, "curve": curve}


def _sweep_scores(label_type: "LabelType", logits: np.ndarray, gold: np.ndarray) -> dict[str, list[float]]:
    """Return the scores on these rows if all labels have the same threshold, by threshold."""
    labels = label_type.labels_with_threshold
    scores = [
        _score(
            label_type, gold, _with_thresholds(label_type, dict.fromkeys(labels, threshold)).predict(logits)
        )
        for threshold in CURVE_THRESHOLDS
    ]
    names = [name for name in scores[0] if name.startswith(("positive_", "micro_", "macro_"))]
    return {"threshold": CURVE_THRESHOLDS, **{name: [part[name] for part in scores] for name in names}}


def _with_thresholds(label_type: "LabelType", thresholds: dict[str, float]) -> "LabelType":
    """Return a copy of the label type with other thresholds."""
    label_type = copy.copy(label_type)
    label_type.thresholds = thresholds
    return label_type


def _score(label_type: "LabelType", gold: np.ndarray, predicted: np.ndarray) -> Scores:
    """Return the scores of the labels; with a positive label, also its precision and recall."""
    scores = label_type.score(gold, predicted)
    if gold.ndim == 2:
        return scores
    [positive] = label_type.labels_with_threshold
    is_positive, is_predicted = (ids == label_type.labels.index(positive) for ids in (gold, predicted))
    num_correct = float((is_positive & is_predicted).sum())
    return scores | {
        "positive_precision": num_correct / max(int(is_predicted.sum()), 1),
        "positive_recall": num_correct / max(int(is_positive.sum()), 1),
    }
