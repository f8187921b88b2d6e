"""`bertkit calibrate`: the temperature is fitted on labeled rows, and is part of the output layer."""

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROW_MAKERS, assert_refused, make_toy_rows, save_tiny_model, write_rows
from safetensors.torch import load_file, save_file

import bertkit
from bertkit.commands import calibrate
from bertkit.errors import UserError
from bertkit.models.heads import read_temperature
from bertkit.run_directory import RunDir
from bertkit.stats.calibration import Decisions, fit_temperature
from bertkit.utils import locks
from bertkit.utils.files import write_text
from bertkit.utils.reporting import Reporter

pytestmark = pytest.mark.slow

TASKS = ["classify", "nli", "swag", "ner"]
LABEL_KEYS = {"classify": "label", "nli": "label", "swag": "label", "ner": "tags"}


def make_wrong(task, row, predicted):
    """Return a label that differs from the predicted one; for `ner`, the true tags."""
    if task == "ner":
        return row["tags"]
    if task == "swag":
        return (predicted + 1) % len(row["endings"])
    labels = ["negative", "positive"] if task == "classify" else ["entailment", "neutral", "contradiction"]
    return labels[labels.index(predicted) - 1]


def make_rows(run, task, count=60, seed=7):
    """Return rows of which the model classifies four fifths correctly, so that a temperature fits."""
    rows = ROW_MAKERS[task](count, seed=seed)
    for index, record in enumerate(bertkit.load(run).predict(rows)):
        predicted = record["predicted"]
        rows[index][LABEL_KEYS[task]] = predicted if index % 5 else make_wrong(task, rows[index], predicted)
    return rows


@pytest.fixture
def few_rows(monkeypatch):
    """Calibrate also on rows that are too few for better probabilities."""
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: None)


@pytest.fixture(scope="module")
def originals(runs, tmp_path_factory):
    """The directory of the run of each task; the logits of that of swag differ, unlike those of `runs`."""
    swag = shutil.copytree(runs / "swag", tmp_path_factory.mktemp("calibrate") / "swag")
    weights = load_file(swag / "model.safetensors")
    weights["classifier.weight"] *= 100
    save_file(weights, swag / "model.safetensors", {"format": "pt"})
    return {task: runs / task for task in TASKS} | {"swag": swag}


@pytest.fixture(scope="module")
def labeled(originals):
    """Return a function that returns the rows of `make_rows` for the run of a task."""
    return functools.cache(lambda task, **options: make_rows(originals[task], task, **options))


@pytest.fixture
def copied(originals, labeled, tmp_path):
    """Return a function that copies the run of a task, and writes rows to calibrate it on."""

    def copy(task="classify", **options):
        run = shutil.copytree(originals[task], tmp_path / "run")
        return run, write_rows(tmp_path / "rows.jsonl", labeled(task, **options))

    return copy


def compute_logits(run, rows):
    predictor = bertkit.load(run)
    from bertkit.data.table import Rows

    parsed, _ = predictor.task.parse_rows(Rows.from_dicts(rows, "rows"))
    return predictor.compute_outputs(parsed).logits


