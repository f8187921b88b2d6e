"""The baseline `linear_probe`: a linear model on the vectors of the encoder before training."""

import json
import shutil

import numpy as np
import pytest
from conftest import (
    assert_refused,
    make_tokenizer,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression

import bertkit
from bertkit.data.features import build_features
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.models import encoder as encoder_module
from bertkit.models.encoder import POOLINGS, FrozenEncoder
from bertkit.stats.linear_probe import fit_linear_probe

pytestmark = pytest.mark.linear_probe

TEXTS = [row["text"] for row in make_toy_rows(24)]
FAST = {"batch_size": 8, "learning_rate": 3e-3, "bf16": False, "max_length": 32}


def accuracy(labels, logits):
    predicted = logits > 0 if labels.ndim == 2 else logits.argmax(1)
    return float((labels == predicted).mean())


def make_vectors(labels, informative, seed=0):
    """Vectors of two poolings, of which one separates the classes."""
    vectors = np.random.default_rng(seed).normal(size=(len(labels), 2, 6)).astype(np.float32)
    vectors[np.arange(len(labels)), informative, labels % 6] += 5
    return vectors


def make_encoder(folder):
    return FrozenEncoder(str(folder), make_tokenizer().pad_token_id)


def encode(encoder, texts=TEXTS, **settings):
    """Return the features and the vectors of texts."""
    features = build_features([texts], None, make_tokenizer(), **{"max_length": 32, **settings})
    return features, encoder.compute_vectors(features)


# ---- the linear model


@pytest.mark.usefixtures("five_folds")
@pytest.mark.parametrize("informative", [0, 1])
def test_cross_validation_chooses_the_pooling(informative):
    labels = np.arange(60) % 3
    vectors = make_vectors(labels, informative)
    probe = fit_linear_probe(vectors, TrainingLabels(labels), 3, accuracy, seed=0)
    assert probe.pooling == informative
    others = np.arange(30) % 3
    assert accuracy(others, probe.compute_logits(make_vectors(others, informative, seed=1))) > 0.9


def score_numbers(labels, outputs):
    return -float(np.square(labels - outputs[:, 0]).mean())


@pytest.mark.usefixtures("five_folds")
@pytest.mark.parametrize(("noise", "penalty"), [(0, 0.1), (5, 10)])
def test_cross_validation_chooses_the_regularization(noise, penalty):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 1, 20))
    numbers = vectors[:, 0, 0] + noise * rng.normal(size=60)
    assert fit_linear_probe(vectors, TrainingLabels(numbers), 1, score_numbers, 0).penalty == penalty


