"""What is logged while training: the parts of a loss, and the file of all steps."""

import pytest
import torch
from conftest import make_document_rows, read_predictions, write_rows
from test_equivalence import SGD
from test_pretrain import pretrained

import bertkit
from bertkit.modeling.losses import PretrainingLoss
from bertkit.modeling.pretraining import PretrainingLogits
from bertkit.training.meters import LossMeter, merge_log_history

PARTS = {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}


def figures(loss, right, count):
    return tuple({"mlm": torch.tensor(figure)} for figure in (loss, right, count))


def test_means_are_over_all_that_is_counted_and_begin_anew():
    parts = LossMeter()
    parts.add(*figures(6.0, 1, 2.0))
    parts.add(*figures(0.0, 0, 0.0))  # a batch in which nothing is masked
    parts.add(*figures(3.0, 3, 4.0))
    assert parts.compute_and_reset(lambda sums: sums) == {
        "mlm_loss": 1.5,
        "mlm_accuracy": pytest.approx(4 / 6),
    }
    assert parts.compute_and_reset(lambda sums: sums) == {}


def test_ranks_are_counted_together_and_each_goes_on_with_its_own():
    def both(sums):
        return torch.cat([sums, torch.tensor([4.0, 0.0, 2.0])])  # as accelerate gathers

    parts = LossMeter()
    parts.add(*figures(6.0, 1, 2.0))
    read = parts.gather_sums(both)
    assert read == {"mlm": [[6.0, 1.0, 2.0], [4.0, 0.0, 2.0]]}
    assert parts.compute_and_reset(both) == {"mlm_loss": 2.5, "mlm_accuracy": 0.25}
    parts.load_sums(read, 1, torch.device("cpu"))
    assert parts.sums["mlm"].tolist() == [4.0, 0.0, 2.0]


def test_what_is_right_is_counted_without_what_is_not_predicted():
    logits = PretrainingLogits(
        torch.eye(4)[None, :3], torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    )  # says 0 1 2, and 0 0
    batch = {"masked_lm_labels": torch.tensor([[0, 3, -100]]), "next_sentence_label": torch.tensor([0, 1])}
    assert {part: int(right) for part, right in PretrainingLoss().count_correct(logits, batch).items()} == {
        "mlm": 1,
        "nsp": 1,
    }


def test_parts_add_up_to_the_loss_and_do_not_depend_on_how_a_batch_is_divided(tiny_without_dropout, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))

    def log(batch, steps):
        run = pretrained(text, tmp_path / f"{batch}x{steps}", model=str(tiny_without_dropout), max_steps=4, batch_size=batch,
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


def test_a_loss_of_one_part_is_logged_alone(tiny, toy, tmp_path):
    run = bertkit.classify(data=str(toy), model=str(tiny), max_steps=3, batch_size=8, bf16=False,
                           output_dir=str(tmp_path / "run"))  # fmt: skip
    [line] = read_predictions(run.output_dir, "training_log.jsonl")
    assert list(line)[:2] == ["step", "epoch"]
    assert {name for name in line if not name.startswith("eval_")} == {
        "step", "epoch", "loss", "learning_rate", "grad_norm",
    }  # fmt: skip


def test_a_line_is_a_step_whatever_was_logged_of_it():
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
