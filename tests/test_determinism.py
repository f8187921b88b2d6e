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

FILES = ("model.safetensors", "training_log.jsonl")


@pytest.mark.parametrize("task", [*ROW_MAKERS, "pretrain-mlm-nsp"])
def test_runs_with_the_same_seed_are_bit_identical_with_any_number_of_workers(tiny, tmp_path, task):
    data = write_rows(tmp_path / "data.jsonl", ROW_MAKERS.get(task, make_document_rows)(40))
    train = getattr(bertkit, task.replace("-", "_"))

    def run(name, workers, seed=0):
        settings = {"max_steps": 6, "batch_size": 8, "max_length": 32, "save_steps": 4, "bf16": False}
        overrides = [f"dataloader_num_workers={workers}"]
        out = tmp_path / name
        train(data=data, model=tiny, output_dir=out, seed=seed, split_seed=0, set=overrides, **settings)
        return {path.name: path.read_bytes() for name in (*FILES, "predictions*") for path in out.glob(name)}

    first = run("first", 0)
    assert len(first) >= 2
    for workers in (1, 3):
        assert run(f"workers{workers}", workers) == first
    assert run("another", 0, seed=1)["model.safetensors"] != first["model.safetensors"]


# ---- deterministic algorithms

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


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_with_deterministic_algorithms_is_bit_identical(case, tiny, tmp_path, stop_at):
    task, settings = CASES[case]
    data = write_rows(tmp_path / "data.jsonl", ROW_MAKERS.get(task, make_document_rows)(40))
    defaults = {"model": tiny, "max_steps": 6, "batch_size": 8, "max_length": 32, "bf16": False}

    def run(name):
        options = {"data": data, "output_dir": tmp_path / name, "deterministic": True}
        return getattr(bertkit, task)(**options | defaults | settings)

    run("whole")
    stop_at(4)
    with pytest.raises(RunInterrupted):
        run("stopped")
    getattr(bertkit, task)(resume=True, output_dir=tmp_path / "stopped")
    for name in FILES:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


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
