"""A training step on an accelerator never waits for the device: it reads no values of tensors."""

from contextlib import nullcontext

import pytest
import torch
from conftest import ROW_MAKERS, make_document_rows, make_toy_rows, write_rows
from test_architectures import ARCHITECTURES, few_steps
from test_attention import untrained
from test_equivalence import assert_close, weights
from test_packing import padded
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import TrainerCallback

import bertkit
from bertkit.errors import UserError
from bertkit.models.packing import build_masks_from_lengths, get_lengths, provide_lengths
from bertkit.tasks.text.config import ClassifyConfig
from bertkit.training.arguments import build_training_arguments, describe_tf32
from bertkit.training.failures import LossCheck
from bertkit.training.samplers import TrainingCollator
from bertkit.training.trainer import BertkitTrainer
from bertkit.utils import devices

# Operators whose result, or its size, depends on values: PyTorch reads them from the device.
READING_OPERATORS = {
    "_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "_unique2", "unique_dim",
    "unique_consecutive",
}  # fmt: skip
INDEXING_OPERATORS = {"index", "index_put", "index_put_", "_index_put_impl_"}


class ReadDetector(TorchDispatchMode):
    """Record the operators that read values from tensors."""

    def __init__(self):
        super().__init__()
        self.is_active, self.reads = False, []

    def __enter__(self):
        self.is_active = True
        return super().__enter__()

    def __exit__(self, *error):
        self.is_active = False
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        reads = name in READING_OPERATORS
        if name in INDEXING_OPERATORS:
            reads = any(index is not None and index.dtype == torch.bool for index in args[1])
        if name == "repeat_interleave":
            reads = (kwargs or {}).get("output_size") is None
        if reads:
            self.reads.append(name)
        return function(*args, **(kwargs or {}))

    def record_calls(self, name):
        """Return the method of `torch.Tensor` that also records its calls."""
        method = getattr(torch.Tensor, name)

        def call(*args, **kwargs):
            if self.is_active:
                self.reads.append(name)
            return method(*args, **kwargs)

        return call


@pytest.fixture
def accelerator(monkeypatch):
    """Train as on an accelerator."""
    monkeypatch.setattr(devices, "runs_asynchronously", lambda: True)


@pytest.fixture
def detector(monkeypatch):
    """Detect reads from the end of the first step to the end of the second, except in the collator."""
    detector = ReadDetector()

    class Switch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 1:
                detector.__enter__()
            if state.global_step == 2:
                detector.__exit__(None, None, None)

    def construct(self, *args, init=BertkitTrainer.__init__, **kwargs):
        init(self, *args, **kwargs)
        self.add_callback(Switch())

    def collate(self, examples, call=TrainingCollator.__call__):
        was_active, detector.is_active = detector.is_active, False
        with _disable_current_modes():
            batch = call(self, examples)
        detector.is_active = was_active
        return batch

    for name in ("tolist", "numpy", "cpu"):  # are not operators on a CPU, but copies from a GPU
        monkeypatch.setattr(torch.Tensor, name, detector.record_calls(name))
    monkeypatch.setattr(BertkitTrainer, "__init__", construct)
    monkeypatch.setattr(TrainingCollator, "__call__", collate)
    return detector


RUNS = {
    "classes": ("classify", {"class_weights": "balanced", "label_smoothing": 0.1}),
    "windows": ("classify", {"long_texts": "windows", "max_length": 10}),
    "accumulation": ("classify", {"gradient_accumulation_steps": 2}),
    "nli": ("nli", {}),
    "ner": ("ner", {}),
    "qa": ("qa", {}),
    "swag": ("swag", {}),
}


def train(kind, model, tmp_path, name="run", **options):
    task, settings = RUNS[kind]
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](48))
    defaults = {"max_steps": 2, "batch_size": 8, "bf16": False, "output_dir": str(tmp_path / name)}
    return getattr(bertkit, task)(data=str(data), model=str(model), **defaults | settings | options)


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("kind", RUNS)
def test_step_with_packed_batches_reads_no_tensor(kind, tiny, tmp_path, detector):
    train(kind, tiny, tmp_path, pack=True)
    assert detector.reads == []


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
def test_step_of_modernbert_reads_no_tensor(pack, tmp_path, detector):
    def classify(**options):
        return bertkit.classify(**options, pack=pack)

    few_steps(classify, "modernbert", make_toy_rows(48), tmp_path)
    assert detector.reads == []


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("kind", RUNS)
def test_step_reads_no_tensor_and_weights_are_the_same_as_on_a_cpu(
    kind, tiny_without_dropout, tmp_path, monkeypatch, detector, collated_tensors
):
    """A step on a CPU reads the loss and the mask. Batches can be pinned."""
    # The modules and the clipping for CPUs round differently, and are not used on accelerators.
    monkeypatch.setattr("bertkit.run.session.accelerate_on_cpu", lambda *_, **__: None)
    monkeypatch.setattr(
        "bertkit.training.trainer.GradientClipper.clip",
        lambda self, norm: torch.nn.utils.clip_grad_norm_(self.weights, norm),
    )
    runs = [train(kind, tiny_without_dropout, tmp_path, "cpu")]
    assert detector.reads
    detector.reads.clear()
    monkeypatch.setattr(devices, "runs_asynchronously", lambda: True)
    runs.append(train(kind, tiny_without_dropout, tmp_path, "accelerator"))
    assert detector.reads == []
    assert_close(*map(weights, runs), 0.0)
    assert_pinnable(collated_tensors)


# ---- masks


