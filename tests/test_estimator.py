"""`bertkit.Classifier`: the interface of scikit-learn, what it accepts, and what a pickle holds."""

import gc
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from conftest import make_nli_rows, make_toy_rows, read_predictions, slow_fixture
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

import bertkit
from bertkit.errors import UserError

ROWS = make_toy_rows(120, longest=4)
TEXTS, LABELS = ([row[name] for row in ROWS] for name in ("text", "label"))
SETTINGS = {"max_length": 16, "learning_rate": 1e-2, "batch_size": 16, "epochs": 4, "bf16": False}


# ---- parameters

# Those of scikit-learn's checks that fit no rows of numbers.
CHECKS = [
    "check_estimator_cloneable", "check_estimator_repr", "check_estimators_unfitted",
    "check_get_params_invariance", "check_mixin_order", "check_no_attributes_set_in_init",
    "check_parameters_default_constructible", "check_set_params", "check_valid_tag_types",
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_passes_the_checks_of_scikit_learn(name):
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip("this version of scikit-learn has no such check")
    assert check("Classifier", bertkit.Classifier()) is None  # it raises an error of its own


def test_parameters_are_the_settings_of_classify_without_those_of_the_data():
    estimator = bertkit.Classifier(model="minilm", max_steps=3)
    names = set(estimator.get_params())
    assert names >= {"model", "method", "seed", "output_dir", "recipe", "learning_rate"}
    assert not names & {
        "data",
        "validation",
        "text_column",
        "label_column",
        "group_column",
        "problem",
        "nproc",
    }
    assert clone(estimator).set_params(seed=1).get_params() == estimator.get_params() | {"seed": 1}
    assert repr(estimator) == "Classifier(max_steps=3, model='minilm')"
    assert is_classifier(estimator)
    with pytest.raises(UserError, match="unknown setting 'epoch'; did you mean 'epochs'"):
        bertkit.Classifier(epoch=1)
    with pytest.raises(NotFittedError):
        pickle.loads(pickle.dumps(estimator)).predict(TEXTS)


# ---- X and y


@pytest.mark.parametrize("weights", [[1, -1], [1, float("nan")], [1, "a"], [1, None]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(UserError, match=r"sample_weight: row \d is .*; pass a number, 0 or more"):
        bertkit.Classifier(model="not read").fit(["good", "bad"], ["a", "b"], sample_weight=weights)


@pytest.mark.parametrize(
    ("texts", "labels", "words"),
    [
        ("good", ["a"], "X: 'good' is not a list of texts"),
        ([], [], "X: contains no rows"),
        (["good", None], ["a", "b"], "X: row 2 is None; pass a text"),
        (np.eye(2), ["a", "b"], r"X: row 1 is \[1.0, 0.0\]; pass a text"),
        (pd.DataFrame({"text": ["a", np.nan]}), ["a", "b"], "X: row 2 is nan"),
        (pd.DataFrame([["a", "b", "c"]]), ["a"], "X: row 1 is .*; pass a text for each row, or two"),
        (["good", ("good", "bad")], ["a", "b"], "X: row 1 and row 2 differ in the number of texts"),
        (["good"], ["a", "b"], "y: has 2 labels for 1 row;"),
        (["good", "bad"], ["a", None], "y: row 2 has no label"),
        (["good", "bad"], [1.5, 2.5], "y: is continuous, but Classifier"),
        (["good", "bad"], [[1, 0], [1, 1]], r"y: has the shape \(2, 2\)"),
        (["good", "bad"], [[1], [1, 1]], "y: the rows have several labels"),
        (["good", "bad"], pd.Series([1, "a"]), "y: contains texts and numbers"),
        (["good", "bad"], ["a", "a"], "y: every label is 'a'"),
        (["good", "bad"], ["", " "], "y: some of the labels '', ' ' differ in blanks"),
    ],
)
def test_rows_that_are_no_texts_with_classes_are_refused(texts, labels, words):
    with pytest.raises(UserError, match=words):
        bertkit.Classifier(model="not read").fit(texts, labels)


# ---- a fitted estimator


@slow_fixture
def fitted(tiny):
    """An estimator that was fitted to texts with two labels; nobody changes it."""
    return bertkit.Classifier(model=str(tiny), **SETTINGS).fit(TEXTS, LABELS)


def test_predicts_as_the_run_does(fitted):
    assert list(fitted.classes_) == ["negative", "positive"]
    probabilities = fitted.predict_proba([*TEXTS[:5], ""])
    records = bertkit.predict(fitted.run_.output_dir, text=[*TEXTS[:5], ""], all_scores=True)
    expected = [[record["probabilities"][name] for name in fitted.classes_] for record in records]
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)
    assert fitted.score(TEXTS, LABELS) > 0.9
    assert not list(fitted.run_.output_dir.glob("checkpoints*"))
    with pytest.raises(
        UserError, match=r"contains pairs of texts, but fit.* single texts; pass single texts"
    ):
        fitted.predict([("good", "bad")])


def test_a_pickle_holds_the_model_and_no_rows(fitted, tiny):
    data = pickle.dumps(fitted)
    assert not any(text.encode() in data for text in TEXTS)
    first, second = pickle.loads(data), pickle.loads(data)
    folder = first.run_.output_dir
    assert len({folder, second.run_.output_dir, fitted.run_.output_dir}) == 3
    shutil.rmtree(second.run_.output_dir.parent)  # each has its own files
    with pytest.raises(UserError, match="does not exist, so the classifier cannot be saved; fit it again"):
        pickle.dumps(second)
    np.testing.assert_array_equal(first.predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).predict(TEXTS), fitted.predict(TEXTS))
    del first
    gc.collect()
    assert not folder.parent.exists()


@pytest.mark.slow
def test_a_grid_search_over_a_pipeline(tiny):
    labels = pd.Series(["none" if label == "negative" else " " for label in LABELS])  # blank: not in a file
    steps = [("strip", FunctionTransformer(lambda texts: [text.strip() for text in texts]))]
    pipeline = Pipeline([*steps, ("classifier", bertkit.Classifier(model=str(tiny), **SETTINGS))])
    grid = {"classifier__epochs": np.array([0.0, 8.0])}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(TEXTS, labels)
    assert search.best_params_ == {"classifier__epochs": 8.0}
    assert list(search.classes_) == [" ", "none"]
    assert search.best_estimator_.score(TEXTS, labels) > 0.9


@pytest.mark.slow
def test_rows_of_weight_zero_do_not_count(tiny):
    others = [row["text"] for row in make_toy_rows(120, seed=1, longest=4)]
    wrong = ["positive", "negative"] * 60  # the other label of each row
    # Its head is fitted to all training rows: no checkpoint is chosen by the scores, which count each row.
    estimator = bertkit.Classifier(model=str(tiny), method="linear-probe", max_length=16)
    weights = np.repeat([1.0, 0.0], len(ROWS))
    estimator.fit(TEXTS + others, LABELS + wrong, sample_weight=weights)
    assert estimator.score(TEXTS, LABELS) > 0.8
    with pytest.raises(UserError, match="sample_weight: has 2 numbers for 240 rows; pass one for each"):
        estimator.fit(TEXTS + TEXTS, LABELS + LABELS, sample_weight=[1, 2])
    with pytest.raises(UserError, match=r"row 1 is -1\.0; pass a number"):
        estimator.fit(TEXTS, LABELS, sample_weight=np.full(len(ROWS), -1.0))


@pytest.mark.slow
def test_pairs_with_integer_labels_and_an_output_directory(tiny, tmp_path):
    rows = pd.DataFrame(make_nli_rows(60))
    classes = sorted(set(rows["label"]))
    labels = rows["label"].map(classes.index)
    estimator = bertkit.Classifier(model=str(tiny), output_dir=tmp_path / "run", overwrite=True, max_steps=2)
    pairs = rows[["premise", "hypothesis"]]
    scores = cross_val_score(estimator, pairs, labels, cv=2, error_score="raise")
    assert scores.shape == (2,)
    estimator.fit(pairs.to_numpy(), labels)
    assert estimator.run_.output_dir == tmp_path / "run"
    assert {record["gold"] for record in read_predictions(tmp_path / "run")} <= {"0", "1", "2"}
    found = estimator.predict(list(pairs.itertuples(index=False, name=None)))
    assert set(found) <= {0, 1, 2}
    assert found.dtype == labels.dtype
