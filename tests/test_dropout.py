"""Dropout: the share that is asked for, its gradient, and nothing where nothing is trained."""

import pytest
import torch
from conftest import save_tiny_model
from torch import nn
from transformers import AutoModel

from bertkit.modeling.dropout import FastDropout, enable_fast_dropout, set_dropout


def fast(p):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(p))
    enable_fast_dropout(model)
    assert type(model[1]) is FastDropout
    return model[1]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_asked_for_is_dropped_and_the_rest_scaled(p):
    torch.manual_seed(0)
    x = torch.full((1000, 201), 2.0, requires_grad=True)  # not a multiple of four
    found = fast(p)(x)
    kept = found != 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.005)
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 2 / (1 - p)), rtol=1e-4, atol=0)
    assert float(kept.float().mean(0).std()) < 0.03  # no column is dropped more than others
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, found.detach() / 2)


def test_drawn_anew_each_time_and_again_by_seed():
    x, dropout = torch.ones(64, 64), fast(0.3)
    torch.manual_seed(1)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(1)
    assert torch.equal(dropout(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_and_all_are_as_they_were(p):
    x = torch.ones(4, 4)
    assert torch.equal(fast(p)(x), nn.Dropout(p)(x))


def test_scoring_drops_nothing():
    x = torch.ones(4, 4)
    assert fast(0.5).eval()(x) is x


def test_none_is_dropped_anywhere_in_a_model_once_it_is_said(tmp_path):
    model = AutoModel.from_pretrained(save_tiny_model(tmp_path / "model")).train()
    ids = torch.arange(5, 15)[None]
    first, second = (model(ids).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
    set_dropout(model, 0.0)
    first, second = (model(ids).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)
