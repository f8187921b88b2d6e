"""Packed batches and compiled layers compute the same as stock models."""

from functools import partial, partialmethod

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from conftest import ROW_MAKERS, write_rows
from test_architectures import ARCHITECTURES, PAD, SIZE, few_steps
from test_attention import untrained
from test_equivalence import SGD, assert_close, weights
from torch._dynamo.utils import counters

import bertkit
from bertkit.errors import UserError
from bertkit.models.cpu import enable_fast_attention
from bertkit.models.layers import compile_layers
from bertkit.models.packing import enable_packing
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.training.arguments import build_training_arguments

LENGTHS = [12, 5, 9, 1, 12, 3]
PACKABLE = ["bert", "roberta", "xlm-roberta", "albert", "electra", "distilbert", "modernbert"]


def padded():
    """Return a padded batch of sequences with different lengths."""
    ids = torch.randint(5, 40, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


def logits_and_gradients(model, batch):
    """Return logits and gradients of a loss in which each example has a different weight."""
    logits = model(**batch).logits
    (logits * torch.arange(1.0, logits.numel() + 1).view_as(logits)).sum().backward()
    return [logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)]


def record_shapes(model):
    """Record the shapes of the inputs of a layer."""
    input_shapes = []
    linear = next(module for module in model.base_model.encoder.modules() if hasattr(module, "in_features"))
    linear.register_forward_pre_hook(lambda _, given: input_shapes.append(given[0].shape[:2]))
    return input_shapes


@pytest.mark.parametrize("blockwise", [False, True], ids=["sdpa", "blockwise"])
@pytest.mark.parametrize("name", PACKABLE)
def test_packed_batch_equals_padded_batch_in_all_architectures(name, blockwise):
    results = []
    for packed in (False, True):
        model = untrained(name, 1e-6 if blockwise else 0.0)
        if blockwise:
            enable_fast_attention(model)
        if packed:
            enable_packing(model)
        results.append(logits_and_gradients(model, padded()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_layers_get_one_row_without_padding_in_training():
    model = untrained("bert", 0.0)
    enable_packing(model)
    input_shapes = record_shapes(model)
    model(**padded())
    model.eval()(**padded())
    assert input_shapes == [(1, sum(LENGTHS)), (len(LENGTHS), max(LENGTHS))]


def test_causal_model_packs_too():
    batch = padded()
    results = []
    for packed in (False, True):
        model = untrained("bert", 0.0, causal=True)
        if packed:
            enable_packing(model)
        real = batch["attention_mask"].bool()
        results.append(model(**batch).logits[real])
    torch.testing.assert_close(*results)


def test_packed_examples_do_not_attend_to_each_other_unlike_flattened_ones():
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
    "nli": {"pooling": "mean"},
    "ner": {"max_length": 12, "gradient_checkpointing": True},
    "qa": {"max_length": 16},
    "swag": {"head": "bilstm"},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS)
def test_run_with_packing_has_the_same_weights(tiny_without_dropout, tmp_path, task):
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](28))

    def run(**how):
        return getattr(bertkit, task)(
            data=str(data), model=str(tiny_without_dropout),
            max_steps=4, batch_size=8, **SGD | KINDS[task] | how,
            output_dir=str(tmp_path / "-".join(["run", *how])),
        )  # fmt: skip

    plain, packed = run(), run(pack=True)
    assert packed.metrics["training"]["loss"] == pytest.approx(plain.metrics["training"]["loss"], rel=1e-5)
    assert_close(weights(plain), weights(packed), 1e-5)
    assert packed.metrics["validation"].keys() == plain.metrics["validation"].keys()


@pytest.mark.slow
def test_modernbert_packs_in_every_task(tmp_path):
    for task in ("classify", "ner", "swag"):
        runs = []
        for pack in (False, True):
            folder = tmp_path / f"{task}-{pack}"
            folder.mkdir()
            train = partial(getattr(bertkit, task), **SGD | KINDS[task], pack=pack)
            runs.append(few_steps(train, "modernbert", ROW_MAKERS[task](40), folder))
        assert_close(*map(weights, runs), 1e-5)


@pytest.mark.slow
def test_pretraining_packs(tmp_path):
    def run(**how):
        return bertkit.pretrain_mlm_nsp(
            data="sample", num_layers=2, hidden_size=32, num_heads=2, vocab_size=200, max_length=32,
            dropout=0.0,
            max_steps=4, batch_size=8, **SGD | how, output_dir=str(tmp_path / "-".join(["run", *how])),
        )  # fmt: skip

    assert_close(weights(run()), weights(run(pack=True)), 1e-5)


FURTHER_INPUTS = {
    "xmod": SIZE | PAD | {"max_position_embeddings": 65, "languages": ["en_XX"], "default_language": "en_XX"},
    "esm": SIZE | PAD | {"max_position_embeddings": 65, "position_embedding_type": "rotary",
                         "mask_token_id": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", ["deberta-v2", "longformer", "big_bird", *FURTHER_INPUTS])
def test_architecture_that_cannot_be_packed_is_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.setattr("test_architectures.ARCHITECTURES", ARCHITECTURES | FURTHER_INPUTS)
    with pytest.raises(UserError, match=f"--pack: .*{name} .*omit --pack"):
        few_steps(partial(bertkit.classify, pack=True), name, ROW_MAKERS["classify"](40), tmp_path)
    assert not (tmp_path / "run").exists()


@pytest.mark.cpu
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", ""])
def test_compile_without_a_compiler_that_runs_is_refused(compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(UserError, match=f"--compile: .*cannot run {compiler or 'an empty CXX'}; .*omit"):
        build_training_arguments(ClassifyConfig(data="sample", compile=True), tmp_path, "fp32")


@pytest.mark.slow
@dynamo_config.patch(fake_tensor_cache_enabled=False)  # which takes longer than to compute shapes again
@inductor_config.patch(fx_graph_cache=False)  # which may have graphs with vector instructions
@pytest.mark.parametrize(("is_packed", "backend"), [(False, "inductor"), (True, "aot_eager")])
def test_compiled_layers_are_equal_with_one_graph_for_all_lengths(is_packed, backend, monkeypatch):
    """A graph is traced and differentiated with each backend; the C++ compiler, which is slow, runs once.

    Its programs have no vector instructions: to choose them, PyTorch would compile a program for each kind.
    """
    torch._dynamo.reset()
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    counters.clear()
    compile_module = partialmethod(torch.nn.Module.compile, backend=backend)
    monkeypatch.setattr(torch.nn.Module, "compile", compile_module)
    plain, compiled = untrained("bert", 0.0), untrained("bert", 0.0)
    if is_packed:
        enable_packing(compiled)
    compile_layers(compiled)
    for length in (12, 7, 9, 5):
        batch = {name: values[:, :length] for name, values in padded().items()}
        for one, other in zip(
            *(logits_and_gradients(network, batch) for network in (plain, compiled)), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    if torch.__version__ >= "2.13":  # versions up to 2.9 compile more graphs
        assert 1 <= counters["stats"]["unique_graphs"] <= 2
