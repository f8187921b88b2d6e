"""TAB: the real protocol of each shell, in a process of its own, which imports nothing heavy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_help import HEAVY

from bertkit.cli.completion import COMPLETION_SOURCES
from bertkit.config import get_settings
from bertkit.data.registry import load_dataset_specs
from bertkit.pipeline.train_tokenizer import TokenizerConfig
from bertkit.recipes import list_shipped_recipes
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


def complete(typed, shell="bash", **more):
    """What the shell gets for what was typed; a blank at the end begins a new word."""
    words = typed.split(" ")
    asked = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **asked, "_BERTKIT_COMPLETE": f"complete_{shell}", **more}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


def test_commands_and_flags():
    assert set(complete("bertkit ")) >= {*TASKS, "glue", "recipes", "env"}
    assert complete("bertkit classify --push") == ["--push-to-hub"]
    assert complete("bertkit recipes ") == ["ls", "show", "cp"]


def test_recipes_are_those_of_the_task_by_a_name_that_finds_them():
    found = complete("bertkit classify --recipe ")
    assert found[:2] == ["imdb", "rotten-tomatoes"]
    assert {"cola", "sst2"} < set(found)
    assert complete("bertkit nli -r ")[0] == "mnli"  # its own
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


def test_data(tmp_path):
    assert complete("bertkit ner --data ") == ["sample", *load_dataset_specs()]
    (tmp_path / "sales.csv").touch()
    (tmp_path / "zebra.csv").touch()
    assert complete("bertkit ner --data sa") == ["sample", "sales.csv"]
    assert complete("bertkit ner --data z") == []  # the shell's own files


def test_models_are_packaged_runs_and_cached(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    (tmp_path / "runs" / "unfinished").mkdir()
    (tmp_path / "hub" / "models--klue--bert-base").mkdir(parents=True)
    (tmp_path / "hub" / "datasets--nyu-mll--glue").mkdir()
    found = complete("bertkit classify --model ", HF_HUB_CACHE=str(tmp_path / "hub"))
    assert found == ["minilm", "runs/mine", "klue/bert-base"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_tell_what_a_name_is(shell):
    [line] = complete("bertkit qa --data squad_v", shell)
    assert "squad_v2" in line
    assert load_dataset_specs()["squad_v2"].title in line
    assert "wandb" in "".join(complete("bertkit qa --report-to ", shell))


def test_every_role_that_a_setting_names_is_known_and_data_and_models_have_theirs():
    configs = [GlueConfig, FeatureBasedConfig, AblationConfig, TokenizerConfig]
    for config in [*configs, *(task_class(task).spec.config for task in TASKS)]:
        roles = {name: about.values for name, (_, about, _) in get_settings(config).items() if about.values}
        assert set(roles.values()) <= COMPLETION_SOURCES.keys()
        assert roles.keys() >= {"data", "model"} & get_settings(config).keys()


def test_runs_by_their_place(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "metrics.json").touch()
    assert complete("bertkit predict ") == ["runs/mine"]


def test_the_script_of_the_shell_is_shown(tmp_path):
    script = tmp_path / "ask.sh"
    script.write_text(f"{sys.executable} -m bertkit --show-completion\n")
    done = subprocess.run(["bash", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_COMPLETE=complete_bash" in done.stdout
