"""`calibrate`: fit probabilities and decisions on labeled rows, and make them part of a finished run.

The temperature becomes part of the output layer. All other fitted numbers are stored in `config.json`. Scores
"after" calibration are cross-fitted: each row is judged by numbers that are fitted on other rows.
"""

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from bertkit.commands.configs import CalibrateConfig
from bertkit.commands.evaluate import describe_overlap, load_new_rows
from bertkit.commands.inputs import collect_passed_columns, format_flag, require_data_for_format_flags
from bertkit.data.columns import add_renamed_columns
from bertkit.data.groups_and_times import GROUP_FLAG
from bertkit.data.sources import LoadedDataset
from bertkit.data.split import assign_row_folds, join_groups
from bertkit.data.table import Rows, Splits, fingerprint_splits
from bertkit.errors import UserError, format_count, format_list
from bertkit.models.heads import (
    append_layer_inputs,
    read_temperature,
    restore_output_layer,
    set_parameters,
    write_output_layer,
)
from bertkit.models.linear_text import LinearTextModel
from bertkit.models.loading import is_linear_text_model, read_weights
from bertkit.reports.card import add_calibration, describe_found, rewrite_for_copy
from bertkit.reports.page import write_page
from bertkit.run.load_data import reload_run_data
from bertkit.run.predictor import Predictor, find_onnx_model, load_predictor
from bertkit.run.results import NUM_FOLDS, fit_scope_of_texts
from bertkit.run_directory import RUN, RunDir
from bertkit.settings.declaration import expand_path_settings
from bertkit.settings.recipes import list_passed_data
from bertkit.settings.validation import DataObject, validate_settings
from bertkit.stats.calibration import (
    SET_LEVEL,
    Decisions,
    ProbabilityScorer,
    SelectiveScorer,
    ThresholdCriterion,
    compute_calibration,
    compute_margins,
    compute_risk_coverage,
    cross_fit,
    find_members,
    fit_adaptive_temperature,
    fit_min_confidence,
    fit_set_margin,
    fit_temperature,
    is_at_bound,
    make_yes_no_decisions,
    parse_criterion,
    score_sets,
)
from bertkit.stats.scores import Scores
from bertkit.stats.significance import Scorer, compare_scorers
from bertkit.tasks.base import CONFIDENCE_KEY, FittedConfidence, Outputs, RowEvaluation, Task, get_weights
from bertkit.tasks.out_of_scope import (
    load_out_of_scope,
    load_shipped_texts,
    remove_texts_in_scope,
)
from bertkit.tasks.qa.predictions import QaEvaluation, compute_answer_probability, fit_answer_weights
from bertkit.tasks.text.label_types import LabelType
from bertkit.tasks.text.task import THRESHOLDS_KEY
from bertkit.tasks.trained_model import load_run_task, load_task_state
from bertkit.utils import devices, locks
from bertkit.utils.console import out_console, print_json, to_plain_text
from bertkit.utils.files import check_output_directory, stage_files, write_text
from bertkit.utils.reporting import report_warning, silence_libraries

MIN_ROWS = 10
MIN_RELIABLE_ROWS = 200  # with fewer rows, the fitted numbers depend much on the choice of the rows
# A smaller relative change of the temperature is rounding, and leaves the weights as they are.
MIN_CHANGE = 1e-6
CURVE_THRESHOLDS = [round(0.05 * step, 2) for step in range(1, 20)]
MAX_P = 0.05  # one-sided, of a lower log-loss than that of one temperature
RIDGE_PENALTIES = np.logspace(-6, -1, 6)  # relative to the sum of the squared inputs
NUM_TEST_ROWS = 8
LOGIT_TOLERANCE = 1e-4  # maximum difference of a logit from its expected value, relative to the largest logit


@dataclass(frozen=True)
class CalibrationResult:
    """Result of `calibrate`.

    Attributes:
        output_dir: The run directory.
        temperature: The number that the logits of the trained model are divided by; None if it depends on the
            row, and for `qa`.
        calibration: Content of `calibration.json`.
    """

    output_dir: Path
    temperature: float | None
    calibration: dict[str, Any]


