"""Optional packages: what works without them, and the extras that the errors name."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import assert_refused
from test_report import write_run

from bertkit.utils import compat

RECORD = {
    "text": "a good film",
    "gold": "positive",
    "predicted": "positive",
    "probabilities": {"negative": 0.1, "positive": 0.9},
}
CONFIG = {"id2label": {"0": "negative", "1": "positive"}}


@pytest.fixture
def hide(monkeypatch):
    """Return a function that makes a package look as if it was not installed."""
    find_spec, hidden = importlib.util.find_spec, set()

    def hide_package(name):
        hidden.add(name)
        monkeypatch.setitem(sys.modules, name, None)

    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in hidden else find_spec(name, *more)
    )
    return hide_package


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", [RECORD | {"id": n} for n in range(4)], config=CONFIG)


@pytest.mark.charts
def test_without_matplotlib_a_page_says_how_to_get_its_charts(run, hide):
    from bertkit.reports.page import render_page
    from bertkit.tasks.view import load_finished_run

    with_charts = render_page(load_finished_run(run))
    hide("matplotlib")
    without_charts = render_page(load_finished_run(run))
    assert (with_charts.count("pip install"), with_charts.count("<figure")) == (
        0,
        without_charts.count("<figure"),
    )
    assert (
        without_charts.count("pip install &#39;bertkit[report]&#39;")
        + without_charts.count("pip install 'bertkit[report]'")
        > 2
    )
    assert 'role="img"' in with_charts
    assert 'role="img"' not in without_charts


def test_missing_matplotlib_is_named_with_its_extra(cli, run, tmp_path, hide):
    hide("matplotlib")
    words = ["report: needs matplotlib", "pip install 'bertkit[report]'"]
    assert_refused(cli, tmp_path, [run], words, command="report")


def test_missing_aiohttp_is_named_with_its_extra(cli, tmp_path, hide):
    hide("aiohttp")
    args = ["--data", "http://127.0.0.1:9/a.txt", "-o", tmp_path / "new"]
    words = ["--data http://127.0.0.1:9/a.txt: needs aiohttp", "pip install 'bertkit[http]'"]
    assert_refused(cli, tmp_path, args, words, command="train-tokenizer")


# ---- older versions of libraries


def test_old_names_of_activation_checkpointing(monkeypatch):
    old = SimpleNamespace(
        gradient_checkpointing_enable=lambda **options: options.update(called="old") or calls.append(options)
    )
    new = SimpleNamespace(
        activation_checkpointing_enable=lambda **options: calls.append(options), **vars(old)
    )
    calls = []
    compat.enable_activation_checkpointing(old, {"a": 1})
    compat.enable_activation_checkpointing(new, {"a": 2})
    assert calls == [{"a": 1, "called": "old"}, {"a": 2}]
    for fields, expected in (({"activation_checkpointing": None}, "activation_"), ({}, "gradient_")):
        monkeypatch.setattr("transformers.TrainingArguments", SimpleNamespace(**fields))
        assert (
            compat.get_argument_name("activation_checkpointing_kwargs") == f"{expected}checkpointing_kwargs"
        )
        assert compat.get_argument_name("seed") == "seed"


CPU_INFO = (
    "processor\t: 0\nmodel name\t: CPU of a test\nflags\t\t: fpu avx512f avx512_bf16\n\nprocessor\t: 1\n"
)


def test_cpu_capabilities_are_read_from_the_system_if_torch_has_no_function_for_them(monkeypatch, tmp_path):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(compat, "CPU_INFO", tmp_path / "cpuinfo")
    assert not compat.get_cpu_capabilities().get("avx512_bf16")
    (tmp_path / "cpuinfo").write_text(CPU_INFO, "utf-8")
    found = compat.get_cpu_capabilities()
    assert (found["avx512_bf16"], found.get("amx_bf16"), found["cpu_name"]) == (True, None, "CPU of a test")


@pytest.mark.skipif(
    not hasattr(torch.cpu, "get_capabilities"), reason="this version of PyTorch has no such function"
)
@pytest.mark.skipif(not compat.CPU_INFO.exists(), reason="only Linux has this file")
def test_cpu_capabilities_of_the_system_are_those_of_torch(monkeypatch):
    names = ("avx512_bf16", "amx_bf16")
    expected = [bool(torch.cpu.get_capabilities().get(name)) for name in names]
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert [bool(compat.get_cpu_capabilities().get(name)) for name in names] == expected


@pytest.mark.parametrize("name", ["set_device_index", "set_device_idx"])
def test_device_index_is_set_under_the_old_and_the_new_name(name, monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(**{name: calls.append}))
    compat.set_device_index(3)
    assert calls == [3]


def test_exporting_is_recognized_under_the_old_name(monkeypatch):
    monkeypatch.setattr(torch, "compiler", SimpleNamespace(is_compiling=lambda: True))
    assert compat.is_exporting()
    monkeypatch.setattr(
        torch, "compiler", SimpleNamespace(is_compiling=lambda: True, is_exporting=lambda: False)
    )
    assert not compat.is_exporting()


def attend_2_13(query, *, scale=None, window_size=(-1, -1)):
    """The arguments of torch 2.13 that bertkit passes."""


def attend_2_10(query, is_causal=False):
    """Fewer arguments."""


@pytest.mark.parametrize(("kernel", "expected"), [(attend_2_13, True), (attend_2_10, False)])
def test_varlen_attention_with_fewer_arguments_is_not_used(kernel, expected, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=kernel))
    assert compat.has_varlen_attention() == expected


def test_missing_varlen_attention_is_not_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert not compat.has_varlen_attention()


def test_text_in_brackets_is_printed_as_it_is(capsys):
    from bertkit.utils.console import err_console, out_console

    for console in (out_console, err_console):
        console.print("pip install 'bertkit[onnx]'")
    assert [text.strip() for text in capsys.readouterr()] == ["pip install 'bertkit[onnx]'"] * 2
