"""Each fault once, in a process that has computed nothing, because forks of this one would hang."""

import sys

import pytest
from faults.fault_types import FAULTS
from faults.forked_process import PHASES
from new_process import call_in_new_process


def inject_each_fault():
    from faults.__main__ import main

    sys.exit(main(["--count", str(len(FAULTS)), "--tasks", "classify", "--cheap"]))


@pytest.mark.slow
def test_runs_survive_each_fault():
    process = call_in_new_process(inject_each_fault)
    assert process.returncode == 0, process.stdout + process.stderr
    table = [line.split(" | ") for line in process.stdout.splitlines() if line.startswith("| ")][2:]
    injected = {name.removeprefix("| "): count for name, count, _ in table}
    assert injected == {**dict.fromkeys(FAULTS, "1"), "all": str(len(FAULTS))}


def test_all_phases_are_killed():
    assert len(FAULTS) >= 15
    assert {f"kill -9 in {phase}" for phase in PHASES} <= set(FAULTS)