def calibrate(settings: Mapping[str, Any]) -> CalibrationResult:
    """Fit a temperature, and make it part of the output layer; with their settings, also fit decisions.

    For `qa`, fit the probability that an answer is right. If an error is raised, the run is not changed.
    """
    config = CalibrateConfig(**validate_settings(CalibrateConfig, settings, "calibrate()"))
    config = expand_path_settings(config, "run", "output_dir")
    run, target = Path(config.run), Path(config.output_dir or config.run)
    is_copy = target.resolve() != run.resolve()
    if is_copy:
        check_output_directory(
            target, dataclasses.replace(RUN, hint="pass --overwrite to replace it"), config.overwrite
        )
    devices.request_device(config.device)
    task, fitted_part = _load_calibratable_task(run)
    criterion = None if config.threshold is None else parse_criterion(config.threshold)
    if criterion and not getattr(task.state.label_type, "labels_with_threshold", None):
        raise UserError(
            f"--threshold {config.threshold}: {run} predicts the most probable class; omit it, or pass "
            "a run of classify with a positive label (--problem binary) or with label sets"
        )
    columns = collect_passed_columns(config, task, config.run)
    if not config.data and columns:
        raise UserError(f"{format_flag(next(iter(columns)))}: applies only to --data; pass both or neither")
    require_data_for_format_flags(config)
    reload_data = cache(partial(reload_run_data, run, _get_passed(config), "calibrate"))
    outside = _load_texts_out_of_scope(config, task, columns, reload_data)
    if is_copy:  # which only reads the run
        locks.require_unlocked(run)
    with nullcontext() if is_copy else locks.lock_directory(run), silence_libraries():
        predictor = load_predictor(run, has_scope_output=False).use_columns(columns)
        predictor.use_batch_size(config.batch_size)
        predictor.report_device()
        predictor.task.use_cache = True  # unlike in prediction, whole splits are tokenized
        dataset, rows, is_validation_split = _load_rows(config, predictor, reload_data)
        folds = _assign_folds(predictor.task, rows, f"{dataset.name} ({dataset.source})")
        if len(rows) < MIN_RELIABLE_ROWS:
            report_warning(f"{format_count(len(rows), 'row')} are few: the result depends on their choice")
        if outside is not None:
            outside = add_renamed_columns(outside, task.config, predictor.task.config)
            outside = remove_texts_in_scope(predictor.task, outside, [rows], _name_texts(config))
        layer = None
        fits_decisions = bool(criterion or config.coverage or outside is not None)
        if fitted_part == "answers":
            evaluation: Any = predictor.task.evaluate(predictor.compute_outputs(rows, "calibrating"))
            calibration = _fit_answers(config, evaluation, folds)
            before, after = (calibration["scores"][part]["nll"] for part in ("before", "after"))
            if problem := describe_no_gain(before, after, len(rows)):
                _refuse_or_warn(config, problem, fits_decisions)
        else:
            trained = restore_output_layer(predictor.model, run)
            # The score of texts out of scope reads the vectors, and logits that are divided by one number.
            is_linear_text = isinstance(predictor.model, LinearTextModel)
            needs_vectors = fitted_part == "output layer" and outside is None and not is_linear_text
            outputs, vectors = _compute_outputs(predictor, rows, needs_vectors)
            has_bias = any(name.endswith("bias") for name in trained)
            calibration, fit = _fit_classes(
                config, config.coverage if outside is None else None, predictor.task, outputs, vectors,
                has_bias, folds, criterion, fits_decisions,
            )  # fmt: skip
            layer = NewLayer(predictor, rows, trained, fit)
            if outside is not None:
                parts = rows, outside, load_shipped_texts(predictor.task, rows, outside)
                features = [
                    predictor.compute_scope_features(part, calibration["temperature"], "calibrating")
                    for part in parts
                    if len(part)
                ]
                evaluation = predictor.task.evaluate(outputs)
                calibration["out_of_scope"] = fit_scope_of_texts(
                    predictor.task, evaluation, outside, features, config.coverage
                )
        calibration["seed"] = predictor.task.config.seed
        calibration["data"] = {
            "name": dataset.name, "source": dataset.source, "is_validation_split": is_validation_split,
            "fingerprint": fingerprint_splits({"validation": rows})["validation"], "rows": len(rows),
        }  # fmt: skip
        if is_copy:
            _write_calibrated_copy(run, target, config.overwrite, calibration, layer)
        else:
            _write_calibration(run, calibration, layer)
    return CalibrationResult(target, calibration.get("temperature"), calibration)


def describe_no_gain(before: float, after: float, num_rows: int) -> str | None:
    """Return the problem if the cross-fitted log-loss after calibration is not lower than before."""
    if after < before:
        return None
    return (
        f"on {format_count(num_rows, 'row')}, calibration does not make the probabilities better (nll "
        f"{before:.3f} before, {after:.3f} after)"
    )


def _refuse_or_warn(config: CalibrateConfig, problem: str, fits_decisions: bool, kept: str = "") -> None:
    """Refuse a calibration that makes no probability better, unless decisions are also fitted."""
    if not fits_decisions:
        raise UserError(f"{config.run}: {problem}; the run is unchanged, pass more rows with --data")
    report_warning(f"{problem}{kept}; pass more rows with --data")


