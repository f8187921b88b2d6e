"""Test the comparison of LoRA with full fine-tuning: its commands, its statistics, and a small model."""

from pathlib import Path

import pytest
from test_docs import parse

import lora

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", lora.METHODS)
def test_commands_can_be_parsed(method):
    args = lora.parse_args(["--data-dir", "DATA", "--rank", "4", "--options=--no-bf16"])
    run = lora.describe_run(method, 3, args)
    _, _, _, *command = run.build_command(Path("data"), Path("model"), Path("output"))
    parse(command)
    assert command[command.index("--seed") + 1] == "3"
    assert ("--lora" in command) == (method == "LoRA")
    assert "RANK" not in command


def test_differences_are_paired_by_seed():
    scores = {"full fine-tuning": [81.0, 82.5, 82.5], "LoRA": [80.0, 82.0, 81.0]}
    table, per_seed = lora.format_scores(scores)[2], lora.format_scores(scores)[-1]
    # mean -1, standard error 0.5 / sqrt(3), t of 2 degrees of freedom 4.303
    assert table == "| MRPC, accuracy | 82.00 | 81.00 | -1.00 | -2.24 to +0.24 | 0.07 |"
    assert per_seed == "Accuracy per seed: full fine-tuning 81.0, 82.5, 82.5; LoRA 80.0, 82.0, 81.0"


def test_one_seed_has_no_interval():
    scores = {"full fine-tuning": [81.0], "LoRA": [80.0]}
    assert lora.format_scores(scores)[2] == "| MRPC, accuracy | 81.00 | 80.00 | -1.00 |  |  |"


def test_memory_is_compared_with_full_fine_tuning():
    lines = lora.format_memory({"full fine-tuning": 8000.0, "LoRA": 4000.0})
    assert lines[2:] == ["| full fine-tuning | 8,000 | 100% |", "| LoRA | 4,000 | 50% |"]


def test_memory_is_measured_on_full_batches(monkeypatch):
    """A model with other sizes, and without the processes."""
    monkeypatch.setattr(lora, "LARGE", (2, 32, 2))
    monkeypatch.setattr(lora, "VOCABULARY", 100)
    monkeypatch.setattr(lora, "measure_peak", lambda command, _: float(parse(command[3:]) is not None))
    assert list(lora.measure_memory(lora.parse_args([]))) == list(lora.METHODS)
