"""Sample weights and soft labels: how they are read, and what is fitted to them."""

import json

import numpy as np
import pytest
import torch
from conftest import (
    ROW_MAKERS,
    assert_refused,
    costly_parts,
    make_toy_rows,
    read_predictions,
    slow_fixture,
    write_rows,
)
from safetensors.torch import load_file
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from test_equivalence import SGD, assert_close, weights
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertkit
from bertkit.commands import calibrate
from bertkit.data.features import TARGETS, UNLABELED, WEIGHTS
from bertkit.data.table import Rows
from bertkit.data.weights_and_soft_labels import (
    TrainingLabels,
    compute_agreement,
    encode_soft_labels,
    get_soft_labels,
    parse_soft_label,
    read_weights,
    split_soft_labels,
)
from bertkit.errors import UserError
from bertkit.methods.distill import DistillationLoss
from bertkit.methods.vectors import PairFeatures
from bertkit.models.losses import BinaryCrossEntropy, CrossEntropy, SquaredError, compute_class_weights
from bertkit.run.load_data import load_data
from bertkit.run.prepare import prepare
from bertkit.stats.baseline_models import predict_frequent_tag, predict_majority, predict_tfidf
from bertkit.stats.calibration import Decisions, ProbabilityScorer, fit_temperature
from bertkit.stats.linear_probe import fit_linear_layer
from bertkit.tasks import task_definition


def make_rows(values, column="label"):
    return Rows.from_columns({column: values}, "rows.csv")


# ---- cells


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"pos": 0.7, "neg": 0.3}, {"pos": 0.7, "neg": 0.3}),
        ('{"pos": 0.7, "neg": 0.3}', {"pos": 0.7, "neg": 0.3}),
        ("{'pos': 3, 'neg': 1}", {"pos": 3.0, "neg": 1.0}),
        ({1: "0.5", 2.0: 0.5, "3": None}, {"1": 0.5, "2": 0.5}),
        ("pos", None), ({}, None), ("{pos}", None), ('{"pos": "high"}', None), ('{"pos": NaN}', None),
        ({"pos": True}, None), ({"pos": [1]}, None), ("{'a', 'b'}", None), ({"": 1.0}, None), (None, None),
    ],
)  # fmt: skip
def test_cells_with_probabilities(cell, expected):
    assert parse_soft_label(cell) == expected


def test_the_most_probable_label_becomes_the_label():
    cells = [
        {"b": 0.7, "a": 0.3},
        "a",
        {"b": 0.5, "a": 0.5},
        {"a": 3, "b": 1},
        {"b": 1},
        {"a": 0.99, "b": 0.02},
    ]
    rows = split_soft_labels(make_rows(cells), "label", are_sets=False)
    assert list(rows["label"]) == ["b", "a", "a", "a", "b", "a"]
    expected = [{"b": 0.7, "a": 0.3}, None, {"b": 0.5, "a": 0.5}, {"a": 0.75, "b": 0.25}, {"b": 1.0}]
    assert list(get_soft_labels(rows, "label"))[:5] == expected
    targets = encode_soft_labels(rows, "label", np.array([1, 0, 0, 0, 1, 0]), ["a", "b"])
    assert targets.tolist() == pytest.approx(
        np.array([[0.3, 0.7], [1, 0], [0.5, 0.5], [0.75, 0.25], [0, 1], [0.99 / 1.01, 0.02 / 1.01]])
    )
    assert split_soft_labels(rows, "label", are_sets=False) is rows


def test_each_label_of_a_set_has_its_probability():
    cells = [{"x": 0.9, "y": 0.6}, ["y"], {"x": 0.2}]
    rows = split_soft_labels(make_rows(cells), "label", are_sets=True)
    assert list(rows["label"]) == [["x", "y"], ["y"], []]
    labels = np.array([[1, 1], [0, 1], [0, 0]])
    targets = encode_soft_labels(rows, "label", labels, ["x", "y"])
    np.testing.assert_allclose(targets, [[0.9, 0.6], [0, 1], [0.2, 0]], rtol=1e-6)
    assert compute_agreement(rows, "label").tolist() == [0.6, 1, 0.8]