def _load_calibratable_task(run: Path) -> tuple[Task, str]:
    """Load the task of a run, which must be finished and not be exported; also return what can be fitted."""
    task = load_run_task(run)
    if find_onnx_model(run):
        raise UserError(f"{run}: is an exported model; calibrate the run, and export it again")
    kind = task.definition.name
    if task.definition.predicts_rows:
        load_task_state(task, run)
        evaluation = task.evaluate(Outputs(np.empty((0, 0)), None, Rows.from_dicts([], "")))
        if isinstance(evaluation, RowEvaluation) and evaluation.calibration_method:
            return task, evaluation.calibration_method
        kind = f"{kind} ({task.describe()})"
    raise UserError(
        f"{run}: is a run of {kind}, which cannot be calibrated; pass a run of classify with classes, nli, "
        "swag, ner or qa"
    )


# ---- rows


def _get_passed(config: CalibrateConfig) -> DataObject | None:
    """Return `data` if it is an object of Python."""
    return config.data if isinstance(config.data, DataObject) else None


def _load_rows(
    config: CalibrateConfig, predictor: Predictor, reload_data: Callable[[], tuple[LoadedDataset, Splits]]
) -> tuple[LoadedDataset, Rows, bool]:
    """Load the validation rows of the run, or the rows of `--data`; also return which of them it is."""
    if config.data is None or (_get_passed(config) and list_passed_data(predictor.task.config)):
        try:
            dataset, splits = reload_data()
            return dataset, splits["validation"], True
        except UserError as error:
            if config.data is None:
                raise UserError(f"{error}; pass --data to calibrate on other rows") from error
        report_warning(
            "`data` is not the data of this run, so its rows are used as new rows; the calibration is wrong "
            "if the model was trained on them"
        )
    trained_config = predictor.task.config  # before the columns of new data are mapped
    dataset, splits = load_new_rows(predictor, config)
    rows = splits["validation"]
    try:
        train = reload_data()[1]["train"]
    except UserError:  # the training rows are not available any more
        return dataset, rows, False
    train = add_renamed_columns(train, trained_config, predictor.task.config)
    for overlap in describe_overlap(predictor.task, train, rows):
        report_warning(
            f"{overlap}, about which the model is too confident: the temperature does not fit new rows"
        )
    return dataset, rows, False


def _name_texts(config: CalibrateConfig) -> str:
    return "of the run" if config.out_of_scope is None else str(config.out_of_scope)


def _load_texts_out_of_scope(
    config: CalibrateConfig, task: Task, columns: Mapping[str, Any],
    reload_data: Callable[[], tuple[LoadedDataset, Splits]],
) -> Rows | None:  # fmt: skip
    """Load the texts of `--out-of-scope`, or else those of the training run; None if there are none.

    Texts that are also rows of the run are left out. `columns` are those that the user named, by setting; the
    result has those of the run.
    """
    source = config.out_of_scope
    if source is None:
        if task.state.fitted_confidence.scope_weights is None:
            return None
        try:
            return reload_data()[0].out_of_scope.get("train")
        except UserError as error:
            raise UserError(f"{error}; pass the texts of no class with --out-of-scope") from error
    if is_linear_text_model(Path(config.run)):
        raise UserError(
            "--out-of-scope: a linear model of texts has no vectors of texts; omit it, or pass a run of "
            "another method"
        )
    outside, known = load_out_of_scope(task, source, config, columns), []
    try:
        known = list(reload_data()[1].values())
    except UserError as error:
        if config.data is not None:  # without it, the validation rows are needed, and the error is raised
            report_warning(f"--out-of-scope {source}: texts of training rows are not left out ({error})")
    return remove_texts_in_scope(task, outside, known, str(source))


def _assign_folds(task: Task, rows: Rows, source: str) -> np.ndarray:
    """Return [rows] the fold of each row; equal rows and rows of one group are in one fold."""
    keys = task.split_keys(rows)
    if (column := task.config.group_column) and not keys.group_column:
        report_warning(
            f"{source}: no column {column!r} ({GROUP_FLAG} of the run); only equal texts are kept together"
        )
    count = len(np.unique(join_groups(keys)))
    minimum = NUM_FOLDS if keys.group_column and len(rows) >= MIN_ROWS else MIN_ROWS
    if count < minimum:
        unit = keys.group_unit or f"different {keys.unit}"
        raise UserError(
            f"{source}: {format_count(count, unit)} to calibrate on, and at least {minimum} are needed; "
            "pass more labeled rows with --data"
        )
    return assign_row_folds(keys, NUM_FOLDS, task.config.seed)


