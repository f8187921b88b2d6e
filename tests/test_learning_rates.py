"""Default learning rates and batches: the rates of many encoders' authors, and continued pre-training."""

import runpy
from types import SimpleNamespace

import pytest
from conftest import ROW_MAKERS, make_document_rows, save_tiny_model, write_rows

from bertkit.tasks.text.config import ClassifyConfig
from bertkit.training.arguments import merge_batches
from bertkit.utils import devices

# Published encoders: type, layers, hidden size, and the range of learning rates of their authors.
# ELECTRA's rates are combined with a layer-wise decay of 0.8 or 0.9, so the lower end is that of BERT.
PUBLISHED_ENCODERS = {
    "bert-base": ("bert", 12, 768, 2e-5, 5e-5),  # Devlin et al. 2018, A.3
    "bert-large": ("bert", 24, 1024, 2e-5, 5e-5),
    "bert-tiny": ("bert", 2, 128, 3e-5, 3e-4),  # README of google-research/bert, smaller models
    "bert-mini": ("bert", 4, 256, 3e-5, 3e-4),
    "bert-small": ("bert", 4, 512, 3e-5, 3e-4),
    "bert-medium": ("bert", 8, 512, 3e-5, 3e-4),
    "minilm-l12": ("bert", 12, 384, 2e-5, 5e-5),  # Wang et al. 2020
    "roberta-base": ("roberta", 12, 768, 1e-5, 3e-5),  # Liu et al. 2019, table 10
    "roberta-large": ("roberta", 24, 1024, 1e-5, 3e-5),
    "camembert-base": ("camembert", 12, 768, 1e-5, 5e-5),  # as RoBERTa and BERT
    "xlm-roberta-base": ("xlm-roberta", 12, 768, 1e-5, 5e-5),
    "albert-base": ("albert", 12, 768, 1e-5, 5e-5),  # Lan et al. 2020, table 14
    "albert-large": ("albert", 24, 1024, 1e-5, 5e-5),
    "albert-xlarge": ("albert", 24, 2048, 1e-5, 5e-5),
    "albert-xxlarge": ("albert", 12, 4096, 1e-5, 5e-5),
    "electra-small": ("electra", 12, 256, 2e-5, 3e-4),  # Clark et al. 2020
    "electra-base": ("electra", 12, 768, 2e-5, 1e-4),
    "electra-large": ("electra", 24, 1024, 2e-5, 5e-5),
    "distilbert": ("distilbert", 6, 768, 2e-5, 5e-5),  # as BERT
    "deberta-v3-xsmall": ("deberta-v2", 12, 384, 1.5e-5, 5e-5),  # He et al. 2021
    "deberta-v3-small": ("deberta-v2", 6, 768, 1.5e-5, 5e-5),
    "deberta-v3-base": ("deberta-v2", 12, 768, 1.5e-5, 4e-5),
    "deberta-v3-large": ("deberta-v2", 24, 1024, 5e-6, 1e-5),
    "deberta-large": ("deberta", 24, 1024, 5e-6, 1e-5),
    "modernbert-base": ("modernbert", 22, 768, 1e-5, 8e-5),  # Warner et al. 2024
    "modernbert-large": ("modernbert", 28, 1024, 1e-5, 8e-5),
    "longformer-base": ("longformer", 12, 768, 2e-5, 5e-5),  # Beltagy et al. 2020
    "bigbird-base": ("big_bird", 12, 768, 1e-5, 5e-5),  # Zaheer et al. 2020
    "xlnet-large": ("xlnet", 24, 1024, 1e-5, 4e-5),  # Yang et al. 2019
    "funnel-large": ("funnel", 24, 1024, 1e-5, 5e-5),  # Dai et al. 2020
}
SHAPE_KEYS = {
    "distilbert": ("n_layers", "dim"), "xlnet": ("n_layer", "d_model"), "funnel": ("block_sizes", "d_model"),
}  # fmt: skip


