"""`export`: export a finished run to ONNX, and compare it with the PyTorch model on real rows."""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit._version import __version__
from bertkit.errors import UserError
from bertkit.infer.configs import FP32, INT8, PYTORCH, ExportConfig
from bertkit.utils.extras import require_extra
from bertkit.utils.files import stage_files
from bertkit.utils.output_paths import OutputKind, check_output_directory
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.features import Features
    from bertkit.data.rows import Rows
    from bertkit.tasks.base import Scores, Task

TRITON_DIR = "triton"
TOLERANCE = 1e-4  # maximum absolute difference of a logit
# Larger batches are not faster on a CPU, and logits over a vocabulary need much memory.
MAX_BATCH_SIZE = 32
REQUIRED_PACKAGES = ["onnx", "onnxruntime", "onnxscript"]
# Prediction records add this prefix to input columns whose names clash with prediction keys.
INPUT_PREFIX = "input_"


@dataclass(frozen=True)
class ExportResult:
    """The directory of an exported model, and the measurements that compare it with PyTorch."""

    output_dir: Path
    measurements: dict[str, Any]


class ExportMismatchError(UserError):
    """Error for an exported model that computes different logits; its exit status is that of a bug."""

    exit_code = 1


def export(settings: Mapping[str, Any], reporter: Reporter | None = None) -> ExportResult:
    """Export a finished run to ONNX, and compare the exported model with PyTorch.

    Raises:
        UserError: The caller can fix the problem; nothing was written.
        ExportMismatchError: A logit differs by more than `TOLERANCE`; nothing was written.
    """
    from bertkit import run_directory
    from bertkit.pipeline.finished_run import load_run_task
    from bertkit.utils import locks
    from bertkit.utils.reporting import silence_libraries

    config = ExportConfig(**validate_settings(ExportConfig, settings, "export()"))
    run = expand_home(config.run)
    load_run_task(run)  # raises unless this is a finished run
    metrics = run_directory.read_metrics(run) or {}
    require_extra("onnx", REQUIRED_PACKAGES, "export")
    folder = expand_home(config.output_dir) if config.output_dir else run / run_directory.ONNX_DIR
    _check_output_directory(run, folder, config.overwrite)
    with locks.lock_directory(folder), silence_libraries():
        return _export(config, run, folder, metrics, reporter or Reporter())


def _check_output_directory(run: Path, folder: Path, overwrite: bool) -> None:
    """Raise `UserError` if `run` is an exported model, or if `folder` cannot be used for the export."""
    from bertkit.modeling.loading import ONNX_FILE

    if (run / ONNX_FILE).exists():
        raise UserError(f"{run}: is an exported model; pass the run that it was exported from")
    kind = OutputKind(
        "an exported model",
        "pass --overwrite to replace it",
        lambda names: set() if ONNX_FILE in names else names,
    )
    check_output_directory(folder, kind, overwrite)


def _export(
    config: ExportConfig, run: Path, folder: Path, metrics: dict[str, Any], reporter: Reporter
) -> ExportResult:
    from bertkit.infer.onnx_graph import check_architecture, quantize, write_graph
    from bertkit.modeling.loading import ONNX_FILE, ModelSource, load_config

    check_architecture(load_config(ModelSource(run.name, run)))
    validation = load_validation_set(run, metrics, config.max_eval_samples, reporter)
    with stage_files(folder, "the exported model", "free disk space", errors=(OSError,)) as staging:
        folders = {FP32: staging}
        if config.quantize:
            folders[INT8] = staging / INT8
        reporter.info(f"exporting {run}")
        has_choices = validation.task.spec.sequence_grouping == "choice"
        metadata = _build_graph_metadata(validation, metrics)
        write_graph(validation.model, has_choices, staging / ONNX_FILE, metadata)
        if config.quantize:
            folders[INT8].mkdir()
            quantize(staging / ONNX_FILE, folders[INT8] / ONNX_FILE)
        measurements = _measure(validation, folders, run, metrics, reporter)
        for variant_folder in folders.values():
            _copy_run_files(variant_folder, run, validation.tokenizer, {**metrics, "export": measurements})
        if config.triton:
            _write_triton_repository(staging, folders, run.resolve().name)
        for name in (INT8, TRITON_DIR):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
    return ExportResult(folder, measurements)


def _write_triton_repository(staging: Path, folders: Mapping[str, Path], run_name: str) -> None:
    """Write the repository with a model for each variant: RUN, and RUN-int8."""
    from bertkit.infer.triton import write_model_repository
    from bertkit.modeling.loading import ONNX_FILE

    names = {FP32: run_name, INT8: f"{run_name}-int8"}
    files = {names[variant]: folder / ONNX_FILE for variant, folder in folders.items()}
    write_model_repository(staging / TRITON_DIR, files)


