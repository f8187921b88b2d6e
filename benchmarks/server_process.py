"""A server in a process of its own, for the benchmarks of `bertkit serve`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import ROOT

BERTKIT = ("-m", "bertkit", "serve", "--port", "0", "--json")
PIPELINE = (str(ROOT / "benchmarks" / "pipeline_app.py"),)


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: Its address.
        pid: Its process.
    """

    url: str
    pid: int

    def read_memory_mb(self) -> float:
        """Return the resident memory of the process in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kilobytes) / 1000

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_server(command: Sequence[str], log: Path) -> Iterator[Server]:
    """Start a server, and end it after the block.

    Args:
        command: Arguments of Python. The process prints JSON with its `url` once it accepts requests.
        log: Receives its standard error.

    Raises:
        SystemExit: The server did not start.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, *command], env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            assert process.stdout
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{' '.join(command)}: did not start\n{log.read_text()[-2000:]}")
            yield Server(json.loads(line)["url"], process.pid)
        finally:
            process.terminate()
