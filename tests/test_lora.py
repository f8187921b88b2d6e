"""LoRA: only adapters and the head are trained, and the saved run is an ordinary model."""

import copy
import importlib.util
import json

import pytest
import torch
from conftest import ROW_MAKERS, assert_refused, read_predictions, write_rows
from safetensors.torch import load_file
from test_architectures import ARCHITECTURES, tiny_of
from transformers import AutoModelForSequenceClassification

import bertkit
from bertkit.errors import RunInterrupted
from bertkit.methods.lora import add_adapters, merge_adapters
from bertkit.models.cpu import accelerate_on_cpu
from bertkit.run_directory import RunDir

CAUSAL = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "llama": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
SETTINGS = {"batch_size": 8, "max_length": 32, "lora": 2, "learning_rate": 1e-2, "bf16": False}


def make_model(name, tmp_path):
    from transformers import AutoConfig

    if name in CAUSAL:
        config = AutoConfig.for_model(name, vocab_size=60, pad_token_id=0, **CAUSAL[name])
    else:
        _, config = tiny_of(name, tmp_path)
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config)


def make_batch():
    return {"input_ids": torch.randint(5, 50, (4, 12)), "attention_mask": torch.ones(4, 12, dtype=torch.long)}


def train_steps(model, batch, steps=3):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(steps):
        model.train()(**batch).logits.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ARCHITECTURES, *CAUSAL])
def test_merging_restores_the_layers_and_keeps_the_outputs(name, tmp_path):
    model = make_model(name, tmp_path)
    before, batch = copy.deepcopy(model.state_dict()), make_batch()
    original = [path for path, module in model.named_modules() if type(module) is torch.nn.Linear]
    add_adapters(model, rank=2)
    trained = {path for path, parameter in model.named_parameters() if parameter.requires_grad}
    train_steps(model, batch)
    with torch.no_grad():
        unmerged = model.eval()(**batch).logits
        merge_adapters(model)
        merged = model(**batch).logits
    assert (merged - unmerged).abs().max() < 1e-5
    assert [path for path, module in model.named_modules() if type(module) is torch.nn.Linear] == original
    assert not any("lora" in path for path in model.state_dict())
    assert not hasattr(model, "peft_config")
    changed = {path for path, tensor in model.state_dict().items() if not torch.equal(tensor, before[path])}
    adapted = {path.partition(".lora_")[0] for path in trained if ".lora_" in path}
    head = {path for path in trained if ".lora_" not in path}
    assert adapted
    assert changed <= {f"{path}.weight" for path in adapted} | head
    unused = {f"{path}.weight" for path in adapted} - changed
    assert not unused or name == "longformer"  # [CLS] of its last layer uses only the global projections
    assert any(path.startswith(("classifier", "score")) for path in head)
    assert not any(word in path for path in head for word in ("embed", "wte", "layer.", "encoder"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "albert", "modernbert"])
@pytest.mark.parametrize("is_bf16", [False, True])
def test_adapters_on_accelerated_layers_give_the_stock_gradients(name, is_bf16, tmp_path):
    stock = make_model(name, tmp_path).eval()
    add_adapters(stock, rank=2)
    fast, batch = copy.deepcopy(stock), make_batch()
    accelerate_on_cpu(fast, is_single_process=True)
    for model in (stock, fast):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            model(**batch).logits.float().square().sum().backward()
    for (path, parameter), other in zip(stock.named_parameters(), fast.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None) == (not parameter.requires_grad), path
        if parameter.grad is not None:
            difference = (other.grad - parameter.grad).abs().max() / parameter.grad.abs().max().clamp(
                min=1e-6
            )
            assert difference < (0.1 if is_bf16 else 1e-4), path


def train(task, tiny, tmp_path, name="run", rows=40, **settings):
    data = write_rows(tmp_path / f"{task}.jsonl", ROW_MAKERS[task](rows))
    output_dir = str(tmp_path / name)
    defaults = SETTINGS | {"max_steps": 4}
    return getattr(bertkit, task)(
        data=str(data), model=str(tiny), output_dir=output_dir, **defaults | settings
    )


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_every_task_saves_an_ordinary_model(task, tiny, tmp_path):
    run = train(task, tiny, tmp_path)
    base, weights = load_file(tiny / "model.safetensors"), load_file(run.output_dir / "model.safetensors")
    assert not any("lora" in name or "base_layer" in name for name in weights)
    encoder = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
    changed = {name for name in base if name in encoder and not torch.equal(base[name], encoder[name])}
    adapted = {name for name in changed if name.endswith(("query.weight", "value.weight"))}
    assert len(adapted) == 4
    assert all(name.startswith("pooler") for name in changed - adapted)
    assert "peft" not in (run.output_dir / "config.json").read_text()
    loaded = bertkit.evaluate(run.output_dir).metrics["validation"]
    assert loaded == pytest.approx(run.metrics["validation"], abs=1e-6)


