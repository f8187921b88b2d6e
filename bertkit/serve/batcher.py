"""Combine the rows of concurrent requests into batches, which one thread computes in turn."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bertkit.errors import UserError

Records = list[dict[str, Any]]
# Steps of the event loop between a result and the end of its response.
RESPONSE_STEPS = 5


class QueueFullError(Exception):
    """Error for a request whose rows do not fit into the queue."""


@dataclass(frozen=True, eq=False)
class Job:
    """The rows of one request.

    Attributes:
        rows: The rows.
        all_scores: Whether the records have the scores of alternatives.
        arrival: Time of the request, in seconds of the event loop.
        result: The records of the rows.
    """

    rows: list[dict[str, Any]]
    all_scores: bool
    arrival: float
    result: "asyncio.Future[Records]"


# Returns the records of each job, or the error of the job.
ComputeFunction = Callable[[Sequence[Job]], Sequence[Records | UserError]]


class Batcher:
    """A queue of requests and a thread that computes them in batches, in the order of their arrival.

    A batch ends at `max_rows` rows, or when there are as many requests as after the previous batch, that is,
    in it and in the queue. It ends at the latest `max_delay` seconds after its first request could have been
    computed. So clients that have just received their response can join the next batch; otherwise, half of
    the clients would always wait for the other half. A single client never waits. A request is never divided.

    Args:
        compute: Computes a batch.
        max_rows: Maximum number of rows of a batch; a request with more rows is a batch of its own.
        max_delay: Maximum time in seconds that a request waits for others while the thread is idle.
        max_waiting_rows: Maximum number of rows in the queue.
    """

    def __init__(
        self, compute: ComputeFunction, max_rows: int, max_delay: float, max_waiting_rows: int
    ) -> None:
        self._compute, self._max_rows, self._max_delay = compute, max_rows, max_delay
        self._max_waiting_rows = max_waiting_rows
        self._queue: deque[Job] = deque()
        self._has_changed = asyncio.Event()
        self._expected_requests = 1
        self._idle_since = 0.0
        self._is_closing = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="bertkit-serve")
        self._task: asyncio.Task[None] | None = None

    def count_waiting_rows(self) -> int:
        """Return the number of rows in the queue."""
        return sum(len(job.rows) for job in self._queue)

    async def predict(self, rows: list[dict[str, Any]], all_scores: bool = False) -> Records:
        """Return the records of rows. If the caller is cancelled, the rows leave the queue.

        Raises:
            QueueFullError: The queue has no room for the rows.
            UserError: A row cannot be predicted.
        """
        if self.count_waiting_rows() + len(rows) > self._max_waiting_rows:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._run())
        job = Job(rows, all_scores, loop.time(), loop.create_future())
        self._queue.append(job)
        self._has_changed.set()
        try:
            return await job.result
        finally:
            with suppress(ValueError):  # usually, the job is no longer in the queue
                self._queue.remove(job)

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
        with suppress(TimeoutError):
            async with asyncio.timeout_at(start + self._max_delay):
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
        size = 0
        while self._queue and (not jobs or size + len(self._queue[0].rows) <= self._max_rows):
            job = self._queue.popleft()
            if not job.result.cancelled():
                jobs.append(job)
                size += len(job.rows)
        return jobs

    async def _compute_batch(self, jobs: list[Job]) -> None:
        loop = asyncio.get_running_loop()
        computation = loop.run_in_executor(self._executor, self._compute, jobs)
        await asyncio.wait([computation])  # raises no error of the computation
        error = computation.exception()
        results = [error] * len(jobs) if error else computation.result()
        for job, result in zip(jobs, results, strict=True):
            if job.result.done():  # cancelled, because the client has disconnected
                continue
            if isinstance(result, BaseException):
                job.result.set_exception(result)
            else:
                job.result.set_result(result)
