"""`bertkit predict --explain`: integrated gradients, summed by word."""

import json

import numpy as np
import pytest
from conftest import assert_refused, make_nli_rows, make_toy_rows, write_rows
from test_calibrate import train_on_label_sets

import bertkit
from bertkit.commands.explain import MAX_ERROR

pytestmark = pytest.mark.slow


def explain(run, **settings):
    return list(bertkit.predict(run, explain=True, **settings))


@pytest.fixture(scope="module")
def classifier(tiny_without_dropout, tmp_path_factory):
    """A run that separates the classes on any device, unlike the shared runs, which are trained a little."""
    folder = tmp_path_factory.mktemp("explain")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(100))
    settings = {"epochs": 6, "batch_size": 8, "learning_rate": 2e-3, "bf16": False, "max_length": 32}
    run = bertkit.classify(data=data, model=tiny_without_dropout, output_dir=folder / "run", **settings)
    assert run.metrics["validation"]["accuracy"] == 1.0
    return run.output_dir


def compute_log_odds(run, texts, labels):
    records = bertkit.load(run).predict([{"text": text} for text in texts])
    found = [record["probabilities"][label] for record, label in zip(records, labels, strict=True)]
    return [np.log(probability / (1 - probability)) for probability in found]


def test_attributions_sum_to_the_difference_from_masked_words(runs):
    """The baseline is the text with [MASK] in place of each token."""
    texts = [row["text"] for row in make_toy_rows(12, seed=3)]
    records = explain(runs / "classify", text=texts)
    predicted = [record["predicted"] for record in records]
    masked = [" ".join(["[MASK]"] * len(text.split())) for text in texts]
    odds, masked_odds = (compute_log_odds(runs / "classify", some, predicted) for some in (texts, masked))
    for text, record, *ends in zip(texts, records, odds, masked_odds, strict=True):
        words = record["explanation"]
        assert [word["word"] for word in words] == text.split()
        difference = ends[0] - ends[1]
        total = sum(word["attribution"] for word in words)
        assert record["completeness_error"] <= MAX_ERROR
        assert abs(total - difference) <= (record["completeness_error"] + 0.002) * abs(difference) + 0.002


def test_more_steps_replace_the_result_of_fewer_steps(runs, monkeypatch):
    text = "the film was bad here today"
    [expected] = explain(runs / "classify", text=[text])
    monkeypatch.setattr("bertkit.commands.explain.NUM_STEPS", (1, 64))
    monkeypatch.setattr("bertkit.commands.explain.MAX_ERROR", 1e-9)  # no number of steps is enough
    [record] = explain(runs / "classify", text=[text])
    for word, expected_word in zip(record["explanation"], expected["explanation"], strict=True):
        assert word["attribution"] == pytest.approx(expected_word["attribution"], abs=0.02)


def test_the_words_that_decide_have_the_highest_attributions(classifier):
    record = explain(classifier, text=["the film was bad here today"])[0]
    assert record["predicted"] == "negative"
    assert max(record["explanation"], key=lambda word: word["attribution"])["word"] == "bad"


def test_pairs_name_the_column_of_each_word(runs, tmp_path):
    rows = make_nli_rows(6, seed=2)
    records = explain(runs / "nli", data=write_rows(tmp_path / "rows.jsonl", rows))
    for row, record in zip(rows, records, strict=True):
        for column in ("premise", "hypothesis"):
            words = [word["word"] for word in record["explanation"] if word["column"] == column]
            assert words == row[column].split()
        assert record["completeness_error"] <= MAX_ERROR


@pytest.mark.parametrize("long_texts", ["head", "tail", "windows"])
def test_words_that_the_model_does_not_read_are_left_out(tiny, toy, long_texts):
    run = bertkit.classify(
        data=toy, model=tiny, output_dir="run", max_steps=1, max_length=8, long_texts=long_texts, bf16=False
    ).output_dir
    words = ["good", "the", "film", "was", "very", "nice", "and", "warm"]
    record = explain(run, text=[" ".join(words)])[0]
    expected = {"head": words[:6], "tail": words[-6:], "windows": words}[long_texts]
    assert [word["word"] for word in record["explanation"]] == expected
    assert record["completeness_error"] <= MAX_ERROR


def test_label_sets_and_numbers_are_explained(tiny, tmp_path):
    new = train_on_label_sets(tiny, tmp_path)
    assert explain("run", data=new[:3])[0]["completeness_error"] <= MAX_ERROR
    rows = [{"text": row["text"], "label": 0.1 * len(row["text"])} for row in make_toy_rows(40)]
    bertkit.classify(data=rows, model=tiny, output_dir="numbers", max_steps=3, problem="regression")
    assert explain("numbers", data=rows[:3])[0]["completeness_error"] <= MAX_ERROR


def test_the_predictions_are_those_without_explanation(runs):
    texts = [row["text"] for row in make_toy_rows(5, seed=4)]
    plain = list(bertkit.predict(runs / "classify", text=texts))
    for record, explained in zip(plain, explain(runs / "classify", text=texts), strict=True):
        assert explained["predicted"] == record["predicted"]
        assert explained["probabilities"] == pytest.approx(record["probabilities"], abs=1e-5)


def test_the_table_shades_the_words(classifier, cli):
    text = "the film was bad"
    status, out, err = cli("predict", classifier, "--text", text, "--explain", "--format", "table")
    assert status == 0, err
    assert "bad +" in out  # the table states the attributions
    assert text in out.splitlines()[-1]  # the line with shaded words
    status, out, _ = cli("predict", classifier, "--text", text, "--explain", "--format", "csv")
    assert status == 0
    assert '""word"": ""bad""' in out


def test_runs_without_explanations_are_refused(runs, cli, tmp_path):
    words = ["--explain", "is a run of ner", "pass a run of classify or nli"]
    assert_refused(cli, tmp_path, [runs / "ner", "--text", "a b", "--explain"], words, "predict")


def test_explanations_are_json(runs, cli):
    status, out, err = cli("predict", runs / "classify", "--text", "good film", "--explain", "--json")
    assert status == 0, err
    [record] = json.loads(out)["predictions"]
    assert set(record["explanation"][0]) == {"word", "attribution"}
