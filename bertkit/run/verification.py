"""Recorded outputs of an exported model, by which `export` and `serve --verify` find damage.

An exported model is used on other machines, with files that may be edited or converted. The logits of some
validation rows are stored with it. They are computed from the files of the directory alone, as a server does,
so that they depend on the graph, the tokenizer, the settings and the order of the labels.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.split import sample_rows
from bertkit.data.table import Rows, fingerprint_splits
from bertkit.errors import UserError, format_count
from bertkit.run.load_data import reload_run_data
from bertkit.run.predictor import Predictor, load_predictor
from bertkit.run_directory import RunDir
from bertkit.tasks.base import CONFIDENCE_KEY
from bertkit.tasks.text.task import THRESHOLDS_KEY

RECORD_FILE = "verification.npz"
NUM_ROWS = 64
# Maximum difference of a logit, as a fraction of the largest one: rounding differs between processors.
TOLERANCES = {"fp32": 1e-3, "fp16": 0.02, "int8": 0.1}
DECISION_KEYS = ("id2label", THRESHOLDS_KEY, CONFIDENCE_KEY)  # of `config.json`


def record_outputs(folder: Path, run: Path, rows: Rows, variant: str) -> None:
    """Store outputs of the exported model in `folder` for `load_rows(run)`, which it was exported from.

    In fp32, they must be those of the run.
    """
    outputs = _compute(folder, load_predictor(folder), rows)
    if variant == "fp32":
        _require_equal(folder, outputs, _compute(run, load_predictor(run), rows), variant)
    fingerprint = fingerprint_splits({"validation": rows})["validation"]
    np.savez(folder / RECORD_FILE, variant=variant, fingerprint=fingerprint, **outputs)


def verify_outputs(folder: Path, predictor: Predictor) -> int:
    """Compare the outputs of a loaded model with the recorded ones; return the number of rows.

    Raises:
        UserError: There is no record, the rows are not available or have changed, or the outputs differ.
    """
    path = folder / RECORD_FILE
    if not path.exists():
        raise UserError(
            f"{folder}: has no {RECORD_FILE} to verify it with; export the run again, or omit --verify"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            recorded = dict(file)
        variant, fingerprint = str(recorded.pop("variant")), str(recorded.pop("fingerprint"))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: cannot be read ({error}); export the run again") from error
    rows = load_rows(folder)
    if fingerprint_splits({"validation": rows})["validation"] != fingerprint:
        raise UserError(f"{folder}: its validation rows have changed; restore the data, or omit --verify")
    _require_equal(folder, _compute(folder, predictor, rows), recorded, variant)
    return len(rows)


def load_rows(run: Path) -> Rows:
    """Return the validation rows whose outputs are recorded; they must be available and unchanged."""
    dataset, splits = reload_run_data(run)
    if "validation" not in splits:
        raise UserError(f"{run}: {dataset.name} has no validation rows; omit --verify")
    return sample_rows(splits["validation"], NUM_ROWS, 0)


def _compute(folder: Path, predictor: Predictor, rows: Rows) -> dict[str, Any]:
    """Return the logits of the rows, and what turns them into decisions.

    All rows are in one batch, so that most of them are padded, and int8 rounds in the same way each time.
    """
    size = predictor.task.config.eval_batch_size
    predictor.use_batch_size(NUM_ROWS)
    logits = predictor.compute_outputs(rows).logits
    predictor.use_batch_size(size)
    config = json.loads((folder / RunDir.MODEL_CONFIG_FILE).read_text("utf-8"))
    decisions = {key: repr(config[key]) for key in DECISION_KEYS if config.get(key)}
    return {"logits": logits, **{key: np.array(text) for key, text in decisions.items()}}


def _require_equal(
    folder: Path, outputs: Mapping[str, Any], recorded: Mapping[str, Any], variant: str
) -> None:
    fix = "restore the files, or export the run again"
    for key in DECISION_KEYS:
        if str(outputs.get(key, "")) != str(recorded.get(key, "")):
            raise UserError(f"{folder}: {key} in config.json is not that of the export; {fix}")
    found, expected = outputs["logits"], recorded["logits"]
    if found.shape != expected.shape:
        raise UserError(f"{folder}: predicts {found.shape} numbers, and the export {expected.shape}; {fix}")
    is_finite = np.isfinite(expected)
    largest = float(np.abs(expected[is_finite]).max(initial=1.0))
    differences = np.where(is_finite, np.abs(found - expected), 0.0)
    is_wrong = ~(differences <= TOLERANCES[variant] * largest) | (np.isfinite(found) != is_finite)
    if is_wrong.any():
        count = int(is_wrong.reshape(len(is_wrong), -1).any(1).sum())
        raise UserError(
            f"{folder}: {count:,} of {format_count(len(found), 'output')} differ from those of the export, "
            f"by up to {np.nan_to_num(differences, nan=np.inf).max():.2g}; {fix}"
        )