@pytest.mark.parametrize("task", TASKS)
def test_the_logits_are_divided_by_the_temperature(copied, cli, task, few_rows):
    run, data = copied(task)
    rows = ROW_MAKERS[task](20, seed=11)
    before = compute_logits(run, rows)
    status, out, err = cli("calibrate", run, "--data", data, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert abs(found["temperature"] - 1) > 0.01
    assert compute_logits(run, rows) * found["temperature"] == pytest.approx(before, abs=1e-5)
    assert found.pop("output_dir") == str(run)
    assert json.loads((run / "calibration.json").read_text()) == found
    assert found["data"]["rows"] == 60


def test_the_scores_before_calibration_are_those_of_an_evaluation(copied, cli, tmp_path):
    run, data = copied()
    scores = json.loads(cli("evaluate", run, "--data", data, "--json")[1])["validation"]
    calibration = bertkit.calibrate(run, data=data).calibration
    for name, value in calibration["scores"]["before"].items():
        assert scores[name] == pytest.approx(value, abs=1e-6)
    again = json.loads(cli("evaluate", run, "--data", data, "--json")[1])["validation"]
    assert again["nll"] < scores["nll"]
    assert again["accuracy"] == scores["accuracy"]


def test_a_pipeline_and_predict_give_the_same_calibrated_probabilities(copied):
    from transformers import pipeline

    run, data = copied()
    texts = [row["text"] for row in make_toy_rows(10, seed=3)]
    uncalibrated = [record["probabilities"] for record in bertkit.predict(run, text=texts, all_scores=True)]
    bertkit.calibrate(run, data=data)
    predicted = [record["probabilities"] for record in bertkit.predict(run, text=texts, all_scores=True)]
    stock = pipeline("text-classification", str(run), top_k=None)(texts)
    for probabilities, scores, old in zip(predicted, stock, uncalibrated, strict=True):
        assert {score["label"]: score["score"] for score in scores} == pytest.approx(probabilities, abs=1e-5)
        assert probabilities != pytest.approx(old, abs=1e-3)


@pytest.mark.parametrize("task", ["classify", "ner"])
def test_calibrating_twice_on_the_same_rows_changes_nothing(copied, task):
    run, data = copied(task)
    first = bertkit.calibrate(run, data=data)
    weights = (run / "model.safetensors").read_bytes()
    second = bertkit.calibrate(run, data=data)
    assert (run / "model.safetensors").read_bytes() == weights
    assert second.temperature == first.temperature
    for part in ("before", "after"):
        scores = first.calibration["scores"][part]
        assert second.calibration["scores"][part] == pytest.approx(scores, abs=1e-6)
    assert (run / "README.md").read_text().count("## Calibration") == 1


def read_all(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_calibrated_copy_equals_a_run_that_is_calibrated_in_place(copied, cli, tmp_path):
    run, data = copied()
    before, copy = read_all(run), tmp_path / "calibrated"
    status, out, err = cli("calibrate", run, "--data", data, "-o", copy, "--json")
    assert status == 0, err
    assert json.loads(out)["output_dir"] == str(copy)
    assert read_all(run) == before
    assert not (copy / "checkpoints").exists()
    card = (copy / "README.md").read_text("utf-8")
    assert card.startswith("# calibrated\n")
    assert f"pipeline('text-classification', {str(copy)!r}" in card
    bertkit.calibrate(run, data=data)
    assert read_temperature(copy) == pytest.approx(read_temperature(run), rel=1e-5)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (copy, run))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name])
    again = ["calibrate", copy, "--data", data, "-o", tmp_path / "again"]
    assert cli(*again)[0] == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "again", copy)]
    assert weights[0] == weights[1]
    assert_refused(cli, tmp_path, again[1:], ["--output-dir", "already contains"], "calibrate")
    assert cli(*again, "--overwrite")[0] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    args = [run, "--data", data, "-o", tmp_path / "other", "--overwrite"]
    assert_refused(cli, tmp_path, args, ["notes.txt", "choose another directory"], "calibrate")


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("file", ["metrics.json", "weights"])
def test_a_copy_that_cannot_be_written_leaves_nothing(copied, tmp_path, monkeypatch, file, is_replaced):
    run, data = copied()
    copy = tmp_path / "calibrated"
    if is_replaced:
        bertkit.calibrate(run, data=data, output_dir=copy)
        before = read_all(copy)

    def fail(source, target):
        if str(source).endswith("metrics.json"):
            raise OSError(28, "No space left on device")
        Path(target).write_bytes(Path(source).read_bytes())

    def fail_later(*args):
        raise UserError("No space left on device")

    if file == "weights":
        monkeypatch.setattr(calibrate, "write_output_layer", fail_later)
    else:
        monkeypatch.setattr("bertkit.run_directory.shutil.copyfile", fail)
    with pytest.raises(UserError, match="No space left on device"):
        bertkit.calibrate(run, data=data, output_dir=copy, overwrite=is_replaced)
    if is_replaced:
        assert read_all(copy) == before
    else:
        assert not copy.exists() or not any(copy.iterdir())


def test_earlier_rows_have_no_effect_on_the_next_temperature(copied, labeled, tmp_path):
    run, data = copied()
    other_run = shutil.copytree(run, tmp_path / "other")
    other_data = write_rows(tmp_path / "other.jsonl", labeled("classify", count=90, seed=9))
    bertkit.calibrate(run, data=data)
    second = bertkit.calibrate(run, data=other_data)
    only = bertkit.calibrate(other_run, data=other_data)
    assert second.temperature == pytest.approx(only.temperature, rel=1e-5)
    rows = make_toy_rows(20, seed=11)
    assert compute_logits(run, rows) == pytest.approx(compute_logits(other_run, rows), abs=1e-5)