PROBLEMS = [
    ("{a: 0.5}", False, "has no number for each label"),
    ({"a": "high"}, False, "has no number for each label"),
    ({"a": 0.5, "b": 0.3}, False, "sum to 0.8, not to 1"),
    ({"a": 1.5, "b": 0.5}, False, "sum to 2, not to 1"),
    ({"a": 0, "b": 0}, False, "has no vote or probability above 0"),
    ("OrderedDict([('a', 0.5)])", False, "has no number for each label"),
    ("{'a': np.float64(0.5)}", False, "has no number for each label"),
    ({"a": 10**400}, False, "has no number for each label"),
    ({"a": -0.5, "b": 1.5}, False, "below 0"),
    ({"a": 3, "b": 1}, True, "above 1"),
    ({"a": -1}, True, "below 0"),
]


@pytest.mark.parametrize("cell", ["{'a': np.float64(0.5)}", '"{\\"a\\": 1}"', "Counter({'a': 3})"])
def test_a_column_of_texts_that_look_like_dictionaries_is_refused(cell):
    with pytest.raises(UserError, match=r"row 1: column 'label': .* has no number for each label"):
        split_soft_labels(make_rows([cell, cell]), "label", are_sets=False)
    plain = make_rows(["{a}", "b: c", "(d: e)"])
    assert split_soft_labels(plain, "label", are_sets=False) is plain


def test_a_dictionary_without_numbers_is_no_label():
    rows = split_soft_labels(make_rows([{"a": 0.6, "b": 0.4}, {}, {"a": None}]), "label", are_sets=False)
    assert list(rows["label"]) == ["a", None, None]


def test_a_column_of_the_data_may_have_the_name_of_soft_labels():
    rows = Rows.from_columns({"label": ["a"], "soft labels of label": ["0.7"]}, "rows.csv")
    assert get_soft_labels(rows, "label") is None
    rows = rows.with_column("label", [{"a": 1.0}])
    with pytest.raises(UserError, match=r"rows.csv: column 'soft labels of label': .*; rename it"):
        split_soft_labels(rows, "label", are_sets=False)


@pytest.mark.parametrize(("cell", "are_sets", "words"), PROBLEMS)
def test_wrong_probabilities_are_refused(cell, are_sets, words):
    with pytest.raises(UserError, match=r"rows.csv: row 2: column 'label'") as caught:
        split_soft_labels(make_rows([{"a": 1.0}, cell]), "label", are_sets)
    assert words in str(caught.value)


def test_a_label_that_training_rows_lack_is_refused_unless_its_probability_is_0():
    rows = split_soft_labels(make_rows([{"a": 0.6, "b": 0.4, "c": 0.0}]), "label", are_sets=False)
    assert encode_soft_labels(rows, "label", np.array([0]), ["a", "b"]).tolist()[0] == pytest.approx(
        [0.6, 0.4]
    )
    with pytest.raises(UserError, match="row 1: label 'b' does not occur in the training rows"):
        encode_soft_labels(rows, "label", np.array([0]), ["a", "d"])


# ---- weights


def test_only_the_ratios_of_weights_count():
    expected = [0.5, 1.5, 1.0]
    for values in ([1, 3, 2], ["1", "3", "2"], [1e307, 3e307, 2e307], [1e-300, 3e-300, 2e-300]):
        np.testing.assert_allclose(read_weights(make_rows(values, "w"), "w"), expected, rtol=1e-6)
    assert read_weights(make_rows([0, 5.0, "0,0"], "w"), "w").tolist() == [0, 3, 0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, -1], "row 2: column 'w' (--weight-column): -1 is not a weight; write a number, 0 or more"),
        ([float("nan"), 1], "row 1: column 'w' (--weight-column): is empty; write a number, 0 or more"),
        ([1, ""], "row 2: column 'w' (--weight-column): is empty; write a number, 0 or more"),
        ([1, "inf"], "row 2: column 'w' (--weight-column): 'inf' is not a weight; write a number, 0 or more"),
        ([1, "x"], "row 2: column 'w' (--weight-column): 'x' is not a weight; write a number, 0 or more"),
        ([True, 1], "row 1: column 'w' (--weight-column): True is not a weight; write a number, 0 or more"),
        ([0, 0], "column 'w' (--weight-column): all weights are 0; name another column, or omit the flag"),
    ],
)  # fmt: skip
def test_wrong_weights_are_refused(values, words):
    with pytest.raises(UserError) as caught:
        read_weights(make_rows(values, "w"), "w")
    assert str(caught.value) == f"rows.csv: {words}"


