"""Combine the rows of concurrent requests into batches, which one thread computes in turn."""

import asyncio
import copy
import dataclasses
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from bertkit.data.table import Rows
from bertkit.run.predictor import Predictor
from bertkit.serve.requests import RequestError
from bertkit.utils.reporting import Reporter, use_reporter

Records = list[dict[str, Any]]
# Steps of the event loop between a result and the end of its response.
RESPONSE_STEPS = 5


class ComputationStoppedError(Exception):
    """Error that ends the computation of a batch whose clients have all disconnected or got an error."""


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request."""

    rows: Records
    all_scores: bool
    arrival: float  # in seconds of the event loop
    result: "asyncio.Future[Records]"  # cancelled if no client waits for it any more
    num_tokens: int = 0  # 0 if they were not counted


# Returns the records of each job, or the error of the job.
ComputeFunction = Callable[[Sequence[Job]], Sequence[Records | Exception]]


class Batcher:
    """A queue of requests and a thread that computes them in batches, in the order of their arrival.

    The batcher expects as many requests as were in the previous batch and in the queue at its end. A batch
    starts once they have arrived, or once it has `max_rows` rows. It starts at the latest `max_delay` seconds
    after its first request arrived, or after the previous batch ended. So clients that have just received
    their response can join the next batch; otherwise, half of the clients would always wait for the other
    half. A single client never waits. A request is never divided.

    Args:
        compute: Computes a batch. It should raise `ComputationStoppedError` once all jobs are cancelled.
        max_rows: Maximum number of rows of a batch; a request with more rows is a batch of its own.
        max_delay: Maximum time in seconds that a request waits for others while the thread is idle.
        max_waiting_rows: Maximum number of rows in the queue.
        max_waiting_tokens: Maximum number of counted tokens in the queue.
    """

    def __init__(
        self,
        compute: ComputeFunction,
        max_rows: int,
        max_delay: float,
        max_waiting_rows: int,
        max_waiting_tokens: int,
    ) -> None:
        self._compute, self._max_rows, self._max_delay = compute, max_rows, max_delay
        self._max_waiting_rows, self._max_waiting_tokens = max_waiting_rows, max_waiting_tokens
        self._queue: deque[Job] = deque()
        self._batch: list[Job] = []
        self._has_changed = asyncio.Event()
        self._expected_requests = 1
        self._idle_since = 0.0
        self._is_closing = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bertkit-serve")
        self._task: asyncio.Task[None] | None = None

    def count_waiting_rows(self) -> int:
        """Return the number of rows in the queue."""
        return sum(len(job.rows) for job in self._queue)

    async def predict(self, rows: Records, all_scores: bool = False, num_tokens: int = 0) -> Records:
        """Return the records of rows. If the caller is cancelled, the rows leave the queue."""
        waiting_rows, waiting_tokens = self.count_waiting_rows(), sum(job.num_tokens for job in self._queue)
        has_room_for_tokens = not num_tokens or waiting_tokens + num_tokens <= self._max_waiting_tokens
        if waiting_rows + len(rows) > self._max_waiting_rows or not has_room_for_tokens:
            raise RequestError(429, "queue: is full; send the request again later", {"retry-after": "1"})
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._run())
        job = Job(rows, all_scores, loop.time(), loop.create_future(), num_tokens)
        self._queue.append(job)
        self._has_changed.set()
        try:
            return await job.result
        finally:
            with suppress(ValueError):  # usually, the job is no longer in the queue
                self._queue.remove(job)

    def cancel_requests(self) -> None:
        """Cancel all requests, which also stops the computation of the current batch."""
        for job in (*self._queue, *self._batch):
            job.result.cancel()

    async def close(self) -> None:
        """Compute all waiting requests, and end the thread."""
        self._is_closing = True
        self._has_changed.set()
        if self._task is not None:
            await self._task
        self._executor.shutdown(wait=False)

    async def _run(self) -> None:
        while self._queue or not self._is_closing:
            if not self._queue:
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            await self._wait_for_rows()
            if jobs := self._take_batch():
                await self._compute_batch(jobs)
                self._expected_requests = len(jobs) + len(self._queue)
                for _ in range(RESPONSE_STEPS):
                    await asyncio.sleep(0)
                self._idle_since = asyncio.get_running_loop().time()

    async def _wait_for_rows(self) -> None:
        """Wait until the batch ends."""
        start = max(self._queue[0].arrival, self._idle_since)
        with anyio.CancelScope(deadline=start + self._max_delay):
            while not (
                self._is_closing
                or len(self._queue) >= self._expected_requests
                or self.count_waiting_rows() >= self._max_rows
            ):
                self._has_changed.clear()
                await self._has_changed.wait()

    def _take_batch(self) -> list[Job]:
        """Remove the first requests from the queue: as many as fit into a batch, and at least one.

        Requests of disconnected clients are dropped.
        """
        jobs: list[Job] = []
        num_rows = num_tokens = 0
        while self._queue:
            num_rows += len(self._queue[0].rows)
            num_tokens += self._queue[0].num_tokens
            if jobs and (num_rows > self._max_rows or num_tokens > self._max_waiting_tokens):
                break
            job = self._queue.popleft()
            if not job.result.cancelled():
                jobs.append(job)
        return jobs

    async def _compute_batch(self, jobs: list[Job]) -> None:
        self._batch = jobs
        loop = asyncio.get_running_loop()
        computation = loop.run_in_executor(self._executor, self._compute, jobs)
        await asyncio.wait([computation])  # raises no error of the computation
        self._batch = []
        error = computation.exception()
        results = [error] * len(jobs) if error else computation.result()
        for job, result in zip(jobs, results, strict=True):
            if job.result.done():  # cancelled, because the client has disconnected
                continue
            if isinstance(result, BaseException):
                job.result.set_exception(result)
            else:
                job.result.set_result(result)


T = TypeVar("T")
REQUEST = "request"  # the file of the rows in error messages


class StoppingReporter(Reporter):
    """A reporter that stops the computation between two forward passes, once all its jobs are cancelled."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs

    def track(
        self,
        batches: Iterable[T],
        total: int | None,
        description: str,
        get_size: Callable[[T], int] = lambda _: 1,
    ) -> Iterator[T]:
        for batch in batches:
            if all(job.result.cancelled() for job in self.jobs):
                raise ComputationStoppedError
            yield batch


