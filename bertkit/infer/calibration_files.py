"""The files that `calibrate` writes into a run: weights, thresholds, `calibration.json`, card and page."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import UserError
from bertkit.tasks.confidence import CONFIDENCE_KEY, FittedConfidence
from bertkit.tasks.sequence import THRESHOLDS_KEY
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.infer.predictor import Predictor
    from bertkit.tasks.evaluation import RowEvaluation

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
    evaluation: "RowEvaluation",
    changes: CalibrationChanges,
    reporter: Reporter,
) -> None:
    """Write the weights, `config.json`, `calibration.json`, the model card and the page.

    The run is valid at any time. `calibration.json` and the values in `config.json` belong to the weights.
    They are removed before the weights are replaced, and written after them.
    """
    from bertkit.modeling.temperature import write_divided_weights
    from bertkit.reports.model_card import add_calibration
    from bertkit.run_directory import CALIBRATION_FILE, CARD_FILE
    from bertkit.utils.files import stage_files, write_text

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
    _update_page(run, reporter)
    _warn_about_export(run, reporter)


def _write_config(run: Path, changes: CalibrationChanges) -> None:
    """Replace the values of `calibrate` in `config.json`."""
    from bertkit.utils.files import write_text

    path = run / "config.json"
    old = json.loads(path.read_text("utf-8"))
    values = changes.make_config_values()
    new = {name: value for name, value in old.items() if name not in values}
    new |= {name: value for name, value in values.items() if value}
    if new != old:
        write_text(path, json.dumps(new, indent=2, sort_keys=True) + "\n")


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
    """Warn about an ONNX model in the run, which still has the former output layer and `config.json`."""
    from bertkit.infer.onnx_runtime import find_onnx_model
    from bertkit.run_directory import ONNX_DIR

    if find_onnx_model(run / ONNX_DIR):
        reporter.warn(
            f"{run / ONNX_DIR}: was exported before this calibration; run bertkit export {run} --overwrite"
        )
