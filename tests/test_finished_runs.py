"""Runs, studies and exports that an earlier version wrote are used as if they were written today.

`finished_runs/make.py` says how they were made. Their files do not change with the code.
"""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import read_predictions

import bertkit
from bertkit.commands import calibrate
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.tasks.base import Outputs
from bertkit.tasks.trained_model import load_run_task, load_task_state

pytestmark = pytest.mark.cpu  # numbers are equal up to rounding

FINISHED_RUNS = Path(__file__).parent / "finished_runs"
# Runs that predict rows, with the files of their rows.
ROWS = {
    "bilstm": "ner", "calibrated": "classify", "classify": "classify", "contrastive": "classify",
    "distilled": "classify", "exported": "classify", "multi-label": "multi-label", "ner": "ner", "nli": "nli",
    "qa": "qa", "regression": "regression", "study": "classify", "swag": "swag",
}  # fmt: skip
PRETRAINED = ["left-to-right", "pretrain-mlm-nsp", "replaced-tokens"]
# Directories with the predictions and the scores of runs that have none of their own.
EVALUATIONS = {
    "calibrated": "calibrated-evaluation", "exported": "classify", "study": "study-evaluation",
}  # fmt: skip
# Columns that predictions repeat under another name, and that bertkit must not read.
GOLD = {"label", "tags", "answers"}
RESULTS = ["validation", "test", "details"]  # sections of metrics.json
NOT_EVALUATED = {"replaced-tokens": {"majority"}}  # baselines that only training computes


@pytest.fixture(scope="module")
def shared_copy(tmp_path_factory):
    """A copy that nobody changes."""
    return shutil.copytree(FINISHED_RUNS, tmp_path_factory.mktemp("finished") / "runs")


@pytest.fixture
def runs(shared_copy, tmp_path):
    """Links to them in the working directory, to which their paths are relative."""
    for path in shared_copy.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture
def own_runs(tmp_path):
    """A copy of them in the working directory that the test changes."""
    return shutil.copytree(FINISHED_RUNS, tmp_path, dirs_exist_ok=True)


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def parse(path):
    """Return the content of a file of predictions."""
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line]
    return json.loads(text) if path.suffix == ".json" else text


