"""Models that only predict use faster linear layers on a CPU, with the outputs of transformers' models."""

import json
import platform

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertkit.api import load
from bertkit.models.cpu import FastLinear
from bertkit.models.encoder import Encoder
from bertkit.models.loading import ModelSource, load_config, load_tokenizer
from bertkit.run.predictor import load_predictor
from bertkit.utils.system import keep_freed_memory

pytestmark = pytest.mark.cpu


def list_linear_types(model):
    return {type(module) for module in model.modules() if isinstance(module, nn.Linear)}


@pytest.mark.parametrize("task", ["classify", "nli", "ner", "qa", "swag"])
def test_every_task_predicts_with_onednn(runs, task):
    assert list_linear_types(load(runs / task).model) == {FastLinear}


def test_embeddings_are_computed_with_onednn(tiny):
    source = ModelSource("tiny", tiny)
    encoder = Encoder.load(source, load_config(source), load_tokenizer(source), [2], normalize=False)
    assert list_linear_types(encoder.model) == {FastLinear}


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


def test_freed_memory_is_kept_where_the_c_library_supports_it():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_memory_is_left_alone_on_other_systems(monkeypatch):
    monkeypatch.setattr("bertkit.utils.system.IS_LINUX", False)
    assert not keep_freed_memory()
