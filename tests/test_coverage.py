"""`bertkit calibrate --coverage`: abstention, prediction sets, and the probability of right answers."""

import json
import shutil

import hypothesis
import numpy as np
import pytest
from conftest import assert_refused, make_qa_rows, read_predictions, write_rows
from hypothesis import strategies as st
from test_calibrate import make_rows, train_on_label_sets

import bertkit
from bertkit.stats.calibration import (
    EceScorer,
    SelectiveScorer,
    compute_calibration,
    compute_margins,
    compute_risk_coverage,
    find_members,
    fit_min_confidence,
    fit_set_margin,
    score_sets,
)
from bertkit.tasks.qa.predictions import compute_answer_probability, fit_answer_weights


def make_decisions(seed, num_rows, num_classes=4):
    """Return logits of exchangeable rows, and gold classes that follow their softmax at temperature 2."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_rows, num_classes))
    noise = rng.gumbel(size=logits.shape)
    return logits, (logits / 2 + noise).argmax(1)


# ---- abstention


@hypothesis.settings(max_examples=30)
@hypothesis.given(seed=st.integers(0, 200), coverage=st.sampled_from([0.01, 0.3, 0.5, 0.8, 0.99]))
def test_the_fraction_of_answered_rows_is_the_coverage(seed, coverage):
    confidence = np.random.default_rng(seed).random(57)
    is_answered = confidence >= fit_min_confidence(confidence, coverage)
    assert is_answered.sum() == np.ceil(coverage * 57)
    for moved in (confidence * (1 + 1e-9), confidence * (1 - 1e-9)):  # rounding changes no answer
        assert ((moved >= fit_min_confidence(confidence, coverage)) == is_answered).all()


def test_rows_of_equal_confidence_are_answered_together():
    confidence = np.array([0.9, 0.5, 0.5, 0.5])
    assert (confidence >= fit_min_confidence(confidence, 0.5)).sum() == 4


def test_the_area_is_the_mean_risk_over_all_numbers_of_answered_rows():
    rng = np.random.default_rng(0)
    confidence, is_correct = rng.random(50), rng.random(50) < 0.7
    order = np.argsort(-confidence)
    risks = [1 - is_correct[order[:count]].mean() for count in range(1, 51)]
    scorer = SelectiveScorer(confidence, is_correct, 0.5)
    scores = scorer.score(np.arange(50))
    assert scores["aurc"] == pytest.approx(np.mean(risks))
    assert scores["coverage"] == (confidence >= 0.5).mean()
    assert scores["answered_accuracy"] == pytest.approx(is_correct[confidence >= 0.5].mean())
    curve = compute_risk_coverage(confidence, is_correct)
    assert curve["risk"][-1] == pytest.approx(1 - is_correct.mean())
    assert curve["risk"][3] == pytest.approx(risks[9])  # a coverage of 0.2
    nothing = scorer.score(np.flatnonzero(confidence < 0.5))
    assert nothing["coverage"] == 0
    assert "answered_accuracy" not in nothing


# ---- prediction sets


@pytest.mark.parametrize("num_classes", [2, 4])
def test_prediction_sets_have_the_guaranteed_coverage(num_classes):
    """The mean coverage over random splits of exchangeable rows is 90 %."""
    logits, gold = make_decisions(0, 2000, num_classes)
    rng, coverages = np.random.default_rng(1), []
    for _ in range(20):
        order = rng.permutation(2000)
        fitted, new = order[:500], order[500:]
        margin = fit_set_margin(logits[fitted], gold[fitted])
        coverages.append(score_sets(find_members(logits[new], margin), gold[new])["set_coverage"])
    assert 0.88 <= np.mean(coverages) <= 0.92


@hypothesis.settings(max_examples=20)
@hypothesis.given(seed=st.integers(0, 100), temperature=st.floats(0.1, 10))
def test_sets_do_not_depend_on_the_temperature(seed, temperature):
    logits, gold = make_decisions(seed, 60)
    sets = find_members(logits, fit_set_margin(logits, gold))
    scaled = find_members(logits / temperature, fit_set_margin(logits, gold) / temperature)
    assert (sets == scaled).all()
    num_missed = len(gold) - sets[np.arange(60), gold].sum()
    assert num_missed <= (60 + 1) * 0.1


def test_margins_are_differences_from_the_best_other_class():
    logits = np.array([[3.0, 1.0, -np.inf], [2.0, 2.0, 0.0]])
    assert compute_margins(logits).tolist() == [[2.0, -2.0, -np.inf], [0.0, 0.0, -2.0]]
    assert find_members(logits, -np.inf).sum(1).tolist() == [2, 3]


# ---- answers


def test_the_probability_of_answers_is_calibrated():
    rng = np.random.default_rng(0)
    score, odds = rng.normal(5, 3, 4000), rng.normal(-2, 2, 4000)
    is_correct = rng.random(4000) < 1 / (1 + np.exp(-(0.4 * score - 0.5 * odds - 2)))
    features = {"score": score, "null_odds": odds}
    weights = fit_answer_weights(features, is_correct)
    assert weights == pytest.approx({"intercept": -2, "score": 0.4, "null_odds": -0.5}, abs=0.15)
    assert compute_calibration(compute_answer_probability(features, weights), is_correct).ece < 0.03


def test_the_ece_of_a_sample_is_that_of_its_predictions():
    rng = np.random.default_rng(0)
    confidence, is_correct, row = rng.random(40), rng.random(40) < 0.5, np.arange(40) // 2
    scorer = EceScorer(confidence, is_correct, row, 21)  # the last row has no prediction
    assert scorer.score(np.arange(21)) == pytest.approx(compute_calibration(confidence, is_correct).ece)
    first = compute_calibration(confidence[:10], is_correct[:10]).ece
    assert scorer.score(np.arange(5)) == pytest.approx(first)


# ---- runs


def read_fitted(run):
    return json.loads((run / "config.json").read_text("utf-8")).get("bertkit_confidence", {})


@pytest.fixture
def copied(runs, tmp_path):
    """Return a function that copies the run of a task, and writes rows to calibrate it on."""

    def copy(task="classify", count=60):
        run = shutil.copytree(runs / task, tmp_path / "run")
        if task == "qa":
            return run, write_rows(
                tmp_path / "rows.jsonl", make_qa_rows(count, seed=5, unanswerable=count // 3)
            )
        return run, write_rows(tmp_path / "rows.jsonl", make_rows(run, task, count))

    return copy


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "nli", "ner"])
def test_the_model_abstains_from_rows_of_low_confidence(copied, cli, task):
    run, data = copied(task)
    status, out, err = cli("calibrate", run, "--data", data, "--coverage", "0.7", "--json")
    assert status == 0, err
    found = json.loads(out)
    min_confidence = read_fitted(run)["min_confidence"]
    assert found["abstention"]["min_confidence"] == min_confidence
    assert found["abstention"]["scores"]["after"]["coverage"] == pytest.approx(0.7, abs=0.2)
    assert len(found["risk_coverage"]["risk"]) == 20
    records = list(bertkit.predict(run, data=data, all_scores=True))
    answered = [record for record in records if not record["abstained"]]
    assert len(answered) == np.ceil(0.7 * 60)
    if task != "ner":
        for record in records:
            assert record["abstained"] == (max(record["probabilities"].values()) < min_confidence)
    evaluated = json.loads(cli("evaluate", run, "--data", data, "--json")[1])
    scores = evaluated["validation"]
    assert scores["coverage"] == 0.7
    assert 0 <= scores["aurc"] <= 1
    folder = run.parent / evaluated["output_dir"]
    right = [r["predicted"] == r["gold"] for r in read_predictions(folder) if not r["abstained"]]
    assert scores["answered_accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.slow
def test_the_calibration_error_of_entities_is_reported(copied, cli):
    run, data = copied("ner")
    scores = bertkit.calibrate(run, data=data).calibration["scores"]
    evaluated = json.loads(cli("evaluate", run, "--data", data, "--json")[1])
    records = read_predictions(run.parent / evaluated["output_dir"])
    entities = [(entity["score"], record) for record in records for entity in record["entities"]]
    assert entities
    assert 0 <= evaluated["validation"]["entity_ece"] <= 1
    assert set(scores["before"]) == set(scores["after"]) == {"ece", "nll", "brier", "entity_ece"}
    assert scores["before"]["entity_ece"] != scores["after"]["entity_ece"]


@pytest.mark.slow
def test_calibrating_again_removes_the_abstention(copied):
    run, data = copied()
    bertkit.calibrate(run, data=data, coverage=0.5)
    first = read_fitted(run)
    bertkit.calibrate(run, data=data, coverage=0.5)
    assert read_fitted(run) == pytest.approx(first, abs=1e-6)
    bertkit.calibrate(run, data=data)
    assert "min_confidence" not in read_fitted(run)
    assert "abstained" not in next(iter(bertkit.predict(run, text=["a film"])))


@pytest.mark.slow
def test_a_model_that_continues_from_the_run_does_not_abstain(copied, toy):
    run, data = copied()
    bertkit.calibrate(run, data=data, coverage=0.5)
    next_run = bertkit.classify(data=toy, model=run, output_dir="next", max_steps=1).output_dir
    assert read_fitted(next_run) == {}


@pytest.mark.slow
def test_label_sets_abstain_by_their_least_confident_label(tiny, tmp_path):
    new = train_on_label_sets(tiny, tmp_path)
    bertkit.calibrate("run", data=new, coverage=0.4)
    min_confidence = read_fitted(tmp_path / "run")["min_confidence"]
    assert "set_margin" not in read_fitted(tmp_path / "run")
    for record in bertkit.predict("run", data=new, all_scores=True):
        confidence = min(max(p, 1 - p) for p in record["probabilities"].values())
        assert record["abstained"] == (confidence < min_confidence)


@pytest.mark.slow
def test_predict_writes_the_prediction_set_with_all_scores(copied, cli):
    run, data = copied("nli")
    status, out, err = cli("calibrate", run, "--data", data)
    assert status == 0, err
    assert "90% prediction sets" in out
    rows = [json.loads(line) for line in data.read_text("utf-8").splitlines()]
    records = list(bertkit.predict(run, data=data, all_scores=True))
    num_missed = sum(
        row["label"] not in record["prediction_set"] for row, record in zip(rows, records, strict=True)
    )
    assert num_missed <= (60 + 1) * 0.1
    assert all("prediction_set" not in record for record in bertkit.predict(run, data=data))
    scores = json.loads(cli("evaluate", run, "--data", data, "--json")[1])["validation"]
    assert scores["set_coverage"] == pytest.approx(1 - num_missed / 60)
    assert scores["set_size"] == pytest.approx(np.mean([len(record["prediction_set"]) for record in records]))


@pytest.mark.slow
def test_answers_get_the_probability_that_they_are_right(copied, cli):
    run, data = copied("qa", count=120)
    weights = (run / "model.safetensors").read_bytes()
    status, out, err = cli("calibrate", run, "--data", data, "--coverage", "0.5")
    assert status == 0, err
    assert "probabilities, fitted on 120 rows" in out
    assert (run / "model.safetensors").read_bytes() == weights
    calibration = json.loads((run / "calibration.json").read_text("utf-8"))
    assert calibration["scores"]["after"]["nll"] < calibration["scores"]["before"]["nll"]
    records = list(bertkit.predict(run, data=data))
    min_confidence = read_fitted(run)["min_confidence"]
    assert all(record["abstained"] == (record["probability"] < min_confidence) for record in records)
    scores = json.loads(cli("evaluate", run, "--data", data, "--json")[1])["validation"]
    assert {"exact", "ece", "coverage", "answered_accuracy"} <= set(scores)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1", "x"])
def test_other_coverages_are_refused(copied, cli, tmp_path, value):
    run, data = copied()
    assert_refused(cli, tmp_path, [run, "--data", data, "--coverage", value], ["coverage"], "calibrate")


@pytest.mark.slow
def test_the_page_and_the_card_show_the_abstention(copied):
    run, data = copied()
    bertkit.calibrate(run, data=data, coverage=0.8)
    assert "`abstained`" in (run / "README.md").read_text("utf-8")
    page = (run / "report.html").read_text("utf-8")
    assert "Risk and coverage: AURC" in page
    assert '<th class="n" scope="col">rows without answer</th>' in page
    assert "Scores by threshold" not in page
    bertkit.calibrate(run, data=data, threshold="f1")
    assert "Scores by threshold" in (run / "report.html").read_text("utf-8")
