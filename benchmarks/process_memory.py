"""Run a command and sample its memory from /proc, which exists only on Linux."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import ROOT

INTERVAL = 0.02  # seconds between two samples


@dataclass(frozen=True)
class Sample:
    """Memory of a process and its descendants.

    Attributes:
        seconds: Time since the start of the process.
        anonymous_mb: Memory that no file backs (`RssAnon`).
        resident_mb: All memory, including pages of memory-mapped files (`VmRSS`).
    """

    seconds: float
    anonymous_mb: float
    resident_mb: float


@dataclass
class SampledProcess:
    """Measurements of a finished process.

    Attributes:
        returncode: Exit status.
        seconds: Time from the start of the process to its end.
        output_seconds: Time until the process printed something to standard output. None if it did not.
        milestone_seconds: Time until the milestone file existed. None if it never existed.
        samples: Memory of the process, in the order of time.
    """

    returncode: int = -1
    seconds: float = 0.0
    output_seconds: float | None = None
    milestone_seconds: float | None = None
    samples: list[Sample] = field(default_factory=list)


def run_sampled(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], milestone: Path | None = None
) -> SampledProcess:
    """Run a command to its end, and sample its memory.

    Args:
        command: Program and arguments.
        folder: Folder for the files `stdout` and `stderr` with the output of the command.
        environment: Environment variables in addition to those of this process.
        milestone: File that the command writes; the time of the first sample after that is
            `milestone_seconds`.
    """
    result = SampledProcess()
    output = folder / "stdout"
    with output.open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=stdout, stderr=stderr
        )
        try:
            while process.poll() is None:
                sample = take_sample(process.pid, started)
                result.samples.append(sample)
                if result.output_seconds is None and output.stat().st_size:
                    result.output_seconds = sample.seconds
                if result.milestone_seconds is None and milestone is not None and milestone.exists():
                    result.milestone_seconds = sample.seconds
                time.sleep(INTERVAL)
        finally:
            process.kill()  # after Ctrl-C; has no effect on a process that has ended
        result.seconds = time.perf_counter() - started
    result.returncode = process.returncode
    return result


def take_sample(pid: int, started: float) -> Sample:
    """Add up the memory of a process and of its descendants; processes that have just ended count 0."""
    processes = [read_memory_mb(process) for process in iter_process_tree(pid)]
    anonymous, resident = (
        sum(memory.get(name, 0.0) for memory in processes) for name in ("RssAnon", "VmRSS")
    )
    return Sample(time.perf_counter() - started, anonymous, resident)


def iter_process_tree(pid: int) -> Iterator[int]:
    """Iterate over a process and all of its descendants."""
    yield pid
    try:
        threads = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # a thread or the process has ended
        return
    for children in threads:
        for child in children.split():
            yield from iter_process_tree(int(child))


def read_memory_mb(pid: int | str = "self") -> dict[str, float]:
    """Return the sizes in /proc/PID/status in MB (`VmRSS`: current, `VmHWM`: peak); empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 / 1e6 for name, size, _ in words}
