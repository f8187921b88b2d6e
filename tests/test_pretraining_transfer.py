"""The benchmark of pre-training against new weights, with a tiny model."""

import json
import shlex
import sys
from types import SimpleNamespace

import pytest
from conftest import make_document_rows, make_ner_rows, make_toy_rows, write_rows

import pretraining_transfer


@pytest.fixture
def in_process(cli, monkeypatch):
    """Let the benchmark run its commands in this process, because a new one would import the libraries."""

    def run(command, **_):
        assert command[:3] == [sys.executable, "-m", "bertkit"]
        status, out, err = cli(*command[3:])
        assert status == 0, err
        return SimpleNamespace(returncode=status, stdout=out)

    monkeypatch.setattr(pretraining_transfer.subprocess, "run", run)


@pytest.mark.slow
@pytest.mark.linear_probe
def test_a_measured_objective_has_a_table_and_two_models_of_the_same_shape(tmp_path, capsys, in_process):
    """The table has a probe and a paired difference for each task; `--options` shape both models."""
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(40))
    toy = write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))
    words = write_rows(tmp_path / "words.jsonl", make_ner_rows(40))
    options = "--num-layers 1 --hidden-size 24 --num-heads 3 --batch-size 5"
    args = [
        "--text", text, "--probe", toy, "--tasks", f"classify:{toy}:20", f"ner:{words}::f1",
        "--objectives", "rtd", "--max-steps", 2, "--vocab-size", 60, "--max-length", 32, "--pooling", "mean",
        "--seeds", 2, "--epochs", 1, "--models-dir", tmp_path / "models", f"--options={options}",
    ]  # fmt: skip
    pretraining_transfer.main([*map(str, args)])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| rtd")]
    assert len(table) == 3
    assert "linear probe on toy" in table[0]
    for line, task in zip(table[1:], ("classify", "ner"), strict=True):
        assert line.startswith(f"| rtd: {task}:")
        score, interval, difference, its_interval = [cell.strip() for cell in line.split("|")[2:-1]]
        low, high = map(float, interval.split(" to "))
        assert low <= float(score) <= high
        low, high = map(float, its_interval.split(" to "))
        assert low <= float(difference) <= high
    for model in ("pretrained", "new"):
        folder = tmp_path / "models" / "rtd" / model
        shape = json.loads((folder / "config.json").read_text("utf-8"))
        assert [shape[f"num_{name}"] for name in ("hidden_layers", "attention_heads")] == [1, 3]
        assert shape["hidden_size"] == 24
        assert "batch_size: 5" in (folder / "run.yaml").read_text("utf-8")


def test_the_reference_is_not_trained(tmp_path):
    args = pretraining_transfer.parse_args(["--options=--learning-rate 0.5 --embedding-init ppmi"])
    command = pretraining_transfer.build_command("mlm", tmp_path, args, is_new=True)
    assert command.index("random") > command.index("ppmi")  # the last value counts
    assert command[command.index("--epochs") + 1] == "0"
    assert not {"--max-steps", "--time-limit"} & set(command)


def test_finished_models_are_used_again(tmp_path, monkeypatch):
    for model in ("pretrained", "new"):
        metrics = tmp_path / "mlm" / model / "metrics.json"
        metrics.parent.mkdir(parents=True)
        probe = {"data": "toy", "before": 0.5, "after": 0.6}
        metrics.write_text(json.dumps({"probe": probe, "training": {"steps": 7, "tokens_per_second": 1.0}}))
    monkeypatch.setattr(pretraining_transfer.subprocess, "run", None)
    args = ["--models-dir", str(tmp_path), "--objectives", "mlm", "--tasks", "t", "--seeds", "3"]
    for model in ("pretrained", "new"):
        folder = tmp_path / "mlm" / model
        command = pretraining_transfer.build_command(
            "mlm", folder, pretraining_transfer.parse_args(args), model == "new"
        )
        (folder / "command.txt").write_text(shlex.join(command))
    monkeypatch.setattr(
        pretraining_transfer, "finetune", lambda _, model, seed, __: seed + (model.name == "new")
    )
    pretraining_transfer.main([*args, "--out", str(tmp_path / "table.md")])
    table = (tmp_path / "table.md").read_text()
    assert "7 steps" in table
    assert "| 100.0 | -148.4 to 348.4 | -100.0 |" in table
    with pytest.raises(SystemExit, match="is from another command"):
        pretraining_transfer.main([*args, "--minutes", "7"])
