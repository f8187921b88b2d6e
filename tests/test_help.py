"""`--help` loads no heavy package and shows every setting."""

import json
import subprocess
import sys

import pytest
import typer

from bertkit.cli.app import app
from bertkit.cli.options import list_flags
from bertkit.tasks import TASKS, task_definition

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


# Each command runs in a fork of one process, which has imported the command line and has run nothing.
RUN_EACH = """
import gc, json, os, sys, tempfile
import typer.rich_utils
from bertkit.cli.app import app, main

commands, heavy = json.loads(sys.argv[1])
table = typer.main.get_command(app)
typer.main.get_command = lambda _: table
gc.freeze()
for args in commands:
    error = tempfile.TemporaryFile()
    if not os.fork():
        os.dup2(error.fileno(), 2)
        sys.argv, sys.stdout, status = ["bertkit", *args], open(os.devnull, "w"), "no SystemExit"
        try:
            main()
        except SystemExit as exit:
            status = exit.code
        sys.stderr.flush()
        error.seek(0)
        loaded = [name for name in heavy if name in sys.modules]
        os.write(1, (json.dumps([args, status, loaded, error.read().decode()]) + "\\n").encode())
        os._exit(0)
    os.wait()
"""


def run_each(commands, heavy):
    """Return the exit status of each command, the heavy packages that it loaded, and its standard error."""
    command = [sys.executable, "-c", RUN_EACH, json.dumps([commands, heavy])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = map(json.loads, done.stdout.splitlines())
    return {tuple(args): outcome for args, *outcome in lines}


@pytest.fixture(scope="module")
def outcomes():
    return run_each(COMMANDS, HEAVY)


@pytest.mark.slow
@pytest.mark.parametrize("args", COMMANDS)
def test_no_heavy_package_is_loaded(outcomes, args):
    assert outcomes[tuple(args)][:2] == [0, []]


SLOW = ["torch", "transformers", "datasets", "accelerate", "sklearn", "scipy"]
DATASET_ARGS = [["qa", "--squad", "v2"], ["classify", "--data", "sst2"], ["ner", "--data", "wnut17"]]


@pytest.mark.slow
def test_missing_data_is_reported_before_slow_packages_are_imported(no_hub):
    outcomes = run_each(DATASET_ARGS, SLOW)
    assert len(outcomes) == len(DATASET_ARGS)
    for args, (status, loaded, err) in outcomes.items():
        assert (status, loaded) == (2, []), args
        assert "cannot be reached" in err, args


QUIET = """
import huggingface_hub.utils
from bertkit.utils.reporting import silence_libraries
with silence_libraries():
    from transformers.utils import logging
    assert not logging.get_logger().isEnabledFor(logging.WARNING)
    assert not logging.is_progress_bar_enabled()
assert logging.get_logger().isEnabledFor(logging.WARNING)
assert logging.is_progress_bar_enabled()
assert not huggingface_hub.utils.are_progress_bars_disabled()
"""


@pytest.mark.slow
def test_libraries_imported_late_are_silent_and_restored():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_importing_the_package_loads_no_heavy_package():
    code = f"import bertkit, sys; assert not [n for n in {HEAVY!r} if n in sys.modules]"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("task", TASKS)
def test_help_lists_the_flag_of_every_setting(cli, task):
    status, out, _ = cli(task, "--help")
    flags = list_flags(task_definition(task).config)
    assert status == 0
    assert len(flags) > 30
    assert [flag for flag in [*flags, "--recipe", "--json"] if flag not in out] == []


def test_help_shows_the_values_of_a_recipe_as_defaults(cli):
    status, out, _ = cli("classify", "--recipe", "imdb", "--help")
    assert status == 0
    assert "default: 1500" in out


@pytest.mark.slow
def test_python_m_bertkit_runs_the_command():
    done = subprocess.run([sys.executable, "-m", "bertkit", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "bertkit")


def test_functions_of_the_package_show_their_settings():
    import inspect

    import bertkit

    for name in set(bertkit.__all__) - {"RunInterrupted", "UserError", "check", "load", "study"}:
        function = getattr(bertkit, name)
        assert len(inspect.signature(function).parameters) >= 2, name
        assert "Settings:\n" in function.__doc__, name
    parameters = inspect.signature(bertkit.glue).parameters
    assert {"tasks", "model"} <= parameters.keys()
    assert not {"data", "push_to_hub"} & parameters.keys()  # excluded settings
    assert "output" not in inspect.signature(bertkit.predict).parameters