# ---- what is fitted


@dataclass(frozen=True)
class LayerFit:
    """An output layer that is fitted on some rows: the trained one, divided by a temperature, plus a change.

    Attributes:
        temperature: The temperature.
        logits: The logits of all rows with this layer, in the shape of `Outputs.logits`.
        change: The change of the weight [outputs, hidden_size] and of the bias [outputs], if there is one.
        inverse_temperature: The numbers that the change was fitted for.
    """

    temperature: float
    logits: np.ndarray
    change: Mapping[str, np.ndarray] | None = None
    inverse_temperature: Mapping[str, float] | None = None


def _compute_outputs(
    predictor: Predictor, rows: Rows, needs_vectors: bool
) -> tuple[Outputs, np.ndarray | None]:
    """Compute the outputs for rows and, if needed, [rows, hidden_size] the input of the output layer."""
    if not needs_vectors:
        return predictor.compute_outputs(rows, "calibrating"), None
    with append_layer_inputs(predictor.model) as size:
        outputs = predictor.compute_outputs(rows, "calibrating")
    logits, vectors = outputs.logits[:, :-size], outputs.logits[:, -size:]
    return dataclasses.replace(outputs, logits=logits), vectors


def _fit_layer(
    trained: Decisions, logits: np.ndarray, vectors: np.ndarray, has_bias: bool, is_used: np.ndarray
) -> LayerFit:
    """Fit the output layer whose logits are nearest to those of an adaptive temperature.

    A linear layer cannot divide the logits of each row by another temperature. But the vectors of a
    fine-tuned model lie near a curve, so a linear function of all their dimensions can be a curved function
    of the logits. The change is a ridge regression, whose penalty is chosen by generalized cross-validation.

    Args:
        trained: The decisions of all rows, by the logits of the trained model.
        logits: [rows, outputs] the same logits.
        vectors: [rows, hidden_size] the input of the output layer.
        has_bias: Whether the output layer has a bias.
        is_used: [rows] bool, the rows to fit on.
    """
    from sklearn.linear_model import RidgeCV

    used = trained.select(is_used[trained.row])
    temperature, (intercept, slope) = _fit_fold(used, 1.0), fit_adaptive_temperature(used)
    factors = intercept + slope * compute_margins(trained.logits).max(1)
    goal = logits * (factors[:, None] - 1 / temperature)
    inputs = vectors[is_used].astype(np.float64)
    penalties = RIDGE_PENALTIES * (inputs**2).sum()
    ridge = RidgeCV(penalties, fit_intercept=has_bias).fit(inputs, goal[is_used])
    return LayerFit(
        temperature,
        logits / temperature + ridge.predict(vectors),
        {"weight": ridge.coef_, "bias": ridge.intercept_},
        {"intercept": intercept, "slope": slope},
    )


def _fit_fold(decisions: Decisions, whole: float) -> float:
    """Return the temperature of some folds, or of all rows (`whole`) if no temperature is the best one.

    All errors may be in the fold that is left out. A temperature near 0 would then count them as impossible.
    """
    temperature = fit_temperature(decisions)
    return whole if is_at_bound(temperature) else temperature


