"""A finished run in the server: its predictor, its queue of requests, and what `/info` shows of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.infer.onnx_runtime import find_onnx_model
from bertkit.infer.predictor import Predictor, load_predictor
from bertkit.pipeline.ensemble import find_ensemble, read_members
from bertkit.pipeline.load_check import depends_on_padding
from bertkit.serve.batcher import Batcher, Job, Records
from bertkit.serve.job_computation import compute_jobs, predict_rows
from bertkit.serve.metrics import Metrics
from bertkit.serve.open_requests import OpenRequests
from bertkit.serve.row_decoder import RowDecoder
from bertkit.serve.token_limit import TokenLimit
from bertkit.utils.paths import expand_home

MAX_WAITING_ROWS = 1024  # rows in the queue of a model, and rows of a request
# On a CPU, a batch is computed in parts of rows with similar lengths: less padding makes this faster than one
# large forward pass.
CPU_FORWARD_ROWS = 8


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
    tokenizer, max_length = predictor.tokenizer, predictor.task.config.max_length
    if any(depends_on_padding(model, tokenizer, max_length) for model in predictor.loaded_models):
        predictor.use_batch_size(1)  # a response must not depend on other requests
    else:
        predictor.use_batch_size(CPU_FORWARD_ROWS if is_on_cpu else settings.max_rows)
    decoder = RowDecoder(predictor.task.input_schema, MAX_WAITING_ROWS)
    for count in {1, settings.max_rows}:
        predict_rows(predictor, [decoder.example] * count, "compact")

    def compute(jobs: Sequence[Job]) -> list[Records | Exception]:
        with metrics.measure_batch(name, sum(len(job.rows) for job in jobs)):
            return compute_jobs(predictor, jobs)

    info = describe_model(expand_home(run), name, predictor, decoder)
    token_limit = TokenLimit(predictor, settings.max_tokens)
    batcher = Batcher(compute, settings.max_rows, settings.max_delay, MAX_WAITING_ROWS, settings.max_tokens)
    return ServedModel(name, info, decoder, token_limit, batcher)


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
