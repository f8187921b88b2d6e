"""`export`: a finished run as an ONNX model, checked against the PyTorch model on real rows."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import bertkit
from bertkit.config import DATA, OUTPUT, Settings, setting
from bertkit.errors import UserError
from bertkit.utils.files import PARTIAL
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.infer.validation_rows import ValidationSet

EXPORT_HELP = (
    "Export a finished run to ONNX, checked against its PyTorch model and scored on its validation rows."
)
TOLERANCE = 1e-4  # of logits
MAX_BATCH_SIZE = 32  # rows: more are no faster on a CPU, and logits over a vocabulary are large
INT8 = "int8"
PYTORCH, FP32 = "pytorch", "onnx"  # the forms of a model beside it
REQUIRED_PACKAGES = ["onnx", "onnxruntime", "onnxscript"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """The settings of `bertkit export`."""

    run: str = setting(dataclasses.MISSING, "A finished run.", OUTPUT, positional=True)
    format: Literal["onnx"] = setting("onnx", "What to export to.", OUTPUT)
    quantize: Literal["int8"] | None = setting(
        None, "Also write the weights in 8 bits, and tell what that costs and gains.", OUTPUT
    )
    max_eval_samples: int | None = setting(
        None, "Check and score on this many validation rows, drawn by seed.", DATA, min=1, default_text="all"
    )
    output_dir: str | None = setting(
        None, "Where the model is put.", OUTPUT, flags=("--output-dir", "-o"), default_text="RUN/onnx"
    )
    overwrite: bool = setting(False, "Replace the model in --output-dir.", OUTPUT)


@dataclass(frozen=True)
class ExportResult:
    """A model that was exported: where it lies, and what was measured of it."""

    output_dir: Path
    measurements: dict[str, Any]


class ExportMismatchError(UserError):
    """The exported model computes something else: no fault of the user's, so the status is that of a bug."""

    exit_code = 1


def export(settings: Mapping[str, Any], reporter: Reporter | None = None) -> ExportResult:
    """Export a run.

    Raises:
        UserError: anything the caller can mend, in one line, before the work; nothing is written then.
        Differs: the greatest difference of logits is above 1e-4; nothing is left of it.
    """
    from bertkit import run_directory
    from bertkit.infer.onnx_runtime import require_packages
    from bertkit.pipeline.prepare import load_run_task
    from bertkit.utils import locks
    from bertkit.utils.quiet import silence_libraries

    config = ExportConfig(**validate_settings(ExportConfig, settings, "export()"))
    run = Path(config.run).expanduser()
    load_run_task(run)  # is it one?
    metrics = run_directory.read_metrics(run) or {}
    require_packages(REQUIRED_PACKAGES, "bertkit export")
    folder = Path(config.output_dir).expanduser() if config.output_dir else run / run_directory.ONNX_DIR
    _check_place(run, folder, config.overwrite)
    with locks.lock_directory(folder), silence_libraries():
        return _export(config, run, folder, metrics, reporter or Reporter())


def _check_place(run: Path, folder: Path, overwrite: bool) -> None:
    """Refuse an exported model for a run, and a directory that holds something else, or cannot be written."""
    from bertkit import run_directory
    from bertkit.infer.onnx_runtime import ONNX_FILE

    if (run / ONNX_FILE).exists():
        raise UserError(f"{run}: is an exported model; name the run that it was made of")
    run_directory.check_output_directory(folder)
    there = {path.name for path in folder.iterdir()} - {PARTIAL} if folder.is_dir() else set()
    if there and ONNX_FILE not in there:
        raise UserError(f"--output-dir {folder}: holds files that are no export; name another directory")
    if there and not overwrite:
        raise UserError(f"--output-dir {folder}: holds an exported model; --overwrite replaces it")