@pytest.mark.slow
def test_the_number_of_trained_parameters_is_printed_and_recorded(tiny, toy, tmp_path, cli):
    args = ["--data", toy, "--model", tiny, "--lora", 4, "--max-steps", 2, "-o", tmp_path / "run", "--json"]
    status, out, err = cli("classify", *args)
    assert status == 0
    metrics = json.loads(out)
    count = 4 * 4 * (32 + 32) + (32 * 32 + 32) + (2 * 32 + 2)  # adapters, pooler, classifier
    assert metrics["training"]["trainable_parameters"] == count
    assert f"--lora 4: trains {count:,} parameters" in err


CASES = {
    "packed token budget": {"pack": True, "tokens_per_batch": 64, "batch_size": None},
    "bf16": {"bf16": True},
    "recomputed and partly frozen": {"gradient_checkpointing": True, "freeze": 1, "layer_decay": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_bit_identical(case, tiny, tmp_path, stop_at):
    settings = {"epochs": 2, "max_steps": None, "rows": 24} | CASES[case]
    whole = train("classify", tiny, tmp_path, "uninterrupted", **settings)
    steps = whole.metrics["training"]["steps"]
    stop_at(steps // 2 + 1)  # the step after it, the second one of the second epoch, is the last one
    with pytest.raises(RunInterrupted):
        train("classify", tiny, tmp_path, "resumed", **settings)
    checkpoint = RunDir(tmp_path / "resumed").find_last_checkpoint()
    assert checkpoint.name == f"checkpoint-{steps // 2 + 2}"
    names = load_file(checkpoint / "model.safetensors").keys()
    assert sum(".lora_" in name for name in names) == 8
    bertkit.classify(output_dir=str(tmp_path / "resumed"), resume=True)
    for name in ("model.safetensors", "predictions.jsonl", "training_log.jsonl"):
        assert (tmp_path / "resumed" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()


@pytest.mark.slow
def test_smaller_batches_of_the_same_effective_size_train_the_same_weights(tiny_without_dropout, tmp_path):
    runs = [
        train("classify", tiny_without_dropout, tmp_path, f"run-{size}", batch_size=size,
              gradient_accumulation_steps=8 // size)
        for size in (8, 2)
    ]  # fmt: skip
    weights = [load_file(run.output_dir / "model.safetensors") for run in runs]
    assert max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]) < 1e-5
    assert (
        read_predictions(runs[0].output_dir)[0]["predicted"]
        == read_predictions(runs[1].output_dir)[0]["predicted"]
    )


@pytest.mark.slow
def test_the_best_checkpoint_is_merged(tiny, tmp_path):
    """The learning rate grows from nothing to a value that destroys the model."""
    run = train("classify", tiny, tmp_path, max_steps=None, epochs=4, learning_rate=3.0, warmup=0.99, rows=80)
    best = max(
        row["eval_accuracy"]
        for row in read_predictions(run.output_dir, "training_log.jsonl")
        if "eval_accuracy" in row
    )
    assert run.metrics["validation"]["accuracy"] == pytest.approx(best)
    assert bertkit.evaluate(run.output_dir).metrics["validation"]["accuracy"] == pytest.approx(best)


REFUSED = {
    "all layers frozen": (["--lora", 4, "--freeze", 2], "--lora 4: --freeze 2 freezes all layers"),
    "rank 0": (["--lora", 0], "--lora"),
    "large rank": (["--lora", 1000], "--lora 1000: the hidden size of the model is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(cli, case, tiny, toy, tmp_path):
    args, message = REFUSED[case]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", tiny, "-o", tmp_path / "run", *args], [message])


def test_frozen_features_have_nothing_to_adapt(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "ner.jsonl", ROW_MAKERS["ner"](40))
    args = ["--data", data, "--model", tiny, "--features", "last", "--lora", 4, "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["--lora 4: --features freezes the whole encoder"], command="ner")


def test_a_missing_peft_is_reported_before_data_is_read(cli, monkeypatch, tiny, damaged, tmp_path):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "peft" else find_spec(name))
    args = ["--data", damaged, "--model", tiny, "--lora", 4]
    assert_refused(cli, tmp_path, args, ["--lora 4: needs peft", "pip install 'bertkit[lora]'"])


@pytest.mark.slow
def test_a_run_with_adapters_is_the_start_of_another(tiny, tmp_path):
    first = train("classify", tiny, tmp_path)
    second = train("classify", first.output_dir, tmp_path, "second", lora=3)
    assert second.metrics["training"]["steps"] == 4
