"""An exported model gives what PyTorch gives, for every head, at any size; nothing is left half-written."""

import json
import os
import signal
import time

import numpy as np
import pytest
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_document_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from test_architectures import tiny_of

import bertkit
from bertkit.infer import export as exporting
from bertkit.infer.onnx_runtime import OnnxModel

TRAIN = {name: getattr(bertkit, name) for name in ROW_MAKERS}


def few_steps(tmp_path, model, task="classify", rows=None, **settings):
    """The directory of a run on some rows, far from learnt; weights are tried that say something."""
    data = write_rows(tmp_path / "toy.jsonl", rows or ROW_MAKERS[task](40))
    given = {"max_steps": 3, "batch_size": 8, "learning_rate": 3e-3, "max_length": 32, "bf16": False}
    given |= {"data": str(data), "model": str(model), "output_dir": str(tmp_path / "run")}
    return TRAIN[task](**given | settings).output_dir


def same_records(run, exported, rows):
    """Predictions of both are the same: words alike, numbers nearly."""
    ours, theirs = (list(bertkit.load(folder).predict(rows)) for folder in (run, exported))
    assert len(ours) == len(rows)
    for one, other in zip(ours, theirs, strict=True):
        assert nearly(one, other), (one, other)


def nearly(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(nearly, one, other))
    return one == pytest.approx(other, abs=1e-4) if isinstance(one, float) else one == other


MULTI_LABEL = [
    row | {"label": [row["label"], "seen"][: 1 + n % 2]} for n, row in enumerate(make_toy_rows(40))
]
NUMBERS = [row | {"label": len(row["text"]) / 10} for row in make_toy_rows(40)]
HEADS = {
    "classify in windows": ("classify", {"long_texts": "windows", "max_length": 8}),
    "multi-label": ("classify", {"rows": MULTI_LABEL}),
    "regression behind a BiLSTM": ("classify", {"rows": NUMBERS, "head": "bilstm"}),
    "nli": ("nli", {}),
    "ner in windows": ("ner", {"max_length": 8}),
    "ner behind a BiLSTM": ("ner", {"head": "bilstm"}),
    "ner on a frozen encoder": ("ner", {"features": "sum-last-4", "head": "bilstm"}),
    "qa": ("qa", {"rows": ROW_MAKERS["qa"](40, unanswerable=10)}),
    "swag": ("swag", {}),
    "swag behind a BiLSTM": ("swag", {"head": "bilstm"}),
}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_decides_as_in_pytorch(head, tiny, tmp_path):
    task, settings = HEADS[head]
    if "features" in settings:  # of four layers
        tiny = save_tiny_model(tmp_path / "deep", num_hidden_layers=4)
    run = few_steps(tmp_path, tiny, task, **settings)
    made = bertkit.export(run)
    scores = made.measurements["scores"]
    assert made.output_dir == run / "onnx"
    assert not list(made.output_dir.glob("*.safetensors"))
    assert scores["metrics.json"] == pytest.approx(scores["onnx"], abs=1e-4)
    assert scores["pytorch"] == pytest.approx(scores["onnx"], abs=1e-4)
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    same_records(run, made.output_dir, (settings.get("rows") or ROW_MAKERS[task](40))[:7])


@pytest.mark.parametrize("name", ["roberta", "albert", "electra", "distilbert"])
def test_other_encoders(name, tmp_path):
    task = "swag" if name == "roberta" else "classify"
    run = few_steps(tmp_path, tiny_of(name, tmp_path / "model")[0], task)
    made = bertkit.export(run)
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    same_records(run, made.output_dir, ROW_MAKERS[task](5))


def test_a_model_that_reads_from_left_to_right(tmp_path):
    folder = save_tiny_model(tmp_path / "model", is_decoder=True)
    run = few_steps(tmp_path, folder, head="bilstm")
    made = bertkit.export(run)
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    same_records(run, made.output_dir, make_toy_rows(7, seed=3))


@pytest.mark.parametrize("objective", ["mlm+nsp", "ltr"])
def test_pre_training_is_scored_at_the_masked_places(objective, tiny, tmp_path):
    data = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    run = bertkit.pretrain_mlm_nsp(
        data=str(data), objective=objective, num_layers=1, hidden_size=16, num_heads=2, tokenizer=str(tiny), max_steps=2,
        max_length=32, batch_size=8, bf16=False, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    made = bertkit.export(run.output_dir)
    scores = made.measurements["scores"]
    assert made.measurements["greatest_difference"]["onnx"] < 1e-5
    assert scores["onnx"] == pytest.approx(run.metrics["validation"], rel=1e-4)
    assert scores["pytorch"] == pytest.approx(run.metrics["validation"], rel=1e-4)


@pytest.fixture
def run(tiny, tmp_path):
    """A run of `classify`."""
    return few_steps(tmp_path, tiny)


@pytest.mark.parametrize("task", ["classify", "swag"])
def test_any_batch_and_length_with_padding_or_without(task, tiny, tmp_path):
    import torch

    run = few_steps(tmp_path, tiny, task, max_length=128)
    bertkit.export(run)
    model, onnx = bertkit.load(run).model, OnnxModel(run / "onnx" / "model.onnx")
    for batch, choices, length in [(1, 1, 1), (1, 2, 3), (5, 4, 3), (5, 1, 128), (2, 7, 40)]:
        shape = (batch, choices, length) if task == "swag" else (batch, length)
        ids = torch.randint(5, 40, shape)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids % 2}
        with torch.no_grad():
            expected, found = model(**inputs).logits, onnx(**inputs).logits
            longer = {name: torch.nn.functional.pad(value, (0, 5)) for name, value in inputs.items()}
            padded = onnx(**longer).logits if length < 100 else expected
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(padded, expected, atol=1e-5)


