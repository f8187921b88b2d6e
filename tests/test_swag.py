"""`swag`: any number of endings, each scored by itself, masked where it is not there."""

import json
import random

import numpy as np
import pytest
import torch
from conftest import (
    POSITIVE_WORDS,
    make_neutral_texts,
    make_swag_rows,
    read_predictions,
    slow_fixture,
    write_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import bertkit
from bertkit.data.columns import parse_column_names
from bertkit.data.table import Rows
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import UserError
from bertkit.models.forward import compute_logits
from bertkit.models.losses import CrossEntropy
from bertkit.tasks.choice.task import (
    encode_ending_labels,
    find_ambiguous_labels,
    guess_ending_columns,
    infer_first_label,
    parse_endings,
)

FAST = {"batch_size": 8, "learning_rate": 3e-3, "seed": 1, "bf16": False}


@slow_fixture
def learned(tiny_without_dropout, tmp_path_factory):
    """A run on separable rows with two to five endings, and unlabelled test rows."""
    folder = tmp_path_factory.mktemp("swag")
    data = write_rows(folder / "toy.jsonl", make_swag_rows(160))
    test = write_rows(folder / "test.jsonl", [{**row, "label": ""} for row in make_swag_rows(10, seed=9)])
    return bertkit.swag(
        data=str(data), test=str(test), model=str(tiny_without_dropout), epochs=2,
        output_dir=str(folder / "run"), **FAST | {"learning_rate": 5e-3},
    )  # fmt: skip


def test_rows_with_different_numbers_of_endings_are_learned(learned):
    assert learned.metrics["validation"]["accuracy"] == 1.0
    assert set(learned.metrics["validation"]) == {"accuracy", "ece", "nll", "brier"}
    assert set(learned.metrics["intervals"]) == set(learned.metrics["validation"])
    assert set(learned.metrics["baselines"]) == {"majority", "ending_only"}
    assert learned.metrics["test"] == {}


def test_predictions_have_one_score_per_ending(learned):
    records = read_predictions(learned.output_dir)
    assert len({len(record["endings"]) for record in records}) > 1
    for record in records:
        scores, probabilities = record["scores"], record["probabilities"]
        assert len(scores) == len(probabilities) == len(record["endings"])
        assert sum(probabilities) == pytest.approx(1)
        assert record["predicted"] == scores.index(max(scores)) == record["gold"]
        odds = torch.tensor(scores, dtype=torch.float64).softmax(0)
        assert probabilities == pytest.approx(odds.tolist())
    unlabelled = read_predictions(learned.output_dir, "predictions-test.jsonl")
    assert [record["gold"] for record in unlabelled] == [None] * 10


@pytest.fixture(scope="module")
def model(learned):
    return bertkit.load(learned.output_dir)


@pytest.mark.slow
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_a_permutation_of_the_endings_permutes_the_prediction(model, seed):
    rng = random.Random(seed)
    rows = make_swag_rows(6, seed)
    orders = [rng.sample(range(len(row["endings"])), len(row["endings"])) for row in rows]
    turned = [{**row, "endings": [row["endings"][i] for i in o]} for row, o in zip(rows, orders, strict=True)]
    for one, two, order in zip(model.predict(rows), model.predict(turned), orders, strict=True):
        assert two["scores"] == pytest.approx([one["scores"][i] for i in order], abs=1e-5)
        assert order[two["predicted"]] == one["predicted"]


class FirstTokenScorer(torch.nn.Module):
    """A model that scores a sequence by its first token id, from inputs [1, choices, seq_len]."""

    def forward(self, input_ids, attention_mask):
        assert (input_ids.shape[0], input_ids.shape) == (1, attention_mask.shape)
        return type("Out", (), {"logits": input_ids[:, :, 0].float().requires_grad_()})


def test_a_missing_ending_has_no_probability_and_no_gradient():
    batch = {
        "input_ids": torch.tensor([[1, 9], [2, 9], [5, 9], [4, 9], [3, 9]]),
        "attention_mask": torch.ones(5, 2, dtype=torch.int64),
        "choice": torch.tensor([0, 0, 1, 1, 1]),
        "labels": torch.tensor([0, 2]),
    }
    logits = compute_logits(FirstTokenScorer(), batch)
    assert logits.tolist() == [[1.0, 2.0, -torch.inf], [5.0, 4.0, 3.0]]
    logits.retain_grad()
    loss = CrossEntropy().sum_losses(logits, batch)["loss"]
    loss.backward()
    alone = torch.nn.functional.cross_entropy(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    other = torch.nn.functional.cross_entropy(torch.tensor([[5.0, 4.0, 3.0]]), torch.tensor([2]))
    assert float(loss) == pytest.approx(float(alone + other))
    assert float(logits.grad[0, 2]) == 0.0
    assert torch.isfinite(logits.grad).all()


@pytest.mark.slow
def test_continuing_from_a_run_keeps_its_head(learned, tmp_path):
    data = write_rows(tmp_path / "more.jsonl", make_swag_rows(60, seed=4))
    still = {"max_steps": 1, "learning_rate": 1e-12, "bf16": False}
    run = bertkit.swag(data=str(data), model=str(learned.output_dir), output_dir=str(tmp_path / "a"), **still)
    assert run.metrics["validation"]["accuracy"] == 1.0
    fresh = bertkit.swag(
        data=str(data), model=str(learned.output_dir), new_head=True, output_dir=str(tmp_path / "b"), **still
    )
    heads = [
        load_file(one.output_dir / "model.safetensors")["classifier.weight"] for one in (learned, run, fresh)
    ]
    assert torch.allclose(heads[0], heads[1], atol=1e-6)
    assert not torch.allclose(heads[0], heads[2], atol=1e-2)


def test_the_model_card_shows_how_to_predict(learned):
    card = (learned.output_dir / "README.md").read_text()
    assert "bertkit.load" in card
    assert "'endings': ['...', '...']" in card


@pytest.mark.slow
def test_the_same_endings_in_another_order_are_the_same_example(tiny, tmp_path):
    rows = make_swag_rows(40)
    turned = [
        {**row, "endings": row["endings"][::-1], "label": len(row["endings"]) - 1 - row["label"]}
        for row in rows
    ]
    data = write_rows(tmp_path / "train.jsonl", rows)
    dev = write_rows(tmp_path / "dev.jsonl", turned[:30])
    run = bertkit.swag(
        data=str(data),
        validation=str(dev),
        model=str(tiny),
        max_steps=1,
        output_dir=str(tmp_path / "r"),
        **FAST,
    )
    assert run.metrics["data"]["train"] == 10


def test_the_ending_only_baseline_does_not_read_the_context():
    from bertkit.stats.baseline_models import predict_ending_only

    rows = make_swag_rows(60)
    endings, labels = [row["endings"] for row in rows], [row["label"] for row in rows]
    found = predict_ending_only(endings[:40], TrainingLabels(np.array(labels[:40])), endings[40:])
    assert (found == labels[40:]).mean() > 0.9
    wordless = [["?", "!"]] * 4
    assert predict_ending_only(wordless, TrainingLabels(np.array([1, 1, 0, 1])), wordless).tolist() == [
        1,
        1,
        1,
        1,
    ]


# ---- columns and labels as users write them


def table(**columns):
    return Rows.from_columns(columns, "quiz.csv")


def test_ending_columns_are_guessed_in_order():
    names = [f"ending{n}" for n in (10, 9, 2, 1, 0, 3, 4, 5, 6, 7, 8)]
    assert guess_ending_columns(table(text=["x"], **{name: ["y"] for name in names})) == [
        f"ending{n}" for n in range(11)
    ]
    assert guess_ending_columns(table(Option_B=["x"], Option_A=["y"], q=["z"])) == ["Option_A", "Option_B"]
    assert guess_ending_columns(table(options=[["x", "y"]], option1=["z"])) == ["options"]
    with pytest.raises(UserError, match="--ending-columns"):
        guess_ending_columns(table(text=["x"], ending0=["y"]))


def test_ending_columns_are_repeated_or_separated_by_commas():
    rows = table(**{"a": ["x"], "b": ["y"], "c,d": ["z"]})
    for names, wanted in ((["a,b"], ["a", "b"]), (["a", "b"], ["a", "b"]), (["a", "c,d"], ["a", "c,d"])):
        assert parse_column_names(rows, names, "--ending-columns") == wanted
    for names, problem in ((["a", "a"], "'a' is named twice"), (["a,e"], "no column 'e'")):
        with pytest.raises(UserError, match=problem):
            parse_column_names(rows, names, "--ending-columns")


def test_empty_columns_after_the_last_ending_are_ignored():
    rows = table(a=["x", "x"], b=["y", "y"], c=["", "z"], d=[None, ""])
    assert parse_endings(rows, ["a", "b", "c", "d"]) == [["x", "y"], ["x", "y", "z"]]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (["0", "2"], [0, 2]),
        ([0.0, 2.0], [0, 2]),
        ([1, 3], [0, 2]),
        ([1, 1], [1, 1]),
        (["A", "c"], [0, 2]),
        (["red", "blue"], [0, 2]),
        (["1", "C"], [1, 2]),
    ],
)
def test_labels_are_numbers_letters_or_the_ending_itself(labels, wanted):
    endings = [["red", "green", "blue"]] * 2
    first = infer_first_label(labels, endings)
    assert encode_ending_labels(table(label=labels), "label", endings, first).tolist() == wanted