def is_close(found, expected, tolerance):
    """Return whether values are equal, with a tolerance for numbers with a fraction."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_close(found[key], expected[key], tolerance) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_close, found, expected, [tolerance] * len(found)))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return found == expected


def assert_close(found, expected, tolerance=1e-5):
    assert is_close(found, expected, tolerance), (found, expected)


# ---- predictions and scores


@pytest.mark.parametrize("name", ROWS)
def test_new_rows_get_the_stored_predictions(runs, name):
    stored = read_predictions(runs / EVALUATIONS.get(name, name))
    rows = read_predictions(runs / "data", f"{ROWS[name]}-validation.jsonl")
    inputs = [{key: value for key, value in row.items() if key not in GOLD} for row in rows]
    records = list(bertkit.load(runs / name).predict(inputs))
    assert len(records) == len(stored) == 24
    for record, expected in zip(records, stored, strict=True):
        expected = {key: value for key, value in expected.items() if key != "gold"}
        assert_close({key: value for key, value in record.items() if key in expected}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, *PRETRAINED])
def test_evaluate_returns_the_stored_scores_and_predictions(runs, name):
    source = runs / EVALUATIONS.get(name, name)
    stored = read_json(source / "metrics.json")
    data = {"data": "data/classify-validation.jsonl"} if name == "study" else {}
    metrics = bertkit.evaluate(runs / name, output_dir="scores", **data).metrics
    for section in RESULTS:
        assert_close(drop_new(metrics.get(section, {})), stored.get(section, {}), 1e-6)
    assert drop_new(metrics["intervals"]).keys() == stored["intervals"].keys()
    missing = NOT_EVALUATED.get(name, set()) | {"linear_probe"}  # which tests leave out
    baselines = {key: scores for key, scores in stored["baselines"].items() if key not in missing}
    found = {key: drop_new(scores) for key, scores in metrics["baselines"].items()}
    assert_close(found, baselines, 1e-3)  # fitted again, by any version of scikit-learn
    written = [
        path for path in (runs / "scores").iterdir() if re.search("predictions|samples|odds", path.name)
    ]
    assert written
    for path in written:
        records = parse(path)
        if "samples" in path.name:
            records = [drop_new(record) for record in records]
        assert_close(records, parse(source / path.name))


def drop_new(scores):
    """Return scores without those that the runs were written without, and with their former names."""
    kept = {name: value for name, value in scores.items() if name not in ("rmse", "bits_per_byte")}
    return {re.sub("^lm_", "mlm_", name): value for name, value in kept.items()}


@pytest.mark.slow
def test_two_runs_are_compared_on_the_same_rows(runs):
    metrics = bertkit.evaluate("distilled", compare="classify", output_dir="scores").metrics
    stored = read_json(runs / "classify" / "metrics.json")
    assert_close(metrics["compared"]["validation"], stored["validation"], 1e-6)


@pytest.mark.parametrize("name", PRETRAINED)
def test_texts_are_embedded_with_a_pretrained_model(runs, name):
    assert bertkit.embed(model=name, text=["the soup was warm", "it was cold"]).vectors.shape == (2, 8)


def test_masks_are_filled(runs):
    [text] = bertkit.fill_mask(model="pretrain-mlm-nsp", text=["the soup was [MASK]"], top=3).texts
    assert len(text["masks"][0]) == 3


# ---- pages


@pytest.mark.parametrize("name", [*(name for name in ROWS if name != "study"), *PRETRAINED])
def test_report_writes_the_page_of_a_run(runs, name):
    assert bertkit.report(runs=[name], output="page.html").path.stat().st_size > 10_000


@pytest.mark.parametrize("name", ["calibrated-evaluation", "study-evaluation", "study/folds/fold0-seed0"])
def test_report_writes_the_page_of_an_evaluation_and_of_a_run_of_a_study(runs, name):
    assert bertkit.report(runs=[name], output="page.html").path.stat().st_size > 10_000


def test_report_compares_runs(runs):
    report = bertkit.report(runs=["classify", "distilled", "calibrated"], output="page.html")
    assert report.path.stat().st_size > 10_000


# ---- calibration


def test_temperature_threshold_and_abstention_are_applied(runs):
    calibration = read_json(runs / "calibrated" / "calibration.json")
    temperature, threshold = calibration["temperature"], calibration["threshold"]["thresholds"]["positive"]
    assert abs(temperature - 1) > 0.1
    assert threshold < 0.4
    rows = read_predictions(runs / "data", "classify-validation.jsonl")
    before, after = (list(bertkit.load(name).predict(rows)) for name in ("classify", "calibrated"))

    def compute_logits(records):
        probabilities = [record["probabilities"] for record in records]
        return [math.log(row["positive"] / row["negative"]) for row in probabilities]

    assert_close([logit * temperature for logit in compute_logits(after)], compute_logits(before))
    for record in after:
        probability = record["probabilities"]["positive"]
        assert record["predicted"] == ("positive" if probability >= threshold else "negative")
        is_below = max(probability, 1 - probability) < calibration["abstention"]["min_confidence"]
        assert record["abstained"] == is_below
    assert len({record["abstained"] for record in after}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classify", "calibrated"])
def test_calibrating_again_fits_the_stored_values(own_runs, name, monkeypatch):
    monkeypatch.setattr(calibrate, "describe_no_gain", lambda *_: None)  # that was only a warning
    stored = read_json(own_runs / "calibrated" / "calibration.json")
    result = bertkit.calibrate(name, threshold="f1", coverage=0.8)
    assert_close(result.calibration, stored, 1e-3)
    assert (own_runs / name / "README.md").read_text().count("calibrat")


# ---- studies


def test_label_issues_are_the_stored_ones(own_runs):
    stored = read_predictions(own_runs / "study", "label_issues.jsonl")
    (own_runs / "study" / "label_issues.jsonl").unlink()
    assert bertkit.label_issues("study").records == stored
    assert read_predictions(own_runs / "study", "label_issues.jsonl") == stored


def test_members_of_an_ensemble_are_used_like_other_runs(runs):
    members = read_json(runs / "study" / "ensemble" / "ensemble.json")["members"]
    rows = read_predictions(runs / "data", "classify-validation.jsonl")
    folders = [runs / "study" / "ensemble" / member for member in members]
    predicted = [list(bertkit.load(folder).predict(rows)) for folder in (*folders, "study")]
    for *parts, record in zip(*predicted, strict=True):
        mean = sum(part["probabilities"]["positive"] for part in parts) / len(members)
        assert_close(record["probabilities"]["positive"], mean)


@pytest.mark.slow
@pytest.mark.intervals
def test_the_results_of_a_study_are_computed_again_without_training(own_runs):
    stored = read_json(own_runs / "study" / "study.json")
    shutil.rmtree(own_runs / "study" / "ensemble")
    for name in ("study.json", "metrics.json", "out_of_fold.jsonl"):
        (own_runs / "study" / name).unlink()
    kept = [*own_runs.glob("study/**/*.safetensors"), *own_runs.glob("study/**/metrics.json")]
    before = {path: path.read_bytes() for path in kept}
    metrics = bertkit.study("classify", resume=True, output_dir="study").metrics
    assert {path: path.read_bytes() for path in kept} == before
    assert (own_runs / "study" / "ensemble" / "ensemble.json").exists()
    predictions = read_predictions(FINISHED_RUNS / "study", "out_of_fold.jsonl")
    assert_close(read_predictions(own_runs / "study", "out_of_fold.jsonl"), predictions)
    for results in (metrics, stored):
        results["baselines"].pop("linear_probe", None)
        times = [name for name in results["ensemble"] if "seconds" in name]
        assert [results["ensemble"].pop(name) for name in times]
    assert_close(metrics, stored, 1e-3)


# ---- settings


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", [*(f"{name}/run.yaml" for name in [*ROWS, *PRETRAINED]), "study/recipe.yaml"]
)
def test_stored_settings_are_a_recipe(runs, recipe):
    command = yaml.safe_load((runs / recipe).read_text("utf-8"))["task"].split()
    function = getattr(bertkit, command[0].replace("-", "_"))
    assert function(*command[1:], recipe=recipe, dry_run=True).metrics


def test_the_files_have_keys_of_earlier_versions_and_no_paths_of_a_machine():
    settings = yaml.safe_load((FINISHED_RUNS / "distilled" / "run.yaml").read_text("utf-8"))["settings"]
    assert settings["hidden_loss_weight"] == 0.5
    assert read_json(FINISHED_RUNS / "classify" / "metrics.json")["training"].keys() >= {
        "mfu", "peak_flops", "peak_flops_source",
    }  # fmt: skip
    left_to_right = read_json(FINISHED_RUNS / "left-to-right" / "metrics.json")
    assert {"mlm_loss", "mlm_accuracy", "perplexity"} <= left_to_right["validation"].keys()
    assert "mlm_loss" in read_predictions(FINISHED_RUNS / "left-to-right", "masked_samples.jsonl")[0]
    texts = {path: path.read_bytes().decode("latin1") for path in FINISHED_RUNS.rglob("*.*")}
    found = [
        path for path, text in texts.items() if re.search(r"[/\\](?:home|root|tmp|Users|work)[/\\]", text)
    ]
    assert found == []


def test_a_graph_of_another_run_with_fewer_outputs_is_one_line():
    folder = Path(__file__).parent / "finished_runs" / "classify"
    task = load_run_task(folder)
    load_task_state(task, folder)
    rows = Rows.from_dicts([{"text": "good", "label": None}], "rows")
    with pytest.raises(UserError, match="1 output for 2 labels: it is that of another run; export"):
        task.evaluate(Outputs(np.zeros((1, 1)), None, rows))
