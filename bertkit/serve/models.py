"""The served models: how they are loaded, described, measured and reloaded."""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError, format_list, suggest_similar
from bertkit.models.load_check import depends_on_padding
from bertkit.run.predictor import Predictor, load_predictor
from bertkit.run.verification import verify_outputs
from bertkit.run_directory import RunDir
from bertkit.serve.batcher import Batcher, Job, Records, TokenLimit, compute_jobs, predict_rows
from bertkit.serve.requests import RowDecoder
from bertkit.utils.files import expand_home

logger = logging.getLogger(__name__)


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """Counters, gauges and histograms in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "bertkit_requests", "Requests by path and status.", ["path", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "bertkit_request_seconds", "Time from the head of a request to the end of its response.",
            ["path"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.rows = Counter("bertkit_rows", "Predicted rows.", ["model"], registry=registry)
        self.batch_rows = Histogram(
            "bertkit_batch_rows", "Rows of a batch.", ["model"], buckets=ROWS, registry=registry
        )
        self.compute_seconds = Histogram(
            "bertkit_compute_seconds", "Time to compute a batch.", ["model"], buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.queue_rows = Gauge("bertkit_queue_rows", "Rows in the queue.", ["model"], registry=registry)
        self.reloads = Counter("bertkit_reloads", "Reloads by result.", ["result"], registry=registry)


MAX_WAITING_ROWS = 1024  # rows in the queue of a model, and rows of a request
# On a CPU, a batch is computed in parts of rows with similar lengths: less padding makes this faster than one
# large forward pass.
CPU_FORWARD_ROWS = 8


@dataclass(eq=False)
class ServedModel:
    """A run that is loaded and has predicted once."""

    name: str
    info: dict[str, Any]  # the description in `/info`
    decoder: RowDecoder
    token_limit: TokenLimit
    batcher: Batcher
    num_open_requests: int = 0
    request_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count a request during the block, so that it does not lose its model in a reload."""
        self.num_open_requests += 1
        try:
            yield
        finally:
            self.num_open_requests -= 1
            self.request_ended.set()

    async def close(self) -> None:
        """Wait for the end of all requests, and end the threads."""
        while self.num_open_requests:
            self.request_ended.clear()
            await self.request_ended.wait()
        await self.batcher.close()
        self.token_limit.close()


def load_served_model(run: str, name: str, config: ServeConfig, metrics: Metrics) -> ServedModel:
    """Load a run, an exported model or an ensemble; predict example rows, so that no request is slower."""
    predictor = load_predictor(run)
    if config.verify:
        num_rows = verify_outputs(expand_home(run), predictor)
        logger.info("verified %s: %d outputs are those of the export", name, num_rows)
    tokenizer, max_length = predictor.tokenizer, predictor.task.config.max_length
    if any(depends_on_padding(model, tokenizer, max_length) for model in predictor.loaded_models):
        predictor.use_batch_size(1)  # a response must not depend on other requests
    else:
        predictor.use_batch_size(config.max_batch_size if predictor.is_on_gpu else CPU_FORWARD_ROWS)
    decoder = RowDecoder(predictor.task.input_schema, MAX_WAITING_ROWS)
    for count in {1, config.max_batch_size}:
        predict_rows(predictor, [decoder.example] * count, "compact")

    def compute(jobs: Sequence[Job]) -> list[Records | Exception]:
        start, num_rows = time.perf_counter(), sum(len(job.rows) for job in jobs)
        results = compute_jobs(predictor, jobs)
        metrics.compute_seconds.labels(name).observe(time.perf_counter() - start)
        metrics.batch_rows.labels(name).observe(num_rows)
        metrics.rows.labels(name).inc(num_rows)
        return results

    info = describe_model(expand_home(run), name, predictor, decoder)
    max_delay, max_tokens = config.max_delay_ms / 1000, config.max_request_tokens
    batcher = Batcher(compute, config.max_batch_size, max_delay, MAX_WAITING_ROWS, max_tokens)
    return ServedModel(name, info, decoder, TokenLimit(predictor, max_tokens), batcher)


def describe_model(run: Path, name: str, predictor: Predictor, decoder: RowDecoder) -> dict[str, Any]:
    """Return the description of a run in `/info`, without paths of this machine."""
    task, members = predictor.task, RunDir(run).find_members()
    metrics = RunDir(members[0] if members else run).require_metrics()
    info: dict[str, Any] = {
        "name": name,
        "task": task.definition.name,
        "columns": decoder.kinds,
        "labels": task.state.labels,
        "max_length": task.config.max_length,
        "backend": predictor.backend,
        "members": len(members) or 1,
        "model": metrics["model"],
        "data": metrics["data"]["name"],
    }
    if not members:
        info |= {key: metrics[key] for key in ("validation", "intervals") if metrics.get(key)}
    return info


class ModelRegistry:
    """The served models by name; `load` loads those of `runs`, which are directories by name."""

    def __init__(self, runs: Mapping[str, str], config: ServeConfig, metrics: Metrics) -> None:
        self.runs, self.config, self.metrics = runs, config, metrics
        self.models: dict[str, ServedModel] = {}
        self.is_draining = False  # whether the server is shutting down
        self._reload_lock = asyncio.Lock()

    def find(self, name: str | None) -> ServedModel:
        """Return the model with this name; a server of one model needs no name."""
        names = format_list(self.models)
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None:
            raise UserError(f"model: is missing, and there are several models; add ?model=NAME ({names})")
        if name not in self.models:
            hint = suggest_similar(name, self.models)
            raise UserError(f"model: is not served{hint or ';'} the models are {names}")
        return self.models[name]

    def load(self) -> None:
        """Load all models. If a run cannot be loaded, the models are not changed."""
        loaded = [load_served_model(run, name, self.config, self.metrics) for name, run in self.runs.items()]
        self.models = {model.name: model for model in loaded}
        for model in loaded:
            # The rows in the queue are counted at each query of the metrics.
            self.metrics.queue_rows.labels(model.name).set_function(model.batcher.count_waiting_rows)

    async def reload(self) -> None:
        """Load all models again, and replace the old models once the new ones have predicted example rows.

        Requests in the queue of an old model are computed by the old model. If a run cannot be loaded, for
        example because the memory does not suffice for the old and the new models, the old models stay.
        """
        async with self._reload_lock:
            old_models = list(self.models.values())
            try:
                await asyncio.to_thread(self.load)
            except Exception as error:
                self.metrics.reloads.labels("failed").inc()
                is_bug = not isinstance(error, UserError)
                logger.warning("not reloaded, the old models stay: %s", error, exc_info=is_bug)
                return
            self.metrics.reloads.labels("done").inc()
            logger.info("reloaded %s", format_list(self.models))
            await asyncio.gather(*(model.close() for model in old_models))

    async def close(self) -> None:
        """End the threads. Requests that are still in the queue have no client, so they are cancelled."""
        for model in self.models.values():
            model.batcher.cancel_requests()
        async with self._reload_lock:
            await asyncio.gather(*(model.close() for model in self.models.values()))