def test_labels_count_from_one_only_if_none_is_zero():
    endings = [["red", "green", "blue"]] * 2
    assert [infer_first_label(labels, endings) for labels in ([1, 3], [0, 3], [1, 2])] == [1, 0, 0]
    with pytest.raises(UserError, match="row 2: label 3 is none of the 3 endings"):
        encode_ending_labels(table(label=[0, 3]), "label", endings, first_label=0)


@pytest.mark.parametrize(
    ("label", "endings", "is_ambiguous"),
    [
        ("2", ["1", "2", "3", "4"], True),  # "2" as a text, "3" as a number from 0
        ("2", ["0", "1", "2", "3"], False),
        (2, ["1", "2", "3", "4"], True),
        ("9", ["1", "9"], False),  # no number of an ending, which is an error
        ("A", ["B", "A"], True),
        ("a", ["B", "A"], False),
        ("A", ["A", "B"], False),
        ("1", ["red", "green"], False),
        (None, ["1", "2"], False),
    ],
)
def test_labels_that_can_mean_two_endings_are_ambiguous(label, endings, is_ambiguous):
    assert find_ambiguous_labels([label], [endings], first_label=0) == ([0] if is_ambiguous else [])


@pytest.mark.slow
def test_training_and_check_report_ambiguous_labels_once(cli, tiny, tmp_path):
    rows = [{**row, "endings": ["1", "2", "3", "4"], "label": "1"} for row in make_swag_rows(40)]
    data = write_rows(tmp_path / "quiz.jsonl", rows)
    status, _, err = cli("swag", "--data", data, "--model", tiny, "--dry-run")
    assert status == 0, err
    assert "40 training rows with an ambiguous label" in err
    found = json.loads(cli("check", "swag", "--data", data, "--model", tiny, "--json")[1])["findings"]
    [finding] = [finding for finding in found if "ambiguous" in finding["message"]]
    assert (finding["name"], finding["count"]) == ("ambiguous-label", 40)
    assert "letters" in finding["fix"]


