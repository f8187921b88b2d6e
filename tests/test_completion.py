"""Completion through the real protocol of each shell, in a new process that loads no heavy package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_help import HEAVY

from bertkit.cli.options import COMPLETION_SOURCES
from bertkit.commands.configs import TokenizerConfig
from bertkit.data.sources import load_dataset_specs
from bertkit.experiments.config import AblationConfig, FeatureBasedConfig, GlueConfig
from bertkit.settings.declaration import get_settings
from bertkit.settings.recipes import list_shipped_recipes
from bertkit.tasks import TASKS, task_definition

pytestmark = pytest.mark.slow

# Each request runs in a fork of one process, which has imported the command line and has run nothing.
RUN_REQUESTS = f"""
import gc, json, os, sys, tempfile
import typer
from bertkit.cli.app import app, main

os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"  # the shell is an argument
table = typer.main.get_command(app)
table.commands["env"].make_context("env", [], resilient_parsing=True)  # imports what parsing needs
typer.main.get_command = lambda _: table
gc.freeze()
for line in sys.stdin:
    arguments, environment, folder = json.loads(line)
    printed = [tempfile.TemporaryFile() for _ in range(2)]
    if not (pid := os.fork()):
        for number, file in enumerate(printed, 1):
            os.dup2(file.fileno(), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["bertkit", *arguments]
        try: main()
        except SystemExit as exit: status = exit.code
        if heavy := [name for name in {[name for name in HEAVY if name != "huggingface_hub"]!r}
                     if name in sys.modules]:
            print("imported", *heavy, file=sys.stderr)
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    outputs = [(file.seek(0), file.read().decode())[1] for file in printed]
    print(json.dumps([status, *outputs]), flush=True)
"""


@pytest.fixture(scope="module")
def run_bertkit():
    """Return a function that runs `bertkit ARGS` in a new process; it returns standard output.

    It fails if the process prints an error, or loads a heavy package.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_REQUESTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(*arguments, **variables):
        request = [arguments, {**os.environ, **variables}, str(Path.cwd())]
        print(json.dumps(request), file=process.stdin, flush=True)
        status, out, err = json.loads(process.stdout.readline())
        assert (status, err) == (0, "")
        return out

    yield run
    process.communicate()


@pytest.fixture
def complete(run_bertkit):
    """Return a function that completes a command line; a space at the end starts a new word."""

    def complete(typed, shell="bash", **variables):
        words = typed.split(" ")
        request = {
            "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": typed},
            "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
            "powershell": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1]},
        }[shell]
        out = run_bertkit(**request, _BERTKIT_COMPLETE=f"complete_{shell}", **variables)
        return out.split("\n")[:-1] if out.strip() else []

    return complete


def test_commands_and_flags_are_completed(complete):
    assert set(complete("bertkit ")) >= {*TASKS, "glue", "recipes", "env"}
    assert complete("bertkit classify --push") == ["--push-to-hub"]
    assert complete("bertkit recipes ") == ["ls", "show", "cp"]


def test_recipes_of_the_task_are_completed_by_their_shortest_name(complete):
    found = complete("bertkit classify --recipe ")
    assert found[:2] == ["imdb", "rotten-tomatoes"]
    assert {"cola", "sst2"} < set(found)
    assert complete("bertkit nli -r ")[0] == "mnli"  # the task's own folder comes first
    assert complete("bertkit nli -r g") == ["glue/mnli"]
    assert complete("bertkit classify --recipe classify/i") == ["classify/imdb"]
    assert complete("bertkit recipes show ") == list(list_shipped_recipes())
    Path("glue-notes.txt").touch()
    Path("co.yaml").touch()
    assert set(complete("bertkit recipes show gl")) == {
        name for name in list_shipped_recipes() if name.startswith("glue")
    }
    assert complete("bertkit classify --recipe co") == ["cola", "co.yaml"]
    assert complete("bertkit recipes ls s") == ["swag"]


def test_datasets_and_files_are_completed(complete, tmp_path):
    assert complete("bertkit ner --data ") == ["sample", *load_dataset_specs()]
    assert complete("bertkit ner --data wnu") == ["wnut17"]
    (tmp_path / "sales.csv").touch()
    (tmp_path / "zebra.csv").touch()
    assert complete("bertkit ner --data sa") == ["sample", "sales.csv"]
    assert complete("bertkit ner --data z") == []  # the shell completes files itself