def test_the_validation_rows_of_the_run_are_the_default(cli, tiny, tmp_path, few_rows):
    rows = make_toy_rows(200)
    for index, row in enumerate(rows):
        row["label"] = "negative" if index % 3 == 0 else row["label"]
    data = write_rows(tmp_path / "noisy.jsonl", rows)
    bertkit.classify(
        data=data, model=tiny, output_dir="run", max_steps=20, learning_rate=3e-3, max_length=32, bf16=False
    )
    status, out, err = cli("calibrate", "run")
    assert status == 0, err
    assert "fitted on 20 rows" in out
    assert "20 rows are few" in err
    calibration = json.loads((tmp_path / "run" / "calibration.json").read_text())
    evaluated = json.loads((tmp_path / "run" / "metrics.json").read_text())["validation"]
    assert evaluated["nll"] == pytest.approx(calibration["scores"]["before"]["nll"], abs=1e-5)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    titles = re.findall("<h3>(Reliability[^:]*)", page)
    assert titles == ["Reliability before calibration", "Reliability after calibration"]
    assert "Calibration rows: 20 of the validation split." in page
    assert "before its calibration" in page
    assert "## Calibration" in (tmp_path / "run" / "README.md").read_text("utf-8")


def train_on_label_sets(tiny, folder):
    """Train the run `run` on rows with label sets, and return other such rows."""
    rows = [
        row | {"label": [row["label"], *(["seen"] * (n % 3 > 0))]} for n, row in enumerate(make_toy_rows(80))
    ]
    data = write_rows(folder / "sets.jsonl", rows)
    bertkit.classify(data=data, model=tiny, output_dir="run", max_steps=4, problem="multi-label", bf16=False)
    return [row | {"text": f"today {row['text']}"} for row in rows]


def test_label_sets_are_calibrated(tiny, tmp_path):
    new = train_on_label_sets(tiny, tmp_path)
    before = compute_logits("run", new)
    result = bertkit.calibrate("run", data=new)
    assert result.calibration["decisions"] == 3 * 80
    assert compute_logits("run", new) * result.temperature == pytest.approx(before, abs=1e-5)


@pytest.mark.parametrize(
    ("task", "settings"),
    [("classify", {"head": "bilstm"}), ("ner", {"head": "bilstm"}), ("ner", {"features": "concat-last-4"})],
)
def test_heads_of_bertkit_are_calibrated(tiny, tmp_path, task, settings):
    if "features" in settings:
        tiny = save_tiny_model(tmp_path / "deep", num_hidden_layers=4)
    data = write_rows(tmp_path / "train.jsonl", ROW_MAKERS[task](20))
    getattr(bertkit, task)(data=data, model=tiny, output_dir="run", max_steps=1, bf16=False, **settings)
    new = write_rows(tmp_path / "new.jsonl", make_rows("run", task))
    rows = ROW_MAKERS[task](20, seed=11)
    before = compute_logits("run", rows)
    temperature = bertkit.calibrate("run", data=new).temperature
    assert compute_logits("run", rows) * temperature == pytest.approx(before, abs=1e-5)


def test_a_run_on_data_objects_gets_an_object_with_a_warning_if_it_is_another_one(tiny, monkeypatch):
    warnings = []
    monkeypatch.setattr(Reporter, "warn", lambda _, message: warnings.append(message))
    rows = make_toy_rows(150)
    for index, row in enumerate(rows):
        row["label"] = "negative" if index % 3 == 0 else row["label"]
    bertkit.classify(data=rows, model=tiny, output_dir="run", max_steps=3, bf16=False)
    with pytest.raises(bertkit.UserError, match=r"bertkit\.calibrate\(run='run', data=\.\.\.\)"):
        bertkit.calibrate("run")
    assert bertkit.calibrate("run", data=rows).calibration["data"]["rows"] == 15
    assert "is not the data of this run" not in "".join(warnings)
    new = make_rows("run", "classify")
    assert bertkit.calibrate("run", data=new).calibration["data"]["rows"] == len(new)
    assert "`data` is not the data of this run" in "".join(warnings)


@pytest.mark.parametrize(("after", "has_gain"), [(0.59, True), (0.6, False)])
def test_gain(after, has_gain):
    problem = calibrate.describe_no_gain(0.6, after, 20)
    assert (problem is None) == has_gain