def predict_rows(predictor: Predictor, rows: Records, scores: Any) -> Records:
    """Return the records of rows, as `bertkit predict` does."""
    table = Rows.from_dicts(rows, REQUEST)
    predictor.map_columns(table)
    return list(predictor.iter_records(table, predictor.evaluate_without_labels(table), scores))


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
        with use_reporter(StoppingReporter(jobs)):
            records = predict_rows(predictor, rows, scores)
    except Exception as error:  # noqa: BLE001 - even a bug must not fail the other requests
        if len(jobs) == 1 or isinstance(error, ComputationStoppedError):
            return [error] * len(jobs)
        return [_compute_group(predictor, [job])[0] for job in jobs]
    results: list[Records | Exception] = []
    position = 0
    for job in jobs:
        own_records = records[position : position + len(job.rows)]
        # Each request is numbered from 0. The id of `qa` is a text.
        results.append([record | {"id": type(record["id"])(i)} for i, record in enumerate(own_records)])
        position += len(job.rows)
    return results


# A body of fewer bytes than this fraction of the limit cannot reach it with common tokenizers and windows.
UNCOUNTED_FRACTION = 1 / 8


class TokenLimit:
    """Counts the tokens of large requests in all rows and windows, and refuses requests with too many.

    The thread of the model cannot stop while it tokenizes a text. So tokens are counted in another thread,
    before the request joins the queue of the model.
    """

    def __init__(self, predictor: Predictor, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        # Each thread needs a task of its own, because a task stores the columns of the rows.
        self._predictor = dataclasses.replace(predictor, task=copy.copy(predictor.task))
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bertkit-tokens")

    async def count_tokens(self, rows: Records, body_bytes: int) -> int:
        """Return the number of tokens of a request; 0 if its body is small, so that they are not counted."""
        if body_bytes <= self.max_tokens * UNCOUNTED_FRACTION:
            return 0
        loop = asyncio.get_running_loop()
        num_tokens = await loop.run_in_executor(self._executor, self._count, rows)
        if num_tokens > self.max_tokens:
            raise RequestError(
                413,
                f"request: has {num_tokens:,} tokens; send at most {self.max_tokens:,} at a time, in fewer "
                "or shorter rows",
            )
        return num_tokens

    def close(self) -> None:
        """End the thread after its current request."""
        self._executor.shutdown(wait=False)

    def _count(self, rows: Records) -> int:
        """Return the tokens of all sequences, or the tokens of the longest text if those are more."""
        table = Rows.from_dicts(rows, REQUEST)
        self._predictor.map_columns(table)
        parsed, _ = self._predictor.task.parse_rows(table)
        return self._predictor.count_tokens(parsed)
