"""Each fault once, in a process that has computed nothing, because forks of this one would hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.fault_types import FAULTS
from faults.forked_process import PHASES


@pytest.mark.slow
def test_runs_survive_each_fault():
    command = [sys.executable, "-m", "faults", "--count", str(len(FAULTS)), "--tasks", "classify"]
    command.append("--cheap")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    table = [line.split(" | ") for line in process.stdout.splitlines() if line.startswith("| ")][2:]
    injected = {name.removeprefix("| "): count for name, count, _ in table}
    assert injected == {**dict.fromkeys(FAULTS, "1"), "all": str(len(FAULTS))}


def test_all_phases_are_killed():
    assert len(FAULTS) >= 15
    assert {f"kill -9 in {phase}" for phase in PHASES} <= set(FAULTS)