@pytest.mark.parametrize("value", ["-1", "", "nan"])
def test_a_wrong_weight_is_one_line_of_the_command(cli, tmp_path, tiny, value):
    rows = [{**row, "w": "1"} for row in make_toy_rows(40)]
    rows[7]["w"] = value
    data = write_rows(tmp_path / "rows.jsonl", rows)
    fine = write_rows(tmp_path / "fine.jsonl", [{**row, "w": ""} for row in make_toy_rows(20, seed=1)])
    args = ["--data", data, "--model", tiny, "--weight-column", "w", "-o", tmp_path / "run"]
    args += ["--validation", fine]  # only training rows need weights
    assert_refused(cli, tmp_path, args, ["rows.jsonl: row 8: column 'w' (--weight-column)"])


def test_the_column_of_weights_must_exist_and_not_hold_labels(cli, tmp_path, tiny):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(40))
    args = ["--data", data, "--model", tiny, "-o", tmp_path / "run", "--weight-column"]
    words = ["no column 'w' (--weight-column)", "it has text, label; pass one of these"]
    assert_refused(cli, tmp_path, [*args, "w"], words)
    ner = write_rows(tmp_path / "ner.jsonl", ROW_MAKERS["ner"](20))
    of_ner = ["--data", ner, "--model", tiny, "-o", tmp_path / "run", "--weight-column"]
    assert_refused(cli, tmp_path, [*of_ner, "w"], ["it has tokens, tags; pass one of these"], "ner")
    assert_refused(cli, tmp_path, [*args, "label"], ["--weight-column label: is the column of the labels"])


# ---- losses


def make_batch(labels, weights=None, targets=None):
    values = {"labels": labels, WEIGHTS: weights, TARGETS: targets}
    return {name: torch.as_tensor(value) for name, value in values.items() if value is not None}


def mean_loss(loss, logits, batch):
    return float(loss.sum_losses(logits, batch)["loss"] / loss.count_items(batch)["loss"])


