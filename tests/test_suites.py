"""What all suites share: their runs are trained like those of a study."""

import json
import re
from pathlib import Path

import pytest
from conftest import make_document_rows, write_rows
from test_glue import COLUMNS, write_split
from test_locks import before_lock  # noqa: F401

import bertkit
from bertkit.data.sources import load_dataset_specs
from bertkit.errors import TrainingFailed, UserError
from bertkit.experiments import experiment, suites
from bertkit.experiments.experiment import RunReporter, _print_result_table, _read_saved_settings
from bertkit.experiments.suites import load_table
from bertkit.reports.tables import ResultTable
from bertkit.run import baselines
from bertkit.run.session import Session
from bertkit.run_directory import RunDir
from bertkit.settings.recipes import read_recipe, read_recipe_task
from bertkit.tasks import task_definition
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.tasks.text.task import Classify
from bertkit.utils.reporting import Reporter

FAST = {"max_steps": 1, "batch_size": 8, "bf16": False}
TASKS = {"cola": "CoLA", "sst2": "SST-2"}


class RecordingReporter(Reporter):
    """A reporter that keeps all messages, and calls a function with each of them."""

    def __init__(self, callback=lambda _: None):
        self.messages, self.callback = [], callback

    def info(self, message):
        self.messages.append(message)
        self.callback(message)

    warn = info


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Write two datasets of GLUE."""
    root = tmp_path_factory.mktemp("data_dir")
    for folder in TASKS.values():
        for seed, name in enumerate(("train", "dev")):
            write_split(root / folder / f"{name}.tsv", COLUMNS[folder][0], folder, seed, folder != "CoLA")
    return root


@pytest.fixture
def glue(tiny, data_dir, tmp_path):
    """Return a function that runs two tasks in `tmp_path / "run"`."""
    folder = str(tmp_path / "run")

    def run(reporter=None, **settings):
        settings = settings or {"tasks": list(TASKS), "model": str(tiny), "data_dir": str(data_dir), **FAST}
        return bertkit.glue(output_dir=folder, reporter=reporter, **settings)

    return run


@pytest.fixture
def fail_in(monkeypatch):
    """Return a function that makes the evaluation fail in the runs whose path contains one of these parts."""

    def arrange(*parts):
        evaluate = Session._evaluate_validation

        def fail(self):
            if any(part in str(self.folder) for part in parts):
                raise TrainingFailed("validation split: logits are NaN")
            return evaluate(self)

        monkeypatch.setattr(Session, "_evaluate_validation", fail)

    return arrange


@pytest.mark.slow
def test_a_failed_run_is_a_row_and_is_trained_again_by_resume(glue, fail_in, tmp_path, cli, monkeypatch):
    fail_in("cola")
    reporter = RecordingReporter()
    run = glue(reporter)
    reason = "validation split: logits are NaN"
    assert run.metrics["failed"] == {"cola/seed0": reason}
    assert list(run.metrics["tasks"]) == ["sst2"]
    assert f"{tmp_path / 'run/cola/seed0'} failed: {reason}" in reporter.messages
    page = (tmp_path / "run" / "README.md").read_text()
    assert "| CoLA | matthews | failed |" in page
    assert f"* cola/seed0 failed: {reason}" in page
    monkeypatch.undo()
    status, _, err = cli("glue", "--resume", "-o", tmp_path / "run")
    assert (status, "(already finished)" in err) == (0, True)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["failed"], list(metrics["tasks"])) == ({}, ["sst2", "cola"])
    assert "failed" not in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.slow
def test_a_suite_whose_runs_all_fail_ends_with_the_first_reason(glue, fail_in, tmp_path):
    fail_in("seed0")
    with pytest.raises(UserError, match=r"all runs have failed \(sst2/seed0: validation split: logits"):
        glue()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_failed_learning_rate_is_not_selected(glue, fail_in, tiny, data_dir):
    fail_in("lr0.01-seed0")
    settings = {"tasks": ["sst2"], "model": str(tiny), "data_dir": str(data_dir), **FAST}
    run = glue(learning_rates="0.01,1e-4", **settings)
    summary = run.metrics["tasks"]["sst2"]
    assert (summary["learning_rate"], summary["seeds"]) == (1e-4, [0])
    assert list(run.metrics["failed"]) == ["sst2/lr0.01-seed0"]


def count_calls(monkeypatch, owner, name):
    """Return a list that gets an element for each call of a function or method of `owner`."""
    calls, function = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args: calls.append(args) or function(*args))
    return calls


@pytest.mark.slow
def test_data_is_loaded_and_baselines_are_scored_once_for_each_dataset(glue, tiny, data_dir, monkeypatch):
    loaded, load_data = [], experiment.load_data
    monkeypatch.setattr(
        experiment, "load_data", lambda *args: loaded.append(args[1].data) or load_data(*args)
    )
    scored = count_calls(monkeypatch, Classify, "fit_baselines")
    probed = count_calls(monkeypatch, baselines, "fit_linear_probe_baseline")
    settings = {"tasks": list(TASKS), "model": str(tiny), "data_dir": str(data_dir), **FAST}
    run = glue(seeds=2, **settings)
    assert loaded == ["sst2", "cola"]
    assert (len(scored), len(probed)) == (2, 2)
    paths = sorted(run.output_dir.glob("sst2/*/metrics.json"))
    scores = [json.loads(path.read_text())["baselines"] for path in paths]
    assert len(scores) == 2
    assert scores[0] == scores[1] != {}


@pytest.mark.slow
def test_resume_uses_the_settings_of_the_suite_that_it_has_locked(glue, tiny, data_dir, before_lock):  # noqa: F811
    """Another process replaces the suite just before this one locks its directory."""
    settings = {"tasks": ["sst2"], "model": str(tiny), "data_dir": str(data_dir), **FAST}
    run = glue(**settings)
    metrics = run.output_dir / RunDir.METRICS_FILE
    metrics.unlink()  # as if the suite had been interrupted

    def replace_suite():
        glue(**{**settings, "tasks": ["cola"]}, overwrite=True)
        metrics.unlink()

    before_lock("lock_directory", replace_suite)
    assert list(glue(resume=True).metrics["tasks"]) == ["cola"]


@pytest.mark.slow
def test_changed_data_is_refused_by_resume(cli, tiny, tmp_path, stop_at):
    data = tmp_path / "data"

    for seed, name in enumerate(("train", "dev")):
        write_split(data / "SST-2" / f"{name}.tsv", COLUMNS["SST-2"][0], "SST-2", seed)
    stop_at(2)
    args = ["--tasks", "sst2", "--model", tiny, "--data-dir", data, "--no-bf16", "--save-steps", 1]
    assert cli("glue", *args, "--batch-size", 4, "-o", tmp_path / "run")[0] == 130
    write_split(data / "SST-2" / "dev.tsv", COLUMNS["SST-2"][0], "SST-2", 5)
    status, _, err = cli("glue", "--resume", "-o", tmp_path / "run")
    assert (status, "the data has changed (validation" in err) == (2, True)


@pytest.mark.slow
def test_a_model_whose_pretraining_failed_is_not_fine_tuned(fail_in, data_dir, tmp_path):
    fail_in("objective-ltr")
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    settings = {"rows": ["mlm+nsp,ltr"], "tasks": ["sst2"], "data": str(text), "data_dir": str(data_dir)}
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "vocab_size": 60, "max_length": 32}
    run = bertkit.ablation(output_dir=str(tmp_path / "run"), **settings, **sizes, **FAST)
    assert list(run.metrics["failed"]) == ["pretrained/objective-ltr"]
    assert run.metrics["rows"]["ltr"] == {}
    assert not (tmp_path / "run" / "ltr").exists()
    page = (tmp_path / "run" / "README.md").read_text()
    assert "| ltr | failed |  | failed (92.1) |" in page
    assert "| mlm+nsp | " in page


def test_each_warning_is_reported_once_and_information_only_on_demand():
    recording = RecordingReporter()
    reporter = RunReporter(recording)
    for _ in range(2):
        reporter.warn("31% of the tokens are [UNK]")
        reporter.info("restored the best weights")
    with reporter.show_info():
        reporter.info("data: reviews.csv")
        reporter.warn("31% of the tokens are [UNK]")
    assert recording.messages == ["31% of the tokens are [UNK]", "data: reviews.csv"]


def test_a_run_that_ran_out_of_memory_is_resumed_with_its_smaller_batches(tmp_path):
    assert _read_saved_settings(tmp_path) == {}
    config = ClassifyConfig(batch_size=8, gradient_accumulation_steps=4, learning_rate=1e-4)
    RunDir(tmp_path).write_settings("classify", config, {})
    expected = {"resume": True, "batch_size": 8, "gradient_accumulation_steps": 4}
    assert _read_saved_settings(tmp_path) == expected


@pytest.mark.parametrize("name", ["glue", "klue", "feature-based"])
def test_the_table_of_a_suite_names_recipes_datasets_and_a_score_for_each_column(name):
    table = load_table(name)
    assert len(set(table.names)) == len(table.names) > 5
    for task in table.tasks:
        command = read_recipe_task(task.recipe)
        settings = read_recipe(task.recipe, command, task_definition(command).config).settings
        assert task.dataset in load_dataset_specs()
        assert settings.get("data", task.dataset) == task.dataset
        for score in task.scores:
            assert len(score.published) in (0, len(table.published))
            assert all(0 < value <= 100 for value in score.published)


def test_tables_are_typed_and_an_unknown_key_is_refused(tmp_path, monkeypatch):
    content = (Path(suites.__file__).parent / "klue.yaml").read_text("utf-8")
    for wrong in (content.replace("digits:", "digit:"), content.replace("[85.73]", "[high]")):
        monkeypatch.setattr(suites, "__file__", str(tmp_path / "suites.py"))
        (tmp_path / "klue.yaml").write_text(wrong, "utf-8")
        with pytest.raises(UserError, match=r"klue\.yaml: .* install bertkit again"):
            suites.read_table_file("klue", suites.SuiteTable)


def test_names_are_at_the_left_and_scores_at_the_right(capsys):
    table = ResultTable(
        "GLUE", ["task", "score"], [["cola", "56.5"], ["mrpc", "100.0"]], "Score: accuracy.", []
    )
    _print_result_table(table)
    cells = [re.split("[│┃]", line)[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert cells == [[" cola ", "  56.5 "], [" mrpc ", " 100.0 "]]