def _fit_classes(
    config: CalibrateConfig,
    coverage: float | None,
    task: Task,
    outputs: Outputs,
    vectors: np.ndarray | None,
    has_bias: bool,
    folds: np.ndarray,
    criterion: ThresholdCriterion | None,
    fits_decisions: bool,
) -> tuple[dict[str, Any], LayerFit]:
    """Fit the output layer, prediction sets and, with their flags, thresholds and abstention.

    The outputs are those of the model as it was trained. Without [rows, hidden_size] vectors, only a
    temperature is fitted. `coverage` is the fraction of the rows to answer; None without abstention. If no
    temperature makes the probabilities better, the run is refused, or with `fits_decisions`, its former
    temperature or 1 is kept, whichever is better.
    """

    def decide(logits: np.ndarray) -> Decisions:
        evaluation: Any = task.evaluate(dataclasses.replace(outputs, logits=logits))
        return evaluation.make_decisions()

    evaluation: Any = task.evaluate(outputs)
    trained, previous = evaluation.make_decisions(), read_temperature(Path(config.run))
    if (weights := get_weights(task, outputs.rows)) is not None:
        trained = dataclasses.replace(trained, weights=weights[trained.row])
    temperature = fit_temperature(trained)
    if is_at_bound(temperature):
        if temperature > 1:
            problem = "the predictions are not better than guessing"
        elif trained.compute_confidence()[1].all():
            problem = (
                "all rows are classified correctly, which does not show how confident the model should be"
            )
        else:
            problem = "the logits hardly differ between classes, because the model is hardly trained"
        raise UserError(f"{config.run}: {problem}; pass other labeled rows with --data")
    if previous and abs(temperature / previous - 1) <= MIN_CHANGE:
        temperature = previous

    def fit_divided(is_used: np.ndarray) -> LayerFit:
        value = temperature if is_used.all() else _fit_fold(trained.select(is_used[trained.row]), temperature)
        return LayerFit(value, outputs.logits / value)

    def cross_fit_decisions(fits: list[LayerFit]) -> Decisions:
        fold_logits = np.stack([decide(fit.logits).logits for fit in fits[:-1]])
        return dataclasses.replace(
            trained, logits=fold_logits[folds[trained.row], np.arange(len(trained.gold))]
        )

    def scale(divisor: float) -> ProbabilityScorer:
        return ProbabilityScorer(dataclasses.replace(trained, logits=trained.logits / divisor))

    methods: dict[str, Callable[[np.ndarray], LayerFit]] = {"temperature": fit_divided}
    if vectors is not None and len(folds) >= MIN_RELIABLE_ROWS:
        methods["adaptive temperature"] = partial(_fit_layer, trained, outputs.logits, vectors, has_bias)
    # Each method is fitted without each fold, and at last on all rows.
    parts = [*(folds != fold for fold in range(folds.max() + 1)), np.ones(len(folds), bool)]
    all_fits = {name: [fit(is_used) for is_used in parts] for name, fit in methods.items()}
    afters = {name: cross_fit_decisions(fits) for name, fits in all_fits.items()}
    scorers = {name: Scorer(ProbabilityScorer(after).score, len(folds)) for name, after in afters.items()}
    method = "temperature"
    if len(methods) > 1:
        change = compare_scorers(scorers[method], scorers["adaptive temperature"])["nll"]
        if change.difference < 0 and change.p / 2 < MAX_P:
            method = "adaptive temperature"
    fits, after = all_fits[method], afters[method]
    nll = {divisor: scale(divisor).score_all()["nll"] for divisor in (1.0, previous or 1.0)}
    no_gain = describe_no_gain(nll[1.0], ProbabilityScorer(after).score_all()["nll"], len(folds))
    if no_gain:
        kept = min(nll, key=nll.__getitem__)
        _refuse_or_warn(config, no_gain, fits_decisions, f", so the temperature is {kept:.3f}")
        method, fits = "temperature", [LayerFit(kept, outputs.logits / kept)] * len(parts)
        after = cross_fit_decisions(fits)

    def find_fit(is_used: np.ndarray) -> LayerFit:
        return fits[-1] if is_used.all() else fits[folds[~is_used][0]]

    def compute_confidence(is_used: np.ndarray) -> tuple[LayerFit, np.ndarray]:
        return find_fit(is_used), decide(find_fit(is_used).logits).compute_row_confidence()[0]

    was_correct, is_correct = (part.compute_row_confidence()[1] for part in (trained, after))
    _, _, abstention = _fit_confidence(compute_confidence, was_correct, is_correct, folds, coverage)
    fold_temperatures = [fit.temperature for fit in fits[:-1]]
    # Only tasks without vectors have further scores, and only a temperature scales them.
    factors = {"before": 1.0, "after": 1 / np.array(fold_temperatures)[folds[trained.row]]}
    decisions = {"before": trained, "after": after}
    if fits[-1].change:
        numbers: dict[str, Any] = {"inverse_temperature": fits[-1].inverse_temperature}
    else:
        numbers = {"temperature": fits[-1].temperature, "fold_temperatures": fold_temperatures}
    calibration = {
        "method": method,
        **numbers,
        "decisions": len(trained.gold),
        "scores": {
            name: ProbabilityScorer(part).score_all() | evaluation.score_scaled(factors[name])
            for name, part in decisions.items()
        },
        "reliability": {
            name: compute_calibration(*part.compute_reliability()).to_dict()
            for name, part in decisions.items()
        },
        **abstention,
    }
    if len(methods) > 1:
        calibration["nll_by_method"] = {name: scorer.score_all()["nll"] for name, scorer in scorers.items()}
    if fits[-1].change:
        is_changed = trained.logits.argmax(1) != after.logits.argmax(1)
        calibration["changed_fraction"] = float(is_changed.mean())
        if not criterion:  # thresholds decide the predicted labels, and have this score
            for name, part in (("before", was_correct), ("after", is_correct)):
                calibration["scores"][name]["accuracy"] = float(part.mean())
    if evaluation.has_sets:
        gold = trained.gold

        def fit_sets(is_used: np.ndarray) -> tuple[np.ndarray, float]:
            logits = find_fit(is_used).logits
            return logits, fit_set_margin(logits[is_used], gold[is_used])

        _, is_member = cross_fit(fit_sets, lambda fit, rows: find_members(fit[0][rows], fit[1]), folds)
        _, margin = fit_sets(parts[-1])
        set_scores = score_sets(is_member, gold)
        calibration["prediction_sets"] = {"level": SET_LEVEL, "margin": margin, "scores": set_scores}
    if criterion:
        thresholds = _fit_thresholds(
            evaluation.label_type, outputs.logits, evaluation.gold, folds, [fit.logits for fit in fits],
            criterion,
        )  # fmt: skip
        calibration["threshold"] = {"criterion": config.threshold, **thresholds}
    return calibration, fits[-1]