@pytest.mark.usefixtures("five_folds")
@pytest.mark.parametrize("counts", [(1, 20), (1, 1), (1, 2, 30), (1, 1, 9)])
def test_a_class_may_have_a_single_row(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    vectors = make_vectors(labels, 1)
    probes = [
        fit_linear_probe(vectors, TrainingLabels(labels), len(counts), accuracy, seed=3) for _ in range(2)
    ]
    assert np.array_equal(*(probe.compute_logits(vectors) for probe in probes))
    if sorted(counts)[-2] == 1:
        assert probes[0].pooling == 0


@pytest.mark.parametrize("label", [0, 1])
def test_sampled_rows_may_have_a_single_class(label):
    labels = np.full(6, label)
    probe = fit_linear_probe(make_vectors(labels, 1), TrainingLabels(labels), 2, accuracy, seed=3)
    assert (probe.compute_logits(make_vectors(labels, 1)).argmax(1) == label).all()


@pytest.mark.usefixtures("five_folds")
def test_label_sets_and_numbers_are_learned():
    names = np.arange(80) % 4
    sets = np.stack([names == 0, names == 1, names > 5, names < 5], 1).astype(int)  # of no and of all rows
    vectors = make_vectors(names, 1)
    probe = fit_linear_probe(vectors, TrainingLabels(sets), 4, accuracy, seed=0)
    assert (probe.pooling, accuracy(sets, probe.compute_logits(vectors))) == (1, pytest.approx(1, abs=0.05))
    numbers = vectors[:, 1, 0].astype(float) * 3
    probe = fit_linear_probe(vectors, TrainingLabels(numbers), 1, score_numbers, 0)
    assert (probe.pooling, probe.penalty) == (1, 0.1)
    assert np.allclose(probe.compute_logits(vectors)[:, 0], numbers, atol=0.1)


# ---- the vectors


@pytest.mark.slow
def test_vectors_and_accuracy_equal_those_of_sentence_transformers(tiny):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    encoder, labels = make_encoder(tiny), np.arange(len(TEXTS)) % 2
    _, vectors = encode(encoder)
    for index, pooling in enumerate(POOLINGS):
        transformer = modules.Transformer(str(tiny), max_seq_length=32)
        size = vectors.shape[-1]
        expected = SentenceTransformer(
            modules=[transformer, modules.Pooling(size, pooling_mode=pooling)], device="cpu"
        ).encode(TEXTS)
        assert np.allclose(vectors[:, index], expected, atol=1e-5)
        model = LogisticRegression(max_iter=1000).fit(expected, labels)
        probe = fit_linear_probe(vectors[:, [index]], TrainingLabels(labels), 2, accuracy, seed=0)
        logits = probe.compute_logits(vectors[:, [index]])
        assert np.allclose(np.diff(logits)[:, 0], model.decision_function(expected), atol=1e-3)


def test_the_vector_of_windows_is_their_mean(tiny):
    encoder, text = make_encoder(tiny), " ".join(["good film was warm"] * 6)
    features, vectors = encode(encoder, ["good", text], max_length=12, long_texts="windows")
    assert features.sequence_offsets[-1] > 3
    windows = [make_tokenizer().decode(features.get_sequence(n)[0][1:-1]) for n in range(1, 4)]
    _, separate = encode(encoder, windows)
    assert np.allclose(vectors[1], separate.mean(0), atol=1e-5)


def test_causal_models_are_read_at_the_last_token(tmp_path):
    encoder = make_encoder(save_tiny_model(tmp_path / "causal", is_decoder=True))
    _, vectors = encode(encoder)
    cls = vectors[:, POOLINGS.index("cls")]
    assert np.ptp(cls, axis=0).max() > 0.1


def test_cached_vectors_are_read_without_the_model(tiny, monkeypatch):
    _, vectors = encode(make_encoder(tiny))
    monkeypatch.setattr(encoder_module.Encoder, "load", None)
    _, cached = encode(make_encoder(tiny))
    assert np.array_equal(cached, vectors)
    with pytest.raises(TypeError):
        encode(make_encoder(tiny), TEXTS[:3])


# ---- runs


@pytest.mark.slow
def test_text_classifiers_have_the_baseline(runs):
    has_probe = {
        folder.name: "linear_probe" in json.loads((folder / "metrics.json").read_text())["baselines"]
        for folder in runs.iterdir()
        if folder.is_dir()
    }
    assert {name for name, has in has_probe.items() if has} == {"classify", "nli"}
    for name in ("README.md", "report.html"):
        assert "linear_probe" in (runs / "classify" / name).read_text("utf-8")


@pytest.mark.slow
def test_the_encoder_is_that_before_training(tiny, toy, tmp_path):
    runs = [
        bertkit.classify(data=toy, model=tiny, max_steps=steps, output_dir=tmp_path / str(steps), **FAST)
        for steps in (1, 12)
    ]
    scores = [run.metrics["baselines"]["linear_probe"] for run in runs]
    assert scores[0] == scores[1]
    continued = bertkit.classify(
        data=toy, model=runs[1].output_dir, max_steps=1, output_dir=tmp_path / "more", **FAST
    )
    assert continued.metrics["baselines"]["linear_probe"] != scores[0]


@pytest.mark.slow
def test_a_run_ends_without_the_baseline_if_its_model_cannot_be_loaded(toy, tmp_path, cli):
    model = save_tiny_model(tmp_path / "model")
    run = bertkit.classify(data=toy, model=model, max_steps=1, output_dir=tmp_path / "run", **FAST)
    (tmp_path / "model").rename(tmp_path / "moved")
    status, out, err = cli("evaluate", run.output_dir, "--json")
    assert status == 0
    assert set(json.loads(out)["baselines"]) == {"majority", "tfidf"}
    [line] = [line for line in err.splitlines() if "no baselines" in line]
    assert str(model) in line


@pytest.mark.slow
def test_a_run_that_replaces_its_own_model_has_the_baseline(toy, tmp_path):
    """The model is gone when the baselines are scored."""
    model = save_tiny_model(tmp_path / "run")
    first = bertkit.classify(data=toy, model=model, max_steps=1, output_dir=tmp_path / "first", **FAST)
    again = bertkit.classify(
        data=toy, model=first.output_dir, max_steps=1, output_dir=first.output_dir, overwrite=True, **FAST
    )
    assert set(again.metrics["baselines"]) >= {"majority", "tfidf"}


# ---- classify --method linear-probe


PROBE = {"method": "linear-probe", "max_length": 32}


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    """The folder of a tiny BERT with one layer."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "shallow", num_hidden_layers=1)


@pytest.fixture(scope="module")
def probed(shallow, tmp_path_factory):
    """A run of `--method linear-probe`, and its data."""
    folder = tmp_path_factory.mktemp("probed")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(120))
    return bertkit.classify(data=data, model=shallow, output_dir=folder / "run", **PROBE), data


@pytest.mark.slow
def test_a_run_has_the_scores_of_the_baseline(probed):
    run, _ = probed
    probe = run.metrics["baselines"]["linear_probe"]
    assert probe == {name: pytest.approx(run.metrics["validation"][name]) for name in probe}
    assert (run.metrics["training"]["steps"], run.metrics["training"]["precision"]) == (0, "fp32")
    assert {"config.json", "model.safetensors", "report.html"} <= {p.name for p in run.output_dir.iterdir()}


@pytest.mark.slow
def test_the_encoder_does_not_change(probed, shallow):
    run, _ = probed
    weights, saved = (load_file(folder / "model.safetensors") for folder in (shallow, run.output_dir))
    prefix = "bert."
    encoder = {name.removeprefix(prefix): value for name, value in saved.items() if name.startswith(prefix)}
    assert encoder.keys() == weights.keys()
    assert all(np.array_equal(encoder[name], weights[name]) for name in encoder)


@pytest.mark.slow
def test_finished_runs_are_used_like_others(probed, cli, tmp_path):
    run, data = probed
    folder = shutil.copytree(run.output_dir, tmp_path / "copy")
    records = read_predictions(folder)
    loaded = list(bertkit.load(folder).predict([{"text": record["text"]} for record in records]))
    for record, again in zip(records, loaded, strict=True):
        assert again["probabilities"] == pytest.approx(record["probabilities"], abs=1e-5)
    for command in (
        ["predict", folder, "--text", "good film", "--explain"],
        ["evaluate", folder],
        ["classify", "--resume", "-o", folder],
        ["calibrate", folder, "--data", data],
    ):
        status, _, err = cli(*command)
        assert status == 0, (command, err)


@pytest.mark.slow
@pytest.mark.usefixtures("onnx_exporter")
def test_exported_runs_predict_the_same(probed, cli, tmp_path):
    run, _ = probed
    status, _, err = cli("export", run.output_dir, "-o", tmp_path / "onnx")
    assert status == 0, err
    rows = [{"text": text} for text in TEXTS]
    found, expected = (bertkit.load(folder).predict(rows) for folder in (tmp_path / "onnx", run.output_dir))
    for row, other in zip(found, expected, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("five_folds")
@pytest.mark.parametrize("kind", ["label sets", "numbers", "pairs", "windows", "shots"])
def test_kinds_of_labels_and_texts(kind, tiny, tmp_path):
    rows = make_toy_rows(60)
    settings = {**PROBE}
    for number, row in enumerate(rows):
        if kind == "label sets":
            row["label"] = [row["label"], "even" if number % 2 else "long"]
        if kind == "numbers":
            row["label"] = len(row["text"]) / 7
        if kind == "pairs":
            row["text_pair"] = "it was here"
    if kind == "windows":
        settings |= {"long_texts": "windows", "max_length": 8}
    if kind == "shots":
        settings |= {"shots": 9}
    data = write_rows(tmp_path / "data.jsonl", rows)
    run = bertkit.classify(data=data, model=tiny, output_dir=tmp_path / "run", **settings)
    probe = run.metrics["baselines"]["linear_probe"]
    assert probe == {name: pytest.approx(run.metrics["validation"][name], abs=1e-4) for name in probe}
    assert run.metrics["data"]["train"] == (18 if kind == "shots" else 54)


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--epochs", 2], "--epochs 2"),
        (["--learning-rate", 1e-3], "--learning-rate 0.001"),
        (["--bf16"], "--bf16"),
        (["--set", "adam_beta2=0.9"], "--set"),
        (["--head", "bilstm"], "--head bilstm"),
        (["--pooling", "mean"], "--pooling mean"),
        (["--lora", 4], "--lora 4"),
        (["--num-layers", 1], "--num-layers 1"),
    ],
)
def test_settings_of_training_are_refused(flags, word, toy, tiny, cli, tmp_path):
    args = ["--data", toy, "--model", tiny, "--method", "linear-probe", *flags]
    assert_refused(cli, tmp_path, args, [word, "with --method linear-probe"])


@pytest.mark.slow
def test_a_dry_run_estimates_the_time(toy, tiny, cli, tmp_path):
    args = ["--data", toy, "--model", tiny, "--method", "linear-probe", "--dry-run"]
    status, out, err = cli("classify", *args, "--json")
    assert status == 0, err
    estimate = json.loads(out)
    assert (estimate["steps"], estimate["loss"], estimate["estimated_seconds"] > 0) == (0, None, True)
    status, out, err = cli("classify", *args)
    assert (status, "longest batch" in out) == (0, True), err


@pytest.mark.slow
def test_a_study_has_folds_but_no_trials(toy, tiny, cli, tmp_path):
    args = ["classify", "--data", toy, "--model", tiny, "--method", "linear-probe", "-o", tmp_path / "study"]
    status, out, err = cli("study", *args, "--folds", 2, "--json")
    assert status == 0, err
    assert json.loads(out)["settings"]["best"]["held_out"]["rows"] == 80
    pytest.importorskip("optuna")
    status, _, err = cli("study", *args[:-1], tmp_path / "other", "--trials", 2)
    assert status == 2
    assert "--trials: with --method linear-probe, the encoder is not trained" in err.splitlines()[-1]
    search = ["--trials", 2, "--search", "learning_rate=1e-5,1e-4"]
    words = ["--search learning_rate=1e-05,0.0001: with --method linear-probe, the encoder is not trained"]
    assert_refused(cli, tmp_path, [*args[:-1], tmp_path / "third", *search], words, "study")
