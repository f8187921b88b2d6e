"""The interface of tasks: its size, and predictions that are decoded once."""

import dataclasses
import inspect

import pytest
from conftest import make_ner_rows, make_qa_rows, write_rows

import bertkit
from bertkit.run.session import Session
from bertkit.tasks import TASKS, TaskDef, task_class, task_definition
from bertkit.tasks.base import InputSchema, Task
from bertkit.tasks.checks import TaskChecks
from bertkit.tasks.ner import predictions
from bertkit.tasks.qa import predictions as qa_predictions
from bertkit.tasks.view import View

MAX_MEMBERS = 45  # the methods and properties of `Task`, and the fields of its definition
FAST = {"epochs": 1, "batch_size": 8, "max_length": 32, "bf16": False}


def count_calls_after_training(monkeypatch, module, function_name):
    """Return a list that gets an entry for each call after training ends."""
    calls, function, train = [], getattr(module, function_name), Session.train

    def count(*args, **kwargs):
        calls.append(function_name)
        return function(*args, **kwargs)

    def train_and_reset(self, *args, **kwargs):
        result = train(self, *args, **kwargs)
        calls.clear()
        return result

    monkeypatch.setattr(module, function_name, count)
    monkeypatch.setattr(Session, "train", train_and_reset)
    return calls


def test_a_task_has_few_methods_and_properties():
    members = [
        name
        for name, value in vars(Task).items()
        if (inspect.isfunction(value) or isinstance(value, property))
        and (name == "__init__" or not name.startswith("_"))
    ]
    assert len(members) + len(dataclasses.fields(TaskDef)) <= MAX_MEMBERS, members


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_definition_under_its_name(name):
    definition = task_definition(name)
    assert isinstance(definition, TaskDef)
    assert definition.name == name
    assert task_class(name).definition is definition
    assert task_class(name)(definition.config()).pipeline.task


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_checks_and_views(name):
    assert issubclass(task_definition(name).load_checks(), TaskChecks)
    views = task_definition(name).load_views()
    assert views
    assert all(issubclass(view, View) for view in views)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_resolves_settings_without_changing_those_of_the_user(name):
    given = task_definition(name).config()
    task = task_class(name)(given)
    task.resolve(max_length=64)
    assert (task.config.max_length, given.max_length) == (64, None)


def test_rows_from_flags_combine_a_single_text_with_every_other():
    schema = InputSchema(text_columns=("q", "c"), columns_by_flag={"question": "q", "context": "c"})
    rows = schema.build_rows_from_flags({"question": ["a", "b"], "context": ["x"]})
    assert rows == [{"q": "a", "c": "x"}, {"q": "b", "c": "x"}]
    with pytest.raises(bertkit.UserError, match="2 of --question, 3 of --context: the numbers differ"):
        schema.build_rows_from_flags({"question": ["a", "b"], "context": ["x", "y", "z"]})


@pytest.mark.slow
def test_a_finished_ner_run_decodes_the_validation_split_once(tiny, tmp_path, monkeypatch):
    calls = count_calls_after_training(monkeypatch, predictions, "viterbi_decode")
    data = write_rows(tmp_path / "rows.jsonl", make_ner_rows(60))
    run = bertkit.ner(data=str(data), model=str(tiny), output_dir=str(tmp_path / "run"), **FAST)
    assert calls == ["viterbi_decode"]
    assert {"intervals", "details", "baselines"} <= run.metrics.keys()
    assert (run.output_dir / "predictions.conll").exists()


@pytest.mark.slow
def test_a_finished_squad_v2_run_merges_the_windows_of_each_split_once(tiny, tmp_path, monkeypatch):
    calls = count_calls_after_training(monkeypatch, qa_predictions, "merge_windows")
    data = write_rows(tmp_path / "rows.jsonl", make_qa_rows(60, unanswerable=20))
    run = bertkit.qa(data=str(data), model=str(tiny), output_dir=str(tmp_path / "run"), **FAST)
    assert calls == ["merge_windows"]
    assert run.metrics["details"]["validation"]
    assert (run.output_dir / "null_odds.json").exists()
