"""`--out-of-scope`: texts that belong to no class are found by a score of their logits."""

import json
import shutil

import numpy as np
import pytest
from conftest import (
    assert_refused,
    make_neutral_texts,
    make_toy_rows,
    read_predictions,
    slow_fixture,
    write_rows,
)
from test_calibrate import make_rows

import bertkit
from bertkit.commands import calibrate
from bertkit.stats.scope_score import compute_scope_score, fit_scope, fit_scope_weights


def make_vectors(count, seed=0, size=6):
    """Vectors of texts in scope, and of texts out of scope, which are shifted in one direction."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, size)), rng.normal(size=(count, size)) + 2 * (np.arange(size) == 1)


def test_texts_out_of_scope_have_lower_scores():
    inside, outside = make_vectors(200)
    weights = fit_scope_weights(inside, outside)
    new_inside, new_outside = (compute_scope_score(part, weights) for part in make_vectors(200, seed=1))
    assert np.mean(new_inside[:, None] > new_outside) > 0.9
    assert 0 <= new_outside.min() <= new_inside.max() <= 1


def test_the_fraction_of_accepted_texts_in_scope_is_the_coverage():
    (inside, outside), folds = make_vectors(400), (np.arange(400) % 5, np.arange(400) % 5)
    found = fit_scope([inside, outside], np.ones(400, bool), folds, 0.9)
    new = compute_scope_score(make_vectors(4000, seed=1)[0], found["weights"])
    assert np.mean(new >= found["min_score"]) == pytest.approx(0.9, abs=0.03)
    assert found["coverage"] == pytest.approx(0.9, abs=0.03)
    low, high = found["interval"]
    assert 0.3 < low < found["out_of_scope_recall"] < high <= 1


# ---- training


def make_no_class(count, seed=0):
    """Rows without a good or a bad word, with a label that says so."""
    return [{"text": text, "label": "none"} for text in make_neutral_texts(count, seed)]


@slow_fixture
def labeled_run(tmp_path_factory, tiny):
    """A run on rows of which some have the label `none`, which is out of scope."""
    folder = tmp_path_factory.mktemp("scope")
    splits = {"train": (200, 40), "validation": (100, 40), "test": (100, 60)}
    paths = {
        name: str(
            write_rows(folder / f"{name}.jsonl", make_toy_rows(own, number) + make_no_class(no, number))
        )
        for number, (name, (own, no)) in enumerate(splits.items())
    }
    data, validation, test = paths.values()
    return bertkit.classify(
        data=data, validation=validation, test=test, model=tiny, output_dir=folder / "run", epochs=4,
        batch_size=8, learning_rate=3e-3, max_length=32, out_of_scope="none",
    )  # fmt: skip


def test_rows_with_the_label_are_no_class_and_are_found(labeled_run, cli):
    run = labeled_run.output_dir
    config = json.loads((run / "config.json").read_text("utf-8"))
    assert sorted(config["label2id"]) == ["negative", "positive"]
    found = labeled_run.metrics["out_of_scope"]
    assert found["validation"]["texts"] == 80  # of both splits that are not the test split
    assert found["test"]["out_of_scope_recall"] > 0.2
    assert labeled_run.metrics["data"]["test"] == 100
    records = read_predictions(run)
    assert np.mean([not record["out_of_scope"] for record in records]) >= 0.9
    minimum = config["bertkit_confidence"]["min_scope_score"]
    assert all(record["out_of_scope"] == (record["scope_score"] < minimum) for record in records)
    evaluated = json.loads(cli("evaluate", run, "--json", "-o", run.parent / "evaluated")[1])
    assert evaluated["out_of_scope"]["test"] == found["test"]
    assert evaluated["test"]["coverage"] == labeled_run.metrics["test"]["coverage"]


def test_evaluation_counts_rows_of_a_file_with_the_label(labeled_run, tmp_path, cli):
    data = write_rows(tmp_path / "new.jsonl", make_toy_rows(20, 9) + make_no_class(30, 9))
    status, out, err = cli("evaluate", labeled_run.output_dir, "--data", data, "-o", tmp_path / "evaluated")
    assert status == 0, err
    assert "30 validation rows with the label of texts out of scope" in err
    assert "out of scope (validation): " in out
    metrics = json.loads((tmp_path / "evaluated" / "metrics.json").read_text("utf-8"))
    assert metrics["out_of_scope"]["validation"]["texts"] == 30
    assert metrics["data"]["validation"] == 20


def test_pipeline_gives_the_plain_scores(labeled_run):
    from transformers import pipeline

    text = make_neutral_texts(1, seed=8)[0]
    [record] = bertkit.load(labeled_run.output_dir).predict([{"text": text}])
    [stock] = pipeline("text-classification", str(labeled_run.output_dir), top_k=None)([text])
    scores = {score["label"]: score["score"] for score in stock}
    assert scores == pytest.approx(record["probabilities"], abs=1e-5)


def test_calibrate_fits_the_texts_of_the_run_again(labeled_run, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", make_rows(labeled_run.output_dir, "classify"))
    fitted, source = [], labeled_run.output_dir
    for name in ("once", "twice"):
        bertkit.calibrate(source, data=data, output_dir=tmp_path / name)
        source = tmp_path / name
        fitted.append(json.loads((source / "config.json").read_text("utf-8"))["bertkit_confidence"])
    assert fitted[0]["scope_weights"] == pytest.approx(fitted[1]["scope_weights"], rel=1e-2, abs=1e-3)
    assert (source / "README.md").read_text("utf-8").count("`out_of_scope`") == 1


# ---- calibration


@pytest.fixture
def copied(runs, tmp_path):
    """A run, rows to calibrate it on, and texts that belong to no class."""
    run = shutil.copytree(runs / "classify", tmp_path / "run")
    data = write_rows(tmp_path / "rows.jsonl", make_rows(run, "classify"))
    texts = tmp_path / "none.txt"
    texts.write_text("\n".join(f"zzz qqq {text}" for text in make_neutral_texts(40)) + "\n", "utf-8")
    return run, data, texts


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_exporter")
def test_a_calibrated_run_and_its_export_find_texts(copied, tmp_path, cli):
    pytest.importorskip("onnxscript")
    run, data, texts = copied
    status, out, err = cli("calibrate", run, "--data", data, "--out-of-scope", texts, "--coverage", "0.9")
    assert status == 0, err
    assert "out of scope (cross-fitted): " in out
    assert "Cross-fitted on such texts" in (run / "README.md").read_text("utf-8")
    bertkit.export(run, output_dir=tmp_path / "exported", data=data)
    records, exported = (list(bertkit.predict(folder, data=data)) for folder in (run, tmp_path / "exported"))
    assert 0 < sum(record["out_of_scope"] for record in records) < 12
    assert [record["out_of_scope"] for record in exported] == [record["out_of_scope"] for record in records]
    bertkit.calibrate(run, data=data)  # without the flag, as if it had never been calibrated
    assert "out_of_scope" not in next(iter(bertkit.predict(run, data=data)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["--out-of-scope", "no such file"]),
        ("", ["none.txt"]),
        ("a text\n", ["1 different text to fit on", "at least 10"]),
        ("a text\n" * 50, ["1 different text to fit on"]),
        ("rows", ["60 of 60 texts are also rows of a class"]),
    ],
)
def test_texts_that_cannot_be_fitted_are_refused(copied, tmp_path, cli, content, words):
    run, data, texts = copied
    rows = [json.loads(line)["text"] for line in data.read_text("utf-8").splitlines()]
    texts.unlink() if content is None else texts.write_text("\n".join(rows) if content == "rows" else content)
    args = [run, "--data", data, "--out-of-scope", texts]
    assert_refused(cli, tmp_path, args, words, "calibrate")


@pytest.mark.slow
def test_texts_of_the_training_rows_are_not_fitted(copied, runs, cli, monkeypatch):
    """The texts are checked before the model is loaded."""
    run, data, texts = copied
    rows = [json.loads(line)["text"] for line in (runs / "classify.jsonl").read_text("utf-8").splitlines()]
    new = texts.read_text("utf-8")
    texts.write_text(new + "\n".join(rows[:7]) + "\n", "utf-8")
    status, _, err = cli("calibrate", run, "--data", data, "--out-of-scope", texts)
    assert (status, "7 of 47 texts are also rows of a class and are left out" in err) == (0, True), err
    monkeypatch.setattr(calibrate, "load_predictor", None)
    texts.write_text("\n".join(rows), "utf-8")
    status, _, err = cli("calibrate", run, "--data", data, "--out-of-scope", texts)
    assert (status, "0 different texts to fit on" in err) == (2, True), err


@pytest.mark.slow
def test_the_texts_may_have_the_column_that_is_passed_for_the_rows(copied, tmp_path, cli):
    run, data, texts = copied
    rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    data = write_rows(tmp_path / "new.jsonl", [{"words": row.pop("text"), **row} for row in rows])
    number = [{"number": i, "words": text} for i, text in enumerate(texts.read_text("utf-8").splitlines())]
    outside = write_rows(tmp_path / "none.jsonl", number)
    args = ["--data", data, "--text-column", "words", "--out-of-scope"]
    for source in (outside, texts):  # a text file has no names of columns
        status, out, err = cli("calibrate", run, *args, source)
        assert (status, "out of scope (cross-fitted): " in out) == (0, True), err


@pytest.mark.slow
def test_tasks_without_classes_of_texts_are_refused(runs, tmp_path, cli):
    for task in ("ner", "swag", "qa"):
        args = [runs / task, "--out-of-scope", "sample"]
        assert_refused(cli, tmp_path, args, ["--out-of-scope", "omit it"], "calibrate")


@pytest.mark.parametrize(
    ("value", "flags", "words"),
    [
        ("nothing", (), ["--out-of-scope nothing", "neither a file nor a label of column 'label'"]),
        ("postive", (), ["did you mean 'positive'"]),
        ("positive", (), ["only the class 'negative'"]),
        ("sample", ("--problem", "regression"), ["have no classes"]),
    ],
)
def test_other_values_are_refused_before_training(toy, tiny, tmp_path, cli, value, flags, words):
    if flags:
        toy = write_rows(tmp_path / "numbers.jsonl", [{"text": f"a {i}", "label": i / 7} for i in range(40)])
    assert_refused(cli, tmp_path, ["--data", toy, "-m", tiny, "--out-of-scope", value, *flags], words)
