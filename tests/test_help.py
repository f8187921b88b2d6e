"""--help is light, complete and made from the settings."""

import subprocess
import sys

import pytest
import typer

from bertkit.cli.app import app
from bertkit.cli.options import list_flags
from bertkit.tasks import TASKS, task_class

HEAVY = [
    "torch", "transformers", "datasets", "evaluate", "sklearn", "numpy", "scipy", "pyarrow", "accelerate",
    "huggingface_hub", "matplotlib", "jinja2",
]  # fmt: skip


TABLE = typer.main.get_command(app).commands
COMMANDS = [
    ["--help"],
    ["recipes", "ls"],
    ["--version"],
    ["check", "qa", "--help"],
    *([name, "--help"] for name in TABLE),
]


@pytest.mark.parametrize("args", COMMANDS)
def test_nothing_heavy_is_loaded(args):
    code = (
        f"import sys; sys.argv = ['bertkit', *{args!r}]\n"
        "from bertkit.cli.app import main\n"
        "try: main()\nexcept SystemExit as stop: assert stop.code == 0, stop.code\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SLOW = ["torch", "transformers", "datasets", "accelerate", "sklearn", "scipy"]
NAMED = [["qa", "--squad", "v2"], ["classify", "--data", "sst2"], ["ner", "--data", "wnut17"]]


@pytest.mark.parametrize("args", NAMED)
def test_data_that_is_nowhere_is_told_before_what_is_slow_to_import(no_hub, args):
    code = (
        f"import sys; sys.argv = ['bertkit', *{args!r}]\n"
        "from bertkit.cli.app import main\n"
        "try: main()\nexcept SystemExit as stop: assert stop.code == 2, stop.code\n"
        f"slow = [name for name in {SLOW!r} if name in sys.modules]\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be reached" in done.stderr


QUIET = """
import huggingface_hub.utils
from bertkit.utils.quiet import quiet_libraries
with quiet_libraries():
    from transformers.utils import logging
    assert not logging.get_logger().isEnabledFor(logging.WARNING)
    assert not logging.is_progress_bar_enabled()
assert logging.get_logger().isEnabledFor(logging.WARNING)
assert logging.is_progress_bar_enabled()
assert not huggingface_hub.utils.are_progress_bars_disabled()
"""


def test_what_is_imported_late_is_quiet_too_and_put_back():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_is_light_to_import():
    code = f"import bertkit, sys; assert not [n for n in {HEAVY!r} if n in sys.modules]"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_has_its_flag_in_help(cli, task):
    status, out, _ = cli(task, "--help")
    flags = list_flags(task_class(task).spec.config)
    assert status == 0
    assert len(flags) > 30
    assert [flag for flag in [*flags, "--recipe", "--json"] if flag not in out] == []


def test_a_recipe_shows_as_defaults_in_help(cli):
    status, out, _ = cli("classify", "--recipe", "imdb", "--help")
    assert status == 0
    assert "default: 1500" in out


def test_python_m_bertkit_is_the_same_program():
    done = subprocess.run([sys.executable, "-m", "bertkit", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "bertkit")
