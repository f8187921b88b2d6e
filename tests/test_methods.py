"""The interface of training methods: which ones the settings choose, and when a run calls their hooks."""

import json

import pytest

from bertkit.methods import choose_methods
from bertkit.methods.base import Method
from bertkit.tasks.ner.config import NerConfig
from bertkit.tasks.text.config import ClassifyConfig


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (ClassifyConfig(), []),
        (ClassifyConfig(lora=4), ["Lora"]),
        (ClassifyConfig(method="contrastive", lora=4), ["Contrastive", "Lora"]),
        (ClassifyConfig(method="linear-probe"), ["LinearProbe"]),
        (ClassifyConfig(teacher="runs/teacher", lora=4), ["Distillation", "Lora"]),
        (NerConfig(features="last"), ["FrozenFeatures"]),
    ],
)
def test_the_settings_choose_the_methods(config, names):
    assert [type(method).__name__ for method in choose_methods(config)] == names


@pytest.mark.slow
def test_a_method_is_one_class_whose_hooks_a_run_calls_in_order(cli, tiny, toy, tmp_path, monkeypatch):
    calls = []

    class Toy(Method):
        default_hyperparameters = {"epochs": 2.0}

        def summarize(self, run, evaluation, folder):
            assert (folder / "model.safetensors").exists()
            return {"toy": len(evaluation.outputs.rows)}

    def record(name):
        hook = getattr(Toy, name)

        def call(*args):
            calls.append(name)
            return hook(*args)

        return call

    hooks = ("prepare", "adapt_model", "convert", "precompute", "before_evaluation", "finish", "summarize")
    for name in hooks:
        monkeypatch.setattr(Toy, name, record(name))
    monkeypatch.setattr("bertkit.run.prepare.choose_methods", lambda _: [Toy()])
    args = ["--data", toy, "--model", tiny, "--batch-size", 8, "--max-length", 32, "-o", tmp_path / "run"]
    assert cli("classify", *args)[0] == 0
    assert calls == [
        "prepare", "adapt_model", "convert", "precompute", "convert", *["before_evaluation"] * 2, "finish",
        "summarize",
    ]  # fmt: skip
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["toy"] == metrics["data"]["validation"]
    assert metrics["training"]["steps"] == 2 * 9
