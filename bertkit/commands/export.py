"""`export`: export a finished run to ONNX, and compare it with the PyTorch model on real rows."""

import dataclasses
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from bertkit._version import __version__
from bertkit.commands.configs import ExportConfig
from bertkit.commands.evaluate import load_new_rows, restore_best_metric
from bertkit.commands.inputs import require_data_for_format_flags
from bertkit.data.features import Features
from bertkit.data.split import sample_rows
from bertkit.data.table import Rows, combine_fingerprints
from bertkit.errors import UserError, format_count
from bertkit.models.exported import SCOPE_OUTPUT, OnnxModel
from bertkit.models.forward import batch_by_length, compute_logits
from bertkit.models.layers import list_submodels
from bertkit.models.loading import (
    ONNX_FILE,
    WEIGHTS_FILE,
    find_run_model,
    get_max_positions,
    load_config,
    load_tokenizer,
    takes_token_type_ids,
)
from bertkit.run.predictor import load_predictor
from bertkit.run.prepare import prepare
from bertkit.run.results import choose_deciding_metric
from bertkit.run.verification import load_rows, record_outputs
from bertkit.run_directory import RunDir
from bertkit.settings.validation import validate_settings
from bertkit.stats.significance import bound_drop
from bertkit.tasks.base import Evaluation, Outputs, Task
from bertkit.tasks.trained_model import add_scope_output, load_run_task
from bertkit.training.scoring import restore_order
from bertkit.utils import locks
from bertkit.utils.compat import require_extra
from bertkit.utils.console import out_console, print_json
from bertkit.utils.files import OutputKind, check_output_directory, expand_home, stage_files
from bertkit.utils.reporting import (
    report_info,
    report_warning,
    silence_libraries,
    silence_reports,
    track_progress,
)
from bertkit.utils.text import format_signed

PYTORCH, FP32, INT8, FP16 = "pytorch", "onnx", "int8", "fp16"  # variants of a model that are measured

TOLERANCE = 1e-4  # maximum difference of a logit, as a fraction of the largest logit, or of 1
FP16_TOLERANCE = 0.02  # maximum difference of a logit in fp16, as a fraction of the largest logit, or of 1
# Of constants in fp16. If the mask of padding were the largest number, 65,504, added scores would overflow.
MAX_CONSTANT = 1e4
# Larger batches are not faster on a CPU, and logits over a vocabulary need much memory.
MAX_BATCH_SIZE = 32
REQUIRED_PACKAGES = ["onnx", "onnxruntime", "onnxscript"]
# Prediction records add this prefix to input columns whose names clash with prediction keys.
INPUT_PREFIX = "input_"
TESTED_TORCH = "2.13"  # torch 2.6 to 2.9 cannot export some or all models
OPSET = 18  # the version that PyTorch's exporter writes without conversion
# Example inputs: examples, choices, tokens. All sizes differ, and none is 1, which would become static.
TRACE_SHAPE = (3, 4, 7)
MAX_SINGLE_FILE_BYTES = 2**31 - 2**27  # larger weights are stored in a second file
# Architectures that are known to fail, with the reason; other failures are detected during the export.
UNSUPPORTED_ARCHITECTURES = {
    "longformer": "its attention splits a text into chunks by its length, which PyTorch cannot trace",
    "big_bird": "its attention selects random blocks of the text",
}
TRITON_DIR, TRITON_CONFIG_FILE, TRITON_BATCH_SIZE = "triton", "config.pbtxt", 32
MAX_QUEUE_DELAY = 10_000  # microseconds, like the default --max-delay-ms of `serve`
TRITON_TYPES = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32"}  # by type in onnxruntime


@dataclass(frozen=True)
class ExportResult:
    """The directory of an exported model, and the measurements that compare it with PyTorch."""

    output_dir: Path
    measurements: dict[str, Any]


class QualityGateError(UserError):
    """Error for a converted model whose score may drop by more than `--max-drop`."""

    exit_code = 3


class ExportMismatchError(UserError):
    """Error for an exported model that computes different logits; its exit status is that of a bug."""

    exit_code = 1