@pytest.mark.parametrize("rows", [500, 50_000, 500_000])
@pytest.mark.parametrize("encoder", PUBLISHED_ENCODERS)
def test_learning_rate_is_in_the_range_of_the_authors(encoder, rows):
    from transformers import AutoConfig

    from bertkit.training.arguments import suggest_hyperparameters

    model_type, layers, hidden, lowest, highest = PUBLISHED_ENCODERS[encoder]
    layers_key, hidden_key = SHAPE_KEYS.get(model_type, ("num_hidden_layers", "hidden_size"))
    shape = {layers_key: [layers // 3] * 3 if layers_key == "block_sizes" else layers, hidden_key: hidden}
    config = AutoConfig.for_model(model_type, **shape)
    suggestions, reason = suggest_hyperparameters(rows, config)
    assert lowest <= suggestions["learning_rate"] <= highest
    assert reason == f"for {rows:,} training rows and {layers} layers of size {hidden}"


def test_epochs_and_batch_size_follow_the_number_of_rows():
    from transformers import BertConfig

    from bertkit.training.arguments import suggest_hyperparameters

    base = BertConfig()
    few, many = {"epochs": 4.0, "batch_size": 16}, {"epochs": 2.0, "batch_size": 32}
    assert suggest_hyperparameters(1_000, base)[0] == few | {"learning_rate": 3e-5}
    assert suggest_hyperparameters(200_000, base)[0] == many | {"learning_rate": 2e-5}
    epochs = [suggest_hyperparameters(rows, base)[0]["epochs"] for rows in (4_999, 5_000, 100_000, 100_001)]
    assert epochs == [4.0, 3.0, 3.0, 2.0]
    minilm = BertConfig(num_hidden_layers=6, hidden_size=384)
    assert suggest_hyperparameters(20_000, minilm)[0]["learning_rate"] == 1e-4
    assert suggest_hyperparameters(1_000, base, is_lora=True)[0] == few | {"learning_rate": 3e-4}
    assert suggest_hyperparameters(1, base)[1] == "for 1 training row and 12 layers of size 768"


@pytest.mark.parametrize("num_classes", [0, 2, 20])
def test_few_rows_are_read_for_at_least_200_steps(num_classes):
    sizes = (1, 16, 17, 58, 450, 799, 800, 4_999)
    epochs = {rows: suggest_epochs(rows, num_classes) for rows in sizes}
    assert epochs == {1: 200, 16: 200, 17: 189, 58: 56, 450: 8, 799: 5, 800: 4, 4_999: 4}


def test_many_classes_have_at_least_160_examples_each_on_average():
    epochs = {rows: suggest_epochs(rows, 150) for rows in (900, 5_999, 6_000, 20_000)}
    assert epochs == {900: 27, 5_999: 5, 6_000: 4, 20_000: 3}


def suggest_epochs(rows, num_classes):
    """Suggest epochs with the constants of the module, not with those of `make_runs_cheap`."""
    from transformers import BertConfig

    from bertkit.training import arguments

    suggest = runpy.run_path(arguments.__file__)["suggest_hyperparameters"]
    return suggest(rows, BertConfig(), num_classes=num_classes)[0]["epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "epochs"), [("classify", "epochs 28"), ("swag", "epochs 4")])
def test_the_classes_of_the_texts_change_the_epochs_and_those_of_another_head_do_not(
    task, epochs, monkeypatch, tmp_path, cli
):
    monkeypatch.setattr("bertkit.training.arguments.MIN_EXAMPLES_PER_CLASS", 500)
    model = save_tiny_model(tmp_path / "model", num_labels=6)
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](40))
    args = ["--data", data, "--model", model, "--max-length", 32, "--dry-run"]
    assert epochs in cli(task, *args)[2]


@pytest.mark.slow
def test_shared_layers_and_large_vocabularies_do_not_change_the_learning_rate(cli, toy, tmp_path):
    from transformers import AlbertConfig

    shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "embedding_size": 8}
    config = AlbertConfig(vocab_size=200, intermediate_size=32, max_position_embeddings=128, **shape)
    folder = save_tiny_model(tmp_path / "albert", config)
    args = ["--data", toy, "--model", folder, "--max-steps", 1, "--warmup", 0, "--batch-size", 1, "--dry-run"]
    assert "learning_rate 2e-05" in cli("classify", *args)[2]


BASE = SimpleNamespace(num_hidden_layers=12, hidden_size=768)


@pytest.mark.parametrize(
    ("batch_size", "steps", "tokens", "memory", "merged"),
    [
        (32, 8, 512, 80e9, (64, 4)),  # half of the memory
        (32, 8, 512, 140e9, (128, 2)),  # 2**16 tokens
        (32, 8, 128, 80e9, (256, 1)),
        (8, 6, 512, 16e9, (16, 3)),
        (32, 7, 512, 140e9, (32, 7)),
        (32, 1, 128, 80e9, (32, 1)),
        (32, 8, 512, 8e9, (32, 8)),
    ],
)
def test_accumulation_steps_become_larger_batches_on_an_accelerator(
    batch_size, steps, tokens, memory, merged, monkeypatch
):
    config = ClassifyConfig(data="sample", batch_size=batch_size, gradient_accumulation_steps=steps)
    monkeypatch.setattr(devices, "get_total_memory", lambda: None)
    assert merge_batches(config, BASE, tokens) == config
    monkeypatch.setattr(devices, "get_total_memory", lambda: memory)
    config = merge_batches(config, BASE, tokens)
    assert (config.batch_size, config.gradient_accumulation_steps) == merged


@pytest.mark.slow
def test_continued_pretraining_has_a_lower_learning_rate_than_training_from_scratch(cli, tiny, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    args = ["--data", text, "--max-length", 32, "--max-steps", 4, "--dry-run"]
    assert "learning_rate 2e-05" in cli("pretrain-mlm-nsp", *args, "--model", tiny)[2]
    assert "learning_rate 0.0015" in cli("pretrain-mlm-nsp", *args, "--size", "tiny", "--vocab-size", 80)[2]
    assert "learning_rate" not in cli("pretrain-mlm-nsp", *args, "--model", tiny, "--lr", 1e-4)[2]
