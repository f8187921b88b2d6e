"""Training and all commands on a simulated accelerator, in a process of their own."""

import os
import sys
from pathlib import Path

import pytest
from new_process import call_in_new_process
from torch.utils import backend_registration

TESTS = Path(__file__).parent


def run_tests(folder):
    """Run the tests of the simulated accelerator, with temporary files in this folder."""
    options = ["-n0", "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    sys.exit(pytest.main([*options, f"--basetemp={folder}", str(TESTS / "on_accelerator.py")]))


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch has no devices that are written in Python",
)
def test_every_command_runs_on_an_accelerator(tmp_path, monkeypatch):
    """The device remains until the process ends, and the tests of other files need a process without it."""
    monkeypatch.chdir(TESTS.parent)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    done = call_in_new_process(run_tests, tmp_path / "own")
    assert done.returncode == 0, done.stdout + done.stderr