def export(settings: Mapping[str, Any]) -> ExportResult:
    """Export a finished run to ONNX, and compare the exported model with PyTorch.

    Nothing is written if an error is raised, for example because a logit differs by more than `TOLERANCE`.
    """
    config = ExportConfig(**validate_settings(ExportConfig, settings, "export()"))
    run = expand_home(config.run)
    task = load_run_task(run)  # raises unless this is a finished run
    if config.max_drop is not None and config.quantize is None:
        raise UserError("--max-drop: applies only to --quantize; pass both or neither")
    if not task.definition.predicts_rows:
        for flag, value in (("--max-drop", config.max_drop), ("--data", config.data)):
            if value is not None:
                raise UserError(f"{flag}: a run of {task.definition.name} predicts no rows; omit it")
    require_data_for_format_flags(config)
    metrics = RunDir(run).read_metrics() or {}
    require_extra("onnx", REQUIRED_PACKAGES, "export")
    folder = expand_home(config.output_dir) if config.output_dir else run / RunDir.ONNX_DIR
    if (run / ONNX_FILE).exists():
        raise UserError(f"{run}: is an exported model; pass the run that it was exported from")
    kind = OutputKind(
        "an exported model",
        "pass --overwrite to replace it",
        lambda names: set() if ONNX_FILE in names else names,
    )
    check_output_directory(folder, kind, config.overwrite)
    with locks.lock_directory(folder), silence_libraries():
        measurements = _export(config, run, folder, metrics)
    return ExportResult(folder, measurements)


