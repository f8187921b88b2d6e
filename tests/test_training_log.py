"""Training log: the parts of the loss, and the file with all steps."""

import pytest
import torch
from conftest import make_document_rows, read_predictions, write_rows
from test_equivalence import SGD
from test_pretrain import pretrained

import bertkit
from bertkit.models.pretraining import PretrainingLogits, PretrainingLoss
from bertkit.training.callbacks import LossMeter, compute_part_metrics, merge_log_history

PARTS = {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}


def make_statistics(loss, right, count):
    return tuple({"mlm": torch.tensor(value)} for value in (loss, right, count))


def test_means_cover_all_items():
    parts = LossMeter()
    parts.add(*make_statistics(6.0, 1, 2.0))
    parts.add(*make_statistics(0.0, 0, 0.0))  # a batch without masked tokens
    parts.add(*make_statistics(3.0, 3, 4.0))
    sums = {part: [values.tolist()] for part, values in parts.sums.items()}
    assert compute_part_metrics(sums) == {"mlm_loss": 1.5, "mlm_accuracy": pytest.approx(4 / 6)}


def test_means_cover_all_ranks_and_each_rank_restores_its_sums():
    read = {"mlm": [[6.0, 1.0, 2.0], [4.0, 0.0, 2.0]]}
    assert compute_part_metrics(read) == {"mlm_loss": 2.5, "mlm_accuracy": 0.25}
    parts = LossMeter()
    parts.load_sums(read, 1, torch.device("cpu"))
    assert parts.sums["mlm"].tolist() == [4.0, 0.0, 2.0]


def test_accuracy_excludes_positions_without_predictions():
    logits = PretrainingLogits(
        torch.eye(4)[None, :3], torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    )  # says 0 1 2, and 0 0
    batch = {"masked_lm_labels": torch.tensor([[0, 3, -100]]), "next_sentence_label": torch.tensor([0, 1])}
    assert {part: int(right) for part, right in PretrainingLoss().count_correct(logits, batch).items()} == {
        "mlm": 1,
        "nsp": 1,
    }


@pytest.mark.slow
def test_loss_parts_add_up_for_all_batch_sizes(tiny_without_dropout, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))

    def log(batch, steps):
        run = pretrained(text, tmp_path / f"{batch}x{steps}", model=str(tiny_without_dropout),
        max_steps=4, batch_size=batch,
                         gradient_accumulation_steps=steps, set=["logging_steps=1"], **SGD)  # fmt: skip
        return read_predictions(run.output_dir, "training_log.jsonl"), run

    (whole, run), (parts, _) = log(8, 1), log(2, 4)
    assert [line["step"] for line in whole] == [1, 2, 3, 4]
    for line, other in zip(whole, parts, strict=True):
        assert line.keys() >= {"epoch", "loss", "learning_rate", *PARTS}
        assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"], rel=1e-5)
        assert 0 <= line["mlm_accuracy"] <= 1
        assert line["nsp_accuracy"] * 8 == pytest.approx(round(line["nsp_accuracy"] * 8))  # of eight pairs
        assert {name: other[name] for name in PARTS} == pytest.approx(
            {name: line[name] for name in PARTS}, rel=1e-4
        )
    assert whole[-1]["eval_loss"] == pytest.approx(run.metrics["validation"]["loss"])


@pytest.mark.slow
def test_loss_with_one_part_has_no_part_entries(tiny, toy, tmp_path):
    run = bertkit.classify(data=str(toy), model=str(tiny), max_steps=3, batch_size=8, bf16=False,
                           output_dir=str(tmp_path / "run"))  # fmt: skip
    [line] = read_predictions(run.output_dir, "training_log.jsonl")
    assert list(line)[:2] == ["step", "epoch"]
    assert {name for name in line if not name.startswith("eval_")} == {
        "step", "epoch", "loss", "learning_rate", "grad_norm",
    }  # fmt: skip


def test_log_has_one_entry_per_step():
    history = [
        {"step": 10, "epoch": 0.5, "loss": 2.0},
        {"step": 20, "epoch": 1.0, "loss": 1.0},
        {"step": 20, "epoch": 1.0, "eval_loss": 1.5},
        {"step": 20, "epoch": 1.0, "train_runtime": 3.0, "train_loss": 1.5},
    ]
    assert merge_log_history(history) == [
        history[0],
        {"step": 20, "epoch": 1.0, "loss": 1.0, "eval_loss": 1.5},
    ]
