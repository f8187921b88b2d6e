"""`--jobs`: several runs are trained at the same time, with the results of one after the other."""

import atexit
import json
import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch
from conftest import (
    assert_refused,
    costly_parts,
    freeze_libraries,
    make_toy_rows,
    save_tiny_model,
    write_rows,
)
from test_glue import COLUMNS, write_split

import bertkit
from bertkit.experiments.config import SUITES, find_config, make_task_config
from bertkit.experiments.experiment import PRELOADED
from bertkit.utils import system
from bertkit.utils.worker_processes import enter_worker, get_worker_context

FLAGS = ["--folds", 2, "--batch-size", 16, "--max-length", 32, "--no-bf16"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The folder of a random BERT with one layer."""
    freeze_libraries()
    return save_tiny_model(tmp_path_factory.mktemp("models") / "small", num_hidden_layers=1)


@pytest.fixture
def data(tmp_path):
    return write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))


def read_weights(folder):
    paths = folder.rglob("model.safetensors")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def drop_durations(value):
    """Return metrics without the seconds that runs took."""
    if isinstance(value, dict):
        return {key: drop_durations(item) for key, item in value.items() if key != "seconds"}
    return [drop_durations(item) for item in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_a_study_with_two_jobs_has_the_weights_and_the_results_of_one_job(cli, data, small, tmp_path):
    """Also of a trial that fails: at this learning rate, the loss is NaN."""
    flags = [*FLAGS, "--trials", 2, "--search", "learning_rate=1e30", "--epochs", 2]
    metrics = []
    for jobs in (1, 2):
        args = ["study", "classify", "--data", data, "--model", small, *flags, "--jobs", jobs, "--json"]
        status, out, err = cli(*args, "-o", tmp_path / f"jobs{jobs}")
        assert status == 0, err
        metrics.append(drop_durations(json.loads(out) | {"output_dir": ""}))
    assert metrics[0] == metrics[1]
    assert [trial["state"] for trial in metrics[1]["search"]["table"]] == ["complete", "failed"]
    weights = read_weights(tmp_path / "jobs1")
    assert list(weights)
    assert weights == read_weights(tmp_path / "jobs2")
    predictions = [tmp_path / f"jobs{jobs}" / "out_of_fold.jsonl" for jobs in (1, 2)]
    assert predictions[0].read_bytes() == predictions[1].read_bytes()
    assert err.count("data: toy from") == 1


@pytest.mark.slow
def test_a_suite_with_two_jobs_has_the_weights_and_the_table_of_one_job(tiny, tmp_path):
    for folder in ("CoLA", "SST-2"):
        for seed, name in enumerate(("train", "dev")):
            path = tmp_path / "data" / folder / f"{name}.tsv"
            write_split(path, COLUMNS[folder][0], folder, seed, folder != "CoLA")
    settings = {"tasks": ["cola,sst2"], "model": str(tiny), "data_dir": str(tmp_path / "data")}
    for jobs in (1, 2):
        with costly_parts("linear_probe"):  # the baselines of the worker processes are complete
            run = bertkit.glue(
                output_dir=str(tmp_path / f"jobs{jobs}"),
                jobs=jobs,
                max_steps=1,
                batch_size=8,
                bf16=False,
                **settings,
            )
        assert list(run.metrics["tasks"]) == ["sst2", "cola"]
    weights = read_weights(tmp_path / "jobs1")
    assert len(weights) == 2
    assert weights == read_weights(tmp_path / "jobs2")
    assert (tmp_path / "jobs1" / "README.md").read_text() == (tmp_path / "jobs2" / "README.md").read_text()


def find_checkpoints(study):
    """Return the complete checkpoints of the folds, without those that are being written."""
    return set(study.glob("folds/*/checkpoints/checkpoint-*"))


@pytest.fixture
def when_training():
    """Return a function that calls another one as soon as each fold of a study has a new checkpoint."""
    threads = []

    def arrange(folder, action):
        before = find_checkpoints(folder)

        def wait_and_act():
            while len({path.parents[1] for path in find_checkpoints(folder) - before}) < 2:
                time.sleep(0.02)
            action()

        threads.append(threading.Thread(target=wait_and_act, daemon=True))
        threads[-1].start()

    yield arrange
    for thread in threads:
        thread.join(60)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_study_whose_process_was_killed_and_then_interrupted_is_resumed(
    cli, data, small, tmp_path, when_training
):
    args = ["study", "classify", "--data", data, "--model", small, *FLAGS, "--epochs", 30]
    args += ["--batch-size", 32]  # one step an epoch, because only the number of checkpoints matters
    assert cli(*args, "-o", tmp_path / "whole")[0] == 0
    folder = tmp_path / "study"
    when_training(folder, lambda: multiprocessing.active_children()[0].kill())
    status, _, err = cli(*args, "--jobs", 2, "-o", folder)
    assert "seed 0: chosen for 18 training rows" in err  # the message of a worker process
    lines = [line for line in err.splitlines() if line.startswith("bertkit:")]
    assert (status, len(lines)) == (2, 1)
    assert "-seed0: its process was killed by SIGKILL, and the other runs were stopped; resume" in lines[0]
    assert str(folder / "folds") in lines[0]
    when_training(folder, lambda: os.kill(os.getpid(), signal.SIGTERM))
    status, _, err = cli("study", "classify", "--resume", "--jobs", 2, "-o", folder)
    assert status == 130, err
    assert f"resume with: bertkit study classify --resume --output-dir {folder} --jobs 2" in err
    assert multiprocessing.active_children() == []
    assert len({path.parents[1] for path in find_checkpoints(folder)}) == 2
    status, _, err = cli("study", "classify", "--resume", "-o", folder)
    assert status == 0, err
    assert read_weights(folder) == read_weights(tmp_path / "whole")


@pytest.mark.slow
def test_an_error_of_a_worker_process_is_one_line(cli, data, small, tmp_path):
    """The settings of a run that was interrupted are damaged, and only the process of the run reads them."""
    run = tmp_path / "study" / "folds" / "fold0-seed0" / "run.yaml"
    settings = {"data": str(data), "model": str(small), "folds": 2, "max_steps": 1, "bf16": False}
    bertkit.study("classify", output_dir=tmp_path / "study", **settings)
    for path in (run.with_name("metrics.json"), tmp_path / "study" / "metrics.json"):
        path.unlink()
    run.write_text("nonsense")
    args = ["classify", "--resume", "--jobs", 2, "-o", tmp_path / "study"]
    assert_refused(cli, tmp_path, args, [str(run), "was not written by bertkit, or is damaged"], "study")


def begin_and_end(log):
    """Receive SIGTERM before a worker process has begun, and write down what happens."""

    def write(line):
        with log.open("a") as file:
            file.write(f"{line}\n")

    os.kill(os.getpid(), signal.SIGTERM)
    write("not ended")
    signal.signal(signal.SIGTERM, lambda *_: write("SIGTERM"))
    enter_worker({"VARIABLE": "of this worker"})
    write(dict(os.environ))
    write(f"CUDA was initialized before the fork: {torch.cuda._is_in_bad_fork()}")
    atexit.register(write, "at exit")


@pytest.mark.slow
@pytest.mark.skipif(not system.IS_LINUX, reason="worker processes are forks only on Linux")
def test_a_worker_process_has_its_environment_its_signals_and_its_end(tmp_path):
    process = get_worker_context(PRELOADED).Process(target=begin_and_end, args=[tmp_path / "log"])
    process.start()
    process.join()
    assert process.exitcode == 0
    lines = [
        "not ended",
        "SIGTERM",
        "{'VARIABLE': 'of this worker'}",
        "CUDA was initialized before the fork: False",
        "at exit",
    ]
    assert (tmp_path / "log").read_text().splitlines() == lines


@pytest.mark.parametrize("command", [*SUITES, "study classify", "study qa"])
def test_every_experiment_has_jobs_which_are_not_saved(command):
    from bertkit.settings.declaration import get_settings

    declared = get_settings(find_config(command))["jobs"]
    assert (declared.default, declared.metadata.min, declared.metadata.is_saved) == (1, 1, False)


def test_the_settings_of_a_study_can_be_sent_to_another_process():
    import pickle

    config = make_task_config("study", "ner")(data="a.conll", folds=3, search=["epochs=1,2"])
    assert pickle.loads(pickle.dumps(config)) == config
