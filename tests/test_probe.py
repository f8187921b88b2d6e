"""`pretrain-mlm-nsp --probe`: a linear probe of the encoder during pre-training."""

import json

import pytest
from conftest import assert_refused, make_document_rows, read_predictions, write_rows
from test_equivalence import assert_close, weights
from test_pretrain import COMMAND, pretrained
from test_relations import make_rows

import bertkit

KEY = "eval_probe_accuracy"


@pytest.fixture
def text(tmp_path):
    return write_rows(tmp_path / "text.jsonl", make_document_rows(40))


@pytest.mark.slow
@pytest.mark.linear_probe
def test_the_probe_of_a_model_is_the_baseline_of_classify_and_does_not_change_training(
    text, toy, tiny, tmp_path
):
    settings = {"model": str(tiny), "objective": "mlm", "max_steps": 3}
    run = pretrained(text, tmp_path / "probed", probe=str(toy), **settings)
    classified = bertkit.classify(
        data=str(toy), model=str(tiny), output_dir=str(tmp_path / "classify"), max_steps=1, max_length=32,
        bf16=False,
    )  # fmt: skip
    probe = run.metrics["probe"]
    assert probe["before"] == classified.metrics["baselines"]["linear_probe"]["accuracy"]
    assert {name: probe[name] for name in ("data", "metric")} == {"data": toy.stem, "metric": "accuracy"}
    assert probe["validation"] == classified.metrics["data"]["validation"]
    assert "Linear probe on the vectors" in (run.output_dir / "report.html").read_text("utf-8")
    log = read_predictions(run.output_dir, "training_log.jsonl")
    assert [(line["step"], line[KEY]) for line in log if KEY in line] == [
        (0, probe["before"]),
        (3, probe["after"]),
    ]
    other = pretrained(text, tmp_path / "other", **settings)
    assert_close(weights(run), weights(other), 0.0)


@pytest.mark.slow
def test_a_resumed_run_has_the_same_scores(cli, text, toy, tmp_path, monkeypatch, stop_at):
    options = ["--data", text, "--objective", "mlm", "--hidden-size", 16, "--num-heads", 2, "--no-bf16"]
    options += ["--vocab-size", 60, "--max-steps", 8, "--batch-size", 8, "--max-length", 32]
    options += ["--save-steps", 3, "--probe", toy, "--lr", 0.01]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert cli(COMMAND, *options, "-o", whole)[0] == 0
    stop_at(4)
    assert cli(COMMAND, *options, "-o", resumed)[0] == 130
    monkeypatch.chdir(tmp_path)
    assert cli(COMMAND, "--resume", "-o", resumed)[0] == 0
    log = read_predictions(whole, "training_log.jsonl")
    assert [line["step"] for line in log if KEY in line] == [0, 3, 6, 8]
    for name in ("model.safetensors", "training_log.jsonl"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    scores = [json.loads((folder / "metrics.json").read_text())["probe"] for folder in (whole, resumed)]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("is_text", [True, False])
def test_data_without_labels_is_refused(is_text, cli, text, tiny, tmp_path):
    probe = text if is_text else "nowhere"
    words = [f"--probe {probe}", "without other flags" if is_text else "neither a file"]
    assert_refused(cli, tmp_path, ["--data", text, "--model", tiny, "--probe", probe], words, COMMAND)


def test_texts_with_marked_entities_are_refused(cli, text, tiny, tmp_path):
    labels = {"first": "no_relation", "second": "per:title"}
    rows = [{**row, "label": labels[row["label"]]} for row in make_rows(40)]
    (tmp_path / "data" / "klue-re").mkdir(parents=True)
    for split, part in {"train": rows[:30], "dev": rows[30:]}.items():
        (tmp_path / "data" / "klue-re" / f"klue-re-v1.1_{split}.json").write_text(json.dumps(part), "utf-8")
    args = ["--data", text, "--model", tiny, "--probe", "klue-re", "--data-dir", tmp_path / "data"]
    assert_refused(cli, tmp_path, args, ["--probe klue-re", "marked entities"], COMMAND)


def test_a_problem_of_another_flag_keeps_its_name(cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, "--probe", "sst2", "--data-dir", tmp_path / "nowhere"]
    assert_refused(cli, tmp_path, args, ["--data-dir", "nowhere"], COMMAND)