def test_a_calibration_without_gain_leaves_the_run_as_it_is(cli, copied, monkeypatch):
    run, rows = copied()
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: "no gain")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, _, err = cli("calibrate", run, "--data", rows)
    assert status == 2
    assert f"bertkit: {run}: no gain; the run is unchanged, pass more rows with --data" in err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("flags", [("--coverage", 0.8), ("--threshold", "f1")])
def test_decisions_without_a_better_temperature_keep_that_of_the_model(cli, copied, monkeypatch, flags):
    """The first rows have a better one, and the second rows none: 1 or that of the first is kept."""
    run, rows = copied()
    toy = make_toy_rows(20, seed=11)
    trained = compute_logits(run, toy)
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: "no gain")
    status, _, err = cli("calibrate", run, "--data", rows, *flags)
    assert (status, "warning: no gain, so the temperature is 1.000; pass more rows" in err) == (0, True)
    assert compute_logits(run, toy) == pytest.approx(trained, abs=1e-6)
    calibration = json.loads((run / "calibration.json").read_text())
    assert calibration["scores"]["after"] == calibration["scores"]["before"]
    assert {"--coverage": "abstention", "--threshold": "threshold"}[flags[0]] in calibration
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: None)
    fitted = bertkit.calibrate(run, data=rows).temperature
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: "no gain")
    status, _, err = cli("calibrate", run, "--data", rows, *flags)
    assert (status, f"so the temperature is {fitted:.3f}" in err) == (0, True)
    assert compute_logits(run, toy) * fitted == pytest.approx(trained, abs=1e-4)


def test_several_copies_of_a_run_are_calibrated_at_the_same_time(copied, tmp_path, monkeypatch):
    run, rows = copied()
    write = calibrate._write_calibrated_copy

    def write_after_another(*args):
        monkeypatch.setattr(calibrate, "_write_calibrated_copy", write)
        bertkit.calibrate(run, data=rows, output_dir=tmp_path / "first")
        write(*args)

    monkeypatch.setattr(calibrate, "_write_calibrated_copy", write_after_another)
    bertkit.calibrate(run, data=rows, output_dir=tmp_path / "second")
    assert {RunDir(tmp_path / name).is_finished for name in ("first", "second")} == {True}
    with locks.lock_directory(run), pytest.raises(bertkit.UserError, match="another run is using"):
        bertkit.calibrate(run, data=rows, output_dir=tmp_path / "third")


def test_a_model_that_continues_from_a_calibrated_run_is_not_calibrated(copied, toy):
    run, data = copied()
    bertkit.calibrate(run, data=data)
    assert read_temperature(run) != 1
    next_run = bertkit.classify(data=toy, model=run, output_dir="next", max_steps=1)
    assert read_temperature(next_run.output_dir) == 1


def test_training_rows_and_a_former_export_are_reported(copied, runs, cli):
    run, _ = copied()
    (run / "onnx").mkdir()
    (run / "onnx" / "model.onnx").touch()
    train = [json.loads(line) for line in (runs / "classify.jsonl").read_text("utf-8").splitlines()]
    records = list(bertkit.load(run).predict(train))
    for index, (row, record) in enumerate(zip(train, records, strict=True)):
        row["label"] = record["predicted"] if index % 4 else make_wrong("classify", row, record["predicted"])
    status, _, err = cli("calibrate", run, "--data", write_rows(run.parent / "train.jsonl", train))
    assert status == 0, err
    assert "54 of 60 rows are also training rows" in err
    assert f"run bertkit export {run} --overwrite" in " ".join(err.split())


# ---- a temperature that depends on the margin


@pytest.fixture(scope="module")
def curved(tiny, tmp_path_factory):
    """Return a run, and rows on which it is right if it is confident, and guesses if it is not."""
    folder = tmp_path_factory.mktemp("curved")
    data = write_rows(folder / "train.jsonl", make_toy_rows(60))
    settings = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-2, "bf16": False}
    run = bertkit.classify(data=data, model=tiny, output_dir=folder / "run", **settings).output_dir
    rows = make_toy_rows(400, seed=7)
    records = list(bertkit.predict(run, data=rows, all_scores=True))
    confidence = np.array([max(record["probabilities"].values()) for record in records])
    is_unsure = confidence < np.median(confidence)
    for index, (row, record) in enumerate(zip(rows, records, strict=True)):
        is_wrong = is_unsure[index] and index % 5 < 2
        row["label"] = make_wrong("classify", row, record["predicted"]) if is_wrong else record["predicted"]
    return run, write_rows(folder / "curved.jsonl", rows)


