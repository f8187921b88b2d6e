"""Completion through the real protocol of each shell, in a new process that loads no heavy package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_help import HEAVY

from bertkit.cli.completion import COMPLETION_SOURCES
from bertkit.data.registry import load_dataset_specs
from bertkit.pipeline.train_tokenizer import TokenizerConfig
from bertkit.recipes import list_shipped_recipes
from bertkit.setting import get_settings
from bertkit.suites.config import AblationConfig, FeatureBasedConfig, GlueConfig
from bertkit.tasks import TASKS, task_class

CODE = f"""
import sys
from bertkit.cli.app import main
sys.argv = ['bertkit']
try: main()
except SystemExit: pass
heavy = [name for name in {[name for name in HEAVY if name != "huggingface_hub"]!r} if name in sys.modules]
assert not heavy, heavy
"""


def complete(typed, shell="bash", **variables):
    """Return the completions of a command line; a space at the end starts a new word."""
    words = typed.split(" ")
    request = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "powershell": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1]},
    }[shell]
    environment = {**os.environ, **request, "_BERTKIT_COMPLETE": f"complete_{shell}", **variables}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_commands_and_flags_are_completed():
    assert set(complete("bertkit ")) >= {*TASKS, "glue", "recipes", "env"}
    assert complete("bertkit classify --push") == ["--push-to-hub"]
    assert complete("bertkit recipes ") == ["ls", "show", "cp"]


def test_recipes_of_the_task_are_completed_by_their_shortest_name():
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


def test_datasets_and_files_are_completed(tmp_path):
    assert complete("bertkit ner --data ") == ["sample", *load_dataset_specs()]
    (tmp_path / "sales.csv").touch()
    (tmp_path / "zebra.csv").touch()
    assert complete("bertkit ner --data sa") == ["sample", "sales.csv"]
    assert complete("bertkit ner --data z") == []  # the shell completes files itself


def test_models_are_packaged_models_runs_and_cached_models(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    (tmp_path / "runs" / "unfinished").mkdir()
    (tmp_path / "hub" / "models--klue--bert-base").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--nyu-mll--glue").mkdir()
    found = complete("bertkit classify --model ", HF_HUB_CACHE=str(tmp_path / "hub"))
    assert found == ["minilm", "runs/mine", "klue/bert-base"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_show_descriptions(shell):
    [line] = complete("bertkit qa --data squad_v", shell)
    assert "squad_v2" in line
    assert load_dataset_specs()["squad_v2"].title in line
    assert "wandb" in "".join(complete("bertkit qa --report-to ", shell))


def test_every_completion_source_exists_and_data_and_models_have_one():
    configs = [GlueConfig, FeatureBasedConfig, AblationConfig, TokenizerConfig]
    for config in [*configs, *(task_class(task).spec.config for task in TASKS)]:
        sources = {
            name: field.completion for name, (_, field, _) in get_settings(config).items() if field.completion
        }
        assert set(sources.values()) <= COMPLETION_SOURCES.keys()
        assert sources.keys() >= {"data", "model"} & get_settings(config).keys()


def test_runs_are_completed(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    assert complete("bertkit predict ") == ["runs/mine"]


def test_powershell_gets_values_and_descriptions():
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


@pytest.mark.skipif(os.name == "nt", reason="Windows does not run the script of the fixture")
@pytest.mark.parametrize("shell", MARKS)
def test_the_completion_script_of_each_shell_is_printed(home, shell):
    done = subprocess.run(["bertkit", "--show-completion", shell], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert MARKS[shell] in done.stdout
    assert f"complete_{'powershell' if shell == 'pwsh' else shell}" in done.stdout


def needs(shell):
    is_missing = os.name == "nt" or shutil.which(shell) is None
    return pytest.param(shell, marks=pytest.mark.skipif(is_missing, reason=f"{shell} is not installed"))


CLEAR_LINE = "\x15"  # Ctrl-U
LINES = {
    "bertkit cla": "classify",
    "bertkit classify --push": "--push-to-hub",
    "bertkit classify --recipe rot": "rotten-tomatoes",
    "bertkit ner --data wnu": "wnut17",
}


@pytest.mark.parametrize("shell", [needs("bash"), needs("zsh")])
def test_tab_completes_in_an_interactive_shell(home, shell):
    """After `--install-completion`, the start-up files of the shell load the completion.

    `expect_exact` raises an error if the terminal does not print its argument.
    """
    pexpect = pytest.importorskip("pexpect")
    subprocess.run(["bertkit", "--install-completion", shell], check=True, capture_output=True)
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
def test_fish_completes(home, shell):
    subprocess.run(["bertkit", "--install-completion", shell], check=True, capture_output=True)
    for typed, completed in list(LINES.items())[::2]:
        printed = subprocess.run([shell, "-c", f"complete -C {typed!r}"], capture_output=True, text=True)
        assert [line.split("\t")[0] for line in printed.stdout.splitlines()] == [completed], printed.stderr
