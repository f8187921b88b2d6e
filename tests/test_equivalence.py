"""Training is the same with accumulation, after an interruption, and after a kill."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROW_MAKERS, make_features, make_toy_rows, send_sigterm_after, write_rows
from hypothesis import given
from hypothesis import strategies as st
from new_process import call_in_new_process
from safetensors.torch import load_file
from test_architectures import make_easy_rows

import bertkit
from bertkit.training.arguments import choose_precision
from bertkit.training.samplers import LengthGroupedBatchSampler
from bertkit.utils.files import verify_checksums, write_checksums

SGD = {"optim": "sgd", "learning_rate": 0.05, "warmup": 0.0, "weight_decay": 0.0, "bf16": False}


def weights(run):
    return load_file(run.output_dir / "model.safetensors")


def assert_close(one, two, tolerance):
    assert one.keys() == two.keys()
    worst = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert worst <= tolerance, worst


KINDS = {
    "weights": {"class_weights": "balanced", "label_smoothing": 0.1},
    "regression": {"problem": "regression"},
    "multi-label": {"problem": "multi-label", "class_weights": "balanced"},
    "windows": {"long_texts": "windows", "max_length": 10},
    "options of layers": {"gradient_checkpointing": True, "layer_decay": 0.8, "pooling": "mean"},
    "ner": {"max_length": 12},
    "bilstm": {"head": "bilstm"},
    "frozen": {"head": "bilstm", "features": "sum-all"},
    "nli": {},
    "qa": {"max_length": 16},
    "swag": {},
}
ONE_BY_ONE = ("weights", "windows", "ner", "nli", "qa", "swag")  # kinds that are also trained with 1x8


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_same_for_8x1_2x4_and_1x8(tiny_without_dropout, tmp_path, kind):
    rows = [row for n, row in enumerate(make_toy_rows(14, longest=25)) if row["label"] == "negative" or n % 3]
    if kind == "multi-label":
        rows = [{**row, "label": [row["label"], "long"][: 1 + len(row["text"]) // 60]} for row in rows]
    if kind == "regression":
        rows = [{**row, "label": len(row["text"]) / 50} for row in rows]
    task = "ner" if "head" in KINDS[kind] else kind if kind in ROW_MAKERS else "classify"
    if task != "classify":
        rows = ROW_MAKERS[task](30) if task == "qa" else ROW_MAKERS[task](12, seed=1)
    data = write_rows(tmp_path / "rows.jsonl", rows)

    def run(batch, steps):
        return getattr(bertkit, task)(
            data=str(data), model=str(tiny_without_dropout),
            epochs=1, batch_size=batch, gradient_accumulation_steps=steps,
            output_dir=str(tmp_path / f"{batch}x{steps}"), **SGD | KINDS[kind], set=["max_grad_norm=0.5"],
        )  # fmt: skip

    whole = run(8, 1)
    assert whole.metrics["data"]["train"] % 8 == 3  # 2x4 divides the last batch into 2 and 1
    before = load_file(tiny_without_dropout / "model.safetensors")
    query = "encoder.layer.0.attention.self.query.weight"
    assert (weights(whole)[f"bert.{query}"] != before[query]).any() == (kind != "frozen")
    for other in (run(2, 4), *([run(1, 8)] if kind in ONE_BY_ONE else [])):
        assert other.metrics["training"]["loss"] == pytest.approx(whole.metrics["training"]["loss"], rel=1e-5)
        assert_close(weights(whole), weights(other), 1e-5)


@pytest.mark.slow
def test_gradient_checkpointing_changes_only_memory(tiny, toy, tmp_path):
    options = {"data": str(toy), "model": str(tiny), "max_steps": 3, "batch_size": 8, "bf16": False}
    plain = bertkit.classify(**options, output_dir=str(tmp_path / "plain"))
    saving = bertkit.classify(**options, gradient_checkpointing=True, output_dir=str(tmp_path / "saving"))
    assert_close(weights(plain), weights(saving), 1e-6)


@pytest.mark.slow
def test_bf16_learns_as_well_as_fp32(tiny, tmp_path):
    rows = make_easy_rows(64)
    options = {
        "data": str(write_rows(tmp_path / "train.jsonl", rows[:48])), "model": str(tiny),
        "validation": str(write_rows(tmp_path / "validation.jsonl", rows[48:])), "epochs": 4, "batch_size": 8,
        "learning_rate": 1e-2,
    }  # fmt: skip
    for bf16, name in ((True, "bf16"), (False, "fp32")):
        run = bertkit.classify(**options, bf16=bf16, output_dir=str(tmp_path / name))
        assert run.metrics["training"]["precision"] == name
        assert run.metrics["validation"]["accuracy"] == 1.0


@pytest.mark.slow
def test_scores_are_fp32_even_when_training_is_bf16(tiny, toy, tmp_path):
    options = {"data": str(toy), "model": str(tiny), "max_steps": 1, "batch_size": 8, "learning_rate": 0.0}
    from conftest import read_predictions

    one, two = (
        read_predictions(
            bertkit.classify(**options, bf16=bf16, output_dir=str(tmp_path / str(bf16))).output_dir
        )
        for bf16 in (True, False)
    )
    assert one == two


@pytest.mark.cpu
def test_bf16_is_chosen_if_the_cpu_computes_it_natively(monkeypatch):
    from bertkit.tasks.text.config import ClassifyConfig

    for able, wanted in (({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({}, "fp32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able, raising=False)
        assert choose_precision(ClassifyConfig())[0] == wanted
    assert choose_precision(ClassifyConfig(bf16=True))[0] == "bf16"


lengths = st.lists(st.integers(1, 99), min_size=1, max_size=300).map(np.array)


def of_lengths(lengths):
    return make_features([[length] for length in lengths])


@given(lengths=lengths, steps=st.integers(1, 8), epoch=st.integers(0, 3))
def test_epoch_contains_each_row_once_for_all_batch_sizes(lengths, steps, epoch):
    def effective(batch_size, accumulation):
        batches = LengthGroupedBatchSampler(of_lengths(lengths), batch_size, accumulation)
        batches.set_epoch(epoch)
        rows = list(batches)
        assert len(rows) == len(batches)
        assert sorted(row for batch in rows for row in batch) == list(range(len(lengths)))
        return [
            [row for batch in rows[i : i + accumulation] for row in batch]
            for i in range(0, len(rows), accumulation)
        ]

    assert effective(8, 1) == effective(2, 4) == effective(1, 8)


def test_batches_group_lengths_and_change_with_the_epoch():
    lengths = np.random.default_rng(0).integers(1, 100, 2000)
    batches = LengthGroupedBatchSampler(of_lengths(lengths), 16)
    first = list(batches)
    assert list(batches) == first
    padding = sum(lengths[b].max() * len(b) for b in first) / lengths.sum() - 1
    assert padding < 0.1
    batches.set_epoch(1)
    assert list(batches) != first


def options_for(tiny, toy, batch_size=8):
    options = ["--data", toy, "--model", tiny, "--epochs", 3, "--batch-size", batch_size]
    return [*options, "--lr", "1e-3", "--no-bf16"]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """The folder of an uninterrupted run, and what it printed; nobody writes into it."""
    return tmp_path_factory.mktemp("finished"), []


@pytest.fixture
def train_whole(cli, tiny, finished_run):
    """Return a function that trains without interruption, once for all tests.

    It returns the options of the run, its folder, and what it printed.
    """
    folder, printed = finished_run

    def train():
        data, whole = folder / "rows.jsonl", folder / "run"
        if not printed:
            write_rows(data, make_toy_rows(35))
            status, out, _ = cli("classify", *options_for(tiny, data), "-o", whole, "--json")
            assert status == 0
            printed.append(out)
        return options_for(tiny, data), whole, printed[0]

    return train


def assert_bit_identical(folder, other, *names):
    for name in names:
        assert (folder / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.slow
def test_interrupted_run_resumes_bit_identically(cli, train_whole, tmp_path, monkeypatch):
    """It is interrupted within an epoch, at its end, and within the next one."""
    options, whole, _ = train_whole()
    interrupted = tmp_path / "cut"
    resume = ("classify", "--resume", "-o", interrupted)
    arguments, done = ("classify", *options, "-o", interrupted), 0
    for step in (2, 4, 7):  # an epoch is 4 steps
        with monkeypatch.context() as patch:
            send_sigterm_after(patch, step - done - 1)  # the step after the signal is the last one
            status, _, err = cli(*arguments)
        assert status == 130
        resume_command = f"bertkit classify --resume --output-dir {interrupted}"
        assert f"interrupted at step {step} of 12; resume with: {resume_command}" in err
        assert not (interrupted / "metrics.json").exists()
        arguments, done = resume, step
    assert cli(*resume)[0] == 0
    assert_bit_identical(interrupted, whole, "model.safetensors", "predictions.jsonl", "training_log.jsonl")


def run_until_killed(*args):
    """Run `bertkit ARGS` until it kills its process at step 6."""
    from bertkit.cli.app import main
    from bertkit.training.callbacks import ReporterCallback

    def kill_at_step_6(self, args, state, control, original=ReporterCallback.on_step_end, **more):
        original(self, args, state, control, **more)
        if state.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    ReporterCallback.on_step_end = kill_at_step_6
    sys.argv = ["bertkit", *map(str, args)]
    main()


@pytest.mark.slow
def test_killed_run_resumes_bit_identically(cli, train_whole, tmp_path):
    """The process is killed some steps after its first checkpoint."""
    options, whole, _ = train_whole()
    interrupted = tmp_path / "cut"
    killed = call_in_new_process(run_until_killed, "classify", *options, "-o", interrupted)
    assert killed.returncode == -signal.SIGKILL
    assert not (interrupted / "metrics.json").exists()
    status, out, _ = cli("classify", "--resume", "-o", interrupted, "--json")
    assert (status, json.loads(out)["training"]["resumed_from"]) == (0, 4)
    assert_bit_identical(interrupted, whole, "model.safetensors", "predictions.jsonl")


@pytest.mark.slow
def test_checkpoints_are_complete_after_a_kill_during_removal(cli, tiny, toy, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    run, remove = tmp_path / "run", shutil.rmtree

    def half(folder, **how):
        if weights := sorted(Path(folder).rglob("optimizer.pt")):
            weights[0].unlink()
            raise Killed
        remove(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(Killed):
        cli("classify", *options_for(tiny, toy, batch_size=24), "-o", run)
    monkeypatch.undo()
    kept = sorted((run / "checkpoints").glob("checkpoint-*"))
    assert [verify_checksums(path) for path in kept] == [None] * len(kept) != []
    assert cli("classify", "--resume", "-o", run)[0] == 0
    assert [path.name for path in run.rglob(".partial")] == []


@pytest.mark.slow
def test_run_resumes_from_first_checkpoint_after_disk_was_full(cli, tiny, toy, tmp_path, monkeypatch):
    written = []

    def full(folder):
        written.append(folder)
        if len(written) == 2:
            raise OSError("No space left on device")
        write_checksums(folder)

    monkeypatch.setattr("bertkit.training.trainer.write_checksums", full)
    status, _, err = cli("classify", *options_for(tiny, toy, batch_size=24), "-o", tmp_path / "run")
    assert (status, "No space left on device); free disk space and resume with --resume" in err) == (2, True)
    monkeypatch.undo()
    assert cli("classify", "--resume", "-o", tmp_path / "run")[0] == 0


@pytest.mark.slow
def test_finished_run_is_not_trained_again(cli, train_whole):
    _, whole, first = train_whole()
    weights = whole / "model.safetensors"
    before = weights.stat().st_mtime_ns
    _, again, err = cli("classify", "--resume", "-o", whole, "--json")
    assert again == first
    assert "finished" in err
    assert weights.stat().st_mtime_ns == before


@pytest.mark.slow
def test_changed_data_or_settings_are_refused_on_resume(cli, tiny, toy, tmp_path, monkeypatch):
    from bertkit.training.callbacks import ReporterCallback

    def interrupt(self, args, state, control, **more):
        if state.global_step == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ReporterCallback, "on_step_end", interrupt)
    assert cli("classify", *options_for(tiny, toy), "-o", tmp_path / "run")[0] == 130
    monkeypatch.undo()
    status, _, err = cli("classify", "--resume", "-o", tmp_path / "run", "--epochs", 5)
    assert (status, "epochs" in err) == (2, True)
    write_rows(toy, make_toy_rows(80, seed=5))
    status, _, err = cli("classify", "--resume", "-o", tmp_path / "run")
    assert (status, "data has changed (train was 72 rows, " in err) == (2, True)
    assert "; validation was 8 rows, " in err


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--max-steps", 4], ["--early-stopping", 1, "--epochs", 20]])
def test_run_interrupted_in_final_evaluation_is_not_trained_further(
    cli, tiny, toy, tmp_path, monkeypatch, options
):
    whole, interrupted = tmp_path / "whole", tmp_path / "cut"
    args = ["--data", toy, "--model", tiny, "--batch-size", 24, "--lr", "1e-3", "--no-bf16", *options]
    assert cli("classify", *args, "-o", whole)[0] == 0

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertkit.run.session.Session.write_model", interrupt)
    status, _, err = cli("classify", *args, "-o", interrupted)
    assert (status, "--resume --output-dir" in err) == (130, True)
    monkeypatch.undo()
    monkeypatch.setattr("bertkit.run.session.Session.__init__", interrupt)
    status, _, err = cli("classify", "--resume", "-o", interrupted)
    assert status == 130
    assert err.endswith(f"interrupted before training started; {interrupted} is unchanged\n")
    monkeypatch.undo()
    status, out, _ = cli("classify", "--resume", "-o", interrupted, "--json")
    original_on_step_end = json.loads((whole / "metrics.json").read_text())["training"]
    assert status == 0
    assert json.loads(out)["training"]["steps"] == original_on_step_end["steps"]
    for name in ("model.safetensors", "predictions.jsonl"):
        assert (interrupted / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_reported_loss_covers_the_whole_run(cli, tiny, toy, tmp_path, monkeypatch):
    args = ["--data", toy, "--model", tiny, "--batch-size", 24, "--no-bf16", "--epochs", 2]
    run = tmp_path / "run"
    status, out, _ = cli("classify", *args, "-o", run, "--set", "logging_steps=1", "--json")
    assert status == 0
    loss = json.loads(out)["training"]["loss"]
    state = json.loads((run / "checkpoints" / "checkpoint-6" / "trainer_state.json").read_text())
    logged = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(logged) == 6
    assert loss == pytest.approx(sum(logged) / 6)


@pytest.mark.slow
def test_layer_decay_scales_the_updates_of_each_layer(tiny_without_dropout, toy, tmp_path):
    name = "bert.encoder.layer.{}.attention.self.query.weight"

    def moved(folder, **more):
        options = {"data": str(toy), "model": str(tiny_without_dropout), "max_steps": 1, "batch_size": 8}
        after = weights(
            bertkit.classify(
                **options, output_dir=str(tmp_path / folder), **SGD | {"learning_rate": 50.0}, **more
            )
        )
        before = load_file(tiny_without_dropout / "model.safetensors")
        return [float((after[name.format(n)] - before[name.format(n)[5:]]).norm()) for n in (0, 1)]

    plain, decayed = moved("plain"), moved("decayed", layer_decay=0.5)
    assert decayed == pytest.approx([plain[0] * 0.25, plain[1] * 0.5], rel=1e-3)
