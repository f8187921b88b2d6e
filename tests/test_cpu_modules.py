"""Linear layers and embeddings for CPUs: results and gradients of the stock modules, with fewer copies."""

import copy
import weakref

import pytest
import torch
from test_attention import untrained
from torch import nn

from bertkit.models import cpu
from bertkit.models.cpu import (
    FastEmbedding,
    FastLinear,
    GradientClipper,
    accelerate_on_cpu,
    replace_modules,
)

IDS = torch.tensor([[5, 7, 7, 0], [5, 1, 0, 0]])


def accelerated(model, replace=replace_modules):
    """Return an accelerated copy of a model; every embedding counts as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertkit.models.cpu.MIN_VALUES", 1)
        faster = copy.deepcopy(model)
        replace(faster, is_single_process=True)
    return faster


def grads(model):
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.fixture(params=[0, 2**62], ids=["oneDNN", "MKL"])
def fp32_library(request, monkeypatch):
    """Make one library compute all fp32 products; otherwise, their size selects it."""
    monkeypatch.setattr(cpu, "USES_ONEDNN_IN_FP32", True)
    monkeypatch.setattr(cpu, "MIN_PRODUCTS", request.param)


# ---- linear layers


@pytest.mark.usefixtures("fp32_library")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_linear_layer_equals_the_stock_layer(bias, bf16):
    torch.manual_seed(0)
    stock = nn.Linear(48, 96, bias=bias)
    fast = accelerated(nn.Sequential(stock))[0]
    assert type(fast) is FastLinear
    results = []
    for layer in (stock, fast):
        x = torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(1), requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = layer(x)
        output.float().square().sum().backward()
        results.append([output, x.grad, *(weight.grad for weight in layer.parameters())])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        tolerance = 1e-2 if bf16 else 1e-5
        torch.testing.assert_close(one, other, atol=tolerance * float(other.detach().abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("uses_onednn", "name"), [(True, "LinearFunctionBackward"), (False, "AddmmBackward0")]
)
def test_layers_in_fp32_are_the_stock_ones_where_mkl_is_faster(uses_onednn, name, monkeypatch):
    monkeypatch.setattr(cpu, "USES_ONEDNN_IN_FP32", uses_onednn)
    layer = accelerated(nn.Sequential(nn.Linear(4, 4)))[0]
    output = layer(torch.ones(2, 4))
    operators = {
        output.grad_fn.name(),
        *(function.name() for function, _ in output.grad_fn.next_functions if function),
    }
    assert name in operators


def test_weight_is_cast_once_until_it_changes(monkeypatch):
    layer = accelerated(nn.Sequential(nn.Linear(4, 4)))[0]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    copies = []
    for _ in range(2):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                layer(torch.ones(1, 4)).sum().backward()
            copies.append(layer.weight_copy.copy)
        optimizer.step()
    assert copies[0] is copies[1]
    assert copies[2] is copies[3]
    assert copies[1] is not copies[2]
    layer.load_state_dict({"weight": torch.eye(4), "bias": torch.zeros(4)})
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(1, 4)).tolist() == [[1.0] * 4]


def test_projections_share_the_cast_of_their_input():
    query, key = accelerated(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    x = torch.ones(2, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        query(x)
        first = cpu.INPUT_COPY.copy
        key(x)
        assert cpu.INPUT_COPY.copy is first
        with torch.no_grad():
            x.add_(1)
        key(x)
    assert cpu.INPUT_COPY.copy is not first


@pytest.mark.usefixtures("fp32_library")
@pytest.mark.parametrize("shape", [(4,), (0, 4), (2, 0, 4), (2, 3, 5, 4)])
def test_inputs_of_any_shape(shape):
    stock = nn.Linear(4, 2)
    fast, x = accelerated(nn.Sequential(stock))[0], torch.randn(shape)
    torch.testing.assert_close(fast(x), stock(x))


def test_output_can_be_changed_in_place():
    """Longformer scales its queries in place."""
    layer, x = accelerated(nn.Sequential(nn.Linear(4, 2)))[0], torch.ones(2, 3, 4, requires_grad=True)
    output = layer(x)
    output /= 2
    output.sum().backward()
    torch.testing.assert_close(x.grad, (layer.weight.sum(0) / 2).expand(2, 3, 4))


def test_graph_of_the_last_batch_is_freed():
    layer, states = accelerated(nn.Sequential(nn.Linear(4, 4)))[0], nn.Linear(4, 4)(torch.ones(2, 4))
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(states)
    freed = weakref.ref(states)
    del states, output
    assert freed() is None


def test_frozen_weight_gets_no_gradient():
    layer = accelerated(nn.Sequential(nn.Linear(4, 4)))[0]
    layer.weight.requires_grad_(False)
    x = torch.ones(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 4))
    assert layer.bias.grad.tolist() == [2.0] * 4


def test_heads_keep_fp32():
    model = accelerated(untrained("bert", 1e-6), accelerate_on_cpu)
    dtypes = {}
    for name, module in model.named_modules():
        if isinstance(module, FastLinear):
            module.register_forward_hook(lambda _, __, out, name=name: dtypes.update({name: out.dtype}))
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS).logits.sum().backward()
    assert dtypes.pop("classifier") == torch.float32
    assert set(dtypes.values()) == {torch.bfloat16}
    assert model.classifier.weight.grad.dtype == torch.float32


# ---- embeddings


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_embedding_gradient_is_bit_identical_to_the_stock_gradient(padding_idx):
    stock = nn.Embedding(9, 3, padding_idx=padding_idx)
    fast = accelerated(nn.Sequential(stock))[0]
    assert type(fast) is FastEmbedding
    buffers = set()
    for step in range(3):
        for _ in range(2):  # accumulation
            weights = torch.randn(2, 4, 3)
            for module in (stock, fast):
                (module((IDS + step) % 9) * weights).sum().backward()
        torch.testing.assert_close(fast.weight.grad, stock.weight.grad, atol=0, rtol=0)
        buffers.add(fast.weight.grad.data_ptr())
        for module in (stock, fast):
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            module.zero_grad()
    assert len(buffers) == 1


def test_tied_embedding_is_not_replaced():
    """The gradient of the output layer has no rows of zeros that a buffer could keep."""
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.output = nn.Embedding(9, 3), nn.Linear(3, 9, bias=False)
            self.output.weight = self.embedding.weight

        def forward(self, ids):
            return self.output(self.embedding(ids))

    stock = Tied()
    fast = accelerated(stock)
    assert type(fast.embedding) is nn.Embedding
    for _ in range(3):
        for model in (stock, fast):
            model.zero_grad()
            model(IDS).square().sum().backward()
        torch.testing.assert_close(grads(fast), grads(stock))


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_embedding_with_an_option_of_its_own_is_not_replaced(option):
    assert type(accelerated(nn.Sequential(nn.Embedding(9, 3, **option)))[0]) is nn.Embedding


def test_frozen_embedding_gets_no_gradient():
    fast = accelerated(nn.Sequential(nn.Embedding(9, 3)))[0]
    fast.weight.requires_grad_(False)
    assert not fast(IDS).requires_grad


def test_several_processes_keep_the_stock_embedding(monkeypatch):
    monkeypatch.setattr("bertkit.models.cpu.MIN_VALUES", 1)
    model = nn.Sequential(nn.Embedding(9, 3))
    replace_modules(model, is_single_process=False)
    assert type(model[0]) is nn.Embedding


# ---- clipping


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_clipping_equals_that_of_pytorch(max_norm):
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    fast = accelerated(stock)
    clipper = GradientClipper(fast)
    for step in range(2):
        for model in (stock, fast):
            model.zero_grad()
            model((IDS + 3 * step) % 9).square().sum().backward()
        norms = [nn.utils.clip_grad_norm_(stock.parameters(), max_norm), clipper.clip(max_norm)]
        torch.testing.assert_close(norms[1], norms[0])
        torch.testing.assert_close(grads(fast), grads(stock))


def test_clipping_without_gradients():
    assert GradientClipper(nn.Linear(2, 2)).clip(1.0) == 0


# ---- whole models


@pytest.mark.slow
@pytest.mark.usefixtures("fp32_library")
@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert", "deberta-v2"]
)
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_model_equals_the_stock_model(name, bf16):
    """With a tiny dropout that drops nothing, logits and gradients equal those of the stock model."""
    stock = untrained(name, 1e-6)
    fast = accelerated(stock, accelerate_on_cpu)
    ids = torch.randint(5, 40, (3, 10), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones(3, 10).long()}
    batch["attention_mask"][1, 6:] = 0
    for model in (stock, fast):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(**batch).logits
        logits.float().sum().backward()
    expected, found = grads(stock), grads(fast)
    assert found.keys() == expected.keys()
    scale = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=(3e-2 if bf16 else 1e-5) * scale, rtol=0)
    assert stock.state_dict().keys() == fast.state_dict().keys()
