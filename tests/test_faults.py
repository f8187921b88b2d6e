"""Each kind of fault once, in a process that has computed nothing: forks of this one would hang."""

import os
import subprocess
import sys
from pathlib import Path

from faults.kinds import FAULTS
from faults.process import PHASES


def test_each_kind_of_fault_once():
    command = [sys.executable, "-m", "faults", "--count", str(len(FAULTS)), "--tasks", "classify"]
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=there, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    struck = {name.removeprefix("| "): count for name, count, _ in table}
    assert struck == {**dict.fromkeys(FAULTS, "1"), "all": str(len(FAULTS))}


def test_there_are_all_kinds():
    assert len(FAULTS) >= 15
    assert {f"kill -9 in {phase}" for phase in PHASES} <= set(FAULTS)
