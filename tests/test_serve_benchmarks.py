"""The benchmarks of `bertkit serve` measure a small server, and their reports are correct."""

import asyncio
import json
import random
from collections import Counter

import pytest
from new_process import NewProcess

import serve_malformed
import serve_speed
from server_process import BERTKIT, start_server

pytestmark = pytest.mark.slow


def make_load(count, seconds, compute=None):
    return serve_speed.Load([seconds] * count, Counter({200: count}), 2.0, 0.5, compute)


def test_the_report_compares_speeds_and_latencies():
    rounds = {serve_speed.SERVE: [make_load(100, 0.06, 0.05)], serve_speed.APP: [make_load(20, 0.3)]}
    table = serve_speed.format_results([62.5], rounds)
    assert table[2] == "| bertkit predict | 62 | 1.00 | - | - | - | - | - |"
    assert table[3] == "| bertkit serve | 50 | 0.80 | 60 | 60 | 60 | 0 | 5.00 |"
    assert table[4] == "| FastAPI and pipeline | 10 | 0.16 | 300 | 300 | 300 | 0 | 25.00 |"
    assert "a batch takes 50 ms on average. p95 is 1.00 times" in table[-1]


@pytest.mark.parametrize("kind", serve_malformed.MAKERS)
def test_requests_depend_only_on_the_seed(kind):
    make = serve_malformed.MAKERS[kind]
    first, second = ([make({"text": "a"}, rng) for _ in range(30)] for rng in map(random.Random, (3, 3)))
    assert first == second
    assert len(set(first)) > 5


def test_a_server_is_measured(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", NewProcess)
    with start_server((*BERTKIT, str(runs / "classify")), tmp_path / "log") as server:
        bodies = asyncio.run(serve_speed.build_bodies(server.url, ["a film"]))
        load = asyncio.run(serve_speed.run_clients(server.url, bodies, clients=3, seconds=0.5))
        port, row = int(server.url.rpartition(":")[2]), serve_malformed.read_row(server.url)
        broken, valid = b"{", json.dumps(row).encode()
        statuses = [
            asyncio.run(serve_malformed.send(port, serve_malformed.format_request(body)))
            for body in (broken, valid)
        ]
        assert server.read_memory_mb() > 1
        assert asyncio.run(serve_speed.read_compute(server.url))[1] > 0
    assert bodies == [b'{"text": "a film"}']
    assert load.statuses == {200: len(load.seconds)}
    assert len(load.seconds) >= 3
    assert statuses == ["400", "200"]
