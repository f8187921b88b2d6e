"""The measurements at `/metrics`, in the text format of Prometheus."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

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

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request and its duration."""
        self.requests.labels(path, status).inc()
        self.request_seconds.labels(path).observe(seconds)

    @contextmanager
    def measure_batch(self, model: str, rows: int) -> Iterator[None]:
        """Measure the computation of a batch in the block."""
        start = time.perf_counter()
        yield
        self.compute_seconds.labels(model).observe(time.perf_counter() - start)
        self.batch_rows.labels(model).observe(rows)
        self.rows.labels(model).inc(rows)

    def watch_queue(self, model: str, count_rows: Callable[[], float]) -> None:
        """Report the rows in the queue of a model, which are counted at each query of the metrics."""
        self.queue_rows.labels(model).set_function(count_rows)

    def format(self) -> bytes:
        """Return all measurements as text."""
        return generate_latest(self.registry)