def _fit_answers(config: CalibrateConfig, evaluation: QaEvaluation, folds: np.ndarray) -> dict[str, Any]:
    """Fit the probability that an answer is right and, with its flag, abstention."""
    features, is_correct = evaluation.answer_features, evaluation.compute_correct()

    def fit(is_used: np.ndarray) -> tuple[Mapping[str, float], np.ndarray]:
        if len(set(is_correct[is_used].tolist())) < 2:
            word = "right" if is_correct[is_used][0] else "wrong"
            raise UserError(
                f"{config.run}: almost all answers are {word}, so the probability cannot be fitted; pass "
                "other questions with --data"
            )
        weights = fit_answer_weights(
            {name: values[is_used] for name, values in features.items()}, is_correct[is_used]
        )
        return weights, compute_answer_probability(features, weights)

    weights, confidence, abstention = _fit_confidence(fit, is_correct, is_correct, folds, config.coverage)
    parts = {"before": evaluation.compute_nbest_probability(), "after": confidence}
    return {
        "method": "logistic regression",
        "weights": dict(weights),
        "decisions": len(is_correct),
        "scores": {
            name: ProbabilityScorer(make_yes_no_decisions(part, is_correct)).score_all()
            for name, part in parts.items()
        },
        "reliability": {
            name: compute_calibration(part, is_correct).to_dict() for name, part in parts.items()
        },
        **abstention,
    }


def _fit_confidence(
    fit: Callable[[np.ndarray], tuple[Any, np.ndarray]],
    was_correct: np.ndarray,
    is_correct: np.ndarray,
    folds: np.ndarray,
    coverage: float | None,
) -> tuple[Any, np.ndarray, dict[str, Any]]:
    """Fit the confidence in the prediction of each row and, with `--coverage`, below which to abstain.

    Args:
        fit: Given [rows] bool, fits numbers on these rows. Returns the numbers, and [rows] the confidence by
            them in each row, including the rows that they are not fitted on.
        was_correct: [rows] bool, whether the prediction before calibration is correct.
        is_correct: [rows] bool, whether the cross-fitted prediction is correct.
        folds: [rows] index of the fold of each row.
        coverage: Fraction of the rows to answer, if any.

    Returns what is fitted on all rows, [rows] the cross-fitted confidence, and the keys `risk_coverage` and
    `abstention` of `calibration.json`.
    """

    def fit_all(is_used: np.ndarray) -> tuple[Any, np.ndarray, float]:
        numbers, confidence = fit(is_used)
        minimum = 0.0 if coverage is None else fit_min_confidence(confidence[is_used], coverage)
        return numbers, confidence, minimum

    numbers, _, minimum = fit_all(np.ones(len(folds), bool))
    by_fold, confidence = cross_fit(fit_all, lambda fitted, rows: fitted[1][rows], folds)
    fold_minima = np.array([minimum for _, _, minimum in by_fold])[folds]
    after = SelectiveScorer(confidence, is_correct, fold_minima).score(np.arange(len(folds)))
    curve = compute_risk_coverage(confidence, is_correct)
    found: dict[str, Any] = {"risk_coverage": {**curve, "aurc": after.pop("aurc")}}
    if coverage is not None:
        before = {"coverage": 1.0, "answered_accuracy": float(was_correct.mean())}
        scores = {"before": before, "after": {"coverage": 0.0, "answered_accuracy": 0.0} | after}
        found["abstention"] = {"requested": coverage, "min_confidence": minimum, "scores": scores}
    return numbers, confidence, found