@pytest.mark.slow
@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("name", [*ARCHITECTURES, "causal bert"])
def test_masks_from_lengths_equal_those_of_the_stock_model(name, has_lengths):
    """Also in architectures with an attention of their own, which do not change."""
    options = {"causal": True} if name == "causal bert" else {}
    architecture = name.removeprefix("causal ")
    stock, model = (untrained(architecture, 0.0, **options).eval() for _ in range(2))
    build_masks_from_lengths(model)
    full = {key: tensor[[0, 4]] for key, tensor in padded().items()}  # without padding
    for batch in (padded(), full):
        lengths = batch["attention_mask"].sum(1).tolist()
        with provide_lengths(model, lengths) if has_lengths else nullcontext():
            logits = model(**batch).logits
        is_token = batch["attention_mask"].bool() if options else ...
        torch.testing.assert_close(logits[is_token], stock(**batch).logits[is_token], rtol=0, atol=0)
    assert get_lengths(model.base_model) is None


# ---- loss that is not finite


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_first_loss_that_is_not_finite_is_reported_when_it_is_read(loss):
    check = LossCheck()
    check.raise_if_recorded()
    for step, value in enumerate([1.0, loss, float("nan"), 2.0], 1):
        check.add(torch.tensor(value), step)
    with pytest.raises(UserError, match=f"the loss is {loss} at step 2; "):
        check.raise_if_recorded()


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("bad_step", [2, 3, 5])
def test_no_checkpoint_and_no_log_entry_after_a_loss_that_is_not_finite(
    bad_step, tiny, tmp_path, monkeypatch
):
    def add(self, loss, step, original=LossCheck.add):
        original(self, loss * float("nan") if step == bad_step else loss, step)

    monkeypatch.setattr(LossCheck, "add", add)
    with pytest.raises(UserError, match=f"the loss is nan at step {bad_step}; "):
        train("nli", tiny, tmp_path, max_steps=5, save_steps=2)
    checkpoints = [path.name for path in (tmp_path / "run" / "checkpoints").glob("checkpoint-*")]
    assert checkpoints == {2: [], 3: ["checkpoint-2"], 5: ["checkpoint-4"]}[bad_step]


# ---- settings of an accelerator


FURTHER_BATCHES = {
    "contrastive": ("classify", {"method": "contrastive"}),
    "frozen": ("ner", {"head": "bilstm", "features": "sum-all"}),
    **{objective: ("pretrain_mlm_nsp", {"objective": objective}) for objective in ("mlm", "mlm+nsp", "ltr")},
    "rtd": ("pretrain_mlm_nsp", {"objective": "rtd", "model": None, "hidden_size": 16, "num_heads": 2,
                                 "vocab_size": 60}),
}  # fmt: skip


@pytest.fixture
def collated_tensors(monkeypatch):
    """Return the tensors of all training batches, with their names."""
    tensors = []

    def collate(self, examples, call=TrainingCollator.__call__):
        batch = call(self, examples)
        tensors.extend((name, value) for name, value in batch.items() if isinstance(value, torch.Tensor))
        return batch

    monkeypatch.setattr(TrainingCollator, "__call__", collate)
    return tensors


def assert_pinnable(tensors):
    """The elements of a tensor in pinned memory must not share memory, as those of an expanded tensor do."""
    assert len(tensors) > 2
    assert {name for name, tensor in tensors if not tensor.is_contiguous()} == set()


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("kind", FURTHER_BATCHES)
def test_further_steps_read_no_tensor_and_their_batches_can_be_pinned(
    kind, tiny, tmp_path, detector, collated_tensors
):
    task, settings = FURTHER_BATCHES[kind]
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS.get(task, make_document_rows)(24))
    options = {"data": data, "model": tiny, "max_length": 32, "max_steps": 2, "batch_size": 8, "bf16": False}
    getattr(bertkit, task)(**options | settings, output_dir=tmp_path / "run")
    assert detector.reads == [] or kind == "frozen"  # an LSTM needs the lengths
    assert_pinnable(collated_tensors)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "ner", "qa", "swag"])
def test_batches_of_a_student_can_be_pinned(task, runs, tmp_path, collated_tensors):
    bertkit.distill(runs / task, num_layers=1, max_steps=1, output_dir=tmp_path / "student")
    assert "teacher_logits" in dict(collated_tensors)
    assert_pinnable(collated_tensors)


@pytest.mark.slow
def test_batches_are_copied_without_waiting(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "copies_asynchronously", lambda: True)
    loaders = []

    def record(self, build=BertkitTrainer.get_train_dataloader):
        loaders.append(build(self))
        return loaders[-1]

    monkeypatch.setattr(BertkitTrainer, "get_train_dataloader", record)
    train("nli", tiny, tmp_path, "ours", max_steps=1)
    train("nli", tiny, tmp_path, "trainers", max_steps=1, set=["train_sampling_strategy=random"])
    assert [loader._non_blocking for loader in loaders] == [True, True]


@pytest.mark.cpu
def test_tf32_is_off_unless_it_is_set(tmp_path, monkeypatch):
    config, tf32 = ClassifyConfig(data="sample"), ClassifyConfig(data="sample", set=["tf32=true"])
    assert build_training_arguments(config, tmp_path, "bf16").tf32 is False
    assert describe_tf32(config) is None  # without a GPU
    monkeypatch.setattr("bertkit.training.arguments.devices.get_device", lambda: torch.device("cuda"))
    assert describe_tf32(config) == "TF32 off"
    assert describe_tf32(tf32) == "TF32 on"


@pytest.mark.cpu
def test_tf32_without_a_gpu_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: False)
    with pytest.raises(UserError, match=r"tf32.*; change --set or omit it"):
        build_training_arguments(ClassifyConfig(data="sample", set=["tf32=true"]), tmp_path, "fp32")
