"""`--help` loads no heavy package and shows every setting."""

import json
import subprocess
import sys

import pytest
import typer
from test_interface import find_parser

from bertkit.cli.app import app
from bertkit.cli.options import SingleCommand, describe_parameter, list_flags
from bertkit.settings.declaration import Panel
from bertkit.settings.validation import get_choices
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
table.commands["env"].make_context("env", [], resilient_parsing=True)  # imports what parsing needs
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
UNREACHABLE = "cannot be reached"
MISSING = {
    ("qa", "--squad", "v2"): UNREACHABLE,
    ("classify", "--data", "sst2"): UNREACHABLE,
    ("study", "ner", "--data", "wnut17"): UNREACHABLE,
    ("classify", "--data", "none.csv", "--nproc", "2"): "--data none.csv: no such file or folder",
    ("ladder", "nli", "--data", "none.csv"): "--data none.csv: no such file or folder",
    ("check", "swag", "--data", "none"): "--data none: neither a file nor a known dataset",
    ("ner", "--data", "sample", "--validation", "none.csv"): "--validation none.csv: no such file or folder",
    ("qa", "--data", "sample", "--test", "none.json"): "--test none.json: no such file or folder",
    ("evaluate", "none"): "none: is not a finished run",
    ("export", "none"): "none: is not a finished run",
    ("serve", ".", "none"): "none: is not a finished run",
}


@pytest.mark.slow
def test_missing_inputs_are_reported_before_slow_packages_are_imported(no_hub):
    outcomes = run_each([*map(list, MISSING)], SLOW)
    assert {args: (status, loaded) for args, (status, loaded, _) in outcomes.items()} == dict.fromkeys(
        MISSING, (2, [])
    )
    assert not [args for args, (_, _, err) in outcomes.items() if MISSING[args] not in err]


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


def list_commands(name, command):
    """Yield the name of each command with flags, and the command, including subcommands."""
    if not hasattr(command, "commands"):
        yield name, command
    for subname, subcommand in getattr(command, "commands", {}).items():
        yield from list_commands(f"{name} {subname}".strip(), subcommand)


# Those whose flags are settings; commands of `info` have at most one flag.
SETTINGS_COMMANDS = {
    name: command
    for name, command in list_commands("", typer.main.get_command(app))
    if isinstance(command, SingleCommand) and name != "env"
}


def list_options(command, heading=None):
    return [
        option
        for option in command.params
        if option.param_type_name == "option" and heading in (None, option.rich_help_panel)
    ]


@pytest.mark.parametrize("name", SETTINGS_COMMANDS)
def test_each_flag_is_in_a_panel_and_the_panels_have_one_order(name):
    used = [option.rich_help_panel for option in list_options(SETTINGS_COMMANDS[name])]
    assert list(dict.fromkeys(used)) == [panel.value for panel in Panel if panel.value in used]


@pytest.mark.parametrize("name", SETTINGS_COMMANDS)
def test_the_first_panel_has_at_most_ten_flags(name):
    flags = [option.opts[0] for option in list_options(SETTINGS_COMMANDS[name], Panel.COMMON.value)]
    assert len(flags) <= 10
    if name in TASKS:
        assert {"--data", "--model", "--output-dir"} <= set(flags)


@pytest.mark.parametrize("name", SETTINGS_COMMANDS)
def test_help_texts_are_short_and_name_all_values(name):
    command = SETTINGS_COMMANDS[name]
    context = command.make_context("bertkit", [], resilient_parsing=True)
    for parameter in command.params:
        flags, help = describe_parameter(parameter, context)
        assert len(help) <= 160, flags
        parser = find_parser(command, parameter.name)
        choices = get_choices(parser.keywords["kind"]) if parser else ()
        assert [choice for choice in choices if choice not in f"{flags} {help}"] == [], flags


@pytest.mark.parametrize("width", [80, 100, 120])
def test_most_of_the_width_is_left_for_the_help_texts(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    command = SETTINGS_COMMANDS["classify"]
    command.get_help(command.make_context("bertkit", [], resilient_parsing=True))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == width
    assert len(lines) < 2.5 * len(command.params)


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

    for name in set(bertkit.__all__) - {"RunInterrupted", "UserError", "check", "ladder", "load", "study"}:
        function = getattr(bertkit, name)
        assert len(inspect.signature(function).parameters) >= 2, name
        assert "Settings:\n" in function.__doc__, name
    parameters = inspect.signature(bertkit.glue).parameters
    assert {"tasks", "model"} <= parameters.keys()
    assert not {"data", "push_to_hub"} & parameters.keys()  # excluded settings
    assert "output" not in inspect.signature(bertkit.predict).parameters
