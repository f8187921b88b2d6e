"""`nli`: what it does beyond `classify`: gold labels that are missing, label orders, premises, baselines."""

import json
import shutil

import pytest
import torch
from conftest import (
    NEGATIVE_WORDS,
    POSITIVE_WORDS,
    make_nli_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.errors import UserError

FAST = {"batch_size": 8, "learning_rate": 3e-3, "seed": 1, "bf16": False}
STILL = {"max_steps": 1, "learning_rate": 1e-12, "warmup": 0.0, "bf16": False}  # scored as it came
OTHER_ORDER = ["neutral", "contradiction", "entailment"]


@slow_fixture
def learned(tmp_path_factory):
    """A run on a separable toy, with a mismatched validation split and unlabelled test rows."""
    folder = tmp_path_factory.mktemp("nli")
    write_rows(folder / "toy" / "train.jsonl", make_nli_rows(400))
    write_rows(folder / "toy" / "dev_matched.jsonl", make_nli_rows(40, seed=3))
    write_rows(folder / "toy" / "dev_mismatched.jsonl", make_nli_rows(36, seed=4))
    write_rows(folder / "toy" / "test.jsonl", [{**row, "label": "-"} for row in make_nli_rows(9, seed=5)])
    # A layer with large initial weights learns in few steps.
    settings = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = save_tiny_model(folder / "model", num_hidden_layers=1, **settings)
    return bertkit.nli(
        data=str(folder / "toy"), model=str(model), epochs=3, output_dir=str(folder / "run"),
        **FAST | {"batch_size": 16, "learning_rate": 8e-3},
    )  # fmt: skip


def reordered(run, folder, names, permute_weights):
    """A copy of a run that says its outputs are `names`, its weights permuted along or not."""
    shutil.copytree(run.output_dir, folder, ignore=shutil.ignore_patterns("checkpoints"))
    config = json.loads((folder / "config.json").read_text())
    before = [config["id2label"][str(number)] for number in range(3)]
    config["id2label"] = {str(number): name for number, name in enumerate(names)}
    config["label2id"] = {name: number for number, name in enumerate(names)}
    (folder / "config.json").write_text(json.dumps(config))
    if permute_weights and set(before) == set(names):
        weights = load_file(folder / "model.safetensors")
        order = torch.tensor([before.index(name) for name in names])
        for name in ("classifier.weight", "classifier.bias"):
            weights[name] = weights[name][order].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_matched_and_mismatched_splits_are_learned_and_scored(learned):
    metrics = learned.metrics
    for split in ("validation", "validation_mismatched"):
        assert set(metrics[split]) == {"accuracy", "f1", "ece", "nll", "brier"}
        assert (metrics[split]["accuracy"], metrics[split]["f1"]) == (1.0, 1.0)
    assert set(metrics["intervals"]) == set(metrics["validation"])
    assert metrics["test"] == {}
    assert len(read_predictions(learned.output_dir, "predictions-test.jsonl")) == 9
    assert len(read_predictions(learned.output_dir, "predictions-validation_mismatched.jsonl")) == 36


def test_the_pipeline_gives_the_same_probabilities(learned):
    from transformers import pipeline

    classifier = pipeline("text-classification", str(learned.output_dir), top_k=None)
    for record in read_predictions(learned.output_dir)[:5]:
        found = classifier({"text": record["premise"], "text_pair": record["hypothesis"]})
        assert {s["label"]: s["score"] for s in found} == pytest.approx(record["probabilities"], abs=1e-5)


def test_a_head_in_another_label_order_scores_the_same(learned, tmp_path):
    model = reordered(learned, tmp_path / "other", OTHER_ORDER, permute_weights=True)
    data = write_rows(tmp_path / "rows.jsonl", make_nli_rows(120, seed=7))
    run = bertkit.nli(data=str(data), model=str(model), output_dir=str(tmp_path / "run"), **STILL)
    assert run.metrics["validation"]["accuracy"] == 1.0
    assert list(read_predictions(run.output_dir)[0]["probabilities"]) == OTHER_ORDER


@pytest.mark.slow
def test_a_head_with_label_names_in_the_wrong_order_is_refused(cli, learned, tmp_path):
    model = reordered(learned, tmp_path / "wrong", OTHER_ORDER, permute_weights=False)
    data = write_rows(tmp_path / "rows.jsonl", make_nli_rows(400, seed=7))
    args = ["nli", "--data", data, "--model", model, "-o", tmp_path / "run", "--max-steps", 1, "--no-bf16"]
    status, _, err = cli(*args)
    assert status == 2
    last = err.splitlines()[-1]
    assert "0% are correct by its id2label, 100% if neutral means contradiction" in last, last
    assert "--new-head" in last
    assert not (tmp_path / "run").exists()
    assert cli(*args, "--new-head")[0] == 0


def test_an_ambiguous_label_order_is_not_suggested():
    import numpy as np

    from bertkit.models.heads import verify_label_order

    gold = np.repeat([0, 1, 2], 20)
    verify_label_order(gold, gold, ["a", "b", "c"], "m")
    with pytest.raises(UserError, match=r"--model m: .* 100% if a means b, b means c, c means a;"):
        verify_label_order(gold, (gold + 2) % 3, ["a", "b", "c"], "m")
    muddled = np.array([1, 2, 2])[gold]  # never says a, and takes label 1 for 2 under any name
    with pytest.raises(UserError, match="67% in another order, which these rows do not determine"):
        verify_label_order(gold, muddled, ["a", "b", "c"], "m")


@pytest.mark.slow
def test_a_head_without_label_names_is_reinitialized_with_a_note(cli, learned, tmp_path):
    model = reordered(learned, tmp_path / "m", ["LABEL_0", "LABEL_1", "LABEL_2"], permute_weights=False)
    data = write_rows(tmp_path / "rows.jsonl", make_nli_rows(60, seed=7))
    status, _, err = cli("nli", "--data", data, "--model", model, "--max-steps", 1, "--no-bf16")
    assert (status, "model: m; re-initialized head" in err) == (0, True), err


def test_label_ids_of_another_convention_are_refused(learned, tmp_path):
    backwards = {"contradiction": 0, "neutral": 1, "entailment": 2}
    rows = [{**row, "label": backwards[row["label"]]} for row in make_nli_rows(400, seed=7)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match="labels are in the wrong order"):
        bertkit.nli(data=str(data), model=str(learned.output_dir), **STILL)


@pytest.mark.slow
def test_label_ids_become_standard_label_names(cli, learned, tmp_path):
    number = {"entailment": 0, "neutral": 1, "contradiction": 2}
    rows = [{**row, "label": number[row["label"]]} for row in make_nli_rows(60, seed=8)]
    data = write_rows(tmp_path / "rows.jsonl", [*rows, {**rows[0], "premise": "the film", "label": -1}])
    args = ["nli", "--data", data, "--model", learned.output_dir, "-o", tmp_path / "run", "--max-steps", 1]
    status, out, err = cli(*args, "--lr", "1e-12", "--json")
    assert status == 0
    assert json.loads(out)["validation"]["accuracy"] == 1.0
    assert "labels 0, 1, 2 are read as entailment, neutral, contradiction" in err
    assert "1 train row left out: no gold label" in err
    assert read_predictions(tmp_path / "run")[0]["gold"] in number


@pytest.mark.slow
def test_unlabeled_rows_are_left_out_and_counted(cli, tiny, tmp_path):
    def some(count, gaps, seed):
        rows = make_nli_rows(count, seed)
        return [{**row, "label": "-" if n < gaps else row["label"]} for n, row in enumerate(rows)]

    data = write_rows(tmp_path / "train.jsonl", [*some(60, 7, 0), {**make_nli_rows(1, 9)[0], "label": None}])
    dev = write_rows(tmp_path / "dev.jsonl", some(30, 4, 1))
    args = ["--data", data, "--validation", dev, "--model", tiny, "--max-steps", 1, "-o", tmp_path / "run"]
    status, out, err = cli("nli", *args, "--json")
    sizes = json.loads(out)["data"]
    assert status == 0
    assert (sizes["train"], sizes["validation"]) == (53, 26)
    assert "8 train rows left out: no gold label" in err
    assert "4 validation rows left out: no gold label" in err
    assert {record["gold"] for record in read_predictions(tmp_path / "run")} == {
        "entailment", "neutral", "contradiction"
    }  # fmt: skip


@pytest.mark.slow
def test_minus_one_is_a_label_next_to_zero_and_one(tiny, tmp_path):
    number = {"entailment": 1, "neutral": 0, "contradiction": -1}
    data = write_rows(tmp_path / "r.jsonl", [{**r, "label": number[r["label"]]} for r in make_nli_rows(60)])
    run = bertkit.nli(data=str(data), model=str(tiny), max_steps=1, output_dir=str(tmp_path / "run"), **FAST)
    assert (run.metrics["data"]["train"], run.metrics["data"]["validation"]) == (54, 6)
    assert list(read_predictions(run.output_dir)[0]["probabilities"]) == ["-1", "0", "1"]


@pytest.mark.slow
def test_classify_leaves_out_unlabeled_rows_of_a_known_dataset(cli, tiny, tmp_path):
    names = {"label": "gold_label", "premise": "sentence1", "hypothesis": "sentence2"}
    rows = [{names[key]: value for key, value in row.items()} for row in make_nli_rows(60)]
    rows[4]["gold_label"] = "-"
    for name in ("train", "dev"):
        write_rows(tmp_path / "data" / "snli" / f"snli_1.0_{name}.jsonl", rows[: 30 if name == "dev" else 60])
    args = ["--data", "snli", "--data-dir", tmp_path / "data", "--model", tiny, "--max-steps", 1]
    for task in ("classify", "nli"):
        status, out, err = cli(task, *args, "-o", tmp_path / task, "--json")
        assert (status, "1 validation row left out: no gold label" in err) == (0, True), err
        assert json.loads(out)["data"]["validation"] == 29


def test_load_predicts_as_the_run_did(learned):
    records = read_predictions(learned.output_dir)[:6]
    rows = [{key: record[key] for key in ("premise", "hypothesis")} for record in records]
    for record, found in zip(records, bertkit.load(learned.output_dir).predict(rows), strict=True):
        assert found["probabilities"] == pytest.approx(record["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_pairs_of_one_premise_are_held_out_together(tiny, tmp_path):
    rows = []
    for row in make_toy_rows(30):
        for label, words in (("entailment", POSITIVE_WORDS), ("contradiction", NEGATIVE_WORDS)):
            rows.append({"premise": row["text"], "hypothesis": words[len(rows) % 8], "label": label})
    data = write_rows(tmp_path / "rows.jsonl", rows)
    run = bertkit.nli(
        data=str(data), model=str(tiny), max_steps=1, validation_fraction=0.3, output_dir=str(tmp_path / "r"),
        **FAST,
    )  # fmt: skip
    premises = [record["premise"] for record in read_predictions(run.output_dir)]
    assert len(premises) == 18
    assert all(premises.count(premise) == 2 for premise in premises)


@pytest.mark.slow
@pytest.mark.linear_probe
def test_the_hypothesis_only_baseline_does_not_read_the_premise(tiny, tmp_path):
    def baseline(name, rows):
        data = write_rows(tmp_path / f"{name}.jsonl", rows)
        run = bertkit.nli(
            data=str(data), model=str(tiny), max_steps=1, validation_fraction=0.4,
            output_dir=str(tmp_path / name), **FAST,
        )  # fmt: skip
        assert set(run.metrics["baselines"]) == {"majority", "hypothesis_only", "linear_probe"}
        return run.metrics["baselines"]["hypothesis_only"]["accuracy"]

    rows = make_nli_rows(200)
    swapped = [{**row, "premise": row["hypothesis"], "hypothesis": row["premise"]} for row in rows]
    swapped = [{**row, "premise": f"{row['premise']} {n}"} for n, row in enumerate(swapped)]
    assert baseline("original", rows) > 0.95
    assert baseline("swapped", swapped) < 0.6


REFUSED = {
    "a blank label": ([{"label": ""}], [], ["row 1", "no label in column 'label'"]),
    "no premise": ([{"premise": None}], [], ["row 1", "'premise'", "no text"]),
    "one class": ([{"label": "neutral"}] * 60, [], ["only the class 'neutral'"]),
    "a column that is not": ([], ["--premise-column", "premiss"], ["mean 'premise'", "--premise-column"]),
    "the same column twice": ([], ["--hypothesis-column", "premise"], ["--hypothesis-column premise"]),
    "nothing held out": ([], ["--validation-fraction", 0], ["holds out no rows"]),
    "labels that are texts": ([{"label": f"l{n}"} for n in range(60)], [], ["60 different labels"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(cli, tiny, tmp_path, name):
    changes, args, words = REFUSED[name]
    rows = [{**row, **(changes[n] if n < len(changes) else {})} for n, row in enumerate(make_nli_rows(60))]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    status, _, err = cli("nli", "--data", data, "--model", tiny, "-o", tmp_path / "run", *args)
    assert status == 2
    assert [word for word in words if word not in err.splitlines()[-1]] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_error_lists_the_columns_if_none_form_a_pair(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(40))
    status, _, err = cli("nli", "--data", data, "--model", tiny)
    assert status == 2
    assert "--premise-column and --hypothesis-column" in err
    rows = [{"a": row["premise"], "b": row["hypothesis"], "label": row["label"]} for row in make_nli_rows(40)]
    data = write_rows(tmp_path / "ab.jsonl", rows)
    named = ["--premise-column", "a", "--hypothesis-column", "b"]
    assert cli("nli", "--data", data, "--model", tiny, *named, "--max-steps", 1)[0] == 0
