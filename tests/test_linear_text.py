"""Linear models of words, character n-grams and static token vectors (--method tfidf, ..., hybrid)."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import assert_refused, make_toy_rows, read_predictions, save_tiny_model, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression

import bertkit
from bertkit.commands.configs import ServeConfig
from bertkit.data.table import Rows
from bertkit.errors import UserError
from bertkit.methods import linear_text
from bertkit.methods.linear_text import INPUTS, PENALTY
from bertkit.models.linear_text import MAX_CHARACTERS, Characters, LinearTextModel, Words, hash_characters
from bertkit.serve.batcher import predict_rows
from bertkit.serve.models import Metrics, load_served_model
from bertkit.stats.baseline_models import WORD_PATTERN

METHODS = list(INPUTS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = make_toy_rows(60, longest=6)
    return write_rows(tmp_path_factory.mktemp("data") / "toy.jsonl", rows)


def train(data, folder, method, tiny, **options):
    model = {} if method.startswith("tfidf") else {"model": str(tiny)}
    return bertkit.classify(data=str(data), method=method, output_dir=str(folder), **model, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data, tiny):
    """A run of each method; nobody writes into them."""
    folder = tmp_path_factory.mktemp("linear")
    return {method: train(data, folder / method, method, tiny).output_dir for method in METHODS}


# ---- the features

TEXTS = ["Good film, good cast!", "bad", "", "a  b\tc\nd", "영화가 좋다 좋다", "x" * 9, "good film again"]


def test_word_vectors_are_those_of_scikit_learn():
    expected = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD_PATTERN)
    vectors = expected.fit_transform(TEXTS).toarray()
    words = Words.fit(TEXTS)
    order = [words.index[word] for word in expected.get_feature_names_out()]
    np.testing.assert_allclose(words.compute(TEXTS).toarray()[:, order], vectors, atol=1e-6)
    new = ["good unseen film", "unseen"]
    expected_new = expected.transform(new).toarray()
    np.testing.assert_allclose(words.compute(new).toarray()[:, order], expected_new, atol=1e-6)


def test_character_vectors_are_those_of_scikit_learn():
    # Hashes of different n-grams are equal in some texts, but not in these.
    expected = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, MAX_CHARACTERS), sublinear_tf=True)
    vectors = expected.fit_transform(TEXTS)
    computed = Characters.fit(TEXTS).compute(TEXTS)
    assert computed.shape == vectors.shape
    np.testing.assert_allclose((computed @ computed.T).toarray(), (vectors @ vectors.T).toarray(), atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab é가 \n\ud800"), max_size=12), min_size=1, max_size=4))
def test_each_text_has_the_character_n_grams_of_scikit_learn(texts):
    analyze = CountVectorizer(analyzer="char_wb", ngram_range=(2, MAX_CHARACTERS)).build_analyzer()
    rows, buckets = hash_characters(texts)
    assert np.bincount(rows, minlength=len(texts)).tolist() == [len(analyze(text)) for text in texts]
    for row, text in enumerate(texts):  # a text has the same n-grams alone and among others
        assert buckets[rows == row].tolist() == hash_characters([text])[1].tolist()


@pytest.mark.slow
def test_tfidf_predicts_like_scikit_learn(runs, data):
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    held_out = {row["text"] for row in read_predictions(runs["tfidf"])}
    train_rows = [row for row in rows if row["text"] not in held_out]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=WORD_PATTERN)
    vectors = vectorizer.fit_transform([row["text"] for row in train_rows])
    model = LogisticRegression(C=1 / PENALTY, max_iter=1000)
    model.fit(vectors, [row["label"] for row in train_rows])
    for row in read_predictions(runs["tfidf"]):
        probabilities = model.predict_proba(vectorizer.transform([row["text"]]))[0]
        expected = dict(zip(model.classes_, probabilities, strict=True))
        assert row["probabilities"] == pytest.approx(expected, abs=1e-3)


# ---- runs


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_run_predicts_what_it_has_evaluated(runs, method, tmp_path):
    run = runs[method]
    written = read_predictions(run)
    predicted = list(bertkit.load(run).predict([{"text": row["text"]} for row in written]))
    assert [row["probabilities"] for row in predicted] == [row["probabilities"] for row in written]
    names = {path.name for path in run.rglob("*") if path.is_file()}
    assert not {name for name in names if name.endswith((".bin", ".pkl", ".pt", ".joblib", ".npy"))}
    assert ("words.json" in names) == ("words" in INPUTS[method])
    assert (run / "static").is_dir() == ("vectors" in INPUTS[method])
    again = bertkit.evaluate(run, output_dir=str(tmp_path / "evaluation"))
    assert again.metrics["validation"] == json.loads((run / "metrics.json").read_text())["validation"]
    assert "no encoder" in (run / "README.md").read_text()


@pytest.mark.slow
def test_prediction_imports_neither_torch_nor_scikit_learn(runs):
    code = (
        "import sys, bertkit; from bertkit.commands.predict import predict\n"
        "list(bertkit.load(sys.argv[1]).predict([{'text': 'good'}]))\n"
        "list(predict({'run': sys.argv[1], 'text': ['good']}))\n"
        "print(sorted({'torch', 'transformers', 'sklearn', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, runs["hybrid"]], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_texts_without_known_words_get_the_probabilities_of_the_bias(runs):
    model = LinearTextModel.load(runs["hybrid"])
    np.testing.assert_allclose(model.compute_logits([["", "♥"]])[0], model.bias, atol=1e-6)
    assert model.compute_logits([[]]).shape == (0, 2)


@pytest.mark.slow
def test_rows_count_by_their_weights(tiny, tmp_path):
    rows = [{**row, "weight": 1 + 9 * (row["label"] == "positive")} for row in make_toy_rows(24, longest=4)]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    plain = train(data, tmp_path / "plain", "tfidf", tiny).output_dir
    weighted = train(data, tmp_path / "weighted", "tfidf", tiny, weight_column="weight").output_dir
    probabilities = [
        next(bertkit.load(run).predict([{"text": "unseen"}]))["probabilities"].get("positive", 0.0)
        for run in (plain, weighted)
    ]
    assert probabilities[1] > probabilities[0] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["numbers", "sets"])
def test_pairs_numbers_and_label_sets(labels, tiny, tmp_path):
    rows = [
        {
            "text": row["text"],
            "text2": row["text"][::-1],
            "label": float(len(row["text"])) + 0.5 if labels == "numbers" else f"a,{row['label']}",
        }
        for row in make_toy_rows(40)
    ]
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    columns = {"text_column": "text", "text_pair_column": "text2"}
    run = train(data, tmp_path / "run", "hybrid", tiny, **columns).output_dir
    written = read_predictions(run)
    inputs = [{name: row[name] for name in columns.values()} for row in written]
    predicted = [row["predicted"] for row in bertkit.load(run).predict(inputs)]
    assert predicted == [row["predicted"] for row in written]


@pytest.mark.slow
def test_calibration_divides_the_linear_layer(runs, tmp_path, data):
    run = runs["hybrid"]
    result = bertkit.calibrate(run, data=str(data), output_dir=str(tmp_path / "calibrated"))
    before, after = (LinearTextModel.load(folder) for folder in (run, tmp_path / "calibrated"))
    texts = [["good film", "bad"]]
    expected = before.compute_logits(texts) / result.temperature
    np.testing.assert_allclose(after.compute_logits(texts), expected, rtol=1e-4)


@pytest.mark.slow
def test_a_study_has_an_ensemble_of_linear_models(data, tmp_path):
    bertkit.study("classify", data=str(data), method="tfidf", folds=2, output_dir=str(tmp_path / "study"))
    ensemble = bertkit.load(tmp_path / "study")
    members = [bertkit.load(folder) for folder in sorted((tmp_path / "study" / "folds").iterdir())]
    [mean] = ensemble.predict([{"text": "good"}])
    probabilities = [next(member.predict([{"text": "good"}]))["probabilities"] for member in members]
    expected = {name: np.mean([one[name] for one in probabilities]) for name in mean["probabilities"]}
    assert mean["probabilities"] == pytest.approx(expected, abs=1e-6)
    assert bertkit.label_issues(tmp_path / "study").num_rows == 60


@pytest.mark.slow
def test_a_linear_model_learns_the_predictions_of_a_run(data, tiny, tmp_path, cli):
    options = {"model": str(tiny), "epochs": 2, "learning_rate": 1e-2, "max_length": 16}
    teacher = bertkit.classify(data=str(data), output_dir=str(tmp_path / "teacher"), **options).output_dir
    unlabeled = write_rows(
        tmp_path / "more.jsonl", [{"text": row["text"]} for row in make_toy_rows(80, seed=3)]
    )
    run = bertkit.distill(
        teacher, student="hybrid", data=str(unlabeled), alpha=1.0, output_dir=str(tmp_path / "student")
    )
    texts = [{"text": row["text"]} for row in make_toy_rows(40, seed=3)]
    # Labels alone would give probabilities near 0 and 1, unlike those of a teacher of 2 epochs.
    student, expected = (
        np.array([row["probabilities"].get("positive", 0.0) for row in bertkit.load(one).predict(texts)])
        for one in (run.output_dir, teacher)
    )
    assert np.abs(np.abs(student - 0.5) - np.abs(expected - 0.5)).max() < 0.2
    assert run.metrics["distillation"]["unlabeled_rows"] > 0
    assert run.metrics["distillation"]["models"]["student"]["parameters"] > 0
    status, _, err = cli("distill", teacher, "--student", "hybrid", "--temperature", 3, "-o", tmp_path / "x")
    assert (status, "--temperature 3.0" in err) == (2, True)


@pytest.mark.slow
def test_a_linear_model_is_served(runs):
    served = load_served_model(str(runs["hybrid"]), "m", ServeConfig(run=[str(runs["hybrid"])]), Metrics())
    assert (served.info["backend"], served.info["max_length"]) == ("scipy", None)
    predictor = bertkit.load(runs["hybrid"])
    [record] = predict_rows(predictor, [{"text": "good film"}], "compact")
    assert record["predicted"] in served.info["labels"]
    assert predictor.count_tokens(Rows.from_dicts([{"text": "good film"}], "request")) == 3
    served.token_limit.close()


# ---- what is refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--method", "hybrid", "--epochs", 3], ["--epochs", "no encoder is trained", "omit it"]),
        (["--method", "static", "--max-length", 64], ["--max-length", "omit it"]),
        (["--method", "tfidf", "--model", "minilm"], ["--model minilm", "no encoder is used"]),
        (["--method", "hybrid", "--lora", 4], ["--lora 4", "omit it"]),
    ],
)
def test_settings_without_effect_are_refused(cli, tmp_path, data, args, words):
    assert_refused(cli, tmp_path, ["--data", data, *args], words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["export", "RUN"], ["is a linear model of texts", "another method"]),
        (["embed", "RUN", "--text", "a", "-o", "v.npy"], ["is a linear model of texts"]),
        (["distill", "RUN", "--num-layers", "1"], ["is a linear model of texts"]),
        (["distill", "RUN", "--student", "hybrid"], ["is a linear model of texts"]),
        (["predict", "RUN", "--text", "a", "--explain"], ["no gradients"]),
        (["predict", "RUN", "--text", "a", "--rank-for-labeling"], ["no vectors of texts"]),
    ],
)
def test_commands_that_need_an_encoder_refuse_a_linear_model(
    cli, runs, command, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = [str(runs["hybrid"]) if arg == "RUN" else arg for arg in command]
    status, _, err = cli(*args)
    assert status == 2
    assert all(word in err for word in words), err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "words.json", "static/model.safetensors"])
def test_a_damaged_file_is_one_line(tmp_path, data, tiny, name):
    run = train(data, tmp_path / "run", "hybrid", tiny).output_dir
    (run / name).write_bytes(b"{")
    with pytest.raises(UserError, match="damaged"):
        bertkit.load(run)
    (run / name).unlink()
    with pytest.raises(UserError):
        bertkit.load(run)


def reverse_words(run):
    vocabularies = json.loads((run / "words.json").read_text("utf-8"))
    (run / "words.json").write_text(json.dumps([words[::-1] for words in vocabularies]), "utf-8")


def remove_vectors(run):
    shutil.rmtree(run / "static")


def truncate_tokenizer(run):
    content = (run / "static" / "tokenizer.json").read_text("utf-8")
    (run / "static" / "tokenizer.json").write_text(content[:-9], "utf-8")


def add_label(run):
    config = json.loads((run / "config.json").read_text("utf-8"))
    config["id2label"]["2"] = "neutral"
    (run / "config.json").write_text(json.dumps(config), "utf-8")


def insert_nan(run):
    tensors = load_file(run / "model.safetensors")
    tensors["output.weight"][0, 0] = np.nan
    save_file(tensors, run / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [reverse_words, remove_vectors, truncate_tokenizer, add_label, insert_nan])
def test_files_that_do_not_belong_together_are_refused(damage, runs, tmp_path):
    run = shutil.copytree(runs["hybrid"], tmp_path / "run")
    damage(run)
    with pytest.raises(UserError, match="damaged"):
        bertkit.load(run)


@pytest.mark.slow
def test_texts_without_a_word_are_refused(tmp_path):
    rows = [{"text": "!" * (index % 7 + 1), "label": f"l{index % 2}"} for index in range(40)]
    with pytest.raises(UserError, match="--method tfidf: no training text has a word; use another --method"):
        bertkit.classify(data=rows, method="tfidf", output_dir=str(tmp_path / "run"), keep_overlap=True)


@pytest.mark.slow
def test_the_penalty_of_label_sets_does_not_depend_on_their_number(monkeypatch, tmp_path, tiny):
    seen = []
    fit = linear_text.fit_linear_layer
    monkeypatch.setattr(linear_text, "fit_linear_layer", lambda *args: seen.append(args[3]) or fit(*args))
    rows = [{"text": row["text"], "label": [f"l{index % 12}"]} for index, row in enumerate(make_toy_rows(60))]
    train(write_rows(tmp_path / "sets.jsonl", rows), tmp_path / "sets", "tfidf", tiny, problem="multi-label")
    single = [{**row, "label": row["label"][0]} for row in rows]
    train(write_rows(tmp_path / "single.jsonl", single), tmp_path / "single", "tfidf", tiny)
    assert seen == [pytest.approx(PENALTY), pytest.approx(1 / 12)]
