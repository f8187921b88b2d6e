"""Attention on a CPU equals that of PyTorch without dropout, and drops the expected fraction."""

import pytest
import torch
import torch.nn.functional as F
from conftest import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from test_architectures import ARCHITECTURES

from bertkit.models import cpu
from bertkit.models.cpu import (
    FAST_SDPA,
    BlockwiseAttention,
    KeepMasks,
    ShortAttention,
    attend_with_dropout,
    draw_seed,
    enable_fast_attention,
)

BOTH = pytest.mark.parametrize("function", [BlockwiseAttention, ShortAttention])


def inputs(batch, length, mask, heads=2, width=4):
    """Return transposed queries, keys and values as in models, and a mask of the given kind."""
    torch.manual_seed(length)
    parts = [torch.randn(batch, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3)]
    real = torch.arange(length) < torch.randint(1, length + 1, (batch, 1, 1, 1))
    masks = {
        "none": None, "bool": real, "each query": real.expand(batch, 1, length, length),
        "one for all": real[:1], "added": torch.randn(batch, heads, length, length),
    }  # fmt: skip
    return parts, masks[mask]


def gradients(output, parts):
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((output * weights).sum(), parts)


@BOTH
@pytest.mark.parametrize("mask", ["none", "bool", "each query", "one for all", "added"])
@settings(max_examples=15)
@given(batch=st.integers(1, 5), length=st.integers(1, 12), max_scores=st.sampled_from([1, 100, 300, 2**20]))
def test_equals_sdpa_without_dropout(function, mask, batch, length, max_scores):
    parts, mask = inputs(batch, length, mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "MAX_SCORES_PER_BLOCK", max_scores)  # varies the blocks
        ours = function.apply(*parts, mask, 0.0, 0.3)
        results = [ours, *gradients(ours, parts)]
    stock = F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3)
    for one, other in zip(results, [stock, *gradients(stock, parts)], strict=True):
        torch.testing.assert_close(one, other)


@BOTH
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_gradients_use_the_dropout_mask(function, dropout, monkeypatch):
    keep_masks = []

    def record_mask(self, *shape_and_dtype, draw=KeepMasks.draw):
        keep_masks.append(draw(self, *shape_and_dtype))
        return keep_masks[-1]

    monkeypatch.setattr(KeepMasks, "draw", record_mask)
    monkeypatch.setattr(cpu, "MAX_SCORES_PER_BLOCK", 2 * 2 * 9 * 9)
    parts, mask = inputs(5, 9, "bool")
    ours = function.apply(*parts, mask, dropout, 0.5)
    forward_masks = list(keep_masks)
    results = [ours, *gradients(ours, parts)]
    if function is BlockwiseAttention:  # five examples in blocks of two
        assert len(forward_masks) == 3
        for one, other in zip(forward_masks, keep_masks[3:], strict=True):
            assert torch.equal(one, other)
    q, k, v = parts
    scores = (q @ k.mT * 0.5).masked_fill(~mask, -torch.inf)
    keep = torch.cat(forward_masks).view(scores.shape)
    plain = (scores.softmax(-1) * keep / (1 - round(dropout * 2**16) / 2**16)) @ v
    for one, other in zip(results, [plain, *gradients(plain, parts)], strict=True):
        torch.testing.assert_close(one, other)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "bool", "each query", "added"])
def test_is_as_exact_as_sdpa_in_the_same_format(function, mask, dtype):
    parts, mask = inputs(4, 20, mask, width=16)
    stock = F.scaled_dot_product_attention(*parts, attn_mask=mask)
    exact = [stock, *gradients(stock, parts)]

    def measure_errors(attend):
        casts = [part.detach().to(dtype).requires_grad_() for part in parts]
        output = attend(casts)
        results = [output, *gradients(output, casts)]
        return [float((one - other).norm() / other.norm()) for one, other in zip(results, exact, strict=True)]

    cast_mask = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
    ours = measure_errors(lambda qkv: function.apply(*qkv, mask, 0.0, 0.25))
    theirs = measure_errors(lambda qkv: F.scaled_dot_product_attention(*qkv, attn_mask=cast_mask))
    for error, stock_error in zip(ours, theirs, strict=True):
        assert error < 2 * stock_error + 1e-6


@BOTH
@pytest.mark.parametrize("size", [30.0, 300.0])
def test_large_scores_neither_overflow_nor_vanish(function, size):
    parts, _ = inputs(2, 6, "none")
    parts = [(size * part).detach().requires_grad_() for part in parts]
    for sign in (1, -1):  # with equal keys and queries, all scores of a row are large, or all are small
        q = (sign * parts[1]).detach().requires_grad_()
        qkv = [q, *parts[1:]]
        ours = function.apply(*qkv, None, 0.0, 0.5)
        stock = F.scaled_dot_product_attention(*qkv, scale=0.5)
        for one, other in zip([ours, *gradients(ours, qkv)], [stock, *gradients(stock, qkv)], strict=True):
            assert one.isfinite().all()
            torch.testing.assert_close(one, other, atol=1e-3 * size, rtol=1e-3)


