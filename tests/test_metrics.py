"""Scores equal scikit-learn's and SciPy's; intervals and baselines mean what they say."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.stats.baseline_models import predict_majority, predict_tfidf
from bertkit.stats.scores import score_multi_label, score_regression, score_single_label
from bertkit.stats.significance import Scorer, compute_intervals

CASES = json.loads((Path(__file__).parent / "golden" / "glue_scores.json").read_text())
pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=50)


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.slow
@given(pairs=pairs)
def test_single_label_scores_equal_scikit_learns(pairs):
    gold, predicted = np.array(pairs).T
    scores = score_single_label(gold, predicted, 4)
    macro = {"average": "macro", "zero_division": 0}
    assert scores["accuracy"] == pytest.approx(sk.accuracy_score(gold, predicted))
    assert scores["f1"] == pytest.approx(sk.f1_score(gold, predicted, **macro))
    assert scores["precision"] == pytest.approx(sk.precision_score(gold, predicted, **macro))
    assert scores["recall"] == pytest.approx(sk.recall_score(gold, predicted, **macro))
    assert scores["matthews"] == pytest.approx(sk.matthews_corrcoef(gold, predicted))


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1))
def test_positive_f1_is_of_the_positive_label(pairs):
    gold, predicted = np.array(pairs).T
    for positive in (0, 1):
        wanted = sk.f1_score(gold, predicted, pos_label=positive, zero_division=0)
        assert score_single_label(gold, predicted, 2, positive)["positive_f1"] == pytest.approx(wanted)


@pytest.mark.slow
@given(bits=st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1))
def test_multi_label_scores_equal_scikit_learns(bits):
    gold, predicted = np.array(bits)[:, :3], np.array(bits)[:, 3:]
    scores = score_multi_label(gold, predicted)
    for average in ("micro", "macro"):
        wanted = sk.f1_score(gold, predicted, average=average, zero_division=0)
        assert scores[f"{average}_f1"] == pytest.approx(wanted)
    assert scores["accuracy"] == pytest.approx(sk.accuracy_score(gold, predicted))


def test_correlations_equal_scipys_and_are_zero_for_a_constant():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 5, 40).astype(float)
    predicted = gold + rng.normal(size=40)
    scores = score_regression(gold, predicted)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic)
    constant = np.full(40, np.float32(1.1)).astype(float)
    rmse = float(np.sqrt(np.mean((gold - constant) ** 2)))
    assert score_regression(gold, constant) == {"pearson": 0.0, "spearman": 0.0, "rmse": pytest.approx(rmse)}


def sklearns(gold, predicted, name):
    """The same score by scikit-learn or SciPy."""
    return {
        "accuracy": lambda: sk.accuracy_score(gold, predicted),
        "f1": lambda: sk.f1_score(gold, predicted, average="macro"),
        "positive_f1": lambda: sk.f1_score(gold, predicted),
        "matthews": lambda: sk.matthews_corrcoef(gold, predicted),
        "pearson": lambda: stats.pearsonr(gold, predicted).statistic,
        "spearman": lambda: stats.spearmanr(gold, predicted).statistic,
    }[name]()


@pytest.mark.parametrize("name", CASES)
def test_glue_scores_of_stored_cases(name):
    case = CASES[name]
    gold, predicted = np.array(case["gold"]), np.array(case["predicted"])
    ours = (
        score_regression(gold, predicted)
        if gold.dtype.kind == "f"
        else score_single_label(gold, predicted, 3, 1)
    )
    assert len(case["scores"]) >= 2
    for score, stored in case["scores"].items():
        assert ours[score] == pytest.approx(stored, abs=1e-12)
        assert sklearns(gold, predicted, score) == pytest.approx(stored, abs=1e-12)


def test_intervals_hold_the_score_and_shrink_with_more_rows():
    def width(size):
        gold = np.arange(size) % 2
        predicted = np.where(np.arange(size) % 5 == 0, 1 - gold, gold)
        score = Scorer(
            lambda rows: score_single_label(gold[rows], predicted[rows], 2), size, gold == predicted
        )
        found = compute_intervals(score)
        assert all(low < 0.8 < high for low, high in (found["accuracy"], found["f1"]))
        wide = 2 * 1.96 * (0.8 * 0.2 / size) ** 0.5  # the normal approximation of a fraction
        assert [high - low for low, high in found.values()][:2] == pytest.approx([wide, wide], rel=0.15)
        return found["f1"][1] - found["f1"][0]

    assert width(1000) < width(100) / 2


def test_wilson_interval_of_perfect_accuracy_is_below_one():
    gold = np.ones(50, int)
    score = Scorer(lambda rows: {"accuracy": float((gold[rows] == 1).mean())}, 50, gold == 1)
    low, high = compute_intervals(score)["accuracy"]
    assert high == 1.0
    assert 0.9 < low < 0.95


def test_baselines():
    labels = np.array([0, 1, 1, 1])
    assert predict_majority(TrainingLabels(labels), 3).tolist() == [1, 1, 1]
    assert predict_majority(TrainingLabels(np.array([1.0, 2.0])), 2).tolist() == [1.5, 1.5]
    assert predict_majority(TrainingLabels(np.array([[0, 1], [1, 1], [0, 0]])), 1).tolist() == [[0, 1]]
    train = [["so good", "too bad", "bad bad", "very bad"]]
    assert predict_tfidf(train, TrainingLabels(labels), [["good good", "bad"]]).tolist() == [0, 1]


def test_evaluate_interface_gives_the_same_scores():
    from bertkit.metrics import Classification, Regression

    gold, predicted = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    found = Classification().compute(predictions=predicted, references=gold)
    assert found == score_single_label(gold, predicted, 2, positive=1)
    found = Regression().compute(predictions=[1.0, 2.0, 3.5], references=[1.0, 2.5, 3.0])
    assert found == score_regression(np.array([1.0, 2.5, 3.0]), np.array([1.0, 2.0, 3.5]))
