"""Test the profile of training steps: groups of operators, the profiled command, and the report."""

import json
from pathlib import Path

import pytest
from conftest import make_toy_rows, write_rows
from test_docs import parse

import harness
import profiled_command
import step_profile

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "callers", "group"),
    [
        ("aten::mm", ["AddmmBackward0"], "matrix products"),
        ("mkldnn::_linear_pointwise", ["LinearFunction"], "matrix products"),
        ("aten::mm", ["BlockwiseAttention"], "attention"),
        ("aten::bmm", [], "attention"),
        ("aten::fill_", ["aten::zero_"], "zero fills"),
        ("aten::copy_", ["aten::to", "Optimizer.step#AdamW.step"], "optimizer"),
        (
            "aten::bernoulli_",
            ["aten::dropout", "aten::scaled_dot_product_attention"],
            "dropout random numbers",
        ),
        ("aten::mul", ["FastDropoutFunctionBackward"], "dropout random numbers"),
        ("aten::_foreach_norm", [], "optimizer"),
        ("aten::add", [], "other operators"),
    ],
)
def test_operators_are_grouped_by_their_name_and_callers(name, callers, group):
    assert profiled_command.find_group(name, callers) == group


def build_command(data, model, max_steps):
    options = ["--data", str(data), "--model", str(model), "--max-steps", str(max_steps), "--no-bf16"]
    return ["classify", *options, "--output-dir", "run"]


@pytest.mark.cpu
def test_steps_of_a_command_are_profiled(tiny, tmp_path, capsys, monkeypatch):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    command = [
        "--data",
        str(data),
        "--model",
        str(tiny),
        "--max-steps",
        "3",
        "--output-dir",
        "run",
        "--no-bf16",
    ]
    monkeypatch.setattr("sys.argv", ["profiled_command.py", "1", "2", "classify", *command])
    profiled_command.main()
    profile = json.loads(capsys.readouterr().out)
    assert list(profile) == list(profiled_command.GROUPS)
    assert min(profile[group] for group in ("matrix products", "attention", "optimizer")) > 0


def test_profile_needs_enough_steps(tiny, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    command = [
        "classify",
        "--data",
        str(data),
        "--model",
        str(tiny),
        "--max-steps",
        "2",
        "--output-dir",
        "run",
    ]
    with pytest.raises(SystemExit, match="training ended after 2 steps, before step 3"):
        profiled_command.run_command(command, profiled_command.StepProfiler(1, 2))


def test_profiled_commands_and_the_table(tmp_path):
    (tmp_path / "bertkit").mkdir()
    (tmp_path / "bertkit" / "__init__.py").touch()
    options = ["--work", "imdb", "--steps", "4", "--warmup-steps", "1", "--before", str(tmp_path)]
    args = step_profile.parse_args([*options, "--model", str(make_model_folder(tmp_path))])
    (work,) = args.work
    entries = step_profile.list_systems(work, args)
    command = entries[0].build_command(Path("DATA"), Path("MODEL"), Path("OUT"))
    assert [(entry.name, entry.checkout) for entry in entries] == [
        ("before", tmp_path),
        ("now", harness.ROOT),
    ]
    assert (command[2:4], work.rows) == (["1", "4"], 5 * 16)
    assert parse(command[4:]).params["max_steps"] == 5
    profile = step_profile.Profile(dict.fromkeys(profiled_command.GROUPS, 1.0) | {"optimizer": 2.0})
    results = {"imdb": {"before": profile, "now": profile}}
    report = step_profile.format_text(args, results)
    assert "| optimizer | 2.0 | 20% | 2.0 | 20% |" in report


def make_model_folder(folder):
    (folder / "config.json").touch()
    return folder
