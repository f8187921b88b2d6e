"""Few labels: rows per class, pairs of rows, and a head that is fitted to the vectors of texts."""

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import (
    assert_refused,
    make_nli_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModel, BertConfig, DistilBertConfig, RobertaConfig

import bertkit
from bertkit.data.split import to_membership
from bertkit.data.weights_and_soft_labels import TrainingLabels
from bertkit.errors import RunInterrupted
from bertkit.methods.vectors import Contrastive, PairFeatures, choose_repeats, sample_pairs
from bertkit.models.losses import CosineSimilarityLoss
from bertkit.models.vector_classifier import VectorClassifier
from bertkit.run_directory import RunDir
from bertkit.stats.linear_probe import UNSEEN_LOGIT, LinearLayer, fit_linear_layer

TRAINING = {
    "method": "contrastive",
    "shots": 24,
    "max_length": 32,
    "learning_rate": 1e-2,
    "batch_size": 64,
    "epochs": 2,
}
SIZES = {"vocab_size": 20, "pad_token_id": 0, "max_position_embeddings": 32}
BERT_SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
CONFIGS = {
    "distilbert": DistilBertConfig(**SIZES, dim=8, n_layers=2, n_heads=2, hidden_dim=16),
    "roberta": RobertaConfig(**SIZES, **BERT_SIZES),
    "causal": BertConfig(**SIZES, **BERT_SIZES, is_decoder=True),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder of a tiny BERT with one layer."""
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    """A run that was trained on pairs of 24 rows per class; nobody writes into it."""
    folder = tmp_path_factory.mktemp("contrastive")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(120, longest=4))
    return bertkit.classify(data=data, model=tiny, output_dir=folder / "run", bf16=False, **TRAINING)


def make_label_sets(count):
    """Rows with the labels nice, long, both or none."""
    return [
        {
            "text": row["text"],
            "label": ["nice"] * (row["label"] == "positive") + ["long"] * (len(row["text"]) > 30),
        }
        for row in make_toy_rows(count)
    ]


# ---- rows per class


def read_classes(run):
    return Counter(row["gold"] for row in read_predictions(run.output_dir))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "rows"), [("classify", make_toy_rows), ("nli", make_nli_rows)])
def test_shots_samples_rows_of_each_class(tmp_path, tiny, task, rows):
    data = write_rows(tmp_path / "rows.jsonl", rows(90))
    run = getattr(bertkit, task)(data=data, model=tiny, shots=3, max_steps=1, max_length=16, output_dir="run")
    assert run.metrics["data"]["train"] == 3 * len(read_classes(run))


def test_shots_are_nested_and_depend_on_the_seed():
    from bertkit.data.split import sample_per_class
    from bertkit.data.table import Rows

    rows = Rows.from_columns({"label": list(range(60))}, "numbers")
    membership = to_membership(np.arange(60) % 3, 3)

    def sample(shots, seed):
        return list(sample_per_class(rows, membership, ["a", "b", "c"], shots, seed)["label"])

    few, more, others = sample(2, seed=0), sample(8, seed=0), sample(2, seed=1)
    assert set(few) < set(more)
    assert few != others
    assert Counter(number % 3 for number in more) == {0: 8, 1: 8, 2: 8}
    assert more == sorted(more)


@pytest.mark.slow
def test_shots_of_label_sets_are_per_label(tmp_path, tiny):
    data = write_rows(tmp_path / "rows.jsonl", make_label_sets(120))
    run = bertkit.classify(data=data, model=tiny, output_dir="run", max_steps=1, **TRAINING)
    assert 24 <= run.metrics["data"]["train"] <= 48
    assert set(run.metrics["validation"]) >= {"micro_f1", "macro_f1"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shots", 70], ["--shots 70", "'negative'", "36 training rows"]),
        (["--shots", 8, "--max-train-samples", 9], ["--shots 8", "--max-train-samples"]),
        (["--shots", 8, "--problem", "regression", "--label-column", "number"], ["--shots 8", "regression"]),
        (["--method", "contrastive", "--problem", "regression", "--label-column", "number"], ["--method"]),
        (["--method", "contrastive", "--head", "bilstm"], ["--head bilstm", "contrastive"]),
        (["--method", "contrastive", "--pooling", "mean"], ["--pooling mean", "method chooses the pooling"]),
        (["--method", "contrastive", "--label-smoothing", 0.1], ["--label-smoothing 0.1"]),
        (["--method", "contrastive", "--long-texts", "windows"], ["--long-texts windows"]),
    ],
)
def test_settings_that_do_not_apply_are_refused(cli, tmp_path, tiny, flags, words):
    rows = [{**row, "number": float(index)} for index, row in enumerate(make_toy_rows(80))]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    columns = [] if "--label-column" in flags else ["--label-column", "label"]
    assert_refused(cli, tmp_path, ["--data", data, "--model", tiny, *columns, *flags], words)


# ---- pairs


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=2, max_size=20), st.integers(1, 4),
    st.integers(0, 9),
)  # fmt: skip
def test_similarity_is_a_common_label(membership, repeats, seed):
    membership = np.array(membership)
    pairs = sample_pairs(membership, repeats, np.random.default_rng(seed))
    for (first, second), similarity in zip(pairs.rows, pairs.similarity, strict=True):
        assert similarity == (membership[first] & membership[second]).any()
    num_labeled = membership.any(1).sum()
    assert len(pairs.rows) == repeats * (len(membership) + num_labeled)
    assert (pairs.similarity[: repeats * num_labeled] == 1).all()


def test_classes_give_as_many_similar_as_dissimilar_pairs_of_different_rows():
    membership = to_membership(np.array([0, 1, 2] * 5), 3)
    pairs = sample_pairs(membership, 4, np.random.default_rng(0))
    assert pairs.similarity.mean() == 0.5
    assert (pairs.rows[:, 0] != pairs.rows[:, 1]).all()
    assert set(Counter(pairs.rows[:, 0].tolist()).values()) == {8}


@pytest.mark.parametrize(
    ("rows", "repeats"), [(2, 20), (32, 20), (64, 10), (128, 5), (800, 5), (2_000, 2), (100_000, 1)]
)
def test_few_rows_are_in_more_pairs(rows, repeats):
    assert choose_repeats(rows) == repeats


def test_pairs_depend_on_seed_and_epoch_only(features_of_rows):
    features, again = features_of_rows(), features_of_rows()
    later, first = (features.get_pairs(epoch).rows.tolist() for epoch in (1, 0))
    assert [again.get_pairs(epoch).rows.tolist() for epoch in (0, 1)] == [first, later]
    assert first != later
    key = len(features)  # the first pair of the second epoch
    lengths = [len(features.row_features[row]["input_ids"][0]) for row in later[0]]
    assert [len(tokens) for tokens in features[key]["input_ids"]] == lengths


@pytest.fixture
def features_of_rows():
    from conftest import make_features

    def make():
        rows = make_features([[length] for length in range(3, 9)])
        return PairFeatures.from_rows(rows, to_membership(np.arange(6) % 2, 2), seed=5)

    return make


def test_pairs_have_the_lengths_of_their_rows(features_of_rows):
    features = features_of_rows()
    lengths = [max(map(len, features[index]["input_ids"])) for index in range(len(features))]
    assert features.length_keys_for_epoch(0).tolist() == lengths
    assert features.batch_size_for(64) == 4  # pairs of two sequences of at most 8 tokens


# ---- loss and head


@pytest.mark.slow
def test_loss_equals_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    vectors, labels = torch.randn(6, 2, 8), torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    reference = losses.CosineSimilarityLoss(model=None)
    expected = reference.compute_loss_from_embeddings(list(vectors.unbind(1)), labels)
    loss, batch = CosineSimilarityLoss(), {"labels": labels}
    ours = loss.sum_losses(vectors.flatten(0, 1), batch)["loss"] / loss.count_items(batch)["loss"]
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_linear_layer_predicts_like_scikit_learn(num_classes):
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(40, 5)), np.arange(40) % num_classes
    layer = fit_linear_layer(vectors, TrainingLabels(labels), num_classes)
    logits = torch.from_numpy(vectors @ layer.weight.T + layer.bias)
    expected = LogisticRegression(max_iter=1000).fit(vectors, labels).predict_proba(vectors)
    np.testing.assert_allclose(logits.softmax(-1), expected, atol=1e-6)


def test_linear_layer_of_label_sets_has_one_sigmoid_per_label():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(40, 5)), rng.integers(2, size=(40, 3))
    labels[:, 2] = 0
    layer = fit_linear_layer(vectors, TrainingLabels(labels), 3)
    probabilities = torch.from_numpy(vectors @ layer.weight.T + layer.bias).sigmoid()
    expected = LogisticRegression(max_iter=1000).fit(vectors, labels[:, 0]).predict_proba(vectors)[:, 1]
    np.testing.assert_allclose(probabilities[:, 0], expected, atol=1e-6)
    assert (probabilities[:, 2] < 1e-6).all()


def test_many_classes_with_few_and_different_numbers_of_rows_are_learned(monkeypatch):
    """With the penalty of few classes, the frequencies of the classes decide."""
    rng, num_classes = np.random.default_rng(0), 80
    centers = rng.normal(1.5, size=(num_classes, 32))

    def make_vectors(labels):
        vectors = centers[labels] + 0.4 * rng.normal(size=(len(labels), 32))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    labels = np.repeat(np.arange(num_classes), 2 + np.arange(num_classes) % 8)
    features = SimpleNamespace(labels=labels, weights=None, targets=None)
    monkeypatch.setattr("bertkit.methods.vectors.predict_logits", lambda *_: make_vectors(labels))
    layers = []
    model = SimpleNamespace(set_output_layer=lambda *layer: layers.append(LinearLayer(*layer)))
    config = SimpleNamespace(class_weights=None, eval_batch_size=1)
    run = SimpleNamespace(task=SimpleNamespace(labels=range(num_classes)), config=config)
    Contrastive().before_evaluation(run, model, features, None)
    new = np.repeat(np.arange(num_classes), 5)
    assert np.mean(layers[0].compute_logits(make_vectors(new)).argmax(1) == new) > 0.9


def test_a_class_without_rows_is_never_predicted():
    layer = fit_linear_layer(np.eye(4), TrainingLabels(np.array([0, 2, 0, 2])), 3)
    assert layer.bias[1] == UNSEEN_LOGIT
    assert not layer.weight[1].any()


# ---- a run


@pytest.mark.slow
def test_contrastive_run_learns_and_saves_its_own_class(run):
    config = json.loads((run.output_dir / "config.json").read_text())
    assert config["architectures"] == ["VectorClassifier"]
    assert (config["bertkit_pooling"], config["bertkit_normalize"]) == ("mean", True)
    assert run.metrics["validation"]["accuracy"] > 0.8
    card = (run.output_dir / "README.md").read_text()
    assert "trained on pairs of rows for `classify`" in card
    assert "bertkit.load" in card


def read_bytes(folder):
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "predictions.jsonl")}


@pytest.mark.slow
def test_resumed_run_is_bit_identical(run, tiny, tmp_path, stop_at):
    data = run.output_dir.parent / "toy.jsonl"
    stop_at(11)  # in the second epoch, which has other pairs
    with pytest.raises(RunInterrupted):
        bertkit.classify(data=data, model=tiny, output_dir="run", bf16=False, **TRAINING)
    bertkit.classify(output_dir="run", resume=True)
    assert read_bytes(tmp_path / "run") == read_bytes(run.output_dir)


@pytest.mark.slow
def test_accumulated_batches_train_like_one_batch(tiny_without_dropout, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))

    def train(**settings):
        out = tmp_path / str(settings["batch_size"])
        bertkit.classify(
            data=data,
            model=tiny_without_dropout,
            output_dir=out,
            bf16=False,
            max_steps=4,
            **TRAINING | settings,
        )
        return load_file(out / "model.safetensors")

    whole, parts = train(batch_size=16), train(batch_size=4, gradient_accumulation_steps=4)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=2e-4, rtol=1e-3, msg=name)


def predict(folder, rows):
    return [record["probabilities"] for record in bertkit.predict(folder, data=rows, all_scores=True)]


@pytest.fixture
def rows(run):
    return [{"text": record["text"]} for record in read_predictions(run.output_dir)]


def assert_same_probabilities(records, expected):
    for probabilities, others in zip(records, expected, strict=True):
        assert probabilities == pytest.approx(others, abs=1e-4)


@pytest.mark.slow
def test_predict_evaluate_and_load_give_the_predictions_of_training(run, rows):
    expected = [record["probabilities"] for record in read_predictions(run.output_dir)]
    assert_same_probabilities(predict(run.output_dir, rows), expected)
    [record] = bertkit.load(run.output_dir).predict(rows[:1])
    assert record["predicted"] == max(expected[0], key=expected[0].get)
    scores = bertkit.evaluate(run.output_dir).metrics["validation"]
    assert scores["accuracy"] == run.metrics["validation"]["accuracy"]


@pytest.mark.slow
def test_sentence_transformers_computes_the_vectors_of_embed(run, rows, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    texts = [row["text"] for row in rows] + ["a good film was " * 20]  # the last one is truncated
    model = sentence_transformers.SentenceTransformer(str(run.output_dir), device="cpu")
    vectors = bertkit.embed(model=run.output_dir, text=texts).vectors
    np.testing.assert_allclose(model.encode(texts), vectors, atol=1e-5)
    assert model.max_seq_length == TRAINING["max_length"]
    shutil.copytree(run.output_dir, tmp_path / "run")
    RunDir(tmp_path / "run").back_up()  # a run with other vectors may replace it
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert not left & {"modules.json", "sentence_bert_config.json", "1_Pooling"}


@pytest.mark.slow
def test_export_gives_the_same_predictions(run, rows, tmp_path, onnx_exporter):
    bertkit.export(run.output_dir, output_dir=tmp_path / "onnx")
    assert_same_probabilities(predict(tmp_path / "onnx", rows), predict(run.output_dir, rows))


@pytest.mark.slow
def test_calibrate_folds_the_temperature_into_the_linear_layer(run, tmp_path):
    bertkit.calibrate(run.output_dir, data=make_toy_rows(60, seed=3, longest=4), output_dir=tmp_path / "run")
    assert {"modules.json", "1_Pooling"} <= {path.name for path in (tmp_path / "run").iterdir()}
    before, after = (load_file(folder / "model.safetensors") for folder in (run.output_dir, tmp_path / "run"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"output.weight", "output.bias"}


@pytest.mark.slow
def test_predictions_are_explained(run, rows):
    [record] = bertkit.predict(run.output_dir, data=rows[:1], explain=True)
    assert record["explanation"]


@pytest.mark.slow
def test_equal_members_of_an_ensemble_predict_like_one_run(run, rows, tmp_path):
    members = [shutil.copytree(run.output_dir, tmp_path / "study" / name) for name in ("first", "second")]
    RunDir(tmp_path / "study" / "ensemble").write_members(members)
    assert_same_probabilities(predict(tmp_path / "study" / "ensemble", rows), predict(run.output_dir, rows))


@pytest.mark.slow
def test_vectors_of_a_run_are_pooled_as_in_training(run):
    result = bertkit.embed(model=str(run.output_dir), text=["good film"])
    assert result.metadata["pooling"] == "mean"


@pytest.mark.slow
def test_fine_tuning_starts_from_the_encoder_of_a_run(run, tmp_path):
    data = run.output_dir.parent / "toy.jsonl"
    bertkit.classify(data=data, model=run.output_dir, output_dir="next", max_steps=1, max_length=16)
    config = json.loads((tmp_path / "next" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert "bertkit_pooling" not in config


@pytest.mark.slow
def test_transformers_does_not_load_the_head(run):
    from transformers import AutoModelForSequenceClassification

    _, info = AutoModelForSequenceClassification.from_pretrained(run.output_dir, output_loading_info=True)
    assert {"classifier.weight", "classifier.bias"} <= set(info["missing_keys"])


@pytest.mark.parametrize(
    ("architecture", "pooling"), [("distilbert", "mean"), ("roberta", "cls"), ("causal", "cls")]
)
def test_vectors_of_other_architectures_ignore_padding(architecture, pooling):
    """Padding changes no vector, and `cls` is the last token of a causal model."""
    encoder = AutoModel.from_config(CONFIGS[architecture])
    model = VectorClassifier(encoder, pooling, normalize=True).eval()
    ids = torch.arange(6, 11)[None]
    padded = torch.cat([ids, torch.zeros(1, 3, dtype=torch.long)], 1)
    mask = (padded > 0).long()
    expected, vectors = model(ids).vectors, model(padded, mask).vectors
    torch.testing.assert_close(vectors, expected)
    assert vectors.norm().item() == pytest.approx(1)
    states = encoder(ids).last_hidden_state[0]
    pooled = {"mean": states.mean(0), "cls": states[-1 if architecture == "causal" else 0]}[pooling]
    torch.testing.assert_close(expected[0], torch.nn.functional.normalize(pooled, dim=0))


def test_dry_run_trains_on_pairs(cli, tmp_path, tiny):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(80))
    flags = ["--method", "contrastive", "--shots", 2, "--dry-run", "--json"]
    status, out, err = cli("classify", "--data", data, "--model", tiny, *flags)
    assert status == 0, err
    report = json.loads(out)
    assert report["data"]["train"] == 4
    assert report["steps"] == 10  # 20 pairs of each kind per row, in batches of 16
