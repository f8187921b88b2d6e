"""`pretrain-mlm-nsp --time-limit`: the number of steps from a short measurement."""

import pytest
import torch
import yaml
from conftest import assert_refused, make_document_rows, write_rows
from test_pretrain import COMMAND

from bertkit.errors import UserError
from bertkit.run import dry_run
from bertkit.run.dry_run import MeasuredTimes


@pytest.fixture
def text(tmp_path):
    return write_rows(tmp_path / "text.jsonl", make_document_rows(40))


def test_steps_leave_time_for_evaluations_and_probes():
    times = MeasuredTimes(step=0.5, evaluation=2.0, probe=1.0, measurement=3.0)
    # 97 s, without the measurement, the first probe and the last evaluation, for steps and evaluations
    assert times.count_steps(100, steps_per_epoch=20, save_steps=None) == int(91 / 0.6)
    assert times.count_steps(100, steps_per_epoch=20, save_steps=5) == int(91 / 0.8)
    # more epochs than the ten evaluations
    assert times.count_steps(100, steps_per_epoch=10, save_steps=None) == int((91 - 10 * 2) / 0.5)
    assert times.count_steps(4, steps_per_epoch=10, save_steps=None) < 1
    for steps_per_epoch, save_steps in [(1, 1), (1, None), (10, 5)]:
        assert times.count_steps(times.sufficient_limit + 0.01, steps_per_epoch, save_steps) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--max-steps", 1], {"warmup": 0.01}),
        (["--time-limit", 0.05], {"warmup": 0.1, "dropout": 0.0}),
        (["--time-limit", 0.05, "--warmup", 2, "--dropout", 0.2], {"warmup": 2.0, "dropout": 0.2}),
    ],
)
def test_a_limited_run_has_no_dropout_and_a_longer_warmup(flags, expected, cli, text, tmp_path, monkeypatch):
    monkeypatch.setattr(MeasuredTimes, "count_steps", lambda *_: 3)
    options = ["--data", text, "--objective", "mlm", "--hidden-size", 16, "--num-heads", 2]
    options += ["--vocab-size", 60, "--batch-size", 4, "--max-length", 16]
    assert cli(COMMAND, *options, *flags, "-o", tmp_path / "run")[0] == 0
    settings = yaml.safe_load((tmp_path / "run" / "run.yaml").read_text())["settings"]
    assert {name: settings[name] for name in ("warmup", "dropout") if name in settings} == expected


@pytest.mark.slow
def test_a_limited_run_is_that_with_as_many_steps_and_resumes_bit_identically(
    cli, text, tmp_path, monkeypatch, stop_at
):
    options = ["--data", text, "--objective", "mlm", "--hidden-size", 16, "--num-heads", 2, "--no-bf16"]
    options += ["--vocab-size", 60, "--batch-size", 4, "--gradient-accumulation-steps", 2]
    options += ["--phases", "16:0.5,32:0.5", "--warmup", 0, "--dropout", 0.1]
    whole, limited = tmp_path / "whole", tmp_path / "limited"
    assert cli(COMMAND, *options, "--max-steps", 6, "-o", whole)[0] == 0
    measured = []

    def count_steps(times, limit, steps_per_epoch, save_steps):
        measured.append((times, limit))
        return 6

    measure_times = dry_run.measure_times

    def compare_weights(session, limit):
        before = {name: tensor.clone() for name, tensor in session.model.state_dict().items()}
        times = measure_times(session, limit)
        assert all(torch.equal(before[name], tensor) for name, tensor in session.model.state_dict().items())
        return times

    monkeypatch.setattr(dry_run, "measure_times", compare_weights)
    monkeypatch.setattr(MeasuredTimes, "count_steps", count_steps)
    stop_at(4)
    status, _, err = cli(COMMAND, *options, "--time-limit", 0.05, "-o", limited)
    assert status == 130
    assert "--time-limit 0.05: 6 steps (" in err
    [(times, limit)] = measured
    assert limit == pytest.approx(3)
    assert 0 < times.step < times.measurement
    assert 0 < times.evaluation < times.measurement
    assert yaml.safe_load((limited / "run.yaml").read_text())["settings"]["max_steps"] == 6
    monkeypatch.setattr(dry_run, "measure_times", None)  # the number of steps is that of run.yaml
    monkeypatch.chdir(tmp_path)
    assert cli(COMMAND, "--resume", "-o", limited)[0] == 0
    for name in ("model.safetensors", "training_log.jsonl"):
        assert (limited / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_the_warmup_is_compared_with_the_limited_number_of_steps(cli, text, tiny, monkeypatch):
    monkeypatch.setattr(MeasuredTimes, "count_steps", lambda *_: 3)
    args = ["--data", text, "--model", tiny, "--objective", "mlm", "--max-length", 32, "--batch-size", 4]
    status, _, err = cli(COMMAND, *args, "--time-limit", 0.001, "--warmup", 3, "--dry-run")
    assert status == 0
    assert "--warmup 3: the run has only 3 steps" in err


@pytest.mark.slow
def test_gradients_that_overflow_in_fp16_do_not_change_the_weights(cli, text, tiny, tmp_path, monkeypatch):
    measure_times = dry_run.measure_times

    def overflow_and_compare(session, limit):
        session.trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
        before = {name: tensor.clone() for name, tensor in session.model.state_dict().items()}
        measure_times(session, limit)
        assert all(torch.equal(before[name], tensor) for name, tensor in session.model.state_dict().items())
        raise UserError("measured")

    monkeypatch.setattr(dry_run, "measure_times", overflow_and_compare)
    args = ["--data", text, "--model", tiny, "--objective", "mlm", "--max-length", 32, "--no-bf16"]
    assert_refused(cli, tmp_path, [*args, "--time-limit", 0.001], ["measured"], COMMAND)


@pytest.mark.parametrize("flags", [["--max-steps", 5], ["--epochs", 2]])
def test_a_number_of_steps_is_refused(flags, cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, "--time-limit", 5, *flags]
    assert_refused(cli, tmp_path, args, ["--time-limit", f"omit {flags[0]}"], COMMAND)


@pytest.mark.slow
def test_a_limit_without_a_step_is_refused(cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--time-limit", 0.001]
    args += ["-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["--time-limit 0.001: too short", "--max-eval-samples"], COMMAND)
