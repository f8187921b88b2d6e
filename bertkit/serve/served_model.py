"""A finished run in the server: its predictor, its queue of requests, and what `/info` shows of it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.infer.onnx_runtime import find_onnx_model
from bertkit.infer.predictor import Predictor, load_predictor
from bertkit.pipeline.ensemble import find_ensemble, read_members
from bertkit.serve.batcher import Batcher, Job, Records
from bertkit.serve.metrics import Metrics
from bertkit.serve.row_decoder import RowDecoder

MAX_WAITING_ROWS = 1024  # rows in the queue of a model, and rows of a request
# On a CPU, a batch is computed in parts of rows with similar lengths: less padding makes this faster than one
# large forward pass.
CPU_FORWARD_ROWS = 8
REQUEST = "request"  # the file of the rows in error messages


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A run that is loaded and has predicted once.

    Attributes:
        name: Name in requests.
        info: The description in `/info`.
        decoder: Validates the rows of requests.
        batcher: Predicts the rows.
    """

    name: str
    info: dict[str, Any]
    decoder: RowDecoder
    batcher: Batcher


@dataclass(frozen=True)
class BatchSettings:
    """How requests are combined; see `Batcher`.

    Attributes:
        max_rows: Maximum number of rows of a batch.
        max_delay: Maximum time in seconds that a request waits for others.
    """

    max_rows: int
    max_delay: float


def load_served_model(run: str, name: str, settings: BatchSettings, metrics: Metrics) -> ServedModel:
    """Load a run and predict example rows, so that the first request is not slower than others.

    Args:
        run: Directory of a run, of an exported model, or of an ensemble.
        name: Name in requests.
        settings: How requests are combined.
        metrics: Receives the measurements of each batch.

    Raises:
        UserError: The directory cannot be loaded.
    """
    predictor = load_predictor(run)
    is_on_cpu = next(predictor.model.parameters()).device.type == "cpu"
    predictor.use_batch_size(CPU_FORWARD_ROWS if is_on_cpu else settings.max_rows)
    decoder = RowDecoder(predictor.task.input_schema, MAX_WAITING_ROWS)
    for count in {1, settings.max_rows}:
        predict_rows(predictor, [decoder.example] * count, "compact")

    def compute(jobs: Sequence[Job]) -> list[Records | UserError]:
        with metrics.measure_batch(name, sum(len(job.rows) for job in jobs)):
            return compute_jobs(predictor, jobs)

    batcher = Batcher(compute, settings.max_rows, settings.max_delay, MAX_WAITING_ROWS)
    return ServedModel(name, describe_model(Path(run), name, predictor, decoder), decoder, batcher)


def predict_rows(predictor: Predictor, rows: Records, scores: Any) -> Records:
    """Return the records of rows, as `bertkit predict` does."""
    table = Rows.from_dicts(rows, REQUEST)
    predictor.map_columns(table)
    return list(predictor.iter_records(table, predictor.evaluate_without_labels(table), scores))


def compute_jobs(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | UserError]:
    """Return the records of each request, or its error.

    Requests with different columns are computed separately. A column of one request would otherwise be added
    to the records of another one. Requests with documents are computed separately, too, because the same name
    of a document in two requests means two documents.
    """
    group_columns = frozenset(predictor.task.input_schema.group_columns)
    indices_by_columns: dict[Any, list[int]] = defaultdict(list)
    for index, job in enumerate(jobs):
        columns = frozenset(column for row in job.rows for column in row)
        own_group = index if columns & group_columns else None
        indices_by_columns[columns, job.all_scores, own_group].append(index)
    results: list[Records | UserError] = [[] for _ in jobs]
    for indices in indices_by_columns.values():
        for index, result in zip(indices, _compute_group(predictor, [jobs[i] for i in indices]), strict=True):
            results[index] = result
    return results


def _compute_group(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | UserError]:
    """Compute requests together; if that fails, compute each one separately, to find the wrong ones."""
    try:
        records = predict_rows(
            predictor, [row for job in jobs for row in job.rows], "all" if jobs[0].all_scores else "compact"
        )
    except UserError as error:
        return [error] if len(jobs) == 1 else [_compute_group(predictor, [job])[0] for job in jobs]
    results: list[Records | UserError] = []
    position = 0
    for job in jobs:
        results.append(_number_records(records[position : position + len(job.rows)]))
        position += len(job.rows)
    return results


def _number_records(records: Records) -> Records:
    """Return the records of one request, numbered from 0. The id of `qa` is a text."""
    return [record | {"id": type(record["id"])(index)} for index, record in enumerate(records)]


def describe_model(run: Path, name: str, predictor: Predictor, decoder: RowDecoder) -> dict[str, Any]:
    """Return the description of a run in `/info`, without paths of this machine."""
    ensemble, task = find_ensemble(run), predictor.task
    members = read_members(ensemble) if ensemble else [run]
    metrics = run_directory.require_metrics(members[0])
    info: dict[str, Any] = {
        "name": name,
        "task": task.spec.name,
        "columns": decoder.kinds,
        "labels": list(getattr(task, "labels", getattr(task, "types", ()))),  # or entity types
        "max_length": task.config.max_length,
        "backend": "onnxruntime" if find_onnx_model(run) else "pytorch",
        "members": len(members),
        "model": metrics["model"],
        "data": metrics["data"]["name"],
    }
    if not ensemble:
        info |= {key: metrics[key] for key in ("validation", "intervals") if metrics.get(key)}
    return info
