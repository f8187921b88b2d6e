"""Test the floating-point operations of training against PyTorch's counter, and the peak rates of devices."""

import pytest
import torch
from conftest import make_ner_rows, make_toy_rows, write_rows
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import bertkit
from bertkit.modeling.layers import freeze_layers
from bertkit.training import peak_flops
from bertkit.training.flops import count_training_flops
from bertkit.training.meters import InputStats, SequenceCounts

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
    flops = [count_training_flops(model, count_sequences(LENGTHS, number)) for number in (0, 10)]
    assert flops[1] - flops[0] == 10 * 6 * 99 * 64


@pytest.mark.parametrize("model_type", ["longformer", "deberta-v2"])
def test_other_attention_is_not_counted(model_type):
    config = AutoConfig.for_model(model_type, **SIZE, num_hidden_layers=2, max_position_embeddings=64)
    assert count_training_flops(AutoModel.from_config(config), count_sequences(LENGTHS)) is None


def test_padding_and_unused_predictions_do_not_count():
    batches = [
        {"attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
         "masked_lm_labels": torch.tensor([[7, -100], [7, 7]])},
        {"attention_mask": torch.tensor([[1, 1, 1, 1, 1]]), "masked_lm_labels": torch.tensor([[-100, 7]])},
    ]  # fmt: skip
    stats = InputStats()
    assert list(stats.track_batches(iter(batches))) == batches
    counts = stats.gather_counts()
    assert counts.length_counts.tolist() == [0, 0, 1, 1, 0, 1]
    assert (counts.num_tokens, counts.num_predictions) == (10, 4)
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
    rate = peak_flops.find_data_sheet_rate(name, number_format)
    assert rate == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_rate_is_measured_once_per_machine(monkeypatch):
    rates = iter([5e9, 7e9])
    monkeypatch.setattr(peak_flops, "measure_rate", lambda *_: next(rates))
    for precision in ("bf16", "bf16", "fp32"):
        peak_flops._load_or_measure_rate.cache_clear()  # as in another process
        expected = peak_flops.PeakFlops(5e9 if precision == "bf16" else 7e9, f"measured, {precision}")
        assert peak_flops.find_peak_flops(CPU, precision) == expected


def test_measured_rate_is_plausible():
    assert 1e8 < peak_flops.measure_rate(CPU, torch.float32) < 1e14


def test_metrics_and_model_card_contain_the_utilization(tiny, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    run = bertkit.classify(data=str(data), model=str(tiny), max_steps=4, bf16=False, output_dir="run")
    training = run.metrics["training"]
    assert 0 < training["mfu"] < 1
    source = training["peak_flops_source"]
    assert source.endswith(", fp32")  # "measured" or a data sheet
    assert f"MFU {training['mfu']:.1%} of" in (run.output_dir / "README.md").read_text()
    assert source in (run.output_dir / "report.html").read_text()


def test_pretraining_has_a_utilization_that_includes_the_vocabulary_projection(tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(
        "bertkit.training.utilization.count_training_flops",
        lambda model, sequences: counts.append(sequences) or count_training_flops(model, sequences),
    )
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{row['text']}.\nIt was good today." for row in make_toy_rows(90)))
    run = bertkit.pretrain_mlm_nsp(
        data=str(text), text_format="sentences", vocab_size=120, num_layers=1, hidden_size=16, num_heads=2,
        max_length=32, max_steps=3, batch_size=8, bf16=False, output_dir="run",
    )  # fmt: skip
    assert run.metrics["training"]["mfu"] > 0
    (sequences,) = counts
    assert int(sequences.length_counts.sum()) == 3 * 8
    assert 0 < sequences.num_predictions < sequences.num_tokens
    tokens_per_second = sequences.num_tokens / run.metrics["training"]["seconds"]
    assert run.metrics["training"]["tokens_per_second"] == pytest.approx(tokens_per_second)


def test_encoder_whose_outputs_are_precomputed_has_no_utilization(tiny, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", make_ner_rows(40))
    run = bertkit.ner(data=str(data), model=str(tiny), features="last", max_steps=2, output_dir="run")
    assert "mfu" not in run.metrics["training"]
    assert "MFU" not in (run.output_dir / "README.md").read_text()
