"""Each kind of fault once, in a process that has computed nothing: forks of this one would hang."""

import os
import subprocess
import sys
from pathlib import Path

import faults

SCRIPT = Path(faults.__file__)


def test_each_kind_of_fault_once(tmp_path):
    command = [sys.executable, SCRIPT, "--count", str(len(faults.FAULTS)), "--tasks", "classify"]
    there = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=there, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    struck = {name.removeprefix("| "): count for name, count, _ in table}
    assert struck == {**dict.fromkeys(faults.FAULTS, "1"), "all": str(len(faults.FAULTS))}


def test_there_are_all_kinds():
    assert len(faults.FAULTS) >= 15
    assert {f"kill -9 in {phase}" for phase in faults.PHASES} <= set(faults.FAULTS)