def _export(config: ExportConfig, run: Path, folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    source = find_run_model(run)
    model_config = load_config(source)
    name, has_full_attention = model_config.model_type, getattr(model_config, "attention_type", "")
    if name in UNSUPPORTED_ARCHITECTURES and has_full_attention != "original_full":
        raise UserError(f"{name}: cannot be exported; {UNSUPPORTED_ARCHITECTURES[name]}")
    load_tokenizer(source)  # `prepare`, which loads it again, would call the run --model in an error
    validation = load_validation_set(run, metrics, config)
    with stage_files(folder, "the exported model", "free disk space", errors=(OSError,)) as staging:
        folders = {FP32: staging}
        if config.quantize:
            folders[config.quantize] = staging / config.quantize
        files = {variant: variant_folder / ONNX_FILE for variant, variant_folder in folders.items()}
        report_info(f"exporting {run}")
        if config.quantize:
            folders[config.quantize].mkdir()
        write_variants(validation.task, validation.model, files)
        measurements = _measure(validation, files, run, metrics, config)
        for variant_folder in folders.values():  # `metrics.json` is the last file that `bertkit.load` reads
            copy_run_files(run, validation.tokenizer, variant_folder)
            RunDir(variant_folder).write_metrics({**metrics, "export": measurements})
        if validation.task.definition.predicts_rows:
            _record_outputs(run, folders)
        if config.triton:
            name = run.resolve().name
            models = {
                name if variant == FP32 else f"{name}-{variant}": file for variant, file in files.items()
            }
            write_model_repository(staging / TRITON_DIR, models)
        for name in (INT8, FP16, TRITON_DIR):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
    return measurements


def write_variants(task: Task, model: Any, files: Mapping[str, Path]) -> None:
    """Write the graph of a finished run's model in fp32, and convert it to the other variants.

    `files` are the ONNX files by variant; their directories exist.
    """
    metadata = {
        "bertkit_version": __version__, "task": task.definition.name, "opset": str(OPSET),
        "max_length": str(task.config.max_length),
    }  # fmt: skip
    id2label = model.config.id2label
    if any(name != f"LABEL_{label_id}" for label_id, name in id2label.items()):
        metadata["labels"] = json.dumps(id2label, ensure_ascii=False)
    metadata |= {name: json.dumps(value) for name, value in task.state.fitted_params.items()}
    has_scope = task.state.fitted_confidence.scope_weights is not None
    write_graph(model, task.sequence_grouping == "choice", files[FP32], metadata, has_scope)
    for variant, convert in {INT8: quantize, FP16: convert_to_fp16}.items():
        if variant in files:
            convert(files[FP32], files[variant])


def copy_run_files(run: Path, tokenizer: Any, folder: Path) -> None:
    """Write what prediction with an exported model needs beside the graph, except `metrics.json`."""
    for name in (RunDir.MODEL_CONFIG_FILE, RunDir.SETTINGS_FILE):
        shutil.copyfile(run / name, folder / name)
    tokenizer.save_pretrained(folder)


def _record_outputs(run: Path, folders: Mapping[str, Path]) -> None:
    """Store outputs with each variant, for `serve --verify`, if the validation rows are available."""
    with silence_reports():
        try:
            rows = load_rows(run)
        except UserError as error:
            problem = f"{run}: serve --verify cannot verify this export ({error})"
        else:
            for variant, folder in folders.items():
                record_outputs(folder, run, rows, "fp32" if variant == FP32 else variant)
            return
    report_warning(problem)


def _measure(
    validation: "ValidationSet",
    files: Mapping[str, Path],
    run: Path,
    metrics: Mapping[str, Any],
    config: ExportConfig,
) -> dict[str, Any]:
    """Measure logit differences, scores, speed and size of all variants on the same rows."""
    task = validation.task
    models = {PYTORCH: validation.model, **{name: OnnxModel(path) for name, path in files.items()}}
    collator = task.make_collator(validation.tokenizer, validation.model)
    batch_size = min(MAX_BATCH_SIZE, task.config.eval_batch_size)
    variants, logits = compare_variants(models, validation.features, collator, batch_size)
    difference = variants[FP32].max_difference
    largest = float(np.abs(logits[PYTORCH][np.isfinite(logits[PYTORCH])]).max(initial=1.0))
    if difference > TOLERANCE * largest:  # inf if a logit is not a number
        raise ExportMismatchError(
            f"{run}: the logits of the exported model differ from PyTorch's by "
            f"{difference:.1e}, more than {TOLERANCE * largest:g}; nothing was written. Please "
            f"report this bug in the export of {validation.model.config.model_type}"
        )
    if FP16 in files:
        _require_fp16_accuracy(run, variants[FP16].max_difference, logits[FP32])
    unit = "examples" if task.definition.resamples_examples else f"{task.definition.unit}s"
    count = len(validation.features)
    scores = {"metrics.json": metrics["validation"]} if validation.matches_metrics else {}
    evaluations = {
        name: task.evaluate(Outputs(variant_logits, validation.features, validation.rows))
        for name, variant_logits in logits.items()
    }
    scores |= {
        name: evaluation.scores if evaluation.has_gold else {} for name, evaluation in evaluations.items()
    }
    gate = {} if config.max_drop is None else _require_small_drop(run, task, evaluations, config)
    weight_files = {PYTORCH: run / WEIGHTS_FILE, **files}
    return {
        "format": "onnx", "opset": OPSET, "rows": count, "rows_from": validation.rows_source,
        "counted": unit,
        "greatest_difference": {
            name: variant.max_difference for name, variant in variants.items() if name != PYTORCH
        },
        "scores": scores,
        "rows_per_second": {name: count / variant.seconds for name, variant in variants.items()},
        "megabytes": {  # of a file and its external data files, which share its stem
            name: sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}*{path.suffix}*")) / 1e6
            for name, path in weight_files.items()
        },
        **gate,
    }  # fmt: skip


