"""Every command of every task on the simulated accelerator, and six faults that it must catch.

`tests/test_simulated_accelerator.py` runs these tests in a process of their own. To run some of them:
`python -m pytest -n0 tests/on_accelerator.py -k ner`.
"""

import contextlib

import numpy as np
import pytest
import simulated_accelerator
import torch
from conftest import (
    ROW_MAKERS,
    costly_parts,
    make_document_rows,
    make_neutral_texts,
    make_nli_rows,
    make_toy_rows,
    save_tiny_model,
    send_sigterm_after,
    write_rows,
)
from safetensors.torch import load_file
from simulated_accelerator import NAME, record_synchronizations
from transformers import Trainer, TrainerCallback

import bertkit
from bertkit.errors import RunInterrupted
from bertkit.training.samplers import TrainingCollator
from bertkit.training.trainer import BertkitTrainer
from bertkit.utils import devices

simulated_accelerator.install()

STEPS, LOGGING_STEPS, CHECKPOINT = 5, 2, 3


def make_label_sets(count):
    return [
        row | {"label": [row["label"], "long"][: 1 + len(row["text"]) // 40]} for row in make_toy_rows(count)
    ]


def make_numbers(count):
    return [row | {"label": len(row["text"]) / 50} for row in make_toy_rows(count)]


# By name: the function, the rows, and settings.
TASKS = {
    "classify": ("classify", make_toy_rows, {}),
    "multi-label": ("classify", make_label_sets, {"problem": "multi-label"}),
    "regression": ("classify", make_numbers, {"problem": "regression"}),
    "windows": ("classify", make_toy_rows, {"long_texts": "windows", "max_length": 10}),
    "nli": ("nli", make_nli_rows, {}),
    "ner": ("ner", ROW_MAKERS["ner"], {}),
    "qa": ("qa", ROW_MAKERS["qa"], {}),
    "swag": ("swag", ROW_MAKERS["swag"], {}),
}
OBJECTIVES = ["mlm", "mlm+nsp", "ltr", "rtd"]
NOT_EXPLAINED = ("ner", "qa", "swag")
RESUMED = ("classify", "ner", "qa", "swag", "mlm+nsp", "rtd")  # the others differ only in rows and loss


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def _no_garbage():
    """Collect no garbage in each run."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("gc.collect", lambda *_: 0)
        yield


class StepWatch(TrainerCallback):
    """What waited for the device from the end of each step to the end of the next, by step."""

    def __init__(self):
        self.found, self._context = {}, contextlib.ExitStack()

    def on_step_end(self, args, state, control, **kwargs):
        self._context.close()
        self.found[state.global_step] = self._context.enter_context(record_synchronizations())

    def on_train_end(self, args, state, control, **kwargs):
        self._context.close()

    def assert_few(self):
        """Assert that a step waits at most once, and only to log. A checkpoint and an evaluation wait too."""
        for step in range(1, STEPS):
            if step != CHECKPOINT:
                assert len(self.found[step]) <= (step % LOGGING_STEPS == 0), (step, self.found[step])


@contextlib.contextmanager
def watch_steps():
    watch = StepWatch()

    def construct(self, *args, init=BertkitTrainer.__init__, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(watch)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(BertkitTrainer, "__init__", construct)
        yield watch


def train(name, model, folder, **more):
    """Train a few steps of a task or an objective."""
    settings = {
        "output_dir": folder, "max_steps": STEPS, "batch_size": 8, "max_length": 32, "save_steps": CHECKPOINT,
        "set": [f"logging_steps={LOGGING_STEPS}"],
    }  # fmt: skip
    if name in OBJECTIVES:
        data = write_rows(folder.parent / "text.jsonl", make_document_rows(40))
        shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 120}
        return bertkit.pretrain_mlm_nsp(data=data, objective=name, **shape | settings | more)
    function, make_rows, own = TASKS[name]
    data = write_rows(folder.parent / f"{name}.jsonl", make_rows(48))
    return getattr(bertkit, function)(data=data, model=model, **settings | own | more)


class Trained:
    """A finished run, its steps, and the file of its rows."""

    def __init__(self, name, model, folder, **more):
        self.name, self.data = name, folder.parent / f"{name}.jsonl"
        with watch_steps() as self.watch, costly_parts("linear_probe"):  # the probe runs on the device
            self.run = train(name, model, folder, **more)
        self.folder = self.run.output_dir


@pytest.fixture(scope="module", params=[*TASKS, *OBJECTIVES])
def trained(request, tiny, tmp_path_factory):
    return Trained(request.param, tiny, tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def classifier(tiny, tmp_path_factory):
    """A run for the tests of single faults."""
    return Trained("classify", tiny, tmp_path_factory.mktemp("classifier") / "run")


def skip_unless(condition):
    if not condition:
        pytest.skip("is not a command of this task")


def load_rows(trained):
    return TASKS[trained.name][1](6)


def read_weights(folder):
    return load_file(folder / "model.safetensors")


def assert_equal_weights(one, other):
    one, other = read_weights(one), read_weights(other)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# ---- every command of every task


def test_a_run_trains_on_the_device(trained):
    assert trained.run.metrics["training"]["device"] == NAME
    assert np.isfinite(trained.run.metrics["training"]["loss"])


def test_a_step_waits_for_the_device_only_to_log(trained):
    trained.watch.assert_few()


def test_a_resumed_run_is_bit_identical(trained, tiny, tmp_path):
    skip_unless(trained.name in RESUMED)
    assert_resume_is_bit_identical(trained, tiny, tmp_path)


def assert_resume_is_bit_identical(trained, model, folder):
    """Interrupt a run, resume it, and compare it with one that was not interrupted."""
    with pytest.MonkeyPatch.context() as patches:
        send_sigterm_after(patches, CHECKPOINT - 1)  # the run ends with the step after it
        with pytest.raises(RunInterrupted):
            train(trained.name, model, folder / "run")
    train(trained.name, model, folder / "run", resume=True)
    assert_equal_weights(trained.folder, folder / "run")
    logs = [(run / "training_log.jsonl").read_text() for run in (trained.folder, folder / "run")]
    assert logs[0] == logs[1]


def test_a_run_is_evaluated_with_the_scores_of_training(trained):
    skip_unless(trained.name in TASKS)
    found, expected = bertkit.evaluate(trained.folder).metrics, trained.run.metrics
    assert_close(found["validation"], expected["validation"])


def test_a_run_predicts_as_on_the_cpu(trained):
    skip_unless(trained.name in TASKS)
    rows = load_rows(trained)
    on_device, on_cpu = (
        list(bertkit.load(trained.folder, device).predict(rows)) for device in ("auto", "cpu")
    )
    devices.request_device("auto")
    assert_close(on_device, on_cpu)


def assert_close(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_close(*pair)
    else:
        assert one == (pytest.approx(other, abs=1e-5) if isinstance(one, float) else other)


def test_predictions_are_explained(trained):
    skip_unless(trained.name in TASKS and trained.name not in NOT_EXPLAINED)
    rows = load_rows(trained)[:1]
    for record in bertkit.predict(trained.folder, data=rows, explain=True):
        assert all(np.isfinite(word["attribution"]) for word in record["explanation"])


def test_texts_are_embedded(trained):
    texts = make_neutral_texts(5)
    found, expected = (
        bertkit.embed(model=trained.folder, text=texts, device=device).vectors for device in ("auto", "cpu")
    )
    devices.request_device("auto")
    assert np.allclose(found, expected, atol=1e-5)


def test_masks_are_filled(trained):
    skip_unless(trained.name in ("mlm", "mlm+nsp"))
    [found] = bertkit.fill_mask(model=trained.folder, text=["the [MASK] was good"], top=2).texts
    assert len(found["masks"][0]) == 2


def test_a_run_is_distilled(trained, tmp_path):
    skip_unless(trained.name in TASKS)
    student = bertkit.distill(trained.folder, num_layers=1, max_steps=1, output_dir=tmp_path / "student")
    assert np.isfinite(student.metrics["training"]["loss"])


class GraphReached(Exception):
    """The model and its inputs are about to become a graph, which takes as long as ten runs."""


@pytest.mark.usefixtures("onnx_exporter")
def test_a_run_is_exported_from_the_cpu(trained, tmp_path, monkeypatch):
    def export(model, args, kwargs, **options):
        assert {tensor.device.type for tensor in (*model.parameters(), *kwargs.values())} == {"cpu"}
        raise GraphReached

    skip_unless(trained.name in TASKS)
    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(GraphReached):
        bertkit.export(trained.folder, output_dir=tmp_path / "exported")


@pytest.mark.usefixtures("onnx_exporter")
def test_an_exported_model_predicts(classifier, tmp_path):
    exported = bertkit.export(classifier.folder, output_dir=tmp_path / "exported").output_dir
    rows = load_rows(classifier)
    assert len(list(bertkit.load(exported).predict(rows))) == len(rows)


# ---- faults: each is put back into bertkit, and must be caught


def test_tensors_of_both_devices_are_caught(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.models.forward.copy_to_device", lambda tensor, _: tensor)
    with pytest.raises(RuntimeError, match="on the same device"):
        train("classify", tiny, tmp_path / "run", long_texts="windows", max_length=10)


def test_reading_an_array_from_the_device_is_caught(classifier, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: tensor)
    with pytest.raises(TypeError, match="can't convert sim:0 device type tensor to numpy"):
        bertkit.evaluate(classifier.folder)


def test_expanded_tensors_in_a_batch_are_caught(tiny, tmp_path, monkeypatch):
    def collate(self, examples, original=TrainingCollator._collate):
        batch = original(self, examples)
        return batch | {"token_type_ids": torch.zeros(1, 1, dtype=torch.long).expand_as(batch["input_ids"])}

    monkeypatch.setattr(TrainingCollator, "_collate", collate)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        train("classify", tiny, tmp_path / "run")


def test_a_random_state_that_is_not_saved_is_caught(classifier, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(BertkitTrainer, "_save_rng_state", Trainer._save_rng_state)
    with pytest.raises(AssertionError):
        assert_resume_is_bit_identical(classifier, tiny, tmp_path)


@pytest.mark.parametrize("name", ["_maybe_log_save_evaluate", "compute_loss"])
def test_a_second_wait_in_a_step_is_caught(name, tiny, tmp_path, monkeypatch):
    """Trainer's own logging waits several times, and reading the loss waits in each step."""

    def compute_loss(*args, original=BertkitTrainer.compute_loss, **kwargs):
        loss = original(*args, **kwargs)
        loss.item()
        return loss

    faults = {"_maybe_log_save_evaluate": Trainer._maybe_log_save_evaluate, "compute_loss": compute_loss}
    monkeypatch.setattr(BertkitTrainer, name, faults[name])
    with pytest.raises(AssertionError, match="_local_scalar_dense"):
        Trained("classify", tiny, tmp_path / "run").watch.assert_few()
