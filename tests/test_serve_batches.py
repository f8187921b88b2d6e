"""The queue of `bertkit serve` combines concurrent requests into batches."""

import asyncio
import threading
import time

import pytest

from bertkit.serve.batcher import Batcher, ComputationStoppedError
from bertkit.serve.requests import RequestError


def run_batcher(use, compute=lambda jobs: [job.rows for job in jobs], **options):
    """Return the result of `use(batcher)`, and the number of requests of each batch."""
    sizes = []

    def compute_and_count(jobs):
        sizes.append(len(jobs))
        return compute(jobs)

    async def run():
        arguments = {"max_rows": 4, "max_delay": 0.05, "max_waiting_rows": 100, "max_waiting_tokens": 100}
        arguments |= options
        batcher = Batcher(compute_and_count, **arguments)
        result = await use(batcher)
        await batcher.close()
        return result

    return asyncio.run(run()), sizes


def test_batches_have_at_most_the_given_number_of_rows():
    async def use(batcher):
        return await asyncio.gather(*(batcher.predict([{"n": n}]) for n in range(10)))

    records, sizes = run_batcher(use)
    assert records == [[{"n": n}] for n in range(10)]
    assert sizes == [4, 4, 2]


def test_clients_that_wait_for_responses_share_their_batches():
    async def use(batcher):
        async def send(n):
            for _ in range(5):
                await batcher.predict([{"n": n}])
                await asyncio.sleep(n / 200)

        await asyncio.gather(*(send(n) for n in range(4)))

    _, sizes = run_batcher(use, max_delay=5.0)
    assert sizes == [4] * 5


def test_a_single_client_does_not_wait():
    async def use(batcher):
        for _ in range(3):
            await batcher.predict([{}])

    assert run_batcher(use, max_delay=1000.0)[1] == [1, 1, 1]


def test_a_full_queue_refuses_rows():
    release = threading.Event()

    async def use(batcher):
        first = asyncio.create_task(batcher.predict([{}]))
        await asyncio.sleep(0.05)  # the thread computes it
        second = asyncio.create_task(batcher.predict([{}, {}]))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="queue: is full"):
            await batcher.predict([{}])
        release.set()
        return await first, await second

    def compute(jobs):
        release.wait(30)
        return [job.rows for job in jobs]

    records, _ = run_batcher(use, compute, max_waiting_rows=2)
    assert records == ([{}], [{}, {}])


def test_requests_of_disconnected_clients_are_dropped():
    async def use(batcher):
        tasks = [asyncio.create_task(batcher.predict([{}])) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results, sizes = run_batcher(use)
    assert isinstance(results[1], asyncio.CancelledError)
    assert sum(sizes) == 2


def test_a_bug_fails_its_batch_and_nothing_else():
    async def use(batcher):
        broken = await asyncio.gather(batcher.predict([{"broken": True}]), return_exceptions=True)
        return broken, await batcher.predict([{}])

    def compute(jobs):
        if "broken" in jobs[0].rows[0]:
            raise ZeroDivisionError
        return [job.rows for job in jobs]

    (broken, works), _ = run_batcher(use, compute)
    assert isinstance(broken[0], ZeroDivisionError)
    assert works == [{}]


def test_closing_computes_waiting_requests():
    async def use(batcher):
        tasks = [asyncio.create_task(batcher.predict([{"n": n}])) for n in range(9)]
        await asyncio.sleep(0)
        await batcher.close()
        return [task.result() for task in tasks]

    assert run_batcher(use)[0] == [[{"n": n}] for n in range(9)]


def test_large_requests_have_a_limit_of_their_own_in_the_queue():
    release = threading.Event()

    async def use(batcher):
        first = asyncio.create_task(batcher.predict([{}]))
        await asyncio.sleep(0.05)  # the thread computes it
        large = asyncio.create_task(batcher.predict([{}], num_tokens=6))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="queue: is full"):
            await batcher.predict([{}], num_tokens=5)
        small = asyncio.create_task(batcher.predict([{}]))
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(first, large, small)

    def compute(jobs):
        release.wait(30)
        return [job.rows for job in jobs]

    assert len(run_batcher(use, compute, max_waiting_tokens=10)[0]) == 3


def test_a_computation_can_stop_once_all_its_clients_have_disconnected():
    started, stopped = threading.Event(), threading.Event()

    async def use(batcher):
        tasks = [asyncio.create_task(batcher.predict([{"slow": True}])) for _ in range(2)]
        await asyncio.to_thread(started.wait, 30)
        tasks[0].cancel()
        await asyncio.sleep(0.05)
        assert not stopped.is_set()  # one client still waits
        tasks[1].cancel()
        return await batcher.predict([{}])

    def compute(jobs):
        started.set()
        for _ in range(3000 if "slow" in jobs[0].rows[0] else 0):
            if all(job.result.cancelled() for job in jobs):
                stopped.set()
                raise ComputationStoppedError
            time.sleep(0.01)
        return [job.rows for job in jobs]

    assert run_batcher(use, compute, max_rows=2)[0] == [{}]
    assert stopped.is_set()


def test_cancelling_all_requests_empties_the_queue_and_stops_the_batch():
    started = threading.Event()

    async def use(batcher):
        tasks = [asyncio.create_task(batcher.predict([{}] * 4)) for _ in range(2)]
        await asyncio.to_thread(started.wait, 30)
        batcher.cancel_requests()
        return await asyncio.gather(*tasks, return_exceptions=True)

    def compute(jobs):
        started.set()
        while not jobs[0].result.cancelled():
            time.sleep(0.01)
        raise ComputationStoppedError

    results, sizes = run_batcher(use, compute)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    assert sizes == [1]
