"""Out of memory: training restarts once with smaller batches, and equals a run that started with them."""

import dataclasses

import pytest
import torch
import yaml
from conftest import ROW_MAKERS, write_rows
from test_architectures import tiny_of
from test_equivalence import SGD, assert_close, weights

from bertkit.errors import UserError
from bertkit.models.forward import compute_logits
from bertkit.run.train import train
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.training.failures import halve_batch
from bertkit.utils.reporting import Reporter, use_reporter

pytestmark = [pytest.mark.slow, pytest.mark.cpu]  # batches are merged on a GPU, and graphs call no functions

CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory")
ERRORS = {"accelerator": torch.OutOfMemoryError("CUDA out of memory"), "cpu": CPU, "python": MemoryError()}


class RecordingReporter(Reporter):
    """Record all messages."""

    def __init__(self):
        self.messages = []

    def info(self, message):
        self.messages.append(message)

    warn = info


@pytest.fixture
def limit_memory(monkeypatch):
    """Simulate out-of-memory errors for batches above a size, in training or in evaluation."""

    def arrange(most, where="trainer", error=CPU, after=0, size=len):
        calls = []

        def limited(model, batch):
            calls.append(batch)
            if size(batch["attention_mask"]) > most and len(calls) > after:
                raise error
            return compute_logits(model, batch)

        monkeypatch.setattr(f"bertkit.training.{where}.compute_logits", limited)

    return arrange


def run(task, data, model, folder, reporter=None, **options):
    given = {"data": str(data), "model": str(model), "bf16": False, "max_length": 32, "epochs": 2}
    given |= {"output_dir": str(folder), **options}
    with use_reporter(reporter or Reporter()):
        return train(task, given)


@pytest.fixture(scope="module")
def half_batch(tiny, tmp_path_factory):
    """A run with half the batch, and its data."""
    folder = tmp_path_factory.mktemp("half")
    data = write_rows(folder / "toy.jsonl", ROW_MAKERS["classify"](40))
    return run("classify", data, tiny, folder / "run", batch_size=4, gradient_accumulation_steps=2), data


@pytest.mark.parametrize("error", ERRORS)
def test_run_equals_a_run_with_half_the_batch(error, tiny, half_batch, tmp_path, limit_memory):
    expected, data = half_batch
    limit_memory(4, error=ERRORS[error])
    reporter = RecordingReporter()
    found = run("classify", data, tiny, tmp_path / "found", reporter, batch_size=8)
    assert_close(weights(found), weights(expected), 0)
    training = found.metrics["training"]
    assert (training["batch_size"], training["gradient_accumulation_steps"], training["resumed_from"]) == (
        4,
        2,
        None,
    )
    made = yaml.safe_load((found.output_dir / "run.yaml").read_text())
    assert {"batch_size": 4, "gradient_accumulation_steps": 2}.items() <= made["settings"].items()
    assert made["provenance"]["out_of_memory_at"] == {"batch_size": 8, "gradient_accumulation_steps": 1}
    warnings = [line for line in reporter.messages if "out of memory" in line]
    assert warnings == [
        "out of memory at batch_size 8, gradient_accumulation_steps 1: training restarts with "
        "batch_size 4, gradient_accumulation_steps 2 (same effective batch size)"
    ]


@pytest.mark.parametrize("options", [{}, {"features": "last", "head": "bilstm"}], ids=["whole", "frozen"])
def test_token_budget_is_halved(options, tiny, tmp_path, limit_memory):
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS["ner"](30))
    half = {"tokens_per_batch": 64, "gradient_accumulation_steps": 2}
    expected = run("ner", data, tiny, tmp_path / "asked", **half, **options)
    limit_memory(64, size=torch.numel)
    found = run("ner", data, tiny, tmp_path / "found", tokens_per_batch=128, **options)
    assert half.items() <= found.metrics["training"].items()
    assert_close(weights(found), weights(expected), 0)


def test_training_resumes_from_a_checkpoint(tiny_without_dropout, toy, tmp_path, limit_memory):
    whole = run("classify", toy, tiny_without_dropout, tmp_path / "whole", batch_size=8, **SGD)
    limit_memory(4, after=5)
    found = run("classify", toy, tiny_without_dropout, tmp_path / "found", batch_size=8, save_steps=3, **SGD)
    assert found.metrics["training"]["resumed_from"] == 3
    assert found.metrics["training"]["steps"] == whole.metrics["training"]["steps"]
    assert_close(weights(found), weights(whole), 1e-5)


FIXES = "try --gradient-checkpointing, a smaller --batch-size with more --gradient-accumulation-steps"


@pytest.mark.parametrize(("batch", "most"), [(8, 2), (1, 0)])
def test_second_failure_or_single_example_ends_the_run(cli, tiny, toy, tmp_path, limit_memory, batch, most):
    limit_memory(most)
    args = ["classify", "--data", toy, "--model", tiny, "--no-bf16", "--max-length", 32]
    status, _, err = cli(*args, "--batch-size", batch, "-o", tmp_path / "run")
    last = err.splitlines()[-1]
    assert (status, FIXES in last, "--bf16" in last) == (2, True, True), err
    assert f"out of memory at --batch-size {min(batch, 4)}" in last
    assert not (tmp_path / "run").exists()


def test_a_dry_run_reports_insufficient_memory_with_fixes(cli, tiny, toy, limit_memory):
    limit_memory(0)
    status, _, err = cli("classify", "--data", toy, "--model", tiny, "--dry-run")
    assert (status, FIXES in err) == (2, True)


def test_fixes_leave_out_settings_that_the_architecture_lacks(cli, toy, tmp_path, limit_memory):
    folder, _ = tiny_of("albert", tmp_path / "albert")
    limit_memory(0)
    for command in (["--dry-run"], ["--batch-size", 1, "-o", tmp_path / "run"]):
        status, _, err = cli("classify", "--data", toy, "--model", folder, *command)
        assert (status, "out of memory" in err, "--gradient-checkpointing" in err) == (2, True, False)


def test_other_errors_are_not_caught(tiny, toy, tmp_path, limit_memory):
    limit_memory(4, error=RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        run("classify", toy, tiny, tmp_path / "run", batch_size=8)


def test_evaluation_halves_batches(tiny, toy, tmp_path, limit_memory):
    usual = run("classify", toy, tiny, tmp_path / "usual", max_steps=2)
    limit_memory(3, "scoring")
    reporter = RecordingReporter()
    found = run("classify", toy, tiny, tmp_path / "found", reporter, max_steps=2)
    assert found.metrics["validation"] == pytest.approx(usual.metrics["validation"])
    assert any("scored in smaller batches" in line for line in reporter.messages)
    limit_memory(0, "scoring")
    with pytest.raises(UserError, match="single row"):
        run("classify", toy, tiny, tmp_path / "none", max_steps=2)


SIZES = {(8, 1): (4, 2), (12, 2): (6, 4), (5, 1): (1, 5), (5, 2): (2, 5), (9, 2): (3, 6), (1, 4): None}


@pytest.mark.parametrize("expected", SIZES)
def test_effective_batch_size_stays_the_same(expected):
    config = ClassifyConfig(batch_size=expected[0], gradient_accumulation_steps=expected[1])
    found = halve_batch(config, 32)
    assert (found and (found.batch_size, found.gradient_accumulation_steps)) == SIZES[expected]
    budget = dataclasses.replace(config, batch_size=None, tokens_per_batch=100)
    assert halve_batch(budget, 51) is None
    assert halve_batch(budget, 50).tokens_per_batch == 50
