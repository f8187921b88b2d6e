"""Runs with the same seed are bit-identical: any number of data loader processes, and `--deterministic`."""

import os

import pytest
import torch
from conftest import ROW_MAKERS, make_document_rows, write_rows

import bertkit
from bertkit.errors import RunInterrupted
from bertkit.training.arguments import VARIABLES
from bertkit.training.failures import explain_runtime_error

pytestmark = pytest.mark.slow

FILES = (
    "model.safetensors", "generator/model.safetensors", "training_log.jsonl", "masked_samples.jsonl",
    "predictions*",
)  # fmt: skip
NEW_MODEL = {"model": None, "hidden_size": 16, "num_heads": 2, "vocab_size": 60}
CASES = {
    **{task: (task, {}) for task in ROW_MAKERS},
    "windows": ("classify", {"long_texts": "windows", "max_length": 10}),
    "packed": ("classify", {"pack": True}),
    "bf16": ("classify", {"bf16": True}),
    "bilstm": ("ner", {"head": "bilstm", "features": "sum-all"}),
    "mlm+nsp": ("pretrain_mlm_nsp", {}),
    "ltr": ("pretrain_mlm_nsp", {"objective": "ltr"}),
    "rtd": ("pretrain_mlm_nsp", {"objective": "rtd", **NEW_MODEL}),
}


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory):
    """The folder of uninterrupted runs; nobody writes into them."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def train(finished_runs, tiny):
    """Return a function that trains two epochs of a case with deterministic algorithms."""

    def run(case, folder, **more):
        task, settings = CASES[case]
        data = finished_runs / f"{task}.jsonl"
        if not data.exists():
            write_rows(data, make_document_rows(8) if task.startswith("pretrain") else ROW_MAKERS[task](24))
        defaults = {"model": tiny, "max_steps": 6, "batch_size": 8, "max_length": 32, "bf16": False}
        defaults |= {"save_steps": 4, "deterministic": True, "split_seed": 0}
        return getattr(bertkit, task)(data=data, output_dir=folder, **defaults | settings | more)

    return run


@pytest.fixture
def train_whole(finished_runs, train):
    """Return a function that trains a case without interruption, once for all tests."""

    def train_once(case):
        folder = finished_runs / case
        if not folder.exists():
            rows = train(case, folder).metrics["data"]["train"]
            assert 16 < rows <= 24  # an epoch has 3 steps
        return folder

    return train_once


def read_results(folder):
    found = {
        path.relative_to(folder): path.read_bytes() for pattern in FILES for path in folder.glob(pattern)
    }
    assert len(found) >= 3
    return found


@pytest.mark.parametrize(
    ("case", "workers"), [("classify", 1), ("ner", 2), ("nli", 1), ("qa", 3), ("swag", 2), ("mlm+nsp", 2)]
)
def test_runs_with_the_same_seed_are_bit_identical_with_any_number_of_workers(
    case, workers, train, train_whole, tmp_path
):
    expected = read_results(train_whole(case))
    train(case, tmp_path / "workers", set=[f"dataloader_num_workers={workers}"])
    assert read_results(tmp_path / "workers") == expected
    train(case, tmp_path / "another", seed=1)
    weights = FILES[0]
    assert (tmp_path / "another" / weights).read_bytes() != (train_whole(case) / weights).read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_deterministic_algorithms_is_bit_identical(
    case, train, train_whole, tmp_path, stop_at
):
    """The run is interrupted within its second epoch."""
    whole, stopped = train_whole(case), tmp_path / "stopped"
    stop_at(4)  # the step after the signal is the last one
    with pytest.raises(RunInterrupted):
        train(case, stopped)
    getattr(bertkit, CASES[case][0])(resume=True, output_dir=stopped)
    assert read_results(stopped) == read_results(whole)


@pytest.mark.parametrize("dry_run", [False, True])
def test_algorithms_are_deterministic_only_during_the_run(dry_run, tiny, toy, tmp_path, monkeypatch):
    used, compute_loss = [], torch.nn.functional.cross_entropy

    def record(*args, **kwargs):
        used.append(torch.are_deterministic_algorithms_enabled())
        return compute_loss(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", record)
    variables = {name: os.environ.get(name) for name in VARIABLES}
    for deterministic in (True, False):
        bertkit.classify(
            data=toy, model=tiny, max_steps=1, deterministic=deterministic, dry_run=dry_run,
            output_dir=tmp_path / str(deterministic),
        )  # fmt: skip
        assert set(used) == {deterministic}
        used.clear()
    assert {name: os.environ.get(name) for name in VARIABLES} == variables


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "cumsum_cuda_kernel does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'. You can turn off determinism ...",
            "--deterministic: cumsum_cuda_kernel has no deterministic algorithm on this device; omit it",
        ),
        (
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
            "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic ...",
            "--deterministic: this process has used the GPU before; start a new process, or set "
            "CUBLAS_WORKSPACE_CONFIG=:16:8 before the first use",
        ),
    ],
)
def test_operations_that_are_refused_are_explained(message, words):
    assert explain_runtime_error(message, None) == words
