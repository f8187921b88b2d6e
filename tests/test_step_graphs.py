"""Passes that are recorded once for each shape of a batch train like passes that run one by one."""

import pytest
import torch
from conftest import ROW_MAKERS, write_rows
from test_equivalence import SGD, assert_close, weights

import bertkit
from bertkit.data.collators import BATCH_SHAPE, BatchShape
from bertkit.data.masking import ORIGINAL_IDS
from bertkit.training import step_graphs
from bertkit.training.samplers import NUM_PADDED_LENGTHS, LengthPadding
from bertkit.training.step_graphs import CaptureError, StepGraphs, can_record, describe_shapes
from bertkit.training.trainer import BertkitTrainer
from bertkit.utils import devices


class Recorder:
    """A recording on any device, which runs the function in each replay; recording runs nothing."""

    recordings: list["Recorder"] = []

    def __init__(self, function):
        self.function, self.replays, self.outputs = function, 0, None
        Recorder.recordings.append(self)

    def replay(self):
        self.replays += 1
        self.outputs = self.function()


@pytest.fixture
def recordings(monkeypatch):
    """Record passes on this device; the recordings of the test."""
    monkeypatch.setattr(devices, "supports_graphs", lambda: True)
    monkeypatch.setattr(step_graphs, "make_recorder", lambda: Recorder)
    monkeypatch.setattr(Recorder, "recordings", [])
    return Recorder.recordings


RUNS = {
    "classify": ("classify", {"class_weights": "balanced", "label_smoothing": 0.1}),
    "accumulation": ("classify", {"batch_size": 4, "gradient_accumulation_steps": 3}),
    "token budget": ("classify", {"batch_size": None, "tokens_per_batch": 64, "max_length": 32}),
    "frozen": ("classify", {"freeze": 1}),
    "windows": ("classify", {"long_texts": "windows", "max_length": 10}),
    "nli": ("nli", {}),
    "ner": ("ner", {}),
    "qa": ("qa", {}),
    "swag": ("swag", {}),
}


def train(kind, model, folder, **options):
    task, settings = RUNS[kind]
    data = write_rows(folder.parent / "rows.jsonl", ROW_MAKERS[task](36))
    defaults = {"max_steps": 6, "batch_size": 8, "bf16": False, "output_dir": str(folder)}
    return getattr(bertkit, task)(data=str(data), model=str(model), **defaults | SGD | settings | options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_recorded_passes_train_alike(kind, tiny_without_dropout, tmp_path, recordings):
    runs = [
        train(kind, tiny_without_dropout, tmp_path / name, cuda_graphs=uses_graphs)
        for name, uses_graphs in (("stock", False), ("recorded", True))
    ]
    assert_close(*map(weights, runs), 1e-5)
    has_groups = kind in ("swag", "windows")
    assert bool(recordings) != has_groups
    assert all(recording.replays for recording in recordings)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm+nsp", "ltr", "rtd"])
def test_recorded_passes_pretrain_alike(objective, tmp_path, recordings):
    runs = [
        bertkit.pretrain_mlm_nsp(
            data="sample", num_layers=1, hidden_size=32, num_heads=2, vocab_size=200, max_length=32,
            dropout=0.0, objective=objective, max_steps=5, batch_size=8, output_dir=str(tmp_path / name),
            cuda_graphs=uses_graphs, **SGD,
        )
        for name, uses_graphs in (("stock", False), ("recorded", True))
    ]  # fmt: skip
    assert_close(*map(weights, runs), 1e-5)
    assert recordings


@pytest.mark.slow
def test_an_interrupted_run_resumes_alike(tiny, tmp_path, recordings, stop_at):
    whole = train("nli", tiny, tmp_path / "whole")
    stop_at(3)
    with pytest.raises(bertkit.RunInterrupted):
        train("nli", tiny, tmp_path / "resumed")
    resumed = train("nli", tiny, tmp_path / "resumed", resume=True)
    assert_close(*map(weights, (whole, resumed)), 0.0)


@pytest.mark.slow
def test_a_pass_that_cannot_be_recorded_runs_as_usual(
    tiny_without_dropout, tmp_path, recordings, monkeypatch
):
    stock = train("nli", tiny_without_dropout, tmp_path / "stock", cuda_graphs=False)

    def fail():
        def record(function):
            raise CaptureError("reads a value")

        return record

    monkeypatch.setattr(step_graphs, "make_recorder", fail)
    messages = []
    monkeypatch.setattr("bertkit.training.trainer.report_info", messages.append)
    run = train("nli", tiny_without_dropout, tmp_path / "run")
    assert_close(*map(weights, (stock, run)), 1e-5)
    assert messages == [
        "CUDA graphs are not used: the model or the loss reads values from the GPU (reads a value)"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"gradient_checkpointing": True}, {"pack": True}, {"cuda_graphs": False}]
)
def test_some_settings_exclude_graphs(options, tiny, tmp_path, recordings, monkeypatch):
    used = []

    def construct(self, *args, init=BertkitTrainer.__init__, use_graphs, **kwargs):
        init(self, *args, **kwargs)
        used.append(use_graphs)

    monkeypatch.setattr(BertkitTrainer, "__init__", construct)
    train("nli", tiny, tmp_path / "run", max_steps=1, **options)
    assert used == [False]


