"""Tasks, methods and metrics of other packages: how they are found, used, recorded and refused."""

import importlib
import re
import shutil
import sys
import typing
from pathlib import Path

import pytest
import torch
import yaml
from conftest import slow_fixture, write_rows
from test_help import HEAVY, run_each

import bertkit
from bertkit import api, tasks
from bertkit.cli.app import COMMANDS
from bertkit.cli.info import describe_plugin_problem
from bertkit.data.features import TARGETS, WEIGHTS
from bertkit.run_directory import RunDir
from bertkit.settings import declaration
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.utils import plugins
from bertkit.utils.reporting import Reporter, use_reporter

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
FAST = {"epochs": 1, "batch_size": 8, "max_length": 32, "bf16": False}


def install(folder, name, version, groups, modules=()):
    """Write what pip installs: the metadata of a package with its entry points, and its modules."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{point} = {path}" for point, path in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in modules:
        shutil.copytree(module, folder / module.name, dirs_exist_ok=True)
    return folder


def install_example(folder):
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    return install(
        folder, project["name"], project["version"], project["entry-points"], [EXAMPLE / "bertkit_stars"]
    )


def forget_plugins():
    """Find the plugins again, as in a new process."""
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "bertkit_stars"]:
        del sys.modules[name]
    for function in (
        plugins.list_plugins, tasks.task_definition, tasks.list_definitions, declaration.get_settings,
        api.make_plugin_function,
    ):  # fmt: skip
        function.cache_clear()


@pytest.fixture
def use_packages():
    """Return a function that puts folders with packages on the path, in place of the last ones."""
    path = sys.path.copy()

    def use(*folders):
        sys.path[:] = [*map(str, folders), *path]
        forget_plugins()

    yield use
    use()


@slow_fixture
def example(tmp_path_factory):
    return install_example(tmp_path_factory.mktemp("example"))


@slow_fixture
def ratings(tmp_path_factory):
    words = ["bad", "poor", "fine", "good", "great"]
    rows = [{"text": f"film {n} was {words[n % 5]}", "stars": str(n % 5 + 1)} for n in range(60)]
    return write_rows(tmp_path_factory.mktemp("data") / "ratings.jsonl", rows)


def test_a_package_adds_a_task_a_method_and_a_metric(use_packages, example, ratings, tiny, tmp_path):
    use_packages(example)
    run = bertkit.rate(
        data=str(ratings), model=str(tiny), metric="off_by_one", distance_weight=1.0,
        output_dir=tmp_path / "run", **FAST,
    )  # fmt: skip
    assert run.metrics["task"] == "rate"
    assert "off_by_one" in run.metrics["intervals"]
    recorded = RunDir(tmp_path / "run")
    assert recorded.read_settings()["distance_weight"] == 1.0
    assert recorded.read_provenance()["plugins"] == {
        "task rate": "bertkit-stars==0.1.0", "metric off_by_one": "bertkit-stars==0.1.0",
    }  # fmt: skip
    # the head of the plugin is loaded again
    [first, *_] = [*bertkit.predict(tmp_path / "run", data=str(ratings), all_scores=True)]
    assert first["probabilities"].keys() == set("12345")
    scores = bertkit.evaluate(tmp_path / "run", metric="off_by_one", output_dir=tmp_path / "scores").metrics
    assert scores["validation"] == pytest.approx(run.metrics["validation"], abs=1e-6)
    # the loss counts weights, as bertkit's own losses do
    loss = tasks.task_class("rate")(tasks.task_definition("rate").config()).make_loss(None)
    batch = {"labels": torch.tensor([0, 4])}
    logits, weighted = torch.randn(2, 5), batch | {WEIGHTS: torch.tensor([2.0, 0.0])}
    first = {"labels": batch["labels"][:1]}
    torch.testing.assert_close(
        loss.sum_losses(logits, weighted)["loss"], 2 * loss.sum_losses(logits[:1], first)["loss"]
    )
    certain = batch | {TARGETS: torch.eye(5)[batch["labels"]]}
    torch.testing.assert_close(loss.sum_losses(logits, certain), loss.sum_losses(logits, batch))
    # a method applies to any task
    settings = {"model": str(tiny), "method": "focal-loss", **FAST}
    bertkit.ner(data="sample", output_dir=tmp_path / "ner", **settings)
    assert RunDir(tmp_path / "ner").read_provenance()["plugins"] == {
        "method focal-loss": "bertkit-stars==0.1.0"
    }
    with pytest.raises(bertkit.UserError, match="--method focal-loss: replaces the plain cross-entropy"):
        bertkit.classify(data="sample", label_smoothing=0.1, **settings)
    # without the package
    use_packages()
    assert "rate" not in tasks.list_tasks()
    missing = r"run\.yaml: uses the {} of bertkit-stars==0.1.0, .* run pip install bertkit-stars==0\.1\.0"
    for function in (bertkit.load, bertkit.evaluate, bertkit.export, lambda run: bertkit.report(runs=[run])):
        with pytest.raises(bertkit.UserError, match=missing.format("task 'rate'")):
            function(str(tmp_path / "run"))
    with pytest.raises(bertkit.UserError, match=missing.format("method 'focal-loss'")):
        bertkit.load(tmp_path / "ner")
    with pytest.raises(AttributeError, match="module 'bertkit' has no attribute 'rate'"):
        bertkit.rate  # noqa: B018
    # a file of a run cannot add words to the command that an error proposes
    content = yaml.safe_load(recorded.settings_file.read_text())
    content["provenance"]["plugins"]["task rate"] = "evil --index-url=x"
    recorded.settings_file.write_text(yaml.safe_dump(content))
    with pytest.raises(bertkit.UserError, match=r"provenance: plugins: is .*; train the run again"):
        bertkit.load(tmp_path / "run")


def test_the_names_of_a_package_are_values_of_the_settings(use_packages, tmp_path):
    use_packages(install_example(tmp_path))
    for config in (ClassifyConfig, tasks.task_definition("ner").config):
        method = declaration.get_settings(config)["method"]
        assert typing.get_args(method.type)[-1] == "focal-loss"
        assert method.metadata.help.endswith("Installed: focal-loss.")
        assert method.metadata.has_flag
    assert "method" not in declaration.get_settings(tasks.task_definition("rate").config)
    use_packages()
    method = declaration.get_settings(tasks.task_definition("ner").config)["method"]
    assert (method.metadata.has_flag, method.metadata.has_parameter) == (False, False)


# Entry points of a package, and what is wrong with them; `rate` is also a task of the example.
FAULTS = {
    "bertkit.tasks": {
        "rate": "task rate: is a plugin of bertkit-stars and faulty; keep one of them: run pip uninstall",
        "classify": "bertkit itself has a command of this name, which is used; rename the entry point",
        "missing": r"cannot be imported \(ModuleNotFoundError: No module named 'faulty_module'\)",
        "odd": r"is not a bertkit\.tasks\.TaskDef",
        "Odd": r"its name does not match \[a-z\]",
    },
    "bertkit.methods": {
        "linear-probe": "bertkit itself has a method of this name",
        "odd": r"does not extend bertkit\.methods\.base\.Method",
    },
    "bertkit.metrics": {"odd": r"does not extend evaluate\.Metric"},
}


def test_each_fault_of_a_plugin_is_one_line_that_names_the_package(use_packages, tmp_path):
    points = {
        group: {name: "faulty_module:X" if name == "missing" else "os:path" for name in problems}
        for group, problems in FAULTS.items()
    }
    use_packages(install_example(tmp_path / "a"), install(tmp_path / "b", "faulty", "2.0", points))
    found = {
        (f"bertkit.{plugin.kind}s", plugin.name): describe_plugin_problem(plugin)
        for plugin in plugins.list_plugins()
        if plugin.distribution == "faulty"
    }
    assert len(found) == sum(map(len, FAULTS.values()))
    for (group, name), problem in found.items():
        assert re.search(FAULTS[group][name], problem), problem
        assert "faulty" in problem
        assert "\n" not in problem
    with pytest.raises(bertkit.UserError, match="is a plugin of bertkit-stars and faulty; keep one of them"):
        tasks.task_definition("rate")
    assert tasks.list_definitions()[1].keys() == {"rate", "missing", "odd", "Odd"}
    assert tasks.task_definition("classify").task.startswith("bertkit.")
    messages = []
    reporter = type("Messages", (Reporter,), {"warn": lambda _, message: messages.append(message)})()
    with use_reporter(reporter):
        plugins.warn_about_hidden("task", "classify")
        plugins.warn_about_hidden("task", "ner")
    assert [message.partition(":")[0] for message in messages] == ["faulty 2.0"]
    # those that work are not affected
    assert {plugin.name for plugin in plugins.list_plugins() if not describe_plugin_problem(plugin)} == {
        "focal-loss", "off_by_one",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "score"}, "its TaskDef has the name 'score', not that of the entry point"),
        ({"config": dict}, "the config of its TaskDef does not extend RunConfig"),
        ({"task": "bertkit.tasks.text.task:Nli"}, "is no Task whose attribute `definition` is its TaskDef"),
    ],
)
def test_a_definition_that_is_not_valid_is_refused(use_packages, tmp_path, monkeypatch, change, problem):
    use_packages(install_example(tmp_path))
    from bertkit_stars import config

    monkeypatch.setattr(config, "RATE", tasks.replace(config.RATE, **change))
    with pytest.raises(bertkit.UserError, match=problem):
        tasks.task_class("rate")


def test_a_field_that_cannot_be_a_flag_is_refused(use_packages, tmp_path):
    folder = install_example(tmp_path)
    file = folder / "bertkit_stars" / "config.py"
    file.write_text(file.read_text().replace("distance_weight: float", "distance_weight: dict[str, int]"))
    use_packages(folder)
    with pytest.raises(
        bertkit.UserError, match=r"distance_weight of its config is not declared by setting\(\)"
    ):
        tasks.task_definition("rate")


def test_bertkits_own_names_are_reserved():
    commands = {name for panel in COMMANDS.values() for name in panel}
    assert commands <= plugins.BUILT_IN_NAMES["task"]
    methods = declaration.get_settings(ClassifyConfig)["method"].type
    assert set(typing.get_args(methods)) == plugins.BUILT_IN_NAMES["method"]


@pytest.mark.slow
def test_help_imports_no_heavy_package_and_a_broken_plugin_breaks_no_other_command(tmp_path, monkeypatch):
    example = install_example(tmp_path / "a")
    points = {"bertkit.tasks": {"broken": "os:path", "env": "os:path"}}
    monkeypatch.setenv("PYTHONPATH", f"{example}:{install(tmp_path / 'b', 'faulty', '2.0', points)}:{ROOT}")
    commands = [
        ["--help"], ["rate", "--help"], ["study", "rate", "--help"], ["broken", "--help"], ["recipes", "ls"],
        ["broken", "--data", "x"],
    ]  # fmt: skip
    outcomes = run_each(commands, [*HEAVY, "bertkit_stars.task"])
    assert [status for status, _, _ in outcomes.values()] == [0] * 5 + [2]
    assert [loaded for _, loaded, _ in outcomes.values()] == [[]] * 6
    error = outcomes["broken", "--data", "x"][2]
    assert error.startswith("bertkit: faulty 2.0: entry point broken = os:path of bertkit.tasks: is not a")


# ---- the documentation

PAGE = ROOT / "docs" / "plugins.md"
SHOWN = re.compile(r"(?<=<!-- )(examples/\S+)( -->\n```\w+\n)(.*?)(?=```)", re.DOTALL)


def show_files(page):
    """Return the page with the files of the example as they are now."""
    return SHOWN.sub(lambda match: match[1] + match[2] + (ROOT / match[1]).read_text("utf-8"), page)


def test_the_page_shows_the_files_of_the_example():
    page = PAGE.read_text("utf-8")
    assert len(SHOWN.findall(page)) == 5
    assert page == show_files(page), "run python tests/test_plugins.py"


def test_the_stable_names_exist():
    table = PAGE.read_text("utf-8").split("| module | names |")[1].split("\n\n")[0]
    names = 0
    for row in table.splitlines()[2:]:
        modules, listed = row.strip("| ").split(" | ")
        found = [importlib.import_module(name) for name in re.findall(r"`([\w.]+)`", modules)]
        for name in re.findall(r"`(\w+)`", listed):
            assert any(hasattr(module, name) for module in found), name
            names += 1
    assert names > 20


if __name__ == "__main__":
    PAGE.write_text(show_files(PAGE.read_text("utf-8")), "utf-8")
