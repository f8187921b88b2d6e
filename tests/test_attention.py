"""Chunked attention equals that of PyTorch without dropout, and drops the expected fraction."""

import pytest
import torch
import torch.nn.functional as F
from conftest import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from test_architectures import ARCHITECTURES

from bertkit.modeling import attention
from bertkit.modeling.attention import CHUNKED_SDPA, ChunkedAttention, enable_chunked_attention


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


@pytest.mark.parametrize("mask", ["none", "bool", "each query", "one for all", "added"])
@settings(max_examples=15)
@given(batch=st.integers(1, 5), length=st.integers(1, 12), max_scores=st.sampled_from([1, 100, 300, 2**20]))
def test_equals_sdpa_without_dropout(mask, batch, length, max_scores):
    parts, mask = inputs(batch, length, mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MAX_SCORES_PER_CHUNK", max_scores)  # varies the chunks of the batch
        ours = ChunkedAttention.apply(*parts, mask, 0.0, 0.3)
        results = [ours, *gradients(ours, parts)]
    stock = F.scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3)
    for one, other in zip(results, [stock, *gradients(stock, parts)], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_gradients_use_the_dropout_mask(dropout, monkeypatch):
    keep_masks = []

    def record_mask(*given, draw=attention.sample_keep_mask):
        keep_masks.append(draw(*given))
        return keep_masks[-1]

    monkeypatch.setattr(attention, "sample_keep_mask", record_mask)
    monkeypatch.setattr(attention, "MAX_SCORES_PER_CHUNK", 2 * 2 * 9 * 9)
    parts, mask = inputs(5, 9, "bool")
    ours = ChunkedAttention.apply(*parts, mask, dropout, 0.5)
    results = [ours, *gradients(ours, parts)]
    assert len(keep_masks) == 3  # five examples in chunks of two
    q, k, v = parts
    scores = (q @ k.mT * 0.5).masked_fill(~mask, -torch.inf)
    plain = (scores.softmax(-1) * torch.cat(keep_masks) / (1 - round(dropout * 2**16) / 2**16)) @ v
    for one, other in zip(results, [plain, *gradients(plain, parts)], strict=True):
        torch.testing.assert_close(one, other)


def test_drops_the_expected_fraction_independently():
    torch.manual_seed(0)
    kept = attention.sample_keep_mask(torch.Size([1000, 4001]), round(0.1 * 2**16))
    deviation = (0.1 * 0.9 / kept.numel()) ** 0.5
    assert kept.float().mean().item() == pytest.approx(0.9, abs=4 * deviation)
    assert kept.float().mean(0).std().item() == pytest.approx((0.09 / 1000) ** 0.5, rel=0.1)
    adjacent = (
        (kept[:, 1:] & kept[:, :-1]).float().mean().item()
    )  # adjacent values use the same random number
    assert adjacent == pytest.approx(0.81, abs=1e-3)


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


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"])
def test_architectures_with_selectable_attention_equal_the_stock_model(name):
    """With a tiny dropout that drops nothing, logits and gradients equal those of the stock model."""
    batch = {"input_ids": torch.randint(5, 40, (3, 10)), "attention_mask": torch.ones(3, 10).long()}
    batch["attention_mask"][1, 6:] = 0
    results = []
    for chunked in (False, True):
        model = untrained(name, 1e-6)
        if chunked:
            enable_chunked_attention(model)
            assert model.config._attn_implementation == CHUNKED_SDPA
        logits = model(**batch).logits
        logits.sum().backward()
        results.append([logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("padded", [None, slice(6, None), slice(0, 4)], ids=["not", "right", "left"])
def test_causal_attention_equals_the_stock_model(name, padded, monkeypatch):
    ids = torch.randint(5, 40, (3, 10), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 10).long()
    mask[1, padded or slice(0, 0)] = 0
    used_calls, results = [], []
    stock = ChunkedAttention.forward
    monkeypatch.setattr(
        ChunkedAttention, "forward", staticmethod(lambda *given: used_calls.append(1) or stock(*given))
    )
    for chunked in (False, True):
        model = untrained(name, 1e-6, causal=True)
        if chunked:
            enable_chunked_attention(model)
        logits = model(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        logits.square().sum().backward()
        results.append([logits, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    assert len(used_calls) == model.config.num_hidden_layers
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_is_used_only_in_fp32_training_with_dropout(monkeypatch):
    calls = []
    monkeypatch.setattr(ChunkedAttention, "apply", lambda *given: calls.append(given) or given[0])
    model = untrained("bert", 0.1)
    enable_chunked_attention(model)
    ids = torch.randint(5, 40, (2, 6))
    model(input_ids=ids)
    assert len(calls) == model.config.num_hidden_layers
    model.eval()(input_ids=ids)
    untrained("bert", 0.1)(input_ids=ids)
    with torch.autocast("cpu", torch.bfloat16):
        model.train()(input_ids=ids)
    assert len(calls) == model.config.num_hidden_layers


def test_run_uses_it_without_a_trace_in_the_config(monkeypatch, tmp_path, tiny, toy):
    import bertkit

    used_calls = []
    stock = ChunkedAttention.forward
    monkeypatch.setattr(
        ChunkedAttention, "forward", staticmethod(lambda *given: used_calls.append(1) or stock(*given))
    )
    run = bertkit.classify(data=str(toy), model=str(tiny), max_steps=2, bf16=False,
                           output_dir=str(tmp_path / "run"))  # fmt: skip
    assert used_calls
    assert CHUNKED_SDPA not in (run.output_dir / "config.json").read_text()