def _require_small_drop(
    run: Path, task: Task, evaluations: Mapping[str, Evaluation], config: ExportConfig
) -> dict[str, Any]:
    """Return the drop of the converted model in points, which must be shown to be at most `--max-drop`.

    The score is the one that judged the run. If the run abstains, the accuracy of its answers must not drop
    further, either, and the fraction of answered rows must not change by more points than that.
    """
    first, second = evaluations[PYTORCH], evaluations[str(config.quantize)]
    flag, limit = f"--max-drop {config.max_drop:g}", float(config.max_drop or 0) / 100
    if not first.has_gold:
        raise UserError(f"{flag}: the rows to compare on have no labels; pass labeled rows with --data")
    restore_best_metric(task, run)
    metric, sign = choose_deciding_metric(task, first)
    found, seed = {}, task.config.seed
    names = [metric, *(name for name in ("answered_accuracy",) if name in first.scores)]
    for name in names:
        drop = bound_drop(first.scorer, second.scorer, name, sign > 0, first.perfect_score, seed)
        found[name] = drop
        if drop.bound <= limit:
            continue
        problem = (
            f"{run}: with {config.quantize}, {name} drops by {format_signed(100 * drop.drop, '.2f')} points "
            f"on {format_count(drop.num_rows, task.definition.unit)}, and by up to {100 * drop.bound:.2f} at "
            "a confidence of 97.5 %"
        )
        needed = drop.count_needed_rows(limit)
        fix = (
            "export without --quantize, or pass a larger --max-drop"
            if needed is None
            else f"about {needed:,} rows may show at most {config.max_drop:g}: pass them with --data"
        )
        raise QualityGateError(f"{problem}; nothing was written; {fix}")
    coverage = [evaluation.scores.get("coverage", 1.0) for evaluation in (first, second)]
    if abs(coverage[0] - coverage[1]) > limit:
        raise QualityGateError(
            f"{run}: with {config.quantize}, it answers {coverage[1]:.1%} of the rows instead of "
            f"{coverage[0]:.1%}; nothing was written; export without --quantize, or pass a larger --max-drop"
        )
    return {
        "max_drop": config.max_drop,
        "drop": {
            name: {"points": 100 * drop.drop, "bound": 100 * drop.bound} for name, drop in found.items()
        },
    }


def _require_fp16_accuracy(run: Path, difference: float, reference: np.ndarray) -> None:
    """Refuse a graph in fp16 whose logits differ too much, or overflow, so that the difference is inf."""
    largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=1.0))
    if difference > FP16_TOLERANCE * largest:
        raise UserError(
            f"{run}: in fp16, its logits differ by {difference:.1e}, more than {FP16_TOLERANCE:.0%} of the "
            f"largest, {largest:.1f}; nothing was written; omit --quantize fp16"
        )


# ---- validation rows


@dataclass(frozen=True)
class ValidationSet:
    """The task and the model of a run, and the rows to compare variants on."""

    task: Task
    model: Any
    tokenizer: Any
    features: Any
    rows: Rows
    rows_source: str  # split or file that has the rows
    matches_metrics: bool = False  # whether the scores in `metrics.json` were computed on exactly these rows


def load_validation_set(folder: Path, metrics: dict[str, Any], config: ExportConfig) -> ValidationSet:
    """Load the rows of `--data`, or the validation rows of a run.

    If the latter are not available, the texts in its predictions replace them, which have no gold labels.
    With `--max-eval-samples`, as many rows are sampled with the run's seed.
    """
    task, max_rows = load_run_task(folder), config.max_eval_samples
    if config.data is not None:
        predictor = load_predictor(folder, keep_stock_layers=True)
        dataset, splits = load_new_rows(predictor, config)
        rows = sample_rows(splits["validation"], max_rows, task.config.seed)
        features = predictor.task.featurize(rows, predictor.tokenizer)
        return ValidationSet(
            predictor.task, predictor.model, predictor.tokenizer, features, rows, dataset.name
        )
    try:
        return _reload_validation_rows(folder, task, metrics, max_rows)
    except UserError as error:
        predictions = folder / f"{task.definition.predictions_name}.jsonl"
        if not task.definition.predicts_rows or not predictions.exists():
            raise
        report_warning(
            f"cannot load the validation rows ({error}); comparing on the texts in {predictions}, "
            "without scores"
        )
    predictor = load_predictor(folder, keep_stock_layers=True)
    task, tokenizer = predictor.task, predictor.tokenizer
    records = []
    for record in RunDir(folder).iter_lines(predictions.name):
        inputs = {name: value for name, value in record.items() if name.startswith(INPUT_PREFIX)}
        columns = record | {name.removeprefix(INPUT_PREFIX): value for name, value in inputs.items()}
        unused = {*inputs, *task.input_schema.gold_columns}
        records.append({name: value for name, value in columns.items() if name not in unused})
    rows, _ = task.parse_rows(Rows.from_dicts(records[:max_rows], str(predictions)))
    features = task.featurize(rows, tokenizer)
    return ValidationSet(task, predictor.model, tokenizer, features, rows, predictions.name)