def test_models_are_packaged_models_runs_and_cached_models(complete, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    (tmp_path / "runs" / "unfinished").mkdir()
    (tmp_path / "hub" / "models--klue--bert-base").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--nyu-mll--glue").mkdir()
    found = complete("bertkit classify --model ", HF_HUB_CACHE=str(tmp_path / "hub"))
    assert found == ["minilm", "runs/mine", "klue/bert-base"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_show_descriptions(complete, shell):
    [line] = complete("bertkit qa --data squad_v", shell)
    assert "squad_v2" in line
    assert load_dataset_specs()["squad_v2"].title in line
    assert "wandb" in "".join(complete("bertkit qa --report-to ", shell))


def test_every_completion_source_exists_and_data_and_models_have_one():
    configs = [GlueConfig, FeatureBasedConfig, AblationConfig, TokenizerConfig]
    for config in [*configs, *(task_definition(task).config for task in TASKS)]:
        sources = {
            name: field.completion for name, (_, field, _) in get_settings(config).items() if field.completion
        }
        assert set(sources.values()) <= COMPLETION_SOURCES.keys()
        assert sources.keys() >= {"data", "model"} & get_settings(config).keys()


def test_runs_are_completed(complete, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    assert complete("bertkit predict ") == ["runs/mine"]


def test_powershell_gets_values_and_descriptions(complete):
    assert complete("bertkit cla", "powershell")[0].startswith("classify:::")
    [line] = complete("bertkit qa --data squad_v", "powershell")
    assert line == f"squad_v2:::{load_dataset_specs()['squad_v2'].title}"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty home directory, and a command `bertkit` that runs this checkout."""
    command = tmp_path / "bin" / "bertkit"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom bertkit.cli.app import main\nmain()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for name in ("HOME", "ZDOTDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)  # Typer writes to ~/.config
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the shell is an argument
    return tmp_path


MARKS = {
    "bash": "complete -o default -F _bertkit_completion bertkit",
    "zsh": "compdef _bertkit_completion bertkit",
    "fish": "complete --command bertkit",
    "powershell": "Register-ArgumentCompleter -Native -CommandName bertkit",
    "pwsh": "Register-ArgumentCompleter -Native -CommandName bertkit",
}


@pytest.mark.parametrize("shell", MARKS)
def test_the_completion_script_of_each_shell_is_printed(run_bertkit, home, shell):
    script = run_bertkit("--show-completion", shell)
    assert MARKS[shell] in script
    assert f"complete_{'powershell' if shell == 'pwsh' else shell}" in script


def needs(shell):
    is_missing = os.name == "nt" or shutil.which(shell) is None
    return pytest.param(shell, marks=pytest.mark.skipif(is_missing, reason=f"{shell} is not installed"))


CLEAR_LINE = "\x15"  # Ctrl-U
LINES = {
    "bertkit cla": "classify",
    "bertkit classify --push": "--push-to-hub",
    "bertkit classify --recipe rot": "rotten-tomatoes",
}


@pytest.mark.parametrize("shell", [needs("bash"), needs("zsh")])
def test_tab_completes_in_an_interactive_shell(run_bertkit, home, shell):
    """After `--install-completion`, the start-up files of the shell load the completion.

    `expect_exact` raises an error if the terminal does not print its argument.
    """
    pexpect = pytest.importorskip("pexpect")
    run_bertkit("--install-completion", shell)
    (home / ".inputrc").write_text("set enable-bracketed-paste off\n")
    options = {"cwd": home, "encoding": "utf-8", "timeout": 60, "dimensions": (24, 200)}
    terminal = pexpect.spawn(shell, ["-i"], **options)
    try:
        if shell == "zsh":  # the first TAB only loads the completion
            terminal.send("bertkit \t")
            terminal.expect_exact("\x07")
            terminal.send(CLEAR_LINE)
        for typed, completed in LINES.items():
            terminal.send(f"{typed}\t")
            terminal.expect_exact(typed)  # the echo
            terminal.expect_exact(completed[len(typed.split(" ")[-1]) :])
            terminal.send(CLEAR_LINE)
    finally:
        terminal.close(force=True)


@pytest.mark.parametrize("shell", [needs("fish")])
def test_fish_completes(run_bertkit, home, shell):
    run_bertkit("--install-completion", shell)
    lines = list(LINES)[::2]
    script = "\n".join(f"complete -C {line!r}" for line in lines)
    printed = subprocess.run([shell, "-c", script], capture_output=True, text=True)
    found = [line.split("\t")[0] for line in printed.stdout.splitlines()]
    assert found == [LINES[line] for line in lines], printed.stderr