def test_saves_tensors_of_the_size_of_the_scores_only_if_they_are_small(monkeypatch):
    parts, mask = inputs(2, 64, "bool")
    num_scores = 2 * 2 * 64 * 64
    assert parts[0].numel() < num_scores
    for max_scores, is_saved in ((num_scores, True), (num_scores - 1, False)):
        monkeypatch.setattr(cpu, "MAX_SHORT_SCORES", max_scores)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=saved: s.append(x.numel()) or x, id):
            attend_with_dropout(*parts, mask, 0.1, 0.5)
        assert (max(saved) == num_scores) == is_saved
        assert is_saved or max(saved) <= parts[0].numel()


@BOTH
def test_rows_without_a_visible_key_have_finite_gradients(function):
    parts, mask = inputs(3, 7, "bool")
    mask[1] = False
    output = function.apply(*parts, mask, 0.1, 0.5)
    assert all(tensor.isfinite().all() for tensor in (output, *gradients(output, parts)))


def test_drops_the_expected_fraction_independently():
    kept = KeepMasks(0.1, seed=0).draw(torch.Size([1000, 4001]), torch.int16)
    deviation = (0.1 * 0.9 / kept.numel()) ** 0.5
    assert kept.float().mean().item() == pytest.approx(0.9, abs=4 * deviation)
    assert kept.float().mean(0).std().item() == pytest.approx((0.09 / 1000) ** 0.5, rel=0.1)
    adjacent = (kept[:, 1:] & kept[:, :-1]).float().mean().item()  # of the same 64-bit number
    assert adjacent == pytest.approx(0.81, abs=1e-3)


def test_masks_depend_on_the_seed_only():
    masks = [KeepMasks(0.5, seed).draw(torch.Size([9, 9]), torch.int16) for seed in (1, 1, 2)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    torch.manual_seed(3)
    first = draw_seed(), draw_seed()
    torch.manual_seed(3)
    assert (draw_seed(), draw_seed()) == first
    assert first[0] != first[1]


def untrained(name, dropout, causal=False):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    settings = ARCHITECTURES[name] | {"vocab_size": len(make_tokenizer())}
    elsewhere = [
        "hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout",
        "classifier_dropout_prob", "seq_classif_dropout",
    ]  # fmt: skip
    off = dict.fromkeys(elsewhere, 0.0)
    at = dict.fromkeys(["attention_probs_dropout_prob", "attention_dropout"], dropout)
    torch.manual_seed(0)
    reads = {"is_decoder": True, "use_cache": False} if causal else {}
    config = AutoConfig.for_model(name, **settings, **off, **at, **reads)
    kind = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    return kind.from_config(config).train()


def record_calls(monkeypatch):
    """Return the list to which each call of attention with dropout will append its arguments."""
    calls = []

    def record(*given, attend=attend_with_dropout):
        calls.append(given)
        return attend(*given)

    monkeypatch.setattr(cpu, "attend_with_dropout", record)
    return calls


@pytest.mark.parametrize("max_short_scores", [0, 2**20])
@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"])
def test_architectures_with_selectable_attention_equal_the_stock_model(name, max_short_scores, monkeypatch):
    """With a tiny dropout that drops nothing, logits and gradients equal those of the stock model."""
    monkeypatch.setattr(cpu, "MAX_SHORT_SCORES", max_short_scores)
    batch = {"input_ids": torch.randint(5, 40, (3, 10)), "attention_mask": torch.ones(3, 10).long()}
    batch["attention_mask"][1, 6:] = 0
    results = []
    for blockwise in (False, True):
        model = untrained(name, 1e-6)
        if blockwise:
            enable_fast_attention(model)
            assert model.config._attn_implementation == FAST_SDPA
        logits = model(**batch).logits
        logits.sum().backward()
        results.append([logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("max_short_scores", [0, 2**20])
@pytest.mark.parametrize("padded", [None, slice(6, None), slice(0, 4)], ids=["not", "right", "left"])
def test_causal_attention_equals_the_stock_model(name, padded, max_short_scores, monkeypatch):
    monkeypatch.setattr(cpu, "MAX_SHORT_SCORES", max_short_scores)
    ids = torch.randint(5, 40, (3, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 10).long()
    mask[1, padded or slice(0, 0)] = 0
    used_calls, results = record_calls(monkeypatch), []
    for blockwise in (False, True):
        model = untrained(name, 1e-6, causal=True)
        if blockwise:
            enable_fast_attention(model)
        logits = model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        logits.square().sum().backward()
        results.append([logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    assert len(used_calls) == model.config.num_hidden_layers
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_is_used_only_in_training_with_dropout(monkeypatch):
    calls = record_calls(monkeypatch)
    model = untrained("bert", 0.1)
    enable_fast_attention(model)
    ids = torch.randint(5, 40, (2, 6))
    model(input_ids=ids)
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids)
    dtypes = [given[0].dtype for given in calls]
    assert dtypes == [torch.float32] * 2 + [torch.bfloat16] * 2  # two layers
    model.eval()(input_ids=ids)
    untrained("bert", 0.1)(input_ids=ids)
    untrained("bert", 0.0)(input_ids=ids)
    assert len(calls) == 4


@pytest.mark.slow
@pytest.mark.cpu
def test_run_uses_it_without_a_trace_in_the_config(monkeypatch, tmp_path, tiny, toy):
    import bertkit

    used_calls = record_calls(monkeypatch)
    run = bertkit.classify(data=str(toy), model=str(tiny), max_steps=2, bf16=False,
                           output_dir=str(tmp_path / "run"))  # fmt: skip
    assert used_calls
    assert FAST_SDPA not in (run.output_dir / "config.json").read_text()