def test_the_output_layer_approximates_a_temperature_that_depends_on_the_margin(curved, cli, tmp_path):
    from transformers import pipeline

    run, data = curved
    texts = [row["text"] for row in make_toy_rows(20, seed=3)]
    before = compute_logits(run, make_toy_rows(20, seed=3))
    status, out, err = cli("calibrate", run, "--data", data, "-o", tmp_path / "first")
    assert status == 0, err
    assert "adaptive temperature, fitted on 400 rows" in out
    calibration = json.loads((tmp_path / "first" / "calibration.json").read_text())
    assert calibration["method"] == "adaptive temperature"
    nll = calibration["nll_by_method"]
    assert calibration["scores"]["after"]["nll"] == nll["adaptive temperature"] < nll["temperature"]
    numbers = calibration["inverse_temperature"]
    margins = np.abs(before[:, 1] - before[:, 0])
    expected = before * (numbers["intercept"] + numbers["slope"] * margins)[:, None]
    after = compute_logits(tmp_path / "first", make_toy_rows(20, seed=3))
    assert np.corrcoef(after[:, 1] - after[:, 0], expected[:, 1] - expected[:, 0])[0, 1] > 0.95
    predicted = bertkit.predict(tmp_path / "first", text=texts, all_scores=True)
    stock = pipeline("text-classification", str(tmp_path / "first"), top_k=None)(texts)
    for record, scores in zip(predicted, stock, strict=True):
        probabilities = {score["label"]: score["score"] for score in scores}
        assert probabilities == pytest.approx(record["probabilities"], abs=1e-5)
    bertkit.calibrate(tmp_path / "first", data=data, output_dir=tmp_path / "second")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert weights[0] == weights[1]


def test_an_earlier_calibration_of_each_kind_has_no_effect(curved, tmp_path):
    run, data = curved
    few = [json.loads(line) for line in data.read_text("utf-8").splitlines()][:100]
    rows = {"few": few, "curved": data}
    for name in rows:
        bertkit.calibrate(run, data=rows[name], output_dir=tmp_path / name)
    for name, other in [("few", "curved"), ("curved", "few")]:
        output_dir = tmp_path / f"{name} after {other}"
        again = bertkit.calibrate(tmp_path / other, data=rows[name], output_dir=output_dir)
        ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / name, output_dir))
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[key])
        temperature = read_temperature(tmp_path / name)
        assert (temperature is None) == (name == "curved")
        assert again.temperature == (temperature and pytest.approx(temperature, rel=1e-5))


# ---- interruptions


def test_a_failed_write_leaves_the_run_unchanged(copied, labeled, monkeypatch):
    run, data = copied()
    bertkit.calibrate(run, data=data)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bertkit.models.heads.save_file", fail)
    with pytest.raises(bertkit.UserError, match="cannot be written"):
        bertkit.calibrate(run, data=labeled("classify", count=90, seed=9))
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_an_interrupt_after_the_weights_leaves_a_valid_run(copied, labeled, monkeypatch):
    run, data = copied()
    bertkit.calibrate(run, data=data)
    new_rows = labeled("classify", count=90, seed=9)

    calls = []

    def interrupt_second_call(*args):  # the first removes the numbers of the former weights
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write_text(*args)

    with monkeypatch.context() as patched:
        patched.setattr("bertkit.commands.calibrate.write_text", interrupt_second_call)
        with pytest.raises(KeyboardInterrupt):
            bertkit.calibrate(run, data=new_rows)
    assert not (run / "calibration.json").exists()  # it would describe other weights
    assert list(bertkit.predict(run, text=["a good film"]))
    temperature = read_temperature(run)
    assert bertkit.calibrate(run, data=new_rows).temperature == temperature


# ---- errors


def train_regression(tiny, tmp_path):
    rows = [{"text": row["text"], "label": 0.1 * len(row["text"])} for row in make_toy_rows(40)]
    data = write_rows(tmp_path / "numbers.jsonl", rows)
    bertkit.classify(data=data, model=tiny, output_dir="numbers", max_steps=1, problem="regression")