def _export(
    config: ExportConfig, run: Path, folder: Path, metrics: dict[str, Any], reporter: Reporter
) -> ExportResult:
    from bertkit import run_directory
    from bertkit.infer.onnx_graph import check_architecture, quantize, write_graph
    from bertkit.infer.onnx_runtime import ONNX_FILE
    from bertkit.infer.validation_rows import load_validation_set
    from bertkit.modeling.loading import ModelSource, load_config

    check_architecture(load_config(ModelSource(run.name, run)))
    found = load_validation_set(run, metrics, config.max_eval_samples, reporter)
    try:
        with run_directory.stage_files(folder) as aside:
            places = {FP32: aside, **({INT8: aside / INT8} if config.quantize else {})}
            reporter.info(f"exporting {run}")
            write_graph(
                found.model,
                found.task.spec.sequence_grouping == "choice",
                aside / ONNX_FILE,
                _told(found, metrics),
            )
            if config.quantize:
                places[INT8].mkdir()
                quantize(aside / ONNX_FILE, places[INT8] / ONNX_FILE)
            figures = _measured(found, places, run, metrics, reporter)
            for place in places.values():
                _complete(place, run, found.tokenizer, {**metrics, "export": figures})
            if (folder / INT8).is_dir():
                shutil.rmtree(folder / INT8)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror or error}); make room") from error
    return ExportResult(folder, figures)


def _told(found: "ValidationSet", metrics: Mapping[str, Any]) -> dict[str, str]:
    """What the file says of itself."""
    from bertkit.infer.onnx_graph import OPSET

    config = found.model.config
    told = {
        "bertkit_version": bertkit.__version__, "task": metrics["task"], "opset": str(OPSET),
        "max_length": str(found.task.config.max_length),
    }  # fmt: skip
    if any(name != f"LABEL_{number}" for number, name in config.id2label.items()):  # what no one named
        told["labels"] = json.dumps(config.id2label, ensure_ascii=False)
    return told | {name: json.dumps(value) for name, value in found.task.fitted_params.items()}


def _measured(
    found: "ValidationSet",
    places: Mapping[str, Path],
    run: Path,
    metrics: Mapping[str, Any],
    reporter: Reporter,
) -> dict[str, Any]:
    """Differences, scores and speeds of PyTorch and of what was written, on the same rows.

    Raises:
        Differs: what was written in fp32 is another model.
    """
    from bertkit.infer.compare_variants import compare_variants
    from bertkit.infer.onnx_graph import OPSET
    from bertkit.infer.onnx_runtime import ONNX_FILE, OnnxModel
    from bertkit.modeling.loading import WEIGHTS_FILE

    files = {name: place / ONNX_FILE for name, place in places.items()}
    models = {PYTORCH: found.model, **{name: OnnxModel(path) for name, path in files.items()}}
    collator = found.task.collator(found.tokenizer, found.model)
    size = min(MAX_BATCH_SIZE, found.task.config.eval_batch_size)
    measured, logits = compare_variants(models, found.features, collator, size, reporter)
    if not measured[FP32].max_difference <= TOLERANCE:
        raise ExportMismatchError(
            f"{run}: the exported model differs from PyTorch's by {measured[FP32].max_difference:.1e} in its "
            f"logits, more than {TOLERANCE:g}; nothing was written. This is a bug in the export of "
            f"{found.model.config.model_type}"
        )
    counted = (
        "examples" if found.task.spec.dynamic_examples else f"{found.task.spec.unit}s"
    )  # these are drawn from texts
    count, then = (
        len(found.features),
        {"metrics.json": metrics["validation"]} if found.matches_metrics else {},
    )
    weights = {PYTORCH: run / WEIGHTS_FILE, **files}
    return {
        "format": "onnx", "opset": OPSET, "rows": count, "rows_from": found.rows_source, "counted": counted,
        "greatest_difference": {name: one.max_difference for name, one in measured.items() if name != PYTORCH},
        "scores": then | {name: found.compute_metrics(some) for name, some in logits.items()},
        "rows_per_second": {name: count / one.seconds for name, one in measured.items()},
        "megabytes": {name: _megabytes(path) for name, path in weights.items()},
    }  # fmt: skip


def _megabytes(path: Path) -> float:
    """A file with what lies beside it under its name."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}*{path.suffix}*")) / 1e6


def _complete(place: Path, run: Path, tokenizer: Any, metrics: dict[str, Any]) -> None:
    """What `bertkit.load` reads beside the model, `metrics.json` last."""
    from bertkit import run_directory

    for name in ("config.json", run_directory.SETTINGS_FILE):
        shutil.copyfile(run / name, place / name)
    tokenizer.save_pretrained(place)
    run_directory.write_metrics(place, metrics)