def _reload_validation_rows(
    folder: Path, task: Task, metrics: dict[str, Any], max_rows: int | None
) -> ValidationSet:
    config = task.config.use_run_as_model(folder)
    if max_rows is not None:
        config = dataclasses.replace(config, max_eval_samples=max_rows)
    with silence_reports():
        prepared = prepare(task.definition.name, config)
    is_same = combine_fingerprints(prepared.fingerprints) == metrics["data"]["fingerprint"]
    if not is_same and max_rows is None:
        report_warning(
            f"the data changed after {folder} was trained: its metrics.json has the scores of different rows"
        )
    model = prepared.task.build_model(prepared.model_config, find_run_model(folder)).eval()
    if len(list_submodels(model)) > 1:
        raise UserError(
            f"{folder}: is a discriminator with a generator; fine-tune it, and export the fine-tuned run"
        )
    if prepared.task.definition.predicts_rows:
        prepared.task.load_state(load_config(prepared.model_source))
        add_scope_output(prepared.task, model)
    features, rows = prepared.features["validation"], prepared.splits["validation"]
    return ValidationSet(prepared.task, model, prepared.tokenizer, features, rows, "validation", is_same)


# ---- comparison of variants


@dataclass
class VariantMeasurement:
    """Measurements of one variant of the model."""

    max_difference: float = 0.0  # of a logit from the first variant; inf if a logit is not a number
    seconds: float = 0.0  # of the forward passes
    batch_logits: list[np.ndarray] = field(default_factory=list)  # reduced


def compare_variants(
    models: Mapping[str, Any], features: Features, collator: Callable[..., Any], batch_size: int
) -> tuple[dict[str, VariantMeasurement], dict[str, np.ndarray]]:
    """Return the measurements of each variant, and its logits as `predict_logits` returns them.

    Each batch is computed by all variants, in an order that rotates from batch to batch. Changes in the load
    of the machine therefore affect all variants equally. One extra batch serves as warm-up.
    """
    batches = batch_by_length(features, batch_size)
    names = list(models)
    variants = {name: VariantMeasurement() for name in names}
    with torch.no_grad():
        for model in models.values():
            compute_logits(model, collator([features[row] for row in batches[-1]]))
        for batch_index, rows in enumerate(track_progress(batches, len(batches), "comparing")):
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
    if not isinstance(reference, torch.Tensor):  # a model with several outputs
        pairs = zip(reference, other, strict=True)
        return max(_compute_max_difference(*pair) for pair in pairs if pair[0] is not None)
    is_unmasked = reference != -torch.inf
    if not torch.equal(is_unmasked, other != -torch.inf):
        return float("inf")
    difference = (reference - other)[is_unmasked].abs().nan_to_num(torch.inf)
    return float(difference.max()) if difference.numel() else 0.0


# ---- ONNX


class TupleOutputModel(nn.Module):
    """A model that returns its outputs as a tuple, in the order of `output_names`.

    The last logit is `SCOPE_OUTPUT`, if it is among the names.
    """

    def __init__(self, model: Any, output_names: list[str]) -> None:
        super().__init__()
        self.model, self.output_names = model, output_names

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Return the outputs of a batch."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = dict(self.model(**inputs))
        if SCOPE_OUTPUT in self.output_names:
            logits = output["logits"]
            output |= {"logits": logits[:, :-1], SCOPE_OUTPUT: logits[:, -1:]}
        return tuple(output[name] for name in self.output_names)


