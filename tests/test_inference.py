"""Models that only predict use faster linear layers on a CPU, with the outputs of transformers' models."""

import json
import platform

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit import load
from bertkit.infer.predictor import load_predictor
from bertkit.modeling.encoder import Encoder
from bertkit.modeling.inference import OneDnnLinear, prepare_for_inference
from bertkit.modeling.loading import ModelSource, load_config, load_tokenizer
from bertkit.utils.memory_pool import keep_freed_memory


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    """Predict on the CPU, whose layers these tests are about."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


def list_linear_types(model):
    return {type(module) for module in model.modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize("task", ["classify", "nli", "ner", "qa", "swag"])
def test_every_task_predicts_with_onednn(runs, task):
    assert list_linear_types(load(runs / task).model) == {OneDnnLinear}


def test_embeddings_are_computed_with_onednn(tiny):
    source = ModelSource("tiny", tiny)
    encoder = Encoder(source, load_config(source), load_tokenizer(source), [2], normalize=False)
    assert list_linear_types(encoder.model) == {OneDnnLinear}


def test_exported_model_keeps_the_stock_layers(runs):
    assert list_linear_types(load_predictor(runs / "classify", keep_stock_layers=True).model) == {nn.Linear}


def test_predictions_equal_those_of_the_stock_model(runs):
    rows = [json.loads(line) for line in (runs / "classify.jsonl").read_text("utf-8").splitlines()]
    stock = AutoModelForSequenceClassification.from_pretrained(runs / "classify")
    tokenizer = AutoTokenizer.from_pretrained(runs / "classify")
    records = load(runs / "classify").predict([{"text": row["text"]} for row in rows])
    for row, record in zip(rows, records, strict=True):
        with torch.no_grad():
            expected = stock(**tokenizer(row["text"], return_tensors="pt")).logits.softmax(-1)[0]
        found = [record["probabilities"][label] for label in stock.config.id2label.values()]
        assert found == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 64, 48), (128, 48), (3, 48), (0, 5, 48)])
def test_onednn_layer_equals_the_stock_layer(shape, bias):
    layer = nn.Linear(48, 32, bias=bias)
    inputs = torch.randn(shape)
    with torch.no_grad():
        expected = layer(inputs)
        found = prepare_for_inference(layer)(inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_layer_has_the_stock_gradients():
    layer, inputs = nn.Linear(48, 32), torch.randn(64, 48)
    (expected,) = torch.autograd.grad(layer(inputs).square().sum(), layer.weight)
    (found,) = torch.autograd.grad(prepare_for_inference(layer)(inputs).square().sum(), layer.weight)
    assert torch.equal(found, expected)


def test_freed_memory_is_kept_where_the_c_library_supports_it():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
