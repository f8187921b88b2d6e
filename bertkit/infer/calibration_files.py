"""The files that `calibrate` writes into a run: weights, thresholds, `calibration.json`, card and page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.infer.predictor import Predictor
    from bertkit.tasks.evaluation import RowEvaluation

NUM_TEST_ROWS = 8
LOGIT_TOLERANCE = 1e-4  # maximum difference of a logit from its expected value, relative to the largest logit


def write_calibration(
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