def test_the_file_says_what_it_is(tiny, tmp_path):

    rows = ROW_MAKERS["qa"](40, unanswerable=20)
    run = few_steps(tmp_path, tiny, "qa", rows, max_length=64)
    model = onnx_runtime.load(bertkit.export(run).output_dir / "model.onnx")
    told = {item.key: item.value for item in model.metadata_props}
    threshold = json.loads((run / "config.json").read_text())["null_odds_threshold"]
    assert float(told["null_odds_threshold"]) == threshold
    assert (told["task"], told["max_length"], told["bertkit_version"]) == ("qa", "64", bertkit.__version__)
    assert int(told["opset"]) == model.opset_import[0].version >= 17
    assert [[dim.dim_param for dim in one.type.tensor_type.shape.dim] for one in model.graph.input] == [
        ["batch", "length"]
    ] * 3


def test_int8_is_a_model_of_its_own_and_its_cost_is_told(run, cli):

    status, out, _ = cli("export", run, "--quantize", "int8", "--json")
    told = json.loads(out)
    assert status == 0
    for key in ("scores", "rows_per_second", "megabytes"):
        assert {"pytorch", "onnx", "int8"} <= set(told[key])
    assert told["megabytes"]["int8"] < told["megabytes"]["onnx"]
    assert told["greatest_difference"]["int8"] > told["greatest_difference"]["onnx"]
    labels = json.loads(
        {p.key: p.value for p in onnx_runtime.load(run / "onnx" / "model.onnx").metadata_props}["labels"]
    )
    assert labels == {"0": "negative", "1": "positive"}
    assert json.loads((run / "onnx" / "metrics.json").read_text())["export"]["rows"] == told["rows"]
    assert len(list(bertkit.load(run / "onnx" / "int8").predict(make_toy_rows(3)))) == 3
    status, out, _ = cli("export", run, "--quantize", "int8", "--overwrite")
    assert status == 0
    assert "times the speed" in out


def test_another_model_is_refused_and_nothing_is_left(run, cli, monkeypatch):
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    before = sorted(run.rglob("*"))
    status, out, err = cli("export", run)
    assert (status, out) == (1, "")
    assert "differs from PyTorch's by" in err.splitlines()[-1]
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_lands_in_a_finalizer_is_not_lost(run, cli, monkeypatch, name):
    from bertkit.infer import compare_variants

    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(0)  # the handler raises here, where Python drops what is raised

    def takes_long(*_):
        Dying()
        time.sleep(5)

    monkeypatch.setattr(compare_variants, "compare_variants", takes_long)
    before = sorted(run.rglob("*"))
    status, out, err = cli("export", run)
    assert (status, out, err.splitlines()[-1]) == (130, "", "bertkit: interrupted; nothing was saved")
    assert "Exception ignored" not in err
    assert sorted(run.rglob("*")) == before


def test_what_is_there_is_replaced_only_when_asked(run, cli, tmp_path):
    bertkit.export(run, quantize="int8")
    assert_refused(cli, run, [run], ["onnx", "--overwrite"], "export")
    assert_refused(cli, run, [run, "-o", run], ["no export"], "export")
    assert_refused(cli, run, [run / "onnx"], ["exported model"], "export")
    assert_refused(cli, run, [tmp_path / "none"], ["not a finished run"], "export")
    bertkit.export(run, overwrite=True)
    assert not (run / "onnx" / "int8").exists()
    assert not list((run / "onnx").glob(".*"))


def test_without_the_data_it_is_checked_on_the_texts_that_were_told(run, cli, tmp_path):
    (tmp_path / "toy.jsonl").unlink()
    status, out, err = cli("export", run, "--json")
    told = json.loads(out)
    assert (status, told["rows_from"]) == (0, "predictions.jsonl")
    assert "cannot be read again" in err
    assert told["rows"] == len(read_predictions(run))
    assert told["scores"] == {"pytorch": {}, "onnx": {}}
    assert told["greatest_difference"]["onnx"] < 1e-5


def test_without_onnx_the_extra_is_named(run, cli, monkeypatch):
    from bertkit.infer import onnx_runtime

    bertkit.export(run)
    monkeypatch.setattr(onnx_runtime, "find_spec", lambda _: None)
    assert_refused(cli, run, [run, "--overwrite"], ["pip install 'bertkit[onnx]'"], "export")
    with pytest.raises(bertkit.UserError, match=r"onnxruntime, not installed"):
        bertkit.load(run / "onnx")


def test_an_encoder_that_cannot_be_exported_is_named(tmp_path, cli):
    run = few_steps(tmp_path, tiny_of("longformer", tmp_path / "model")[0])
    assert_refused(cli, run, [run], ["longformer cannot be exported", "chunks"], "export")
