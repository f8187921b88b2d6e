"""`callbacks=` of the training functions: callbacks of transformers, which the Trainer calls."""

import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

import bertkit
from bertkit.run_directory import RunDir

FAST = {"data": "sample", "batch_size": 8, "max_length": 16, "bf16": False}
created = []


class Recorder(TrainerCallback):
    """Records the steps, and the losses and scores that are logged."""

    def __init__(self):
        self.steps, self.logs = [], []
        created.append(self)

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(logs)


class StopAt(TrainerCallback):
    def __init__(self, step, event="on_step_end"):
        self.step = step
        setattr(self, event, self.stop)

    def stop(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            control.should_training_stop = True


@pytest.mark.slow
def test_the_trainer_calls_the_callbacks_which_may_stop_it(tiny, tmp_path):
    recorder = Recorder()
    run = bertkit.classify(
        **FAST, model=str(tiny), epochs=3, callbacks=[recorder, StopAt(6)], output_dir=tmp_path / "run"
    )
    assert recorder.steps == [1, 2, 3, 4, 5, 6]
    assert {"loss", "eval_accuracy"} <= {name for logs in recorder.logs for name in logs}
    # stopped within the second epoch: the last weights are evaluated, and they or those of step 4 are kept
    assert run.metrics["training"]["steps"] == 6
    log = [*RunDir(run.output_dir).iter_lines(RunDir.LOG_FILE)]
    assert [line["step"] for line in log if "accuracy" in line or "eval_accuracy" in line] == [4, 6]
    assert "Recorder" not in (run.output_dir / "run.yaml").read_text()
    # also in `on_log`, which Trainer calls after the step; a student is trained with them, too
    stop, settings = StopAt(5, "on_log"), {"num_layers": 1, "epochs": 3, "set": "logging_steps=1"}
    student = bertkit.distill(run.output_dir, **settings, callbacks=[stop, Recorder])
    assert created[-1].steps == [1, 2, 3, 4, 5]
    log = [*RunDir(student.output_dir).iter_lines(RunDir.LOG_FILE)]
    assert [line["step"] for line in log if "accuracy" in line or "eval_accuracy" in line] == [4, 5]


@pytest.mark.slow
def test_a_study_calls_them_in_each_run(tiny, tmp_path):
    del created[:]
    recorder, settings = Recorder(), {**FAST, "model": str(tiny), "max_steps": 2, "folds": 2}
    callbacks = [recorder, Recorder]
    bertkit.study("classify", **settings, callbacks=callbacks, output_dir=tmp_path / "study")
    assert recorder.steps == [1, 2, 1, 2]
    assert [each.steps for each in created[1:] if each.steps] == [[1, 2], [1, 2]]
    # and processes call copies of them
    bertkit.study("classify", **settings, callbacks=[StopAt(1)], jobs=2, output_dir=tmp_path / "jobs")
    folders = [*(tmp_path / "jobs" / "folds").iterdir()]
    assert [RunDir(folder).read_metrics()["training"]["steps"] for folder in folders] == [1, 1]


REFUSED = [
    (3, "callbacks: 3 is not a list; pass callbacks="),
    ([3], "callbacks: 3 is no transformers.TrainerCallback; pass instances or subclasses of it"),
    ([dict], "callbacks: <class 'dict'> is no transformers.TrainerCallback"),
    ([StopAt], "callbacks: StopAt: missing a required argument: 'step'; pass an instance"),
    ([EarlyStoppingCallback()], "callbacks: EarlyStoppingCallback: .*; pass early_stopping=N"),
]


@pytest.mark.parametrize(("callbacks", "problem"), REFUSED)
@pytest.mark.parametrize("function", [bertkit.ner, bertkit.glue])
def test_what_is_no_list_of_callbacks_is_refused(function, callbacks, problem):
    with pytest.raises(bertkit.UserError, match=problem):
        function(callbacks=callbacks)


@pytest.mark.slow
def test_the_example_of_the_page_stops_the_training(tiny):
    page = (Path(__file__).parent.parent / "docs" / "report-to.md").read_text("utf-8")
    code = re.search(r"<!-- callback -->\n```python\n(.*?)```", page, re.DOTALL)[1]
    variables = {}
    exec(code.replace("minilm", str(tiny)).replace("0.65", "0.9"), variables)
    assert variables["run"].metrics["training"]["steps"] == 1


class Unpicklable(TrainerCallback):
    def __init__(self):
        self.function = lambda: None


def test_processes_need_callbacks_that_can_be_pickled(tmp_path):
    with pytest.raises(bertkit.UserError, match="--jobs 2: callbacks: cannot be sent to other processes"):
        bertkit.study("classify", data="sample", folds=2, jobs=2, callbacks=[Unpicklable()])


def test_a_class_that_a_process_cannot_import_is_refused(monkeypatch):
    from bertkit.experiments import experiment

    monkeypatch.setattr(experiment, "find_experiment", lambda _: lambda _: SimpleNamespace())
    pickled = pickle.dumps([StopAt(1)]).replace(b"StopAt", b"NoSuch")
    with pytest.raises(
        bertkit.UserError, match=r"cannot be loaded in another process .* define the class in a"
    ):
        experiment.restore_experiment("glue", SimpleNamespace(device="cpu"), pickled, "--jobs")


@pytest.mark.slow
def test_a_method_without_steps_has_no_callbacks(tiny):
    with pytest.raises(bertkit.UserError, match="callbacks: --method linear-probe trains in no steps"):
        bertkit.classify(data="sample", model=str(tiny), method="linear-probe", callbacks=[Recorder])