# ---- shapes


def make_batch(lengths, seq_len, **tensors):
    mask = torch.arange(seq_len) < torch.tensor(lengths).unsqueeze(1)
    batch = {"input_ids": torch.where(mask, 7, 3), "attention_mask": mask.long(), **tensors}
    return batch | {BATCH_SHAPE: BatchShape.measure(batch)}


def test_batches_share_a_graph_if_shapes_and_the_need_of_a_mask_are_equal():
    count = {"loss": torch.tensor(1.0)}
    keys = [describe_shapes(make_batch(*args), count) for args in (([3, 4], 8), ([8, 5], 8), ([8, 8], 8))]
    assert keys[0] == keys[1] != keys[2]
    assert describe_shapes(make_batch([3, 4, 4], 8), count) != keys[0]


def test_batches_with_groups_and_batches_of_unknown_lengths_have_no_graph():
    assert can_record(make_batch([3, 4], 8))
    assert not can_record(make_batch([3, 4], 8, document=torch.tensor([0, 0])))
    assert not can_record({"input_ids": torch.ones(1, 2)})


def test_there_is_an_upper_bound_of_graphs(recordings, monkeypatch):
    monkeypatch.setattr(step_graphs, "MAX_GRAPHS", 2)
    weight = torch.nn.Parameter(torch.ones(()))

    def run_pass(batch, counts):
        loss = weight * batch["input_ids"].sum() / counts["loss"]
        loss.backward()
        return loss.detach()

    graphs = StepGraphs(run_pass, [weight, torch.nn.Parameter(torch.ones(()))])
    for size in (2, 2, 3, 4, 3, 5):
        weight.grad = None
        loss = graphs.run(make_batch([size], size), {"loss": torch.tensor(2.0)})
        assert loss == weight.grad == 7 * size / 2
    assert [recording.replays for recording in recordings] == [1, 2]
    graphs.run(make_batch([2], 2), {"loss": torch.tensor(1.0)})  # a second pass of the same step
    assert weight.grad == 7 * 5 / 2 + 14


@pytest.mark.slow
@pytest.mark.parametrize("longest", [8, 30, 128, 512, 8192])
def test_lengths_are_padded_to_few_multiples_of_8(longest):
    pad = LengthPadding(longest, 3)
    lengths = {pad(make_batch([n], n))["input_ids"].shape[1] for n in range(1, longest + 1)}
    assert len(lengths) <= NUM_PADDED_LENGTHS
    assert max(lengths) == longest
    assert all(length % 8 == 0 for length in lengths - {longest})


def test_padding_is_masked_and_has_the_id_of_pad():
    batch = make_batch([5, 9], 9, token_type_ids=torch.ones(2, 9, dtype=torch.long))
    batch |= {ORIGINAL_IDS: batch["input_ids"]}
    padded = LengthPadding(40, 3)(batch)
    assert padded["attention_mask"].sum(1).tolist() == [5, 9]
    for name in ("input_ids", ORIGINAL_IDS):
        assert padded[name].shape == (2, 16)
        assert (padded[name][:, 9:] == 3).all()
    assert (padded["token_type_ids"][:, 9:] == 0).all()


@pytest.mark.parametrize(
    ("count", "padded"), [(1, 16), (16, 16), (17, 32), (200, 208), (500, 512), (513, 576)]
)
def test_predictions_of_words_are_padded_with_ignored_labels(count, padded):
    numbers = torch.arange(count)
    batch = LengthPadding(8, 0)(make_batch([8], 8, sequence=numbers, position=numbers, labels=numbers))
    assert {len(batch[name]) for name in ("sequence", "position", "labels")} == {padded}
    assert (batch["labels"][count:] == -100).all()
