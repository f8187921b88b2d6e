"""Test the floating-point operations of training against PyTorch's counter, and the peak rates of devices."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import flops
from bertkit.models.layers import freeze_layers
from bertkit.training.callbacks import InputStats
from flops import SequenceCounts, count_training_flops

SIZE = {"vocab_size": 99, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
LENGTHS = [24, 24, 24]
CPU = torch.device("cpu")


def build_model(model_type, auto_class=AutoModel, num_layers=4, **settings):
    settings = SIZE | {"num_hidden_layers": num_layers} | settings
    config = AutoConfig.for_model(model_type, **settings)
    return auto_class.from_config(config, attn_implementation="eager").train()


def count_sequences(lengths, num_predictions=0):
    return SequenceCounts(torch.bincount(torch.tensor(lengths)), num_predictions)


def measure_flops(model, module_names):
    """Return the operations of forward and backward within some modules, as PyTorch counts them."""
    ids = torch.randint(5, 90, (len(LENGTHS), LENGTHS[0]))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids)[0].sum().backward()
    counts = counter.get_flop_counts()
    return sum(sum(counts[f"{type(model).__name__}.{name}"].values()) for name in module_names)


@pytest.mark.parametrize(
    ("model_type", "settings", "module_names"),
    [
        ("bert", {}, ["encoder"]),
        ("roberta", {}, ["encoder"]),
        ("electra", {"embedding_size": 64}, ["encoder"]),
        ("distilbert", {"dim": 64, "n_layers": 4, "n_heads": 4, "hidden_dim": 256}, ["transformer"]),
        ("albert", {"embedding_size": 64, "num_hidden_groups": 2}, ["encoder"]),
        ("modernbert", {"intermediate_size": 128, "pad_token_id": 0}, ["layers.0", "layers.1", "layers.2",
                                                                      "layers.3"]),
    ],
)  # fmt: skip
def test_flops_agree_with_the_counter_of_pytorch(model_type, settings, module_names):
    model = build_model(model_type, **settings)
    expected = measure_flops(model, module_names)
    assert count_training_flops(model, count_sequences(LENGTHS)) == pytest.approx(expected, rel=0.02)


def test_shared_layers_count_once_per_use():
    counts = [
        count_training_flops(
            build_model("albert", embedding_size=64, num_layers=passes), count_sequences([9])
        )
        for passes in (2, 6)
    ]
    assert counts[1] == 3 * counts[0]


def test_frozen_layers_count_only_their_forward_pass():
    model, trained = (build_model("bert", AutoModelForSequenceClassification) for _ in range(2))
    freeze_layers(model, 2)
    expected = measure_flops(model, ["bert.encoder"])
    assert count_training_flops(model, count_sequences(LENGTHS)) == pytest.approx(expected, rel=0.04)
    freeze_layers(model, 4)
    frozen = count_training_flops(model, count_sequences(LENGTHS))
    assert frozen == count_training_flops(trained, count_sequences(LENGTHS)) / 3


def test_local_attention_counts_only_the_window():
    model = build_model("modernbert", local_attention=8, pad_token_id=0)
    is_near = (torch.arange(20)[:, None] - torch.arange(20)).abs() <= model.config.sliding_window
    num_local = model.config.layer_types.count("sliding_attention")
    without_window = build_model("modernbert", pad_token_id=0)
    full, local = (count_training_flops(each, count_sequences([20])) for each in (without_window, model))
    assert full - local == 12 * 64 * num_local * (20 * 20 - int(is_near.sum()))


def test_vocabulary_projection_counts_at_predicted_positions():
    model = build_model("bert", AutoModelForMaskedLM)
    counts = [count_training_flops(model, count_sequences(LENGTHS, number)) for number in (0, 10)]
    assert counts[1] - counts[0] == 10 * 6 * 99 * 64


@pytest.mark.parametrize("model_type", ["longformer", "deberta-v2"])
def test_other_attention_is_not_counted(model_type):
    config = AutoConfig.for_model(model_type, **SIZE, num_hidden_layers=2, max_position_embeddings=64)
    assert count_training_flops(AutoModel.from_config(config), count_sequences(LENGTHS)) is None


def test_padding_does_not_count():
    batches = [
        {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]])},
        {"attention_mask": torch.tensor([[1, 1, 1, 1, 1]])},
    ]
    stats = InputStats()
    assert list(stats.track_batches(iter(batches))) == batches
    assert stats.count_tokens_of_all_ranks() == 10
    assert stats.padding_fraction == pytest.approx(1 / 11)


@pytest.mark.parametrize(
    ("name", "number_format", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA A10", "fp32", 31.2),
        ("NVIDIA A10G", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "tf32", 378),
        ("NVIDIA H200", "fp16", 989.4),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40S", "bf16", 362.1),
        ("NVIDIA L40", "bf16", None),
        ("Tesla T4", "fp16", 65),
        ("Tesla T4", "bf16", None),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("AMD Instinct MI300X", "bf16", 1307.4),
    ],
)
def test_known_gpus_have_the_rates_of_their_data_sheets(name, number_format, tflops):
    rate = flops.find_data_sheet_rate(name, number_format)
    assert rate == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_measured_rate_is_plausible():
    assert 1e8 < flops.measure_rate(CPU, torch.float32) < 1e14