def test_a_number_that_is_only_the_text_of_an_ending_is_refused_with_the_fix():
    with pytest.raises(UserError, match=r"row 1: label '9' is none of the 2 .*write the letter"):
        encode_ending_labels(table(label=["9"]), "label", [["1", "9"]], first_label=0)


REFUSED = {
    "label beyond the endings": ({"label": 7}, [], ["row 3", "label 7 is none of the"]),
    "no label": ({"label": None}, [], ["row 3", "no label"]),
    "one ending": ({"endings": ["x"]}, [], ["row 3", "has one ending"]),
    "an ending that is no text": ({"endings": ["x", 5]}, [], ["row 3", "ending 1 of 'endings' holds 5"]),
    "no list": ({"endings": "x"}, [], ["row 3", "not a list of endings"]),
    "no context": ({"context": None}, [], ["row 3", "no text"]),
    "a column that is not": ({}, ["--context-column", "contxt"], ["mean 'context'", "--context-column"]),
    "endings that are not": ({}, ["--ending-columns", "endngs"], ["mean 'endings'", "--ending-columns"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(cli, tiny, tmp_path, name):
    change, args, words = REFUSED[name]
    rows = [{**row, **(change if n == 2 else {})} for n, row in enumerate(make_swag_rows(40))]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = cli("swag", "--data", data, "--model", tiny, "-o", tmp_path / "run", *args)
    assert status == 2, err
    assert [word for word in words if word not in err.splitlines()[-1]] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_labels_may_be_texts_and_minus_one_is_a_missing_label(tiny, tmp_path):
    rows = [{**row, "label": row["endings"][row["label"]]} for row in make_swag_rows(100)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    test = write_rows(tmp_path / "test.jsonl", [{**row, "label": -1} for row in make_swag_rows(5, seed=3)])
    run = bertkit.swag(
        data=str(data), test=str(test), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST
    )
    assert run.metrics["data"] | {"train": 90, "validation": 10, "test": 5} == run.metrics["data"]
    assert run.metrics["test"] == {}


def test_a_gap_between_endings_is_refused(cli, tiny, tmp_path):
    endings = {"ending0": "x", "ending1": "y", "ending2": "z", "label": 0}
    rows = [{"context": text, **endings} for text in make_neutral_texts(40)]
    rows[4]["ending1"] = ""
    data = write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = cli("swag", "--data", data, "--model", tiny)
    assert (status, "row 5: column 'ending1' is blank" in err) == (2, True), err


@pytest.mark.slow
def test_the_shared_beginning_is_read_with_each_ending(tiny, tmp_path):
    rows = [
        {"sent1": text, "sent2": "it was", "ending0": POSITIVE_WORDS[n % 8], "ending1": "bad", "label": 0}
        for n, text in enumerate(make_neutral_texts(40))
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run = bertkit.swag(data=str(data), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST)
    model = bertkit.load(run.output_dir)
    features = model.task.featurize(Rows.from_dicts(rows[:1], "rows"), model.tokenizer)
    tokens = model.tokenizer.convert_ids_to_tokens(features.get_sequence(0)[0])
    assert tokens[-4:] == ["it", "was", "good", "[SEP]"]
    assert len(features.sequence_lengths) == 2
