"""Waiting threads of OpenMP spin only briefly, unless the user has set it; see docs/platforms.md."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bertkit.utils import system
from bertkit.utils.system import SPIN_LIMITS, USER_VARIABLES, limit_spinning, silence_native_warnings

PRINT_VARIABLES = f"""
import importlib, json, os
names = *{list(SPIN_LIMITS)}, "OMP_WAIT_POLICY"
found = []
for module in ("bertkit", "bertkit.cli.app"):
    importlib.import_module(module)
    found.append({{name: os.environ[name] for name in names if name in os.environ}})
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setattr(system, "sys", SimpleNamespace(modules={}))


def test_device_reads_threads_spin_briefly():
    environment = {"PATH": "/bin"}
    limit_spinning(environment)
    assert environment == {"PATH": "/bin", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}


@pytest.mark.parametrize("name", USER_VARIABLES)
def test_setting_of_the_user_wins(name):
    environment = {name: "own"}
    limit_spinning(environment)
    assert environment == {name: "own"}


def test_nothing_is_set_if_torch_has_read_the_variables(monkeypatch):
    monkeypatch.setitem(system.sys.modules, "torch", object())
    environment = {}
    limit_spinning(environment)
    assert environment == {}


def test_warnings_of_native_code_are_hidden_unless_the_user_wants_them():
    environment = {}
    silence_native_warnings(environment)
    assert environment == {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment["TORCH_CPP_LOG_LEVEL"] = "INFO"
    silence_native_warnings(environment)
    assert environment == {"TORCH_CPP_LOG_LEVEL": "INFO"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "expected"), [({}, SPIN_LIMITS), ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"})]
)
def test_importing_bertkit_limits_spinning(own, expected, monkeypatch):
    """Also importing the command line."""
    for name in (*SPIN_LIMITS, *USER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", PRINT_VARIABLES], capture_output=True, check=True)
    assert json.loads(done.stdout) == [expected, expected]