def write_graph(
    model: Any, has_choices: bool, path: Path, metadata: Mapping[str, str], has_scope: bool = False
) -> None:
    """Write an ONNX file whose batch size, number of choices and length are dynamic.

    The model is in evaluation mode and in fp32. With `has_scope`, its last logit, the score that a text is
    in scope, becomes an output of its own. With choices, its inputs are `[batch, choices, seq_len]`
    instead of `[batch, seq_len]`.
    """
    inputs, dims = _build_example_inputs(model, has_choices)
    with torch.no_grad():
        names = [name for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)]
    names += [SCOPE_OUTPUT] if has_scope else []
    with _silence_logging():
        try:
            program = torch.onnx.export(
                TupleOutputModel(model, names), (), kwargs=inputs, dynamo=True, opset_version=OPSET,
                verbose=False,
                dynamic_shapes={name: dict(enumerate(dims)) for name in inputs},
                input_names=list(inputs), output_names=names,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise _make_error(model, str(cause).strip().split("\n")[0]) from error
    assert program is not None
    static_dims = [
        dim for value in program.model.graph.inputs for dim in value.shape or () if isinstance(dim, int)
    ]
    if static_dims:  # the exporter may make a dimension static without an error
        raise _make_error(model, "its graph would accept inputs of one size only")
    program.model.metadata_props.update(metadata)
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())  # fp32
    program.save(path, external_data=num_bytes > MAX_SINGLE_FILE_BYTES)


def _make_error(model: Any, reason: str) -> UserError:
    """Return the error of a model that PyTorch cannot export."""
    name = model.config.model_type
    version = torch.__version__
    if version >= TESTED_TORCH:
        return UserError(f"{name}: cannot be exported; {reason}")
    fix = f"install torch {TESTED_TORCH} or later"
    return UserError(f"{name}: cannot be exported with torch {version} ({reason}); {fix}")


def _build_example_inputs(model: Any, has_choices: bool) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return example inputs for tracing, and their dynamic dimensions."""
    shape: tuple[int, ...] = TRACE_SHAPE
    length_dim = torch.export.Dim("length", max=get_max_positions(model.config))
    dims = [torch.export.Dim("batch"), torch.export.Dim("choices"), length_dim]
    if not has_choices:
        del dims[1]
        shape = shape[::2]
    inputs = {
        "input_ids": torch.full(shape, model.config.vocab_size - 1),
        "attention_mask": torch.ones(shape, dtype=torch.long),
    }
    inputs["attention_mask"][..., -1] = 0
    if takes_token_type_ids(model):
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    return inputs, dims


def quantize(source: Path, target: Path) -> None:
    """Write the graph in `source` to `target` with 8-bit weights and dynamically quantized activations.

    Each output channel has its own scale. Weights use 7 of the 8 bits, because processors without VNNI
    accumulate products in 16 bits, which would overflow.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    del model.graph.value_info[:]  # has outdated shapes of weights that the exporter transposed
    with _silence_logging():
        quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True)


