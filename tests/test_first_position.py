"""Heads that read [CLS]: the last layer skips the other positions, and nothing else changes."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMultipleChoice, AutoModelForSequenceClassification

from bertkit.methods.lora import add_adapters
from bertkit.models.heads import add_pooling
from bertkit.models.layers import compute_first_position_only
from flops import SequenceCounts, count_training_flops, list_first_position_modules

SIZE = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "pad_token_id": 0, "max_position_embeddings": 40,
}  # fmt: skip
DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
REDUCED = {
    "bert": {}, "roberta": {}, "xlm-roberta": {}, "camembert": {}, "electra": {"embedding_size": 16},
    "distilbert": DISTILBERT, "modernbert": {"classifier_pooling": "cls"},
}  # fmt: skip
UNCHANGED = {
    "modernbert": {"classifier_pooling": "mean"},  # its head reads all positions
    "albert": {"embedding_size": 16},  # its layers are one layer
    "electra": {"embedding_size": 16, "chunk_size_feed_forward": 7},
    "longformer": {"attention_window": 8},  # has an attention of its own
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "gpt2": {
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
    },  # its head reads the last token
}


def make_model(model_type, settings, auto_class=AutoModelForSequenceClassification):
    torch.manual_seed(0)
    return auto_class.from_config(AutoConfig.for_model(model_type, **(SIZE | settings)))


def make_batch(choices=1):
    mask = (torch.arange(7) < torch.tensor([7, 2, 5, 4])[:, None]).long()
    ids = torch.randint(5, 60, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    batch = {"input_ids": ids, "attention_mask": mask}
    return {name: tensor.view(-1, choices, 7) for name, tensor in batch.items()} if choices > 1 else batch


def compute(model, batch):
    """The logits, and the gradients by name, without dropout."""
    logits = model.eval()(**batch).logits
    model.zero_grad()
    logits.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return logits.detach(), gradients


def assert_same_results(model, stock, batch):
    logits, gradients = compute(model, batch)
    stock_logits, stock_gradients = compute(stock, batch)
    torch.testing.assert_close(logits, stock_logits)
    assert gradients.keys() == stock_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, stock_gradients[name], msg=name)


@pytest.mark.parametrize("model_type", REDUCED)
@pytest.mark.parametrize("auto_class", [AutoModelForSequenceClassification, AutoModelForMultipleChoice])
def test_logits_and_gradients_do_not_change(model_type, auto_class):
    model = make_model(model_type, REDUCED[model_type], auto_class)
    stock = copy.deepcopy(model)
    batch = make_batch(1 if auto_class is AutoModelForSequenceClassification else 2)
    compute_first_position_only(model)
    assert model.training
    shapes = []
    list_first_position_modules(model)[-1].register_forward_hook(lambda *args: shapes.append(args[2].shape))
    assert_same_results(model, stock, batch)
    assert {shape[1] for shape in shapes} == {1}


@pytest.mark.parametrize(("model_type", "settings"), UNCHANGED.items())
def test_other_models_do_not_change(model_type, settings):
    model = make_model(model_type, settings)
    stock = copy.deepcopy(model)
    compute_first_position_only(model)
    assert not list_first_position_modules(model)
    assert_same_results(model, stock, make_batch())


@pytest.mark.parametrize("changes", [{"bertkit_pooling": "mean"}, {"is_decoder": True}])
def test_pooling_of_other_positions_excludes_it(changes):
    model = add_pooling(make_model("bert", changes))
    compute_first_position_only(model)
    assert not list_first_position_modules(model)


def test_adapters_of_the_last_layer_are_trained():
    model = make_model("bert", {})
    add_adapters(model, 2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    stock = copy.deepcopy(model)
    compute_first_position_only(model)
    assert_same_results(model, stock, make_batch())


def test_a_second_call_changes_nothing():
    model = make_model("bert", {})
    stock = copy.deepcopy(model)
    compute_first_position_only(model)
    modules = list_first_position_modules(model)
    compute_first_position_only(model)
    assert list_first_position_modules(model) == modules
    assert_same_results(model, stock, make_batch())


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("bert", ["bert.encoder"]),
        ("distilbert", ["distilbert.transformer"]),
        ("modernbert", ["model.layers.0", "model.layers.1"]),
    ],
)
def test_skipped_operations_are_not_counted(model_type, names):
    settings = {"dim": 64, "hidden_dim": 256} if model_type == "distilbert" else {}
    model = make_model(
        model_type, REDUCED[model_type] | {"hidden_size": 64, "intermediate_size": 256} | settings
    )
    model.set_attn_implementation("eager")
    compute_first_position_only(model)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.full((3, 24), 7)).logits.sum().backward()
    counts = counter.get_flop_counts()
    expected = sum(sum(counts[f"{type(model).__name__}.{name}"].values()) for name in names)
    sequences = SequenceCounts(torch.bincount(torch.tensor([24, 24, 24])))
    assert count_training_flops(model, sequences) == pytest.approx(expected, rel=0.03)
