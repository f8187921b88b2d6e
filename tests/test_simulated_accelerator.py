"""Training and all commands on a simulated accelerator, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

TESTS = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of torch has no devices that are written in Python",
)
def test_every_command_runs_on_an_accelerator(tmp_path):
    """The device remains until the process ends, and the tests of other files need a process without it."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "--tb=short", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'own'}", str(TESTS / "on_accelerator.py")],
        cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
