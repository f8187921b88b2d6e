"""Shipped recipes: each goes through the real parser, from the checkout and from an installed wheel."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import assert_refused
from new_process import call_in_new_process

import bertkit
import recipes as recipe_benchmark
from bertkit.errors import UserError
from bertkit.settings.recipes import REMOVED_SETTINGS, list_shipped_recipes, read_recipe
from bertkit.tasks import task_class, task_definition

ROOT = Path(__file__).parent.parent


def test_shipped_recipes_are_listed():
    assert {"classify/imdb", "classify/rotten-tomatoes"} <= list_shipped_recipes().keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(list_shipped_recipes()))
def test_every_recipe_is_valid(cli, name):
    content = yaml.safe_load(list_shipped_recipes()[name].read_text())
    recipe = read_recipe(name, content["task"], task_definition(content["task"]).config)
    assert recipe.settings.keys() == content["settings"].keys()
    assert name.startswith(("glue/", "klue/")) or content["task"].startswith(name.split("/")[0])
    assert cli(content["task"], "--recipe", name, "--help")[0] == 0


@pytest.mark.parametrize("name", sorted(list_shipped_recipes()))
def test_the_header_of_a_recipe_describes_its_use(name):
    content = list_shipped_recipes()[name].read_text()
    header = [line for line in content.splitlines() if line.startswith("#")]
    text, task = " ".join(header), yaml.safe_load(content)["task"]
    assert len(header) >= 4
    assert re.search(f"bertkit {task} --recipe ({name}|{name.split('/')[-1]})( |$)", text)
    assert re.search(r"accuracy|matthews|lm_loss|\b(positive_)?f1\b|spearman", text)
    assert "Expected" in text
    assert re.search(r"\d (min|h|s)\b", text)
    assert re.search(r"\d GB", text)


@pytest.mark.parametrize("name", recipe_benchmark.find_recipes())
def test_recipes_that_need_no_hub_say_what_the_script_measured(name):
    header = list_shipped_recipes()[name].read_text().partition("task:")[0].replace("\n# ", " ")
    expected = header[header.index("Expected: ") :]
    assert re.fullmatch(
        r"Expected: .*\d\.\d+.* on [\d,]+ (validation rows|texts).*\. "
        r"It takes [\d.]+ (s|min|h) and [\d.]+ GB of memory\. "
        r"Measured by benchmarks/recipes\.py at version \d+\.\d+\.\d+ on .*, \d+ cores?, (fp32|bf16)\.\n",
        expected,
    )


def test_the_measured_scores_replace_the_end_of_a_header(tmp_path, monkeypatch):
    metrics = {
        "task": "classify", "data": {"validation": 1200}, "validation": {"accuracy": 0.75},
        "intervals": {"accuracy": [0.7, 0.8]}, "baselines": {"majority": {"accuracy": 0.5}, "none": {}},
        "training": {"precision": "fp32"},
    }  # fmt: skip
    monkeypatch.setattr(recipe_benchmark, "ROOT", tmp_path)
    monkeypatch.setattr(recipe_benchmark, "read_version", lambda: "1.2.3")
    monkeypatch.setattr(recipe_benchmark, "read_processor", lambda: ("CPU", []))
    monkeypatch.setattr(recipe_benchmark, "describe_cores", lambda: "1 core")
    recipe = tmp_path / "recipes" / "toy.yaml"
    recipe.parent.mkdir()
    recipe.write_text("# Toy\n#\n# Expected: accuracy\n# 1.0\ntask: classify\n")
    recipe_benchmark.write_header("toy", recipe_benchmark.Result(metrics, 150.0, 1.25))
    content = recipe.read_text()
    assert content.startswith("# Toy\n#\n# Expected: accuracy 0.750 (95 % interval 0.700 to 0.800) on 1,200 ")
    assert content.endswith("\ntask: classify\n")
    assert content.replace("\n# ", " ").endswith(
        " on 1,200 validation rows; baselines: majority 0.500. It takes 2.5 min and 1.2 GB of memory. "
        "Measured by benchmarks/recipes.py at version 1.2.3 on CPU, 1 core, fp32.\ntask: classify\n"
    )


def test_the_script_knows_the_scores_of_each_task():
    tasks = {yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())["task"]
             for name in recipe_benchmark.find_recipes()}  # fmt: skip
    assert tasks <= recipe_benchmark.SCORES.keys()


@pytest.mark.slow
def test_a_recipe_that_fails_has_its_error_in_the_table(monkeypatch):
    monkeypatch.delenv("BERTKIT_DATA_DIR", raising=False)
    assert recipe_benchmark.run_recipe("swag/codah").startswith("exit status 2: bertkit: --data codah: ")


@pytest.mark.slow
def test_ls_show_and_cp(cli, tmp_path):
    status, out, _ = cli("recipes", "ls")
    assert status == 0
    assert sorted(line.split()[0] for line in out.splitlines()) == sorted(list_shipped_recipes())
    _, out, _ = cli("recipes", "ls", "nli")
    assert [line.split()[0] for line in out.splitlines()][-1] == "nli/mnli"
    assert "glue/sst2" not in out
    _, out, _ = cli("recipes", "ls", "glue")
    assert {line.split("/")[0] for line in out.splitlines()} == {"glue"}
    status, _, err = cli("recipes", "ls", "classfy")
    assert (status, "did you mean 'classify'" in err) == (2, True)
    assert (
        "recipe imbd: is neither a file nor a shipped recipe; did you mean 'imdb'?"
        in cli("recipes", "show", "imbd")[2]
    )
    _, shown, _ = cli("recipes", "show", "imdb")
    assert shown == list_shipped_recipes()["classify/imdb"].read_text()
    assert cli("recipes", "cp", "imdb", tmp_path / "mine.yaml")[0] == 0
    assert (tmp_path / "mine.yaml").read_text() == shown
    status, _, err = cli("recipes", "cp", "imdb", tmp_path / "mine.yaml")
    assert (status, "already exists" in err) == (2, True)


@pytest.mark.parametrize("content", ["text,label\ngood,yes\n", ":", "- a\n- b\n", "task: classify\n"])
@pytest.mark.parametrize("args", [["show"], ["cp"]], ids=["show", "cp"])
def test_files_other_than_recipes_are_neither_shown_nor_copied(cli, tmp_path, content, args):
    (tmp_path / "my.csv").write_text(content)
    more = ["other.yaml"] * (args == ["cp"])
    assert_refused(cli, tmp_path, [*args, "my.csv", *more], ["my.csv: is not a recipe"], "recipes")


@pytest.mark.slow
def test_flags_override_the_recipe(cli, tiny, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("task: classify\nsettings: {data: sample, epochs: 7, batch_size: 4, max_steps: 1}\n")
    status, _, _ = cli("classify", "-r", recipe, "--batch-size", 16, "--model", tiny, "-o", tmp_path / "run")
    made = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["settings"]
    assert status == 0
    assert (made["epochs"], made["batch_size"], made["data"]) == (7.0, 16, "sample")


RIVALS = {
    "phases": ("pretrain/size-3-768-12", ["--max-length", 16], {"max_length": 16, "phases": None}),
    "max_length": ("pretrain/size-2-128-2", ["--phases", "8:0.5,16:0.5"], {"phases": "8:0.5,16:0.5"}),
    "size": ("pretrain/imdb-tiny", ["--model", "minilm"], {"size": None, "vocab_size": None}),
    "max_steps": ("pretrain/imdb-tiny", ["--epochs", 2], {"epochs": 2.0, "max_steps": None}),
    "vocab_size": ("pretrain/imdb-tiny", ["--tokenizer", "minilm"], {"size": "tiny", "vocab_size": None}),
}


@pytest.mark.parametrize("case", RIVALS)
def test_a_flag_replaces_the_conflicting_setting_of_a_recipe(case, cli, tmp_path, monkeypatch):
    recipe, flags, wanted = RIVALS[case]
    seen = []

    def see(task, config, *_):
        seen.append(task_class(task)(config).config)
        raise UserError("seen")

    monkeypatch.setattr("bertkit.run.train._run", see)
    assert "seen" in cli("pretrain-mlm-nsp", "--recipe", recipe, *flags)[2]
    assert {name: getattr(seen[0], name) for name in wanted} == wanted


@pytest.mark.parametrize("key", REMOVED_SETTINGS)
def test_a_removed_setting_has_no_effect_and_is_reported_once(key, cli, tiny, tmp_path):
    settings = {"data": "sample", "model": str(tiny), "max_length": 32, key: 1}
    recipe = tmp_path / "old.yaml"
    recipe.write_text(yaml.safe_dump({"task": "classify", "settings": settings}))
    status, _, err = cli("classify", "--recipe", recipe, "--dry-run", "-o", tmp_path / "run")
    assert status == 0, err
    assert " ".join(err.split()).count(f"warning: {recipe}: {key}: {REMOVED_SETTINGS[key]}") == 1


@pytest.mark.slow
def test_a_run_with_a_removed_setting_is_loaded_and_reported_once(runs, cli, tmp_path):
    run = tmp_path / "old"
    shutil.copytree(runs / "classify", run)
    content = yaml.safe_load((run / "run.yaml").read_text())
    content["settings"]["hidden_loss_weight"] = 0.5
    (run / "run.yaml").write_text(yaml.safe_dump(content))
    status, _, err = cli("evaluate", run, "-o", tmp_path / "scored")
    assert status == 0, err
    assert err.count("hidden_loss_weight") == 1
    assert list(bertkit.load(run).predict([{"text": "a good film"}]))


def test_conflicting_settings_within_a_recipe_are_refused(cli, tiny, tmp_path):
    recipe = tmp_path / "both.yaml"
    recipe.write_text("task: pretrain-mlm-nsp\nsettings: {phases: '8:0.5,16:0.5', max_length: 32}\n")
    args = ["--data", "sample", "--model", tiny, "--recipe", recipe]
    assert_refused(cli, tmp_path, args, ["--max-length 32", "--phases"], "pretrain-mlm-nsp")


@pytest.mark.slow
def test_a_wheel_contains_recipes_samples_and_known_datasets(tmp_path):
    for package in ("hatchling", "hatch_vcs"):
        pytest.importorskip(package)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        ROOT,
    ]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    place = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(place)
    done = call_in_new_process(print_installed_recipes, place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(list_shipped_recipes())


def print_installed_recipes(place):
    """Load all recipes and samples from an installed package, in place of that of this checkout."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "bertkit"]:
        del sys.modules[name]
    os.chdir(place)
    sys.path.insert(0, str(place))
    import bertkit
    from bertkit.data.corpus.documents import find_text
    from bertkit.data.sources import load_dataset, load_dataset_specs
    from bertkit.settings.recipes import list_shipped_recipes, read_recipe
    from bertkit.tasks import TASKS, task_class
    from bertkit.tasks.base import Task

    assert str(place) in bertkit.__file__
    recipes = list_shipped_recipes()
    assert len(recipes) > 1, recipes
    for name, path in recipes.items():
        definition = task_class(yaml.safe_load(path.read_text())["task"]).definition
        assert read_recipe(name, definition.name, definition.config).settings
    assert find_text("sample").files
    of_rows = [name for name in TASKS if task_class(name).load_data is Task.load_data]
    assert len(of_rows) > 4
    assert all(load_dataset("sample", task).splits for task in of_rows)
    assert load_dataset_specs()
    print(*sorted(recipes), sep="\n")
