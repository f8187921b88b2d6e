"""Packed batches, compiled layers: other ways to compute the same."""

import pytest
import torch
from conftest import ROW_MAKERS, write_rows
from test_architectures import few_steps
from test_attention import untrained
from test_equivalence import SGD, assert_close, weights
from torch._dynamo.utils import counters

import bertkit
from bertkit.errors import UserError
from bertkit.modeling.attention import enable_chunked_attention, enable_packing
from bertkit.modeling.layers import compile_layers

LENGTHS = [12, 5, 9, 1, 12, 3]


def padded():
    """Sequences of unlike lengths."""
    ids = torch.randint(5, 40, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


def logits_and_gradients(model, batch):
    """Of a loss in which each example has a weight of its own, so that none stands for another."""
    logits = model(**batch).logits
    (logits * torch.arange(1.0, logits.numel() + 1).view_as(logits)).sum().backward()
    return [logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def rows_seen(model):
    """The shapes of what the layers are given, as they come."""
    seen = []
    linear = next(module for module in model.base_model.encoder.modules() if hasattr(module, "in_features"))
    linear.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:2]))
    return seen


@pytest.mark.parametrize("by_parts", [False, True], ids=["sdpa", "by parts"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert"])
def test_a_packed_batch_gives_the_same_in_every_architecture(name, by_parts):
    found = []
    for packed in (False, True):
        model = untrained(name, 1e-6 if by_parts else 0.0)
        if by_parts:
            enable_chunked_attention(model)
        if packed:
            enable_packing(model)
        found.append(logits_and_gradients(model, padded()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_layers_see_one_row_without_padding_while_training():
    model = untrained("bert", 0.0)
    seen = rows_seen(model)
    enable_packing(model)
    model(**padded())
    model.eval()(**padded())
    assert seen == [(1, sum(LENGTHS)), (len(LENGTHS), max(LENGTHS))]


def test_from_left_to_right_too():
    batch = padded()
    found = []
    for packed in (False, True):
        model = untrained("bert", 0.0, causal=True)
        if packed:
            enable_packing(model)
        real = batch["attention_mask"].bool()
        found.append(model(**batch).logits[real])
    torch.testing.assert_close(*found)


def test_examples_of_a_row_do_not_see_one_another_as_they_do_with_transformers_flattening():
    from transformers import DataCollatorWithFlattening

    model, batch = untrained("bert", 0.0), padded()
    real = batch["attention_mask"].bool()
    alone = model.base_model(**batch).last_hidden_state[real]
    rows = [{"input_ids": ids[kept].tolist()} for ids, kept in zip(batch["input_ids"], real, strict=True)]
    flat = DataCollatorWithFlattening(return_tensors="pt")(rows)
    flattened = model.base_model(flat["input_ids"], position_ids=flat["position_ids"]).last_hidden_state[0]
    enable_packing(model)
    packed = model.base_model(**batch).last_hidden_state[real]
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(flattened, alone, atol=1e-5, rtol=1e-5)


KINDS = {
    "classify": {"long_texts": "windows", "max_length": 10},
    "nli": {},
    "ner": {"max_length": 12, "gradient_checkpointing": True},
    "qa": {"max_length": 16},
    "swag": {"head": "bilstm"},
}


@pytest.mark.parametrize("task", KINDS)
def test_a_run_that_packs_ends_with_the_same_weights(tiny_without_dropout, tmp_path, task):
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](41))

    def run(**how):
        return getattr(bertkit, task)(
            data=str(data), model=str(tiny_without_dropout), max_steps=8, batch_size=8, **SGD | KINDS[task] | how,
            output_dir=str(tmp_path / "-".join(["run", *how])),
        )  # fmt: skip

    plain, packed = run(), run(pack=True)
    assert packed.metrics["training"]["loss"] == pytest.approx(plain.metrics["training"]["loss"], rel=1e-5)
    assert_close(weights(plain), weights(packed), 1e-5)
    assert packed.metrics["validation"].keys() == plain.metrics["validation"].keys()


def test_pre_training_packs(tmp_path):
    def run(**how):
        return bertkit.pretrain_mlm_nsp(
            data="sample", num_layers=2, hidden_size=32, num_heads=2, vocab_size=200, max_length=32, dropout=0.0,
            max_steps=4, batch_size=8, **SGD | how, output_dir=str(tmp_path / "-".join(["run", *how])),
        )  # fmt: skip

    assert_close(weights(run()), weights(run(pack=True)), 1e-5)


@pytest.mark.parametrize("name", ["deberta-v2", "modernbert"])
def test_an_attention_that_cannot_be_packed_is_told_by_name(name, tmp_path, monkeypatch):
    from functools import partial

    with pytest.raises(UserError, match=f"--pack: {name} .*leave out --pack"):
        few_steps(partial(bertkit.classify, pack=True), name, ROW_MAKERS["classify"](40), tmp_path)
    assert not (tmp_path / "run").exists()


def test_compiled_layers_give_the_same_from_one_graph_for_all_lengths():
    torch._dynamo.reset()
    counters.clear()
    plain, compiled = untrained("bert", 0.0), untrained("bert", 0.0)
    compile_layers(compiled)
    for length in (12, 7, 9, 5):
        batch = {name: values[:, :length] for name, values in padded().items()}
        for one, other in zip(
            *(logits_and_gradients(some, batch) for some in (plain, compiled)), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert 1 <= counters["stats"]["unique_graphs"] <= 2