def _build_graph_metadata(validation: "ValidationSet", metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that is stored in the ONNX file."""
    from bertkit.infer.onnx_graph import OPSET

    config = validation.model.config
    metadata = {
        "bertkit_version": __version__, "task": metrics["task"], "opset": str(OPSET),
        "max_length": str(validation.task.config.max_length),
    }  # fmt: skip
    has_label_names = any(name != f"LABEL_{label_id}" for label_id, name in config.id2label.items())
    if has_label_names:
        metadata["labels"] = json.dumps(config.id2label, ensure_ascii=False)
    return metadata | {name: json.dumps(value) for name, value in validation.task.fitted_params.items()}


def _measure(
    validation: "ValidationSet",
    folders: Mapping[str, Path],
    run: Path,
    metrics: Mapping[str, Any],
    reporter: Reporter,
) -> dict[str, Any]:
    """Measure logit differences, scores, speed and size of all variants on the same rows.

    Raises:
        ExportMismatchError: The logits of the fp32 variant differ from PyTorch's.
    """
    from bertkit.infer.onnx_graph import OPSET
    from bertkit.infer.onnx_runtime import OnnxModel
    from bertkit.modeling.loading import ONNX_FILE, WEIGHTS_FILE

    task = validation.task
    files = {name: folder / ONNX_FILE for name, folder in folders.items()}
    models = {PYTORCH: validation.model, **{name: OnnxModel(path) for name, path in files.items()}}
    collator = task.make_collator(validation.tokenizer, validation.model)
    batch_size = min(MAX_BATCH_SIZE, task.config.eval_batch_size)
    variants, logits = compare_variants(models, validation.features, collator, batch_size, reporter)
    difference = variants[FP32].max_difference
    if difference > TOLERANCE:  # inf if a logit is not a number
        raise ExportMismatchError(
            f"{run}: the logits of the exported model differ from PyTorch's by "
            f"{difference:.1e}, more than {TOLERANCE:g}; nothing was written. Please "
            f"report this bug in the export of {validation.model.config.model_type}"
        )
    unit = "examples" if task.spec.resamples_examples else f"{task.spec.unit}s"
    count = len(validation.features)
    scores = {"metrics.json": metrics["validation"]} if validation.matches_metrics else {}
    scores |= {name: validation.compute_metrics(variant_logits) for name, variant_logits in logits.items()}
    weight_files = {PYTORCH: run / WEIGHTS_FILE, **files}
    return {
        "format": "onnx", "opset": OPSET, "rows": count, "rows_from": validation.rows_source,
        "counted": unit,
        "greatest_difference": {
            name: variant.max_difference for name, variant in variants.items() if name != PYTORCH
        },
        "scores": scores,
        "rows_per_second": {name: count / variant.seconds for name, variant in variants.items()},
        "megabytes": {name: _compute_megabytes(path) for name, path in weight_files.items()},
    }  # fmt: skip


def _compute_megabytes(path: Path) -> float:
    """Return the size of a model file and of its external data files, which share its stem."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}*{path.suffix}*")) / 1e6


def _copy_run_files(folder: Path, run: Path, tokenizer: Any, metrics: dict[str, Any]) -> None:
    """Write the other files that `bertkit.load` reads; `metrics.json` is written last."""
    from bertkit import run_directory

    for name in ("config.json", run_directory.SETTINGS_FILE):
        shutil.copyfile(run / name, folder / name)
    tokenizer.save_pretrained(folder)
    run_directory.write_metrics(folder, metrics)


# ---- validation rows


@dataclass(frozen=True)
class ValidationSet:
    """The task and the model of a run, and the rows to compare variants on.

    Attributes:
        features: Tokenized `rows`.
        rows_source: Split or file that has the rows.
        matches_metrics: Whether the scores in `metrics.json` were computed on exactly these rows.
    """

    task: "Task"
    model: Any
    tokenizer: Any
    features: Any
    rows: "Rows"
    rows_source: str
    matches_metrics: bool = False

    def compute_metrics(self, logits: Any) -> "Scores":
        """Return the scores of all rows; empty if the rows have no labels."""
        from bertkit.tasks.evaluation import Outputs

        if self.features.labels is None:
            return {}
        return self.task.evaluate(Outputs(logits, self.features, self.rows)).scores


def load_validation_set(
    folder: Path, metrics: dict[str, Any], max_rows: int | None, reporter: Reporter
) -> ValidationSet:
    """Load the validation rows of a run or, if they are not available, the texts in its predictions.

    Args:
        folder: The run directory.
        metrics: Content of `metrics.json`.
        max_rows: Maximum number of rows, which are sampled with the run's seed; None loads all rows.
        reporter: Receives warnings.

    Raises:
        UserError: Neither the rows nor predictions with texts are available.
    """
    from bertkit.pipeline.finished_run import load_run_task

    task = load_run_task(folder)
    try:
        return _reload_validation_rows(folder, task, metrics, max_rows, reporter)
    except UserError as error:
        predictions = folder / f"{task.spec.predictions_name}.jsonl"
        if not task.spec.predicts_rows or not predictions.exists():
            raise
        reporter.warn(
            f"cannot load the validation rows ({error}); comparing on the texts in {predictions}, "
            "without scores"
        )
        return _load_predicted_rows(folder, predictions, max_rows)


