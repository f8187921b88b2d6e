"""`--report-to`: what trackers log, where they log it, and early refusals."""

import importlib.util
import json
import sqlite3

import pytest
from conftest import assert_refused, read_predictions
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertkit.errors import UserError
from bertkit.training.callbacks import ReporterCallback
from bertkit.utils.reporting import silence_libraries

pytestmark = pytest.mark.slow


def arguments(toy, tiny, folder, tracker):
    short = ["--max-steps", 4, "--batch-size", 36, "--no-bf16", "--set", "logging_steps=1"]
    return ["--data", toy, "--model", tiny, *short, "--report-to", tracker, "--output-dir", folder]


def curves(folder):
    """Tag -> step -> value, of TensorBoard's events in a folder."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: {one.step: one.value for one in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_loss_and_validation_scores(cli, toy, tiny, tmp_path):
    run = tmp_path / "run"
    args = arguments(toy, tiny, run, "tensorboard")
    status, out, err = cli("classify", *args, "--json")
    assert status == 0, err
    found, log = curves(run / "tensorboard"), read_predictions(run, "training_log.jsonl")
    assert found["train/loss"] == pytest.approx({line["step"]: line["loss"] for line in log})
    assert len(found["train/loss"]) == 4
    for name in json.loads(out)["validation"]:
        scores = {line["step"]: line[f"eval_{name}"] for line in log if f"eval_{name}" in line}
        assert found[f"eval/{name}"] == pytest.approx(scores)
        assert list(scores) == [2, 4]  # the ends of the epochs
    assert cli("classify", *args, "--overwrite")[0] == 0
    assert len(list((run / "tensorboard").iterdir())) == 1  # of the new run alone


def test_run_that_fails_early_leaves_no_events(cli, toy, tiny, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise UserError("it went wrong")

    monkeypatch.setattr(ReporterCallback, "on_step_end", fail)
    assert_refused(cli, tmp_path, arguments(toy, tiny, tmp_path / "run", "tensorboard"), ["it went wrong"])


@pytest.mark.parametrize(
    ("tracker", "words"),
    [
        ("tensorbord", ["--report-to tensorbord", "did you mean 'tensorboard'"]),
        ("trackio", ["--report-to trackio", "pip install trackio"]),
        ("comet_ml", ["--report-to comet_ml", "page on callbacks", "tensorboard"]),
        ("azure_ml", ["--report-to azure_ml", "page on callbacks"]),
    ],
)
def test_unusable_tracker_is_refused_before_loading_data(cli, tmp_path, damaged, monkeypatch, tracker, words):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == tracker else there(name, *more)
    )
    assert_refused(cli, tmp_path, ["--data", damaged, "--report-to", tracker], words)


def test_report_to_none_logs_nothing(cli, toy, tiny, tmp_path):
    assert cli("classify", *arguments(toy, tiny, tmp_path / "run", "none"))[0] == 0
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_output_of_libraries_goes_to_stderr(capsys):
    with silence_libraries():
        print("a tracker says hello")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "a tracker says hello\n")


def test_trackio_logs_locally(cli, toy, tiny, tmp_path, monkeypatch):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    status, out, err = cli("classify", *arguments(toy, tiny, tmp_path / "run", "trackio"), "--json")
    assert status == 0, err
    assert json.loads(out)["task"] == "classify"
    [base] = (tmp_path / "trackio").glob("*.db")
    [names] = zip(*sqlite3.connect(base).execute("select run_name from metrics"), strict=True)
    assert set(names) == {"run"}


def test_wandb_without_a_key_is_refused_unless_offline(cli, toy, tiny, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    args = arguments(toy, tiny, tmp_path / "run", "wandb")
    assert_refused(cli, tmp_path, args, ["--report-to wandb", "wandb login", "WANDB_MODE=offline"])
    wandb.teardown()  # it reads its environment once
    monkeypatch.setenv("WANDB_MODE", "offline")
    status, out, err = cli("classify", *args, "--json")
    assert status == 0, err
    assert json.loads(out)["task"] == "classify"
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
