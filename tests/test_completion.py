"""Completion through the real protocol of each shell, in a new process that loads no heavy package."""

import os
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


def test_the_completion_script_is_printed(tmp_path):
    script = tmp_path / "ask.sh"
    script.write_text(f"{sys.executable} -m bertkit --show-completion\n")
    done = subprocess.run(["bash", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "_COMPLETE=complete_bash" in done.stdout