LOSSES = {
    "classes": (CrossEntropy(), [0, 2, 1, 1], (4, 3)),
    "class weights": (CrossEntropy(torch.tensor([1.0, 3.0, 0.5]), 0.1), [0, 2, 1, 1], (4, 3)),
    "answers": (CrossEntropy(), [[0, 2], [1, 1], [2, 2], [0, 1]], (4, 2, 3)),
    "label sets": (
        BinaryCrossEntropy(torch.tensor([1.0, 4.0]), 0.1),
        [[0, 1], [1, 1], [0, 0], [1, 0]],
        (4, 2),
    ),
    "numbers": (SquaredError(), [0.5, 2.0, -1.0, 3.0], (4, 1)),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_weight_of_2_counts_like_a_row_that_occurs_twice(kind):
    loss, labels, shape = LOSSES[kind]
    logits, labels = torch.randn(shape, generator=torch.Generator().manual_seed(0)), torch.tensor(labels)
    twice = torch.tensor([0, 0, 1, 2])  # the last row has the weight 0
    weighted = mean_loss(loss, logits, make_batch(labels, [2.0, 1.0, 1.0, 0.0]))
    assert weighted == pytest.approx(mean_loss(loss, logits[twice], make_batch(labels[twice])), rel=1e-6)
    plain, ones = (mean_loss(loss, logits, make_batch(labels, values)) for values in (None, [1.0] * 4))
    assert ones == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("kind", ["classes", "class weights", "label sets"])
def test_the_loss_of_probabilities_is_the_mean_over_the_labels(kind):
    """A row with the label a at 0.75 and b at 0.25 is like three rows with a and one with b."""
    loss, labels, shape = LOSSES[kind]
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor(labels)
    first, second = labels, labels.roll(1, 0)
    certain = labels.float() if labels.dim() == 2 else torch.nn.functional.one_hot(labels, shape[1]).float()
    targets = 0.75 * certain + 0.25 * certain.roll(1, 0)
    repeated = torch.cat([first, first, first, second])
    expected = mean_loss(loss, logits.repeat(4, 1), make_batch(repeated))
    assert mean_loss(loss, logits, make_batch(labels, None, targets)) == pytest.approx(expected, rel=1e-6)
    weighted, row_weights = make_batch(labels, [3.0, 0.0, 1.0, 1.0], targets), np.array([3, 0, 1, 1])
    rows = np.repeat(np.arange(4), row_weights)
    expected = mean_loss(
        loss,
        logits[rows].repeat(4, 1),
        make_batch(repeated.view(4, 4, *labels.shape[1:])[:, rows].flatten(0, 1)),
    )
    assert mean_loss(loss, logits, weighted) == pytest.approx(expected, rel=1e-6)


def test_class_weights_count_rows_by_weight_and_probability():
    labels = np.array([0, 0, 1])
    repeated = compute_class_weights(TrainingLabels(np.array([0, 0, 0, 1])), 2)
    weighted = compute_class_weights(TrainingLabels(labels, np.array([2.0, 1.0, 1.0])), 2)
    torch.testing.assert_close(weighted, repeated)
    targets = np.array([[1.0, 0], [0.5, 0.5], [0, 1]])
    uncertain = compute_class_weights(TrainingLabels(labels, None, targets), 2)
    torch.testing.assert_close(uncertain, torch.ones(2))
    sets = TrainingLabels(np.array([[1, 0, 1], [1, 1, 0]]), np.array([3.0, 1.0]))
    assert compute_class_weights(sets, 3).tolist() == pytest.approx([1, 3, 1 / 3])


# ---- training


@slow_fixture
def started(tmp_path_factory, tiny_without_dropout):
    """A run whose head is the start of others, 12 rows with probabilities and weights, and settings."""
    folder = tmp_path_factory.mktemp("started")
    rows = make_toy_rows(12)
    for number, row in enumerate(rows):
        certain = number % 4 / 8 + 0.6
        other = {"positive": "negative", "negative": "positive"}[row["label"]]
        row |= {"label": {row["label"]: certain, other: 1 - certain}, "weight": number % 3 / 2}
    data = write_rows(folder / "rows.jsonl", rows)
    validation = write_rows(folder / "validation.jsonl", make_toy_rows(20, seed=1))
    options = {"data": data, "validation": validation, "max_steps": 1, "set": ["max_grad_norm=1e9"], **SGD}
    run = bertkit.classify(**options, model=tiny_without_dropout, batch_size=12, output_dir=folder / "run")
    return run, rows, options


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "steps"), [(12, 1), (3, 4)])
def test_a_step_equals_that_of_a_loop_in_plain_pytorch(started, tmp_path, batch_size, steps):
    run, rows, options = started
    trained = bertkit.classify(
        **options, model=run.output_dir, weight_column="weight", batch_size=batch_size,
        gradient_accumulation_steps=steps, output_dir=tmp_path / "run",
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_pretrained(run.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    total = sum(row["weight"] for row in rows)
    for row in rows:
        log_probabilities = model(**tokenizer(row["text"], return_tensors="pt")).logits.log_softmax(-1)[0]
        targets = torch.tensor([row["label"][model.config.id2label[label]] for label in range(2)])
        (-row["weight"] / total * (targets * log_probabilities).sum()).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= SGD["learning_rate"] * parameter.grad
    before, expected = load_file(run.output_dir / "model.safetensors"), model.state_dict()
    found = weights(trained)
    assert max(float((found[name] - before[name]).abs().max()) for name in found) > 1e-3
    assert_close(found, {name: expected[name] for name in found}, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ROW_MAKERS)
def test_in_every_task_a_weight_of_2_trains_like_two_equal_rows(tiny_without_dropout, tmp_path, task):
    rows = ROW_MAKERS[task](10)
    validation = write_rows(tmp_path / "validation.jsonl", ROW_MAKERS[task](20, seed=1))
    parts = {
        "weighted": [{**row, "weight": [2, 0, 1][min(number, 2)]} for number, row in enumerate(rows)],
        "repeated": [rows[0], {**rows[0], "id": "again"}, *rows[2:]],  # qa refuses equal ids
    }
    trained = [
        getattr(bertkit, task)(
            data=write_rows(tmp_path / f"{name}.jsonl", part), validation=validation, max_steps=1,
            model=tiny_without_dropout, batch_size=32, gradient_accumulation_steps=1, max_length=64,
            output_dir=tmp_path / name, weight_column="weight" if name == "weighted" else None, **SGD,
        )
        for name, part in parts.items()
    ]  # fmt: skip
    assert_close(*map(weights, trained), 1e-5)
    baselines = [run.metrics["baselines"] for run in trained]
    for name in baselines[0].keys() & {"majority", "frequent_tag"}:
        assert baselines[0][name] == pytest.approx(baselines[1][name])


# ---- what else is fitted

VECTORS = np.random.default_rng(0).normal(size=(40, 5))
LABELS = np.arange(40) % 3
ROW_WEIGHTS = np.arange(40) % 4 / 2.0
UNCERTAIN = softmax(np.random.default_rng(1).normal(size=(40, 3)), axis=1)


def test_linear_layers_are_fitted_to_weights_and_soft_labels():
    def predict(layer):
        return softmax(layer.compute_logits(VECTORS), axis=1)

    expected = LogisticRegression(max_iter=1000).fit(VECTORS, LABELS, ROW_WEIGHTS).predict_proba(VECTORS)
    layer = fit_linear_layer(VECTORS, TrainingLabels(LABELS, ROW_WEIGHTS), 3)
    np.testing.assert_allclose(predict(layer), expected, atol=1e-4)
    repeated = np.repeat(VECTORS, 3, axis=0), np.tile(np.arange(3), 40)
    weights = (UNCERTAIN * ROW_WEIGHTS[:, None]).ravel()
    expected = LogisticRegression(max_iter=1000).fit(*repeated, weights).predict_proba(VECTORS)
    layer = fit_linear_layer(VECTORS, TrainingLabels(UNCERTAIN.argmax(1), ROW_WEIGHTS, UNCERTAIN), 3)
    np.testing.assert_allclose(predict(layer), expected, atol=1e-4)
    numbers = fit_linear_layer(VECTORS, TrainingLabels(VECTORS[:, 0], ROW_WEIGHTS), 1)
    assert not np.allclose(numbers.weight, fit_linear_layer(VECTORS, TrainingLabels(VECTORS[:, 0]), 1).weight)


def test_balanced_classes_of_soft_labels_count_by_the_sums_of_their_probabilities():
    sums = UNCERTAIN.sum(0)
    class_weight = dict(enumerate(sums.sum() / (3 * sums)))
    repeated = np.repeat(VECTORS, 3, axis=0), np.tile(np.arange(3), 40)
    model = LogisticRegression(max_iter=1000, class_weight=class_weight).fit(*repeated, UNCERTAIN.ravel())
    labels = TrainingLabels(UNCERTAIN.argmax(1), None, UNCERTAIN)
    layer = fit_linear_layer(VECTORS, labels, 3, balanced=True)
    np.testing.assert_allclose(
        softmax(layer.compute_logits(VECTORS), axis=1), model.predict_proba(VECTORS), atol=1e-4
    )


@pytest.mark.parametrize("balanced", [False, True])
def test_certain_probabilities_are_labels(balanced):
    for labels in (LABELS, np.stack([LABELS == 0, LABELS == 1], 1).astype(int)):
        targets = np.eye(3)[labels] if labels.ndim == 1 else labels.astype(float)
        plain = fit_linear_layer(VECTORS, TrainingLabels(labels), 3, balanced=balanced)
        certain = fit_linear_layer(VECTORS, TrainingLabels(labels, None, targets), 3, balanced=balanced)
        np.testing.assert_allclose(certain.weight, plain.weight, atol=1e-3)


TEXTS = [["good one", "bad one", "good two", "bad two", "good bad", "good bad"]]


def test_baselines_use_weights_and_soft_labels():
    labels = np.array([1, 0, 1, 0, 0, 0])
    ask = [["good", "bad", "two"]]
    assert predict_tfidf(TEXTS, TrainingLabels(labels), ask).tolist() == [1, 0, 0]
    flipped = TrainingLabels(1 - labels, np.array([0.0, 0, 0, 0, 1, 1]))  # only one class has a weight
    assert predict_tfidf(TEXTS, flipped, ask).tolist() == [1, 1, 1]
    targets = np.eye(2)[1 - labels] * 0.8 + 0.1  # contradict the labels
    assert predict_tfidf(TEXTS, TrainingLabels(labels, None, targets), ask).tolist() == [0, 1, 1]
    sets = np.stack([labels, np.ones(6, int)], 1)
    assert predict_tfidf(TEXTS, TrainingLabels(sets, np.ones(6)), ask).tolist() == [[1, 1], [0, 1], [0, 1]]
    heavy = np.array([9.0, 1, 9, 1, 1, 1])
    assert predict_majority(TrainingLabels(labels), 1).tolist() == [0]
    assert predict_majority(TrainingLabels(labels, heavy), 1).tolist() == [1]
    assert predict_majority(TrainingLabels(sets, heavy), 1).tolist() == [[1, 1]]
    assert predict_majority(TrainingLabels(labels.astype(float), heavy), 1) == pytest.approx(18 / 22)
    tags = predict_frequent_tag(["a", "a", "a"], np.array([0, 0, 1]), ["a"], 0, np.array([1.0, 1, 3]))
    assert tags.tolist() == [1]


def test_rows_that_all_have_the_weight_0_count_alike():
    part = TrainingLabels(LABELS, np.arange(40) / 20.0).select(np.array([0]))
    assert part.weights is None


def test_the_target_of_a_pair_is_the_probability_of_a_common_label():
    class Rows:
        labels = np.array([0, 1])
        sequence_lengths = np.array([3, 3])

        def __getitem__(self, row):
            targets = np.array([[0.75, 0.25], [0.5, 0.5]], np.float32)
            return {
                "input_ids": [row],
                "token_type_ids": [0],
                TARGETS: targets[row],
                WEIGHTS: [0.5, 3.0][row],
            }

    pairs = PairFeatures.from_rows(Rows(), np.eye(2, dtype=bool), seed=0)
    items = [pairs[number] for number in range(len(pairs))]
    mixed = [item for item in items if len(set(item["input_ids"])) == 2]
    assert {(float(item["labels"]), item[WEIGHTS]) for item in mixed} == {(0.5, 1.5)}
    same = {(item["input_ids"][0], float(item["labels"])) for item in items if item not in mixed}
    assert same <= {(0, 0.625), (1, 0.5)}


# ---- calibration

LOGITS = 3 * np.random.default_rng(2).normal(size=(60, 3))
GOLD = np.random.default_rng(3).integers(0, 3, 60)


def test_a_temperature_is_fitted_to_weights_and_soft_labels():
    counts = np.arange(60) % 3
    rows = np.repeat(np.arange(60), counts)
    repeated = fit_temperature(Decisions.from_classes(LOGITS[rows], GOLD[rows]))
    decisions = Decisions(LOGITS, GOLD, np.arange(60), 60, None, counts.astype(float))
    assert fit_temperature(decisions) == pytest.approx(repeated, rel=1e-6)
    targets = 0.75 * np.eye(3)[GOLD] + 0.25 * np.eye(3)[(GOLD + 1) % 3]
    gold = np.concatenate([GOLD, GOLD, GOLD, (GOLD + 1) % 3])
    expected = fit_temperature(Decisions.from_classes(np.tile(LOGITS, (4, 1)), gold))
    uncertain = Decisions.from_classes(LOGITS, GOLD, targets)
    assert fit_temperature(uncertain) == pytest.approx(expected, rel=1e-6)
    repeated_scores = ProbabilityScorer(Decisions.from_classes(np.tile(LOGITS, (4, 1)), gold)).score_all()
    scores = ProbabilityScorer(uncertain).score_all()
    for name in ("nll", "ece"):
        assert scores[name] == pytest.approx(repeated_scores[name], rel=1e-6)
    certain = Decisions.from_classes(LOGITS, GOLD, np.eye(3)[GOLD])
    plain = ProbabilityScorer(Decisions.from_classes(LOGITS, GOLD)).score_all()
    assert ProbabilityScorer(certain).score_all() == pytest.approx(plain)


# ---- a run


def add_votes(rows, labels=("negative", "positive")):
    """Give rows five votes each, of which one or two contradict the label in some rows."""
    for number, row in enumerate(rows):
        wrong = (0, 0, 1, 2)[number // 2 % 4]
        other = labels[1 - labels.index(row["label"])]
        row["label"] = {row["label"]: 5 - wrong, other: wrong} if number % 5 else row["label"]
    return rows


@slow_fixture
def run(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("votes")
    rows = [{**row, "trust": number % 3} for number, row in enumerate(add_votes(make_toy_rows(240)))]
    data = write_rows(folder / "votes.jsonl", rows)
    options = {"data": data, "model": tiny, "validation_fraction": 0.5, "epochs": 6, "max_length": 32}
    options["weight_column"] = "trust"
    with costly_parts("linear_probe", "charts"):
        return bertkit.classify(**options, output_dir=folder / "run", learning_rate=5e-3)


def test_a_run_shows_disagreement(run, cli):
    metrics = run.metrics
    assert {"tfidf", "majority", "linear_probe"} <= metrics["baselines"].keys()
    parts = {part["value"]: part["rows"] for part in metrics["slices"]["agreement"]}
    assert list(parts) == ["0.6 to 0.8", "0.8 to 1", "1 (certain)"]
    assert sum(parts.values()) == 120
    records = read_predictions(run.output_dir)
    record = next(record for record in records if record["gold_probabilities"][record["gold"]] == 0.6)
    assert sum(record["gold_probabilities"].values()) == pytest.approx(1)
    assert all("label" not in record and "soft labels of label" not in record for record in records)
    page = (run.output_dir / "report.html").read_text("utf-8")
    assert "agreement" in page
    assert "soft label" in page
    assert "positive 0.6, negative 0.4" in page


def test_nll_is_that_of_the_probabilities(run):
    records = read_predictions(run.output_dir)
    expected = -np.mean([
        sum(record["gold_probabilities"][label] * np.log(p) for label, p in record["probabilities"].items())
        for record in records
    ])  # fmt: skip
    scores = run.metrics["validation"]
    assert scores["nll"] == pytest.approx(expected, abs=1e-5)
    accuracy = np.mean([record["gold"] == record["predicted"] for record in records])
    assert scores["accuracy"] == pytest.approx(accuracy)


def test_evaluate_and_calibrate_read_probabilities_and_weights(run, tmp_path, cli, monkeypatch):
    rows = add_votes(make_toy_rows(240, seed=4))
    data = write_rows(tmp_path / "new.jsonl", rows)
    status, out, err = cli("evaluate", run.output_dir, "--data", data, "--by", "agreement", "--json")
    assert status == 0, err
    assert json.loads(out)["slices"]["agreement"][0]["value"] == "0.6 to 0.8"
    plain = bertkit.calibrate(run.output_dir, data=data)
    assert plain.calibration["scores"]["after"]["nll"] < plain.calibration["scores"]["before"]["nll"]
    fitted = []
    monkeypatch.setattr(
        calibrate, "fit_temperature", lambda decisions: fitted.append(decisions) or fit_temperature(decisions)
    )
    write_rows(data, [{**row, "trust": number % 4} for number, row in enumerate(rows)])
    weighted = bertkit.calibrate(run.output_dir, data=data)
    assert fitted[0].weights[:5] * 1.5 == pytest.approx([0, 1, 2, 3, 0])
    # the temperature, or its numbers if it depends on the margin
    fits = [(each.temperature, each.calibration.get("inverse_temperature")) for each in (plain, weighted)]
    assert fits[0] != fits[1]


def test_the_reliability_diagram_shows_how_probable_the_predictions_are(run, monkeypatch):
    from bertkit.stats.calibration import compute_calibration

    seen = []
    monkeypatch.setattr(
        "bertkit.tasks.view.compute_calibration",
        lambda *args: seen.append(args) or compute_calibration(*args),
    )
    bertkit.report(runs=[run.output_dir])
    expected = [
        record["gold_probabilities"][record["predicted"]] for record in read_predictions(run.output_dir)
    ]
    assert seen[0][1].tolist() == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"problem": "multi-label", "class_weights": "balanced"},
        {"method": "contrastive"},
        {"method": "linear-probe", "class_weights": "balanced", "max_steps": None},
        {"class_weights": "balanced", "label_smoothing": 0.1, "long_texts": "windows", "max_length": 8},
    ],
    ids=str,
)
def test_every_method_trains_with_both(tiny, tmp_path, settings):
    rows = [{**row, "trust": number % 3} for number, row in enumerate(make_toy_rows(60))]
    if settings.get("problem"):
        for row in rows:
            row["label"] = {row["label"]: 0.8, "long": min(1.0, len(row["text"]) / 60)}
    else:
        add_votes(rows)
    with costly_parts("linear_probe"):
        run = bertkit.classify(
            data=write_rows(tmp_path / "rows.jsonl", rows), model=tiny, weight_column="trust",
            output_dir=tmp_path / "run", **{"max_length": 32, "max_steps": 2} | settings,
        )  # fmt: skip
    assert 0 <= run.metrics["validation"]["nll"] < 5
    assert read_predictions(run.output_dir)[0]["gold_probabilities"]


@pytest.mark.slow
def test_a_student_learns_from_weighted_and_unlabeled_rows(run, tmp_path):
    unlabeled = [{"text": row["text"]} for row in make_toy_rows(20, seed=9)]
    student = bertkit.distill(
        run.output_dir, num_layers=1, data=write_rows(tmp_path / "more.jsonl", unlabeled), max_steps=2,
        output_dir=tmp_path / "student",
    )  # fmt: skip
    assert student.metrics["validation"]["nll"] > 0


def test_unlabeled_rows_of_a_student_have_no_weight():
    loss = DistillationLoss(CrossEntropy(), alpha=0.5, temperature=1.0, has_unlabeled=True)
    batch = make_batch(torch.tensor([0, UNLABELED, 1]), [1.0, 9.0, 3.0], [[0.75, 0.25], [0, 0], [0, 1]])
    logits = torch.randn((3, 2), generator=torch.Generator().manual_seed(0))
    labeled = {name: values[[0, 2]] for name, values in batch.items()}
    assert loss.count_items(batch)["loss"] == 4
    expected = CrossEntropy().sum_losses(logits[[0, 2]], labeled)["loss"]
    torch.testing.assert_close(loss.sum_losses(logits, batch)["loss"], expected)


@pytest.mark.slow
def test_nli_reads_votes_by_id(tiny, tmp_path):
    """As in files with the number of annotators by label."""
    names = ["entailment", "neutral", "contradiction"]
    rows = ROW_MAKERS["nli"](60)
    for row in rows:
        label = names.index(row["label"])
        row["label"] = {str(label): 8, str((label + 1) % 3): 2}
    run = bertkit.nli(
        data=write_rows(tmp_path / "rows.jsonl", rows), model=tiny, max_steps=1, output_dir=tmp_path / "run"
    )
    probabilities = read_predictions(run.output_dir)[0]["gold_probabilities"]
    assert sorted(probabilities) == sorted(names)
    assert sorted(probabilities.values()) == pytest.approx([0, 0.2, 0.8])


@pytest.mark.parametrize("task", ["classify", "nli"])
def test_a_class_may_never_be_the_most_probable_one(tmp_path, task):
    rows = [
        {**row, "label": {row["label"]: 0.6, "unsure": 0.4} if number % 2 else row["label"]}
        for number, row in enumerate(ROW_MAKERS[task](60))
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    loaded = load_data(task, task_definition(task).config(data=str(data)))
    assert "unsure" in loaded.task.labels
    assert len(loaded.task.labels) == {"classify": 3, "nli": 4}[task]


CONFLICTS = {  # two rows that contradict each other
    "ner": [{"tokens": ["Kim", "came"], "tags": tags} for tags in (["B-PER", "O"], ["O", "O"])],
    "swag": [
        {"context": "He", "endings": ["ran fast", "slept long"], "label": label} for label in (0, 1)
    ],
}  # fmt: skip


@pytest.mark.parametrize(("task", "baseline"), [("ner", "frequent_tag"), ("swag", "ending_only")])
def test_baselines_of_words_and_endings_use_weights(tmp_path, tiny, task, baseline):
    def fit(weights):
        rows = [{**row, "w": weight} for row, weight in zip(CONFLICTS[task], weights, strict=True)]
        data = write_rows(tmp_path / f"{weights}.jsonl", rows + rows)
        config = task_definition(task).config(
            data=str(data), validation=str(data), model=str(tiny), weight_column="w", keep_overlap=True
        )
        prepared = prepare(task, config)
        train = prepared.splits["train"]
        return prepared.task.fit_baselines(train, train.select([0]))[baseline].score_all()["accuracy"]

    assert [fit((3, 1)), fit((1, 3))] == [1.0, {"ner": 0.5, "swag": 0.0}[task]]


def test_a_corrected_label_is_certain(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", add_votes(make_toy_rows(40)))
    loaded = load_data("classify", task_definition("classify").config(data=str(data)))
    train = loaded.dataset.splits["train"]
    row = next(row for row, numbers in enumerate(get_soft_labels(train, "label")) if numbers)
    changed = loaded.task.replace_labels(train, {row: "negative"})
    assert changed["label"][row] == "negative"
    assert get_soft_labels(changed, "label")[row] is None
    assert get_soft_labels(train, "label")[row] is not None


def test_probabilities_are_no_numbers_of_a_regression(cli, tmp_path, tiny):
    data = write_rows(tmp_path / "rows.jsonl", add_votes(make_toy_rows(40)))
    args = ["--data", data, "--model", tiny, "--problem", "regression", "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["column 'label' holds", "not a number"])


def test_labels_are_mixed_with_predictions():
    hard = TrainingLabels(np.array([0, 1])).mix(np.array([[0.5, 0.5], [0.2, 0.8], [0.9999, 0.0001]]), 0.5)
    np.testing.assert_allclose(hard.targets, [[0.75, 0.25], [0.1, 0.9], [1, 0]])
    assert (hard.labels.tolist(), hard.weights) == ([0, 1, 0], None)
    numbers = TrainingLabels(np.array([1.0]), np.array([2.0])).mix(np.array([3.0, 5.0]), 0.25)
    assert (numbers.labels.tolist(), numbers.weights.tolist()) == ([1.5, 5.0], [2.0, 1.0])
    sets = TrainingLabels(np.array([[1, 0]])).mix(np.array([[0.4, 0.6], [0.7, 0.2]]), 1.0)
    assert sets.labels.tolist() == [[0, 1], [1, 0]]