def test_runs_that_cannot_be_calibrated_are_refused(runs, cli, tiny, tmp_path):
    train_regression(tiny, tmp_path)
    (tmp_path / "unfinished").mkdir()
    for run, words in [
        (tmp_path / "unfinished", ["is not a finished run"]),
        (tmp_path / "numbers", ["numbers: is a run of classify (regression", "cannot be calibrated"]),
        (runs / "pretrain-mlm-nsp", ["is a run of pretrain-mlm-nsp, which cannot be calibrated"]),
        (runs / "qa", ["6 paragraphs to calibrate on", "--data"]),
    ]:
        assert_refused(cli, tmp_path, [run], words, "calibrate")


def test_an_exported_model_is_refused(runs, cli, tmp_path):
    run = shutil.copytree(runs / "classify", tmp_path / "exported")
    (run / "model.onnx").touch()
    assert_refused(cli, tmp_path, [run], ["is an exported model", "calibrate the run"], "calibrate")


@pytest.fixture(scope="module")
def wrong_files(runs, tmp_path_factory):
    """The folder of files whose rows do not determine a temperature."""
    folder, rows = tmp_path_factory.mktemp("wrong"), make_toy_rows(30, seed=5)
    predicted = [record["predicted"] for record in bertkit.load(runs / "classify").predict(rows)]
    correct = [row | {"label": label} for row, label in zip(rows, predicted, strict=True)]
    wrong = [row | {"label": make_wrong("classify", row, row["label"])} for row in correct]
    write_rows(folder / "few.jsonl", rows[:9])
    write_rows(folder / "equal.jsonl", rows[:1] * 20)
    write_rows(folder / "unlabeled.jsonl", [{"text": row["text"]} for row in rows])
    write_rows(folder / "correct.jsonl", correct)
    write_rows(folder / "wrong.jsonl", wrong)
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["classify.jsonl", "6 different rows to calibrate on", "at least 10", "--data"]),
        (["--data", "few.jsonl"], ["few.jsonl", "9 different rows to calibrate on"]),
        (["--data", "equal.jsonl"], ["equal.jsonl", "1 different row to calibrate on"]),
        (["--data", "unlabeled.jsonl"], ["unlabeled.jsonl", "no column 'label'"]),
        (["--data", "correct.jsonl"], ["all rows are classified correctly", "--data"]),
        (["--data", "wrong.jsonl"], ["not better than guessing", "--data"]),
        (["--data", "missing.jsonl"], ["missing.jsonl"]),
        (["--text-column", "body"], ["--text-column: applies only to --data"]),
        (["--encoding", "latin-1"], ["--encoding: applies only to --data"]),
    ],
)
def test_rows_that_do_not_determine_a_temperature_are_refused(
    copied, wrong_files, cli, tmp_path, flags, words
):
    run, _ = copied()
    shutil.copytree(wrong_files, tmp_path, dirs_exist_ok=True)
    weights = (run / "model.safetensors").read_bytes()
    assert_refused(cli, tmp_path, [run, *flags], words, "calibrate")
    assert (run / "model.safetensors").read_bytes() == weights


def test_a_head_that_is_not_linear_is_refused(copied, monkeypatch):
    """A model whose logits are not a linear function of its last layer's parameters is left as it was."""
    run, data = copied()
    weights = (run / "model.safetensors").read_bytes()
    original = calibrate.set_parameters

    def add_nonlinearity(model, parameters):
        from bertkit.models.heads import find_output_layer

        _, layer = find_output_layer(model)
        layer.register_forward_hook(lambda _module, _inputs, output: output + 1)
        original(model, parameters)

    monkeypatch.setattr(calibrate, "set_parameters", add_nonlinearity)
    with pytest.raises(bertkit.UserError, match="not a linear function"):
        bertkit.calibrate(run, data=data)
    assert (run / "model.safetensors").read_bytes() == weights


def test_the_temperature_is_a_number_of_the_file_of_weights(copied):
    run, data = copied()
    assert read_temperature(run) == 1
    temperature = bertkit.calibrate(run, data=data).temperature
    assert read_temperature(run) == temperature
    assert np.isfinite(temperature)


def test_folds_without_an_error_have_the_temperature_of_all_rows():
    logits = np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    right = Decisions.from_classes(logits, np.array([0, 1, 0]))
    assert calibrate._fit_fold(right, 0.7) == 0.7
    wrong = Decisions.from_classes(logits, np.array([0, 1, 1]))
    assert calibrate._fit_fold(wrong, 0.7) == pytest.approx(fit_temperature(wrong))
