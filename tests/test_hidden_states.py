"""`bertkit distill --hidden-loss-weight`: a student learns the hidden states of its teacher."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_refused, save_tiny_model
from transformers import BertConfig, BertForMultipleChoice, BertForSequenceClassification

from bertkit.errors import UserError
from bertkit.modeling.forward import compute_logits
from bertkit.modeling.hidden_states import HiddenStateLoss, HiddenStateRecorder, match_layers
from bertkit.modeling.losses import CrossEntropy
from bertkit.modeling.packing import enable_packing
from bertkit.pipeline.sharding import check_sharding
from bertkit.tasks.classify import Classify, ClassifyConfig

LENGTHS = torch.tensor([7, 2, 5, 1])
WEIGHT = 0.5
SIZE = {
    "vocab_size": 60, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def make_models(model_class=BertForSequenceClassification):
    torch.manual_seed(0)
    student, teacher = (model_class(BertConfig(**SIZE, num_hidden_layers=count)) for count in (2, 4))
    return student.train(), teacher.eval()


def make_batch():
    mask = (torch.arange(7) < LENGTHS[:, None]).long()
    ids = torch.randint(5, 60, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}


def make_loss(student, teacher):
    layers, teacher_layers = match_layers(2, 4)
    return HiddenStateLoss(
        CrossEntropy(), WEIGHT, HiddenStateRecorder(student, layers), teacher,
        HiddenStateRecorder(teacher, teacher_layers), torch.float32,
    )  # fmt: skip


def compute(loss, student, batch):
    with loss.student.record():
        return loss.sum_losses(compute_logits(student, batch), batch)


def compute_distance(student, teacher, ids, mask):
    """Return the mean distance over the layers, summed over the tokens, from transformers' own outputs."""
    states, targets = (
        model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        for model in (student.bert, teacher.bert)
    )
    pairs = [(states[1], targets[1]), (states[2], targets[4])]  # after the embeddings and each layer
    distances = [1 - F.cosine_similarity(one[mask.bool()], two[mask.bool()]) for one, two in pairs]
    return float(sum(distances).sum() / 2)


@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
def test_the_loss_is_the_mean_distance_of_the_tokens(is_packed):
    student, teacher = make_models()
    batch = make_batch()
    expected = compute_distance(student, teacher, batch["input_ids"], batch["attention_mask"])
    if is_packed:
        enable_packing(student)
    loss = make_loss(student, teacher)
    sums = compute(loss, student, batch)
    assert float(sums["hidden_states"].detach()) == pytest.approx(WEIGHT * expected, rel=1e-5)
    assert float(loss.count_items(batch)["hidden_states"]) == LENGTHS.sum()
    sums["hidden_states"].backward()
    assert student.bert.encoder.layer[1].output.dense.weight.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_multiple_choice_batch_runs_in_several_passes():
    student, teacher = make_models(BertForMultipleChoice)
    batch = make_batch() | {"choice": torch.tensor([0, 0, 1, 1]), "labels": torch.tensor([0, 1])}
    sums = compute(make_loss(student, teacher), student, batch)
    expected = compute_distance(student, teacher, batch["input_ids"], batch["attention_mask"])
    assert float(sums["hidden_states"].detach()) == pytest.approx(WEIGHT * expected, rel=1e-5)


def test_each_batch_is_compared_with_its_own_states():
    """Passes outside of the block, such as those of an evaluation, are not recorded."""
    student, teacher = make_models()
    loss, batch = make_loss(student, teacher), make_batch()
    first = compute(loss, student, batch)["hidden_states"]
    compute_logits(student, {name: tensor[:2] for name, tensor in batch.items()})
    assert torch.equal(compute(loss, student, batch)["hidden_states"], first)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((3, 6), ([0, 1, 2], [0, 2, 5])), ((4, 4), ([0, 1, 2, 3], [0, 1, 2, 3])), ((6, 2), ([0, 5], [0, 1]))],
)
def test_layers_are_matched_evenly(counts, expected):
    assert match_layers(*counts) == expected


@pytest.mark.slow
def test_models_that_cannot_be_compared_are_refused(runs, cli, tmp_path):
    wide = save_tiny_model(tmp_path / "wide", hidden_size=48, num_attention_heads=2, num_hidden_layers=1)
    args = ["--student", wide, "--hidden-loss-weight", 1, "-o", tmp_path / "refused"]
    words = ["--hidden-loss-weight: the hidden size of the student is 48", "same hidden size"]
    assert_refused(cli, tmp_path, [runs / "classify", *args], words, "distill")


@pytest.mark.parametrize(
    ("config", "flag"),
    [
        (ClassifyConfig(lora=4), "--lora 4"),
        (ClassifyConfig(method="contrastive"), "--method contrastive"),
        (ClassifyConfig(method="linear-probe"), "--method linear-probe"),
        (ClassifyConfig(teacher="run", hidden_loss_weight=1.0), "--hidden-loss-weight"),
        (ClassifyConfig(hidden_loss_weight=1.0), None),
    ],
)
def test_settings_that_need_all_weights_are_refused_with_sharded_weights(config, flag):
    prepared = SimpleNamespace(config=config, task=Classify(config), probe=None)
    if flag is None:
        check_sharding(prepared)
        return
    with pytest.raises(UserError, match=f"^{flag}: cannot be combined with FSDP or DeepSpeed"):
        check_sharding(prepared)
