"""Send malformed requests to `bertkit serve`, and report the statuses and the memory of the server.

    python benchmarks/serve_malformed.py RUN --requests 10000

RUN is any finished run. A quarter of the requests each is mutated JSON, an invalid encoding or media type, a
wrong or large size, and bytes that are not HTTP. Slow clients wait meanwhile. The requests depend only on
`--seed`. The report goes to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs_page import format_table
from harness import OUT_HELP, format_report, publish
from server_process import BERTKIT, Server, start_server

CLIENTS = 128  # many wait for the time limit of an incomplete request
SLOW_CLIENTS = 32
SECONDS = 40.0  # time after which a response is missing
CLOSED = "closed without response"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a finished run")
    parser.add_argument("--requests", type=int, default=10_000, help="number of requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    return parser.parse_args(argv)


# ---- requests


def format_request(body: bytes, headers: Mapping[str, str] | None = None, target: str = "/predict") -> bytes:
    """Return a request whose connection ends after the response."""
    fields = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    } | dict(headers or {})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a few bytes deleted, replaced or repeated."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        position = rng.randrange(len(data) + 1)
        choice = rng.randrange(3)
        if choice == 0:
            del data[position : position + rng.randint(1, 8)]
        elif choice == 1:
            data[position:position] = rng.randbytes(rng.randint(1, 4))
        else:
            data[position:position] = data[: rng.randint(0, 40)]
    return bytes(data)


def make_value(rng: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    leaves: list[Any] = [None, True, -1, 1e308, "", "a", "\ud800", "\x00", "x" * 5000, 10**400]
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(leaves)
    if rng.random() < 0.5:
        return [make_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {rng.choice("abcd"): make_value(rng, depth + 1) for _ in range(rng.randint(0, 4))}


def make_json(row: dict[str, Any], rng: random.Random) -> bytes:
    """Return a request whose body is almost the JSON of a row."""
    body = json.dumps(row).encode()
    kind = rng.randrange(5)
    if kind == 0:
        return format_request(mutate_bytes(body, rng))
    if kind == 1:
        return format_request(json.dumps(make_value(rng)).encode())
    if kind == 2:
        return format_request(json.dumps(row | {rng.choice(list(row)): make_value(rng)}).encode())
    if kind == 3:
        return format_request(b"[" * rng.randint(1, 50_000) + body)
    return format_request(
        body, target=f"/predict?{rng.choice(['model=%00', 'all_scores=2', 'x=1', '%', '='])}"
    )


def make_encoding(row: dict[str, Any], rng: random.Random) -> bytes:
    """Return a request with an invalid encoding, media type or compression."""
    text = json.dumps(row, ensure_ascii=False)
    encoding = rng.choice(["utf-16", "utf-32", "utf-8-sig", "cp1252"])
    headers = rng.choice([
        {}, {"content-type": "text/plain"}, {"content-encoding": "gzip"}, {"content-type": "a" * 4000},
        {"content-type": f"application/json; charset={encoding}"}, {"content-type": ""},
    ])  # fmt: skip
    return format_request(mutate_bytes((text + "é").encode(encoding, "replace"), rng), headers)


def make_size(row: dict[str, Any], rng: random.Random) -> bytes:
    """Return a request with a wrong or large size."""
    body = json.dumps(row).encode()
    kind = rng.randrange(20)
    if kind == 0:
        return format_request(b'"' + b"a" * 3_000_000 + b'"')
    if kind == 1:
        return format_request(json.dumps([row] * 2000).encode())
    if kind < 8:
        length = rng.choice(["-1", "1e3", "0x10", "99999999999999999999", "", "5, 6", str(len(body) // 2)])
        return format_request(body, {"content-length": length})
    if kind < 14:
        chunk = rng.choice(
            [b"zz\r\nab\r\n0\r\n\r\n", b"5\r\nab\r\n0\r\n\r\n", b"-1\r\n\r\n", b"ffffffffffff\r\n"]
        )
        head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        return head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunk
    return format_request(body, {f"x-{n}": "a" * 200 for n in range(rng.randint(50, 300))})


def make_garbage(row: dict[str, Any], rng: random.Random) -> bytes:
    """Return bytes that are not a valid HTTP request."""
    request = format_request(json.dumps(row).encode())
    head = request.partition(b"\r\n\r\n")[0]
    return rng.choice([
        rng.randbytes(rng.randint(1, 300)), mutate_bytes(head, rng) + b"\r\n\r\n", b"\x16\x03\x01\x02\x00",
        b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n", b"BREW /predict HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\r\n" * 50,
    ])  # fmt: skip


MAKERS: dict[str, Callable[[dict[str, Any], random.Random], bytes]] = {
    "mutated JSON": make_json,
    "encodings and media types": make_encoding,
    "sizes": make_size,
    "not HTTP": make_garbage,
}


# ---- clients


async def send(port: int, request: bytes) -> str:
    """Return the status of the response, as text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await read_status(reader)
    except ConnectionError:
        return CLOSED
    finally:
        writer.close()


