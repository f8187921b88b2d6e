"""Attention over packed sequences: kernel and padded attention agree; no sequence sees another one."""

import json
import shutil

import pytest
import torch
from conftest import make_toy_rows, write_rows
from test_architectures import ARCHITECTURES
from test_attention import untrained
from test_equivalence import SGD, assert_close, weights
from test_packing import PACKABLE, logits_and_gradients, padded
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

import bertkit
from bertkit.errors import UserError
from bertkit.models import packing as packing_module
from bertkit.models.layers import get_attention_dropout, set_attention_dropout
from bertkit.models.packing import Packing, describe_packed_attention, enable_packing

IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
pytestmark = pytest.mark.skipif(IS_OLD, reason="before torch 2.13, there is no kernel with these arguments")


def attend_one_by_one(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size):
    """Compute what `torch.nn.attention.varlen.varlen_attn` documents, one sequence after the other."""
    assert query.ndim == 3
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    outputs = []
    for start, stop in cu_seq_q.unfold(0, 2, 1).tolist():
        assert stop - start <= max_q == max_k
        parts = (states[start:stop].transpose(0, 1) for states in (query, key, value))
        distance = torch.arange(stop - start) - torch.arange(stop - start)[:, None]
        left, right = (size if size >= 0 else stop for size in window_size)
        mask = (distance >= -left) & (distance <= right)
        outputs.append(scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale).transpose(0, 1))
    return torch.cat(outputs)


@pytest.fixture
def kernel(monkeypatch):
    """Use the variable-length path in fp32 on a CPU, and return the windows of its calls."""
    windows = []

    def record(*args, window_size, **kwargs):
        windows.append(window_size)
        return attend_one_by_one(*args, window_size=window_size, **kwargs)

    monkeypatch.setattr(packing_module, "supports_varlen", lambda _: True)
    monkeypatch.setattr(packing_module, "VARLEN_DTYPES", (torch.float32,))
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", record)
    return windows


def assert_packed_equals_padded(name, batch, **options):
    results = []
    for is_packed in (False, True):
        model = untrained(name, 0.0, **options)
        if is_packed:
            enable_packing(model)
        results.append(logits_and_gradients(model, batch))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PACKABLE)
def test_kernel_equals_padded_attention(name, kernel):
    assert_packed_equals_padded(name, padded())
    full, local = (-1, -1), (4, 4)  # half of `local_attention`, to each side
    assert kernel == ([full, local] if name == "modernbert" else [full, full])


def test_kernel_of_a_causal_model_hides_later_tokens(kernel):
    batch, is_token = padded(), padded()["attention_mask"].bool()
    packed, plain = untrained("bert", 0.0, causal=True), untrained("bert", 0.0, causal=True)
    enable_packing(packed)
    torch.testing.assert_close(packed(**batch).logits[is_token], plain(**batch).logits[is_token])
    assert set(kernel) == {(-1, 0)}


@pytest.mark.slow
def test_long_sequences_of_modernbert_have_local_windows_and_positions(kernel, monkeypatch):
    long = {"max_position_embeddings": 2048, "local_attention": 128}
    monkeypatch.setitem(ARCHITECTURES, "modernbert", ARCHITECTURES["modernbert"] | long)
    lengths = [2048, 300]
    ids = torch.randint(5, 40, (2, 2048), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(2048) < torch.tensor(lengths)[:, None]).long()
    packed, plain = untrained("modernbert", 0.0).base_model, untrained("modernbert", 0.0).base_model
    enable_packing(packed)
    with torch.no_grad():
        states = packed(ids, attention_mask=mask).last_hidden_state
        for row, length in enumerate(lengths):
            alone = plain(ids[row : row + 1, :length]).last_hidden_state[0]
            torch.testing.assert_close(states[row, :length], alone, atol=1e-5, rtol=1e-5)
    assert kernel == [(-1, -1), (64, 64)]


@pytest.mark.parametrize("name", [*PACKABLE, "deberta-v2"])
def test_attention_dropout_can_be_set(name):
    model = untrained(name, 0.3)
    assert get_attention_dropout(model) == 0.3
    set_attention_dropout(model, 0.0)
    assert get_attention_dropout(model) == 0.0
    if name == "modernbert":  # its setting also applies to the outputs of attention, which stay dropped
        assert {layer.attn.out_drop.p for layer in model.base_model.layers} == {0.3}
        model.base_model.layers.apply(lambda module: setattr(module, "p", 0.0))
    first, second = (model(**padded()).logits for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.slow
def test_run_without_attention_dropout_keeps_the_value_in_the_config(tiny_without_dropout, tmp_path):
    folder = shutil.copytree(tiny_without_dropout, tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text()) | {"attention_probs_dropout_prob": 0.5}
    (folder / "config.json").write_text(json.dumps(settings))
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(20))

    def run(model, name, **options):
        return bertkit.classify(
            data=str(data), model=str(model), max_steps=2, output_dir=str(tmp_path / name), **SGD, **options
        )

    never, switched_off = run(tiny_without_dropout, "never"), run(folder, "off", attention_dropout=0.0)
    assert_close(weights(never), weights(switched_off), 0.0)
    saved = json.loads((switched_off.output_dir / "config.json").read_text())
    assert saved["attention_probs_dropout_prob"] == 0.5


