"""A finished run in the server: its predictor, its queue of requests, and what `/info` shows of it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertkit import run_directory
from bertkit.data.rows import Rows
from bertkit.infer.onnx_runtime import find_onnx_model
from bertkit.infer.predictor import Predictor, load_predictor
from bertkit.pipeline.ensemble import find_ensemble, read_members
from bertkit.serve.batcher import Batcher, ComputationStoppedError, Job, Records
from bertkit.serve.metrics import Metrics
from bertkit.serve.open_requests import OpenRequests
from bertkit.serve.row_decoder import RowDecoder
from bertkit.serve.token_limit import TokenLimit
from bertkit.utils.reporting import Reporter

T = TypeVar("T")
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
        token_limit: Refuses requests with too many tokens.
        batcher: Predicts the rows.
        open_requests: The requests that use the model.
    """

    name: str
    info: dict[str, Any]
    decoder: RowDecoder
    token_limit: TokenLimit
    batcher: Batcher
    open_requests: OpenRequests = field(default_factory=OpenRequests)

    async def close(self) -> None:
        """Wait for the end of all requests, and end the threads."""
        await self.open_requests.wait_until_none()
        await self.batcher.close()
        self.token_limit.close()


@dataclass(frozen=True)
class BatchSettings:
    """How requests are combined; see `Batcher`.

    Attributes:
        max_rows: Maximum number of rows of a batch.
        max_delay: Maximum time in seconds that a request waits for others.
        max_tokens: Maximum number of tokens of a request, and of the large requests in a batch or the queue.
    """

    max_rows: int
    max_delay: float
    max_tokens: int


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

    def compute(jobs: Sequence[Job]) -> list[Records | Exception]:
        with metrics.measure_batch(name, sum(len(job.rows) for job in jobs)):
            return compute_jobs(predictor, jobs)

    info = describe_model(Path(run), name, predictor, decoder)
    token_limit = TokenLimit(predictor, settings.max_tokens)
    batcher = Batcher(compute, settings.max_rows, settings.max_delay, MAX_WAITING_ROWS, settings.max_tokens)
    return ServedModel(name, info, decoder, token_limit, batcher)


# ---- batches


class StoppingReporter(Reporter):
    """A reporter that stops the computation between two forward passes, once all its jobs are cancelled.

    Args:
        jobs: The jobs that are computed.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs

    def track(
        self, batches: Iterable[T], total: int, description: str, get_size: Callable[[T], int] = lambda _: 1
    ) -> Iterator[T]:
        """Yield batches until all jobs are cancelled.

        Raises:
            ComputationStoppedError: All jobs are cancelled.
        """
        for batch in batches:
            if all(job.is_cancelled for job in self.jobs):
                raise ComputationStoppedError
            yield batch


def predict_rows(
    predictor: Predictor, rows: Records, scores: Any, reporter: Reporter | None = None
) -> Records:
    """Return the records of rows, as `bertkit predict` does."""
    table = Rows.from_dicts(rows, REQUEST)
    predictor.map_columns(table)
    return list(predictor.iter_records(table, predictor.evaluate_without_labels(table, reporter), scores))


def compute_jobs(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | Exception]:
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
    results: list[Records | Exception] = [[] for _ in jobs]
    for indices in indices_by_columns.values():
        for index, result in zip(indices, _compute_group(predictor, [jobs[i] for i in indices]), strict=True):
            results[index] = result
    return results


def _compute_group(predictor: Predictor, jobs: Sequence[Job]) -> list[Records | Exception]:
    """Compute requests together; if that fails, compute each one separately, to find the wrong ones."""
    rows, scores = [row for job in jobs for row in job.rows], "all" if jobs[0].all_scores else "compact"
    try:
        records = predict_rows(predictor, rows, scores, StoppingReporter(jobs))
    except Exception as error:  # noqa: BLE001 - even a bug must not fail the other requests
        if len(jobs) == 1 or isinstance(error, ComputationStoppedError):
            return [error] * len(jobs)
        return [_compute_group(predictor, [job])[0] for job in jobs]
    results: list[Records | Exception] = []
    position = 0
    for job in jobs:
        results.append(_number_records(records[position : position + len(job.rows)]))
        position += len(job.rows)
    return results


def _number_records(records: Records) -> Records:
    """Return the records of one request, numbered from 0. The id of `qa` is a text."""
    return [record | {"id": type(record["id"])(index)} for index, record in enumerate(records)]


# ---- description


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