def _fit_thresholds(
    label_type: LabelType, logits: np.ndarray, gold: np.ndarray, folds: np.ndarray,
    calibrated: list[np.ndarray], criterion: ThresholdCriterion,
) -> dict[str, Any]:  # fmt: skip
    """Fit the thresholds on all rows, and score them by cross-fitting.

    The [rows, outputs] logits are of the model as it was trained. The calibrated logits of the same rows are
    of the layers that are fitted without each fold, and of the layer that is fitted on all rows. Scores
    "before" are those of default decisions. The `curve` has the scores if all labels have the same threshold.
    """

    def use_thresholds(thresholds: Mapping[str, float | None]) -> LabelType:
        changed = copy.copy(label_type)
        changed.thresholds = {label: value for label, value in thresholds.items() if value is not None}
        return changed

    default, final = use_thresholds({}), calibrated[-1]
    fitted = label_type.fit_thresholds(final, gold, criterion)
    thresholds = use_thresholds(fitted).thresholds
    if not thresholds:
        raise UserError(
            f"--threshold: no threshold reaches a {criterion.name} of {criterion.minimum} on these rows; "
            "pass a lower value, or rows with all labels"
        )
    if missing := [label for label in fitted if label not in thresholds]:
        report_warning(f"no threshold meets the criterion for {format_list(missing)}, which keep 0.5")

    def fit(is_used: np.ndarray) -> tuple[np.ndarray, LabelType]:
        fold_logits = calibrated[folds[~is_used][0]]  # of the layer that is fitted on the same rows
        found = default.fit_thresholds(fold_logits[is_used], gold[is_used], criterion)
        return fold_logits, use_thresholds(found)

    _, predicted = cross_fit(fit, lambda fitted, rows: fitted[1].predict(fitted[0][rows]), folds)
    by_threshold = [
        use_thresholds(dict.fromkeys(label_type.labels_with_threshold, value)) for value in CURVE_THRESHOLDS
    ]
    swept = [_score(default, gold, labels.predict(final)) for labels in by_threshold]
    names = [name for name in swept[0] if name.startswith(("positive_", "micro_", "macro_"))]
    return {
        "thresholds": thresholds,
        "scores": {
            "before": _score(default, gold, default.predict(logits)),
            "after": _score(default, gold, predicted),
        },
        "curve": {
            "threshold": CURVE_THRESHOLDS,
            **{name: [scores[name] for scores in swept] for name in names},
        },
    }


def _score(label_type: LabelType, gold: np.ndarray, predicted: np.ndarray) -> Scores:
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


# ---- files of the run