async def send_slowly(port: int, requests: int) -> Counter[str]:
    """Send requests whose head or body arrives byte by byte, and return the statuses."""
    statuses: Counter[str] = Counter()
    for number in range(requests):
        head, _, body = format_request(b'{"text": "slow"}' * 100).partition(b"\r\n\r\n")
        fast, slow = (b"", head) if number % 2 else (head + b"\r\n\r\n", body)
        statuses[await send_bytewise(port, fast, slow)] += 1
    return statuses


async def send_bytewise(port: int, fast: bytes, slow: bytes) -> str:
    """Send the first part at once and four bytes of the second one per second; return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(fast)
        status = asyncio.create_task(read_status(reader))
        for position in range(len(slow)):
            writer.write(slow[position : position + 1])
            await asyncio.sleep(0.25)
            if status.done():
                break
        return await status
    except ConnectionError:
        return CLOSED
    finally:
        writer.close()


async def read_status(reader: asyncio.StreamReader) -> str:
    """Return the status of the next response, as text."""
    line = await asyncio.wait_for(reader.readline(), SECONDS)
    return line.split()[1].decode() if line else CLOSED


async def send_all(port: int, row: dict[str, Any], args: argparse.Namespace) -> dict[str, Counter[str]]:
    """Send all requests, and return the statuses of each kind."""
    statuses: dict[str, Counter[str]] = {kind: Counter() for kind in MAKERS}
    kinds = iter([list(MAKERS)[number % len(MAKERS)] for number in range(args.requests)])
    rng = random.Random(args.seed)

    async def run_client() -> None:
        for kind in kinds:
            statuses[kind][await send(port, MAKERS[kind](row, rng))] += 1

    slow = [asyncio.create_task(send_slowly(port, 2)) for _ in range(SLOW_CLIENTS)]
    await asyncio.gather(*(run_client() for _ in range(CLIENTS)))
    statuses["slow clients"] = sum(await asyncio.gather(*slow), Counter())
    return statuses


def read_row(url: str) -> dict[str, Any]:
    """Return a valid row of the served model, from the example in its description."""
    with urllib.request.urlopen(f"{url}/openapi.json") as response:
        operation = json.load(response)["paths"]["/predict"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    row: dict[str, Any] = next(iter(examples.values()))["value"]
    return row


def measure(server: Server, args: argparse.Namespace) -> tuple[dict[str, Counter[str]], list[float]]:
    """Return the statuses, and the memory in MB after warm-up, at half and at the end."""
    row, port = read_row(server.url), int(server.url.rpartition(":")[2])
    warmup = argparse.Namespace(requests=args.requests // 10, seed=args.seed + 1)
    asyncio.run(send_all(port, row, warmup))
    memory, total = [server.read_memory_mb()], dict[str, Counter[str]]()
    for half in range(2):
        part = argparse.Namespace(requests=args.requests // 2, seed=args.seed + 2 + half)
        for kind, counts in asyncio.run(send_all(port, row, part)).items():
            total[kind] = total.get(kind, Counter()) + counts
        memory.append(server.read_memory_mb())
    if asyncio.run(send(port, format_request(json.dumps(row).encode()))) != "200":
        raise SystemExit("the server does not respond to a valid request afterwards")
    return total, memory


# ---- report


def format_results(statuses: Mapping[str, Counter[str]], memory: list[float]) -> list[str]:
    """Return the table of statuses, and the memory."""
    columns = sorted(set().union(*statuses.values()))
    rows = {kind: [str(counts[column]) for column in columns] for kind, counts in statuses.items()}
    failed = sum(
        count for counts in statuses.values() for status, count in counts.items() if status[0] == "5"
    )
    return [
        *format_table(columns, rows), "",
        f"Responses with status 5xx: {failed}. Memory of the server: {memory[0]:.1f} MB after the warm-up, "
        f"{memory[1]:.1f} MB after half, {memory[2]:.1f} MB at the end.",
    ]  # fmt: skip


def main() -> None:
    """Send everything and report."""
    args = parse_args()
    with (
        tempfile.TemporaryDirectory() as scratch,
        start_server((*BERTKIT, args.run), Path(scratch) / "log") as server,
    ):
        statuses, memory = measure(server, args)
    about = f"{args.requests:,} requests of {CLIENTS} clients, and {SLOW_CLIENTS} slow clients at a time."
    command = f"python benchmarks/serve_malformed.py RUN --requests {args.requests}"
    publish(format_report("Malformed requests", about, format_results(statuses, memory), [command]), args.out)


if __name__ == "__main__":
    main()
