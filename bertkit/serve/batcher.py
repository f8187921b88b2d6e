"""Combine the rows of concurrent requests into batches, which one thread computes in turn."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

Records = list[dict[str, Any]]
# Steps of the event loop between a result and the end of its response.
RESPONSE_STEPS = 5


class QueueFullError(Exception):
    """Error for a request whose rows do not fit into the queue."""


class ComputationStoppedError(Exception):
    """Error that ends the computation of a batch whose clients have all disconnected or got an error."""


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request.

    Attributes:
        rows: The rows.
        all_scores: Whether the records have the scores of alternatives.
        arrival: Time of the request, in seconds of the event loop.
        result: The records of the rows.
        num_tokens: Number of tokens if they were counted, else 0.
    """

    rows: list[dict[str, Any]]
    all_scores: bool
    arrival: float
    result: "asyncio.Future[Records]"
    num_tokens: int = 0

    @property
    def is_cancelled(self) -> bool:
        """Whether no client waits for the result."""
        return self.result.cancelled()


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

    async def predict(
        self, rows: list[dict[str, Any]], all_scores: bool = False, num_tokens: int = 0
    ) -> Records:
        """Return the records of rows. If the caller is cancelled, the rows leave the queue.

        Raises:
            QueueFullError: The queue has no room for the rows.
            UserError: A row cannot be predicted.
        """
        if not self._has_room(len(rows), num_tokens):
            raise QueueFullError
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

    def _has_room(self, num_rows: int, num_tokens: int) -> bool:
        waiting_tokens = sum(job.num_tokens for job in self._queue)
        return self.count_waiting_rows() + num_rows <= self._max_waiting_rows and (
            not num_tokens or waiting_tokens + num_tokens <= self._max_waiting_tokens
        )

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
            while not self._is_complete():
                self._has_changed.clear()
                await self._has_changed.wait()

    def _is_complete(self) -> bool:
        return (
            self._is_closing
            or len(self._queue) >= self._expected_requests
            or self.count_waiting_rows() >= self._max_rows
        )

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
            if not job.is_cancelled:
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