@dataclass(frozen=True)
class NewLayer:
    """The fitted output layer of a run, with the model and the parameters of the trained layer, by name."""

    predictor: Predictor
    rows: Rows
    trained: Mapping[str, torch.Tensor]
    fit: LayerFit

    @cached_property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of the fitted layer, in the precision of the trained ones."""
        change = self.fit.change
        return {
            name: (
                value.double() / self.fit.temperature
                + (torch.from_numpy(change[name.rpartition(".")[2]]) if change else 0)
            ).to(value.dtype)
            for name, value in self.trained.items()
        }

    def is_in(self, run: Path) -> bool:
        """Return whether the weights of a run contain this layer already."""
        temperature = read_temperature(run)
        if temperature is not None:
            return not self.fit.change and temperature == self.fit.temperature
        stored = read_weights(run, self.parameters.__contains__)
        return all(torch.equal(self.parameters[name].to(old.dtype), old) for name, old in stored.items())

    def write(self, run: Path, staging: Path) -> None:
        """Write the weights of a run with this layer into another directory.

        The logits of some rows must change as expected.
        """
        model, temperature, change = self.predictor.model, self.fit.temperature, self.fit.change
        rows = self.rows.select(range(min(NUM_TEST_ROWS, len(self.rows))))
        outputs, vectors = _compute_outputs(self.predictor, rows, bool(change))
        expected = outputs.logits / temperature
        if change:
            assert vectors is not None
            expected = expected + vectors @ change["weight"].T + change["bias"]
        set_parameters(model, self.parameters)
        logits = self.predictor.compute_outputs(rows).logits
        exists = np.isfinite(logits)
        errors = np.abs(logits[exists] - expected[exists])
        if errors.max() > LOGIT_TOLERANCE * max(1.0, np.abs(expected[exists]).max()):
            raise UserError(
                f"{run}: the logits of {model.config.model_type} are not a linear function of the "
                "parameters of its last layer, so this architecture cannot be calibrated; train another model"
            )
        write_output_layer(run, staging, self.parameters, self.trained, None if change else temperature)


def _write_calibrated_copy(
    source: Path, target: Path, overwrite: bool, calibration: Mapping[str, Any], layer: NewLayer | None
) -> None:
    """Write a copy of the run `source` with this calibration to the directory `target`, or nothing."""
    with locks.lock_directory(target), RunDir(source).copy_to(target, overwrite) as copy:
        if (card := copy.read_card()) is not None:
            copy.write_card(rewrite_for_copy(card, target))
        _write_calibration(target, calibration, layer)


def _write_calibration(run: Path, calibration: Mapping[str, Any], layer: NewLayer | None) -> None:
    """Write the weights, `config.json`, `calibration.json`, the model card and the page.

    The run is valid at any time. `calibration.json` and the values in `config.json` belong to the weights.
    They are removed before the weights are replaced, and written after them.
    """
    run_dir = RunDir(run)
    if layer and not layer.is_in(run):
        with stage_files(run, "the calibrated weights", "free disk space, and calibrate again") as staging:
            layer.write(run, staging)
            run_dir.delete_calibration()
            _write_config(run, {})
    _write_config(run, calibration)
    run_dir.write_calibration(calibration)
    if (card := run_dir.read_card()) is not None:
        run_dir.write_card(add_calibration(card, calibration))
    page, exported = run / RunDir.REPORT_FILE, run / RunDir.ONNX_DIR
    if page.exists():
        try:
            write_page(run, run_dir.require_metrics())
        except UserError as error:  # a file that only the page needs is damaged
            report_warning(f"{page} does not show the calibration ({error})")
    if find_onnx_model(exported):  # which has the former output layer and `config.json`
        report_warning(
            f"{exported}: was exported before this calibration; run bertkit export {run} --overwrite"
        )


def _write_config(run: Path, calibration: Mapping[str, Any]) -> None:
    """Replace the values of `calibrate` in `config.json`; a value that is empty is removed from the file."""
    scope = calibration.get("out_of_scope", {})
    fitted = FittedConfidence(
        calibration.get("abstention", {}).get("min_confidence"),
        calibration.get("prediction_sets", {}).get("margin"),
        calibration.get("weights"),
        scope.get("weights"),
        scope.get("min_score"),
    )
    thresholds = calibration.get("threshold", {}).get("thresholds", {})
    values = {THRESHOLDS_KEY: thresholds, CONFIDENCE_KEY: fitted.to_dict()}
    path = run / "config.json"
    old = json.loads(path.read_text("utf-8"))
    new = {name: value for name, value in old.items() if name not in values}
    new |= {name: value for name, value in values.items() if value}
    if new != old:
        write_text(path, json.dumps(new, indent=2, sort_keys=True) + "\n")


# ---- command line


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = calibrate(settings)
    calibration, data = result.calibration, result.calibration["data"]
    if as_json:
        print_json({**calibration, "output_dir": str(result.output_dir)})
        return
    inverse = calibration.get("inverse_temperature")
    if inverse:
        name = calibration["method"]
    else:
        name = "probabilities" if result.temperature is None else f"temperature {result.temperature:.3f}"
    table = Table(title=f"{name}, fitted on {format_count(data['rows'], 'row')}", title_justify="left")
    table.add_column(to_plain_text(data["name"]))
    table.add_column("before", justify="right")
    table.add_column("after (cross-fitted)", justify="right")
    threshold, abstention = calibration.get("threshold"), calibration.get("abstention")
    for part in (calibration, threshold, abstention):
        if part:
            table.add_section()
            for score, value in part["scores"]["before"].items():
                table.add_row(score, f"{value:.3f}", f"{part['scores']['after'][score]:.3f}")
    out_console.print(table)
    lines = []
    if inverse:
        lines += [
            f"1 / temperature = {inverse['intercept']:.3f} + {inverse['slope']:.3f} x "
            "(highest logit - second highest)",
            f"{calibration['changed_fraction']:.1%} of the predicted labels changed",
        ]
    if threshold:
        values = ", ".join(f"{label} {value:.3f}" for label, value in threshold["thresholds"].items())
        lines.append(f"thresholds ({threshold['criterion']}): {values}")
    if abstention:
        lines.append(f"abstains below a confidence of {abstention['min_confidence']:.3f}")
    if scope := calibration.get("out_of_scope"):
        lines.append(f"out of scope (cross-fitted): {describe_found(scope)}")
    if sets := calibration.get("prediction_sets"):
        lines.append(
            f"{sets['level']:.0%} prediction sets: {sets['scores']['set_size']:.2f} labels on average; "
            f"{sets['scores']['set_coverage']:.1%} contain the gold label"
        )
    for line in [*lines, f"run: {result.output_dir}"]:
        out_console.print(line, markup=False, soft_wrap=True)