def test_architecture_without_attention_dropout_is_named():
    model = untrained("bert", 0.3)
    model.base_model.encoder.layer = torch.nn.ModuleList()
    with pytest.raises(UserError, match="--attention-dropout: bert drops no attention weights"):
        set_attention_dropout(model, 0.0)


@pytest.mark.parametrize(
    ("dropout", "precision", "words"),
    [(0.1, "bf16", "dropout of 0.1; --attention-dropout 0"), (0.0, "fp32", "in fp32"), (0.0, "bf16", None)],
)
def test_padded_attention_of_a_gpu_is_reported(dropout, precision, words, monkeypatch):
    model = untrained("bert", dropout)
    assert describe_packed_attention(model, precision) is None  # without a GPU
    monkeypatch.setattr(packing_module, "supports_varlen", lambda _: True)
    note = describe_packed_attention(model, precision)
    assert note is None if words is None else words in note


def test_dropout_of_attention_weights_is_never_left_out(kernel):
    model = untrained("bert", 0.5)
    enable_packing(model)
    first, second = (model(**padded()).logits for _ in range(2))
    assert not kernel
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "is_supported"),
    [
        ("cuda", torch.bfloat16, 64, True),
        ("cuda", torch.float16, 64, True),
        ("cuda", torch.float32, 64, False),
        ("cuda", torch.bfloat16, 30, False),
        ("cuda", torch.bfloat16, 512, False),
        ("cpu", torch.bfloat16, 64, False),
    ],
)
def test_kernel_is_used_where_it_is_supported(device, dtype, head_dim, is_supported, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    packing_module.supports_varlen.cache_clear()
    with FakeTensorMode():
        query = torch.empty(1, 12, 5, head_dim, dtype=dtype, device=device)
    assert (
        packing_module.supports_varlen(query.device) and packing_module.can_use_varlen(query, 0.0)
    ) == is_supported
    assert not packing_module.can_use_varlen(query, 0.1)
    packing_module.supports_varlen.cache_clear()


def test_kernel_accepts_shapes_and_types_of_a_packed_batch():
    """PyTorch's own operator checks the arguments, without a GPU and without values."""
    with FakeTensorMode():
        states = [torch.empty(1, 2, 42, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        cu_seqlens = torch.empty(7, dtype=torch.int32)
        output = packing_module.attend_varlen(*states, cu_seqlens, 12, (-1, -1), {"scaling": 0.25})
        assert output.shape == (1, 42, 2, 16)
        gradients = torch.autograd.grad(output.sum(), states)
    assert [gradient.shape for gradient in gradients] == [state.shape for state in states]


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 2), (3, 0)])
def test_mask_selects_near_tokens_of_the_same_sequence(window):
    lengths = [4, 6, 1]
    packing = Packing.from_lengths(lengths, 6, torch.device("cpu"))
    mask = packing_module.build_mask(packing.cu_seqlens, 6, window)
    assert mask.shape == (3, 1, 6, 6)
    left, right = (size if size >= 0 else 6 for size in window)
    for length, sequence in zip(lengths, mask[:, 0], strict=True):
        for query in range(length):
            visible = [key for key in range(length) if -left <= key - query <= right]
            assert sequence[query].nonzero().flatten().tolist() == visible
    assert mask.any(-1).all()


def test_packing_has_the_positions_of_the_mask():
    mask = padded()["attention_mask"]
    packing = Packing.from_lengths(mask.sum(1).tolist(), mask.shape[1], mask.device)
    assert packing.positions.equal(mask.flatten().nonzero().squeeze(1))
    assert packing.cu_seqlens.tolist() == [0, *mask.sum(1).cumsum(0).tolist()]
    assert packing.cu_seqlens.dtype == torch.int32
    positions = packing.positions % mask.shape[1]
    assert positions.tolist() == [p for n in mask.sum(1).tolist() for p in range(n)]


def test_batch_without_padding_needs_no_mask(monkeypatch):
    monkeypatch.setattr(packing_module, "build_mask", pytest.fail)
    batch = {name: tensor[[0, 4]] for name, tensor in padded().items()}
    assert_packed_equals_padded("bert", batch)
