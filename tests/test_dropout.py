"""Fast dropout: the expected fraction, its gradient, and no effect in evaluation."""

import pytest
import torch
from conftest import save_tiny_model
from torch import nn
from transformers import AutoModel

from bertkit.models.cpu import FastDropout
from bertkit.models.layers import set_dropout


def make_fast_dropout(p):
    module = nn.Dropout(p)
    module.__class__ = FastDropout
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_the_expected_fraction_and_scales_the_rest(p, dtype):
    torch.manual_seed(0)
    x = torch.full((1000, 201), 2.0, requires_grad=True, dtype=dtype)  # not a multiple of four
    output = make_fast_dropout(p)(x)
    kept = output != 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.005)
    torch.testing.assert_close(
        output[kept],
        torch.full_like(output[kept], 2 / (1 - p)),
        rtol=1e-2 if dtype == torch.bfloat16 else 1e-4,
        atol=0,
    )
    assert float(kept.float().mean(0).std()) < 0.03  # no column is dropped more than others
    (gradient,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(gradient, output.detach() / 2)


def test_mask_changes_with_each_call_and_depends_on_the_seed():
    x, dropout = torch.ones(64, 64), make_fast_dropout(0.3)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_p_of_0_and_1_equal_the_stock_module(p):
    x = torch.ones(4, 4)
    assert torch.equal(make_fast_dropout(p)(x), nn.Dropout(p)(x))


def test_p_that_rounds_to_1_keeps_the_values_finite():
    torch.manual_seed(0)
    assert make_fast_dropout(1 - 1e-9)(torch.ones(64, 64)).isfinite().all()


def test_evaluation_drops_nothing():
    x = torch.ones(4, 4)
    assert make_fast_dropout(0.5).eval()(x) is x


def test_set_dropout_changes_all_modules(tmp_path):
    model = AutoModel.from_pretrained(save_tiny_model(tmp_path / "model")).train()
    ids = torch.arange(5, 15)[None]
    first, second = (model(ids).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
    set_dropout(model, 0.0)
    first, second = (model(ids).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)