def _reload_validation_rows(
    folder: Path, task: "Task", metrics: dict[str, Any], max_rows: int | None, reporter: Reporter
) -> ValidationSet:
    from bertkit.data.rows import combine_fingerprints
    from bertkit.modeling.layers import list_submodels
    from bertkit.modeling.loading import find_run_model, load_config
    from bertkit.pipeline.prepare import prepare

    config = task.config.use_run_as_model(folder)
    if max_rows is not None:
        config = dataclasses.replace(config, max_eval_samples=max_rows)
    prepared = prepare(task.spec.name, config, Reporter())
    is_same = combine_fingerprints(prepared.fingerprints) == metrics["data"]["fingerprint"]
    if not is_same and max_rows is None:
        reporter.warn(
            f"the data changed after {folder} was trained: its metrics.json has the scores of different rows"
        )
    model = prepared.task.build_model(prepared.model_config, find_run_model(folder)).eval()
    if len(list_submodels(model)) > 1:
        raise UserError(
            f"{folder}: is a discriminator with a generator; fine-tune it, and export the fine-tuned run"
        )
    if prepared.task.spec.predicts_rows:
        prepared.task.load_state(load_config(prepared.model_source))
    features, rows = prepared.features["validation"], prepared.splits["validation"]
    return ValidationSet(prepared.task, model, prepared.tokenizer, features, rows, "validation", is_same)


def _load_predicted_rows(folder: Path, path: Path, max_rows: int | None) -> ValidationSet:
    """Load the rows of a predictions file, without their labels."""
    from bertkit.data.rows import Rows
    from bertkit.infer.predictor import load_predictor

    predictor = load_predictor(folder, keep_stock_layers=True)
    with path.open(encoding="utf-8") as file:
        records = [_extract_inputs(json.loads(line), predictor.task) for line in file]
    rows, _ = predictor.task.parse_rows(Rows.from_dicts(records[:max_rows], str(path)))
    features = predictor.task.featurize(rows, predictor.tokenizer)
    return ValidationSet(predictor.task, predictor.model, predictor.tokenizer, features, rows, path.name)


def _extract_inputs(record: dict[str, Any], task: "Task") -> dict[str, Any]:
    """Return the input columns of a prediction record under their original names, without gold labels."""
    columns = {name: value for name, value in record.items() if not name.startswith(INPUT_PREFIX)}
    for name, value in record.items():
        if name.startswith(INPUT_PREFIX):
            columns[name.removeprefix(INPUT_PREFIX)] = value
    return {name: value for name, value in columns.items() if name not in task.input_schema.gold_columns}


# ---- comparison of variants


@dataclass
class VariantMeasurement:
    """Measurements of one variant of the model.

    Attributes:
        max_difference: Largest absolute difference of a logit from the first variant; inf if a logit is not a
            number.
        seconds: Total time of the forward passes.
        batch_logits: Reduced logits of each batch.
    """

    max_difference: float = 0.0
    seconds: float = 0.0
    batch_logits: "list[np.ndarray]" = field(default_factory=list)


def compare_variants(
    models: Mapping[str, Any],
    features: "Features",
    collator: Callable[..., Any],
    batch_size: int,
    reporter: Reporter,
) -> tuple[dict[str, VariantMeasurement], "dict[str, np.ndarray]"]:
    """Return the measurements of each variant, and its logits as `predict_logits` returns them.

    Each batch is computed by all variants, in an order that rotates from batch to batch. Changes in the load
    of the machine therefore affect all variants equally. One extra batch serves as warm-up.
    """
    import numpy as np
    import torch

    from bertkit.modeling.forward import batch_by_length, compute_logits
    from bertkit.training.scoring import restore_order

    batches = batch_by_length(features, batch_size)
    names = list(models)
    variants = {name: VariantMeasurement() for name in names}
    with torch.no_grad():
        for model in models.values():
            compute_logits(model, collator([features[row] for row in batches[-1]]))
        for batch_index, rows in enumerate(reporter.track(batches, len(batches), "comparing")):
            batch = collator([features[row] for row in rows])
            batch_logits = {}
            for name in np.roll(names, batch_index).tolist():
                started = time.perf_counter()
                batch_logits[name] = compute_logits(models[name], batch)
                variants[name].seconds += time.perf_counter() - started
            for name, logits in batch_logits.items():
                variant = variants[name]
                difference = _compute_max_difference(batch_logits[names[0]], logits)
                variant.max_difference = max(variant.max_difference, difference)
                variant.batch_logits.append(features.reduce_logits(logits.float(), rows, batch).numpy())
    all_logits = {
        name: restore_order(features, batches, variant.batch_logits) for name, variant in variants.items()
    }
    return variants, all_logits


def _compute_max_difference(reference: Any, other: Any) -> float:
    """Return the largest absolute difference; logits that are masked with -inf must be so in both."""
    import torch

    if not isinstance(reference, torch.Tensor):  # a model with several outputs
        pairs = zip(reference, other, strict=True)
        return max(_compute_max_difference(*pair) for pair in pairs if pair[0] is not None)
    is_unmasked = reference != -torch.inf
    if not torch.equal(is_unmasked, other != -torch.inf):
        return float("inf")
    difference = (reference - other)[is_unmasked].abs().nan_to_num(torch.inf)
    return float(difference.max()) if difference.numel() else 0.0