def convert_to_fp16(source: Path, target: Path) -> None:
    """Write the graph in `source` to `target` with weights and activations in fp16.

    Inputs and outputs keep their types. LayerNorm and softmax have inputs and outputs in fp16, but
    onnxruntime computes them in fp32.
    """
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(source)
    with _silence_logging():
        converted = convert_float_to_float16(
            model, keep_io_types=True, max_finite_val=MAX_CONSTANT,
            disable_shape_infer=True,  # the exporter has written all types, and shapes are not needed
        )  # fmt: skip
    num_bytes = sum(len(tensor.raw_data) for tensor in converted.graph.initializer)
    has_second_file = num_bytes > MAX_SINGLE_FILE_BYTES
    onnx.save_model(converted, target, save_as_external_data=has_second_file, location=f"{target.name}.data")


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence the exporter and the quantizer, which logs through the root logger."""
    previous_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous_level)


# ---- Triton


def write_model_repository(folder: Path, onnx_files: Mapping[str, Path]) -> None:
    """Write `NAME/config.pbtxt` and `NAME/1/model.onnx` for each exported model, by name."""
    for name, onnx_file in onnx_files.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        for part in onnx_file.parent.glob(f"{ONNX_FILE}*"):  # large weights are in a second file
            shutil.copyfile(part, version / part.name)
        session = OnnxModel(onnx_file).session
        config = [  # in the text format of protobuf
            f"name: {json.dumps(name)}",
            'backend: "onnxruntime"',
            f"max_batch_size: {TRITON_BATCH_SIZE}",
            f"input [\n{_format_tensors(session.get_inputs())}\n]",
            f"output [\n{_format_tensors(session.get_outputs())}\n]",
            f"dynamic_batching {{ max_queue_delay_microseconds: {MAX_QUEUE_DELAY} }}",
        ]
        (folder / name / TRITON_CONFIG_FILE).write_text("\n".join(config) + "\n", "utf-8", newline="\n")


def _format_tensors(tensors: Iterable[Any]) -> str:
    """Format inputs or outputs `[batch, ...]`. Triton adds the batch, and -1 is a variable dimension."""
    lines = []
    for tensor in tensors:
        dims = ", ".join(str(dim if isinstance(dim, int) else -1) for dim in tensor.shape[1:])
        data_type = TRITON_TYPES[tensor.type]
        lines.append(f'  {{ name: "{tensor.name}" data_type: {data_type} dims: [ {dims} ] }}')
    return ",\n".join(lines)


# ---- command line


VARIANT_NAMES = {PYTORCH: "PyTorch", FP32: "ONNX fp32", INT8: "ONNX int8", FP16: "ONNX fp16"}
# What the comparison of a converted model with ONNX fp32 has to add.
VARIANT_NOTES = {
    INT8: "predictions depend a little on the batch",
    FP16: "it is meant for GPUs, and these speeds are those of the CPU",
}


def run_command(settings: dict[str, Any], as_json: bool) -> None:
    result = export(settings)
    measurements = result.measurements
    if as_json:
        print_json({**measurements, "output_dir": str(result.output_dir)})
        return
    unit = measurements["counted"]
    table = Table(f"{measurements['rows_from']} ({measurements['rows']:,} {unit})")
    variants = list(measurements["scores"])
    for variant in variants:
        table.add_column(VARIANT_NAMES.get(variant, variant), justify="right")
    for metric in measurements["scores"][PYTORCH]:
        scores = [measurements["scores"][variant].get(metric) for variant in variants]
        # `metrics.json` has no scores that only a calibrated run has
        table.add_row(metric, *("" if score is None else f"{score:.3f}" for score in scores))
    table.add_section()
    for heading, key in ((f"{unit} per second", "rows_per_second"), ("size in MB", "megabytes")):
        values = measurements[key]
        cells = [f"{values[variant]:,.1f}" if variant in values else "" for variant in variants]
        table.add_row(heading, *cells)
    out_console.print(table)
    for variant, difference in measurements["greatest_difference"].items():
        out_console.print(
            f"largest difference of logits between {VARIANT_NAMES[variant]} and PyTorch: {difference:.1e}"
        )
    for variant, note in VARIANT_NOTES.items():
        if variant not in variants:
            continue
        scores, sizes = measurements["scores"], measurements["megabytes"]
        speeds = measurements["rows_per_second"]
        changes = [
            f"{name} {format_signed(scores[variant][name] - value, '+.3f')}"
            for name, value in scores[FP32].items()
        ]
        out_console.print(
            f"{variant} compared with ONNX fp32: {', '.join(changes) or 'not scored'}; "
            f"{speeds[variant] / speeds[FP32]:.2f} times the speed "
            f"({speeds[variant] / speeds[PYTORCH]:.2f} times that of PyTorch), "
            f"{sizes[variant] / sizes[FP32]:.0%} of the size; {note}",
            soft_wrap=True,
        )
    for name, drop in measurements.get("drop", {}).items():
        out_console.print(
            f"{name} drops by {format_signed(drop['points'], '.2f')} points, and by at most "
            f"{format_signed(drop['bound'], '.2f')} at a confidence of 97.5 %",
            soft_wrap=True,
        )
    model = f"model: {result.output_dir} (opset {measurements['opset']})"
    out_console.print(model, markup=False, soft_wrap=True)
