"""The vector that heads read in causal models, behind a BiLSTM, and with mean pooling."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import ROW_MAKERS, read_predictions, save_tiny_model, slow_fixture, write_rows
from test_architectures import ARCHITECTURES, config_of, make_easy_rows, saved, tiny_of  # noqa: F401
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import bertkit
from bertkit.models import heads
from bertkit.models.forward import compute_logits
from bertkit.models.heads import load_with_pooling
from bertkit.models.loading import ModelSource

CLASSES = {
    "classify": AutoModelForSequenceClassification,
    "swag": AutoModelForMultipleChoice,
    "qa": AutoModelForQuestionAnswering,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Create tiny models; the key says whether they are causal."""
    folder = tmp_path_factory.mktemp("models")
    more = {"initializer_range": 0.2}  # so that what differs differs by much
    return {
        causal: save_tiny_model(folder / str(causal), is_decoder=causal, **more) for causal in (True, False)
    }


def reader(folder, task="classify", head="linear", pooling="cls"):
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    return load_with_pooling(CLASSES[task], ModelSource("tiny", folder), config, True, head, pooling).eval()


def batch(left=False, more=0):
    """Return three texts with the same first token, which multiple choice takes as one example."""
    texts = [
        [2, 9, 8, 3, 3, 7, 6, 3],
        [2, 6, 3, 3, 3],
        [2, 11, 3, 3, 12, 3],
    ]  # Longformer asks for three [SEP]
    ids = torch.zeros(3, 8 + more, dtype=torch.long)
    for row, text in zip(ids, texts, strict=True):
        start = len(row) - len(text) if left else 0
        row[start : start + len(text)] = torch.tensor(text)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def of_the_text(model, task, given):
    """Return a score `[3]` from the vector of the whole text; for `qa`, that there is no answer."""
    choice = {"choice": torch.zeros(3, dtype=torch.long)} if task == "swag" else {}
    with torch.no_grad():
        logits = compute_logits(model, given | choice)
    return {"classify": lambda: logits[:, 0], "swag": lambda: logits[0], "qa": lambda: logits[:, 0, 0]}[
        task
    ]()


# ---- from left to right


@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.parametrize("left", [False, True])
def test_texts_with_the_same_first_token_get_different_scores(task, left, folders, monkeypatch):
    found = of_the_text(reader(folders[True], task), task, batch(left))
    assert len(set(np.round(found.tolist(), 5))) == 3
    monkeypatch.setattr(heads, "add_pooling", lambda model: model)
    stock = of_the_text(reader(folders[True], task), task, batch())
    assert len(set(np.round(stock.tolist(), 5))) == 1


def test_only_first_and_last_positions_are_swapped(folders):
    given, model = batch(), reader(folders[True])
    with torch.no_grad():
        stock = AutoModel.from_pretrained(folders[True]).eval()(**given).last_hidden_state
        ours = model.base_model(**given).last_hidden_state
    for one, other, length in zip(ours, stock, given["attention_mask"].sum(1).tolist(), strict=True):
        places = [length - 1, *range(1, length - 1), 0, *range(length, 8)]
        torch.testing.assert_close(one, other[places])


@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.parametrize("head", ["linear", "bilstm"])
def test_padding_does_not_change_scores(task, head, folders):
    model = reader(folders[True], task, head)
    wanted = of_the_text(model, task, batch())
    torch.testing.assert_close(of_the_text(model, task, batch(more=3)), wanted, atol=1e-5, rtol=1e-5)


def test_bidirectional_model_equals_the_stock_model(folders):
    model = reader(folders[False])
    assert not model.base_model._forward_hooks
    assert "bertkit_head" not in model.config.to_dict()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_uses_the_pooler_of_the_architecture(name):
    encoder = AutoModel.from_config(config_of(name)).eval()
    with torch.no_grad():
        output = encoder(**batch())
        if output.get("pooler_output") is not None:
            states = output.last_hidden_state
            torch.testing.assert_close(heads.run_pooler(encoder, states), output.pooler_output)


# ---- a BiLSTM


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("task", CLASSES)
def test_all_architectures_support_a_bilstm(name, task, saved):  # noqa: F811
    model = reader(saved(name), task, "bilstm")
    scores = of_the_text(model.train(), task, batch())
    assert len(set(np.round(scores.tolist(), 7))) == 3
    logits = compute_logits(model, batch() | ({"choice": torch.zeros(3).long()} if task == "swag" else {}))
    logits.masked_fill(logits.isinf(), 0).square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.bilstm.named_parameters() if "_ih_" in name}
    assert len(gradients) == 8
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())


@pytest.mark.parametrize("left", [False, True])
def test_bilstm_ignores_padding(left, folders):
    model = reader(folders[False], "classify", "bilstm")
    seen = []
    model.bilstm.register_forward_hook(lambda *given: seen.append(given[-1]))
    with torch.no_grad():
        ours = model.base_model(**batch(left, more=2)).last_hidden_state
    first = batch(left, more=2)["attention_mask"].argmax(1)
    torch.testing.assert_close(ours[:, 0], seen[0][torch.arange(3), first])
    assert (ours[:, 0].abs().sum(1) > 0).all()


def test_odd_hidden_size_is_refused(tmp_path):
    folder = save_tiny_model(tmp_path / "odd", hidden_size=33, num_attention_heads=3)
    with pytest.raises(
        bertkit.UserError, match="--head bilstm: the model's hidden size is 33, but must be even"
    ):
        reader(folder, head="bilstm")


# ---- mean pooling


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("task", ["classify", "swag"])
def test_heads_of_all_architectures_read_the_mean(name, task, saved):  # noqa: F811
    folder = saved(name)
    inputs, model = batch(), reader(folder, task, pooling="mean")
    mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**inputs).last_hidden_state[:, : mask.shape[1]]
        means = [row[real].mean(0) for row, real in zip(states, mask, strict=True)]
        torch.testing.assert_close(
            model.base_model(**inputs).last_hidden_state[:, 0], torch.stack(means), atol=1e-5, rtol=1e-5
        )
    of_the_cls = of_the_text(reader(folder, task), task, inputs)
    assert (of_the_text(model, task, inputs) - of_the_cls).abs().min() > 1e-6


def test_mean_is_the_input_of_a_head_that_averages_positions_itself(tmp_path):
    folder, config = tiny_of("modernbert", tmp_path / "model")
    config.classifier_pooling = "mean"
    config.save_pretrained(folder)
    averaging = of_the_text(reader(folder, pooling="mean"), "classify", batch())
    config.classifier_pooling = "cls"
    config.save_pretrained(folder)
    of_position_0 = of_the_text(reader(folder, pooling="mean"), "classify", batch())
    torch.testing.assert_close(averaging, of_position_0, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_mean_ignores_padding_on_the_right(causal, folders):
    model = reader(folders[causal], pooling="mean")
    expected = of_the_text(model, "classify", batch())
    found = of_the_text(model, "classify", batch(more=3))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_mean_ignores_padding_on_the_left(folders):
    inputs, stock = batch(left=True), AutoModel.from_pretrained(folders[False]).eval()
    with torch.no_grad():
        states = stock(**inputs).last_hidden_state
        found = reader(folders[False], pooling="mean").base_model(**inputs).last_hidden_state[:, 0]
    means = [row[real].mean(0) for row, real in zip(states, inputs["attention_mask"].bool(), strict=True)]
    torch.testing.assert_close(found, torch.stack(means), atol=1e-5, rtol=1e-5)


def test_mean_over_a_bilstm(folders):
    model = reader(folders[False], head="bilstm", pooling="mean")
    seen = []
    model.bilstm.register_forward_hook(lambda *given: seen.append(given[-1]))
    with torch.no_grad():
        found = model.base_model(**batch()).last_hidden_state[:, 0]
    sizes = batch()["attention_mask"].sum(1, keepdim=True)
    torch.testing.assert_close(found, seen[0].sum(1) / sizes)  # padding has zeros


@slow_fixture
def mean_run(folders, tmp_path_factory):
    """A classifier with mean pooling."""
    return tuned("classify", tmp_path_factory.mktemp("mean"), model=str(folders[False]), pooling="mean")


def test_head_is_kept_with_the_same_pooling_only(mean_run, tmp_path, cli):
    settings = {"model": str(mean_run.output_dir), "max_steps": 1, "learning_rate": 0.0}
    kept = tuned("classify", tmp_path / "kept", pooling="mean", **settings)
    assert kept.metrics["validation"] == mean_run.metrics["validation"]
    assert json.loads((kept.output_dir / "config.json").read_text())["bertkit_pooling"] == "mean"
    args = ["--data", tmp_path / "kept" / "classify.jsonl", "--model", mean_run.output_dir, "--max-steps", 1]
    status, _, err = cli("classify", *args, "-o", tmp_path / "cls")
    assert status == 0
    assert "re-initialized head" in err
    assert "bertkit_pooling" not in (tmp_path / "cls" / "config.json").read_text()


def test_embed_has_the_pooling_of_the_classifier(mean_run, tmp_path, cli):
    run = mean_run.output_dir
    status, _, err = cli("embed", run, "--text", "a good film", "-o", tmp_path / "vectors.npy")
    assert status == 0
    assert "pooling: mean" in err
    tokens = AutoTokenizer.from_pretrained(run)("a good film", return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(run).eval()(**tokens).last_hidden_state
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy")[0], states[0].mean(0), atol=1e-5)


@pytest.mark.parametrize("student", ["layers of the teacher", "another model"])
def test_student_has_the_pooling_of_its_teacher(student, mean_run, folders, tmp_path):
    model = {"num_layers": 1} if student == "layers of the teacher" else {"student": str(folders[False])}
    run = bertkit.distill(
        str(mean_run.output_dir), max_steps=1, batch_size=8, bf16=False, output_dir=str(tmp_path / "run"),
        **model,
    )  # fmt: skip
    assert json.loads((run.output_dir / "config.json").read_text())["bertkit_pooling"] == "mean"


def test_fitted_heads_and_trained_heads_replace_each_other(mean_run, tmp_path):
    fitted = tuned("classify", tmp_path / "fitted", model=str(mean_run.output_dir), method="contrastive")
    config = json.loads((fitted.output_dir / "config.json").read_text())
    assert (config["architectures"], config["bertkit_pooling"]) == (["VectorClassifier"], "mean")
    again = tuned("classify", tmp_path / "again", model=str(fitted.output_dir), pooling="mean")
    config = json.loads((again.output_dir / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["bertkit_pooling"] == "mean"
    assert "bertkit_normalize" not in config


# ---- runs


def tuned(task, tmp_path, **settings):
    data = write_rows(tmp_path / f"{task}.jsonl", ROW_MAKERS[task](40))
    usual = {"max_steps": 3, "batch_size": 8, "learning_rate": 3e-3, "bf16": False}
    return getattr(bertkit, task)(data=str(data), output_dir=str(tmp_path / "run"), **usual | settings)


# The tasks take turns, so that each kind of head is that of two tasks.
RUNS = [
    ("classify", True, {"head": "linear"}), ("qa", True, {"head": "linear"}),
    ("swag", True, {"head": "bilstm"}), ("nli", True, {"head": "bilstm"}),
    ("qa", False, {"head": "bilstm"}), ("classify", False, {"head": "bilstm"}),
    ("swag", True, {"pooling": "mean"}), ("classify", True, {"pooling": "mean"}),
    ("swag", False, {"pooling": "mean"}), ("nli", False, {"pooling": "mean"}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("task", "causal", "settings"), RUNS)
def test_predictions_equal_those_of_training(task, causal, settings, folders, tmp_path):
    run = tuned(task, tmp_path, model=str(folders[causal]), **settings)
    records = read_predictions(run.output_dir)
    keys = {"classify": "probabilities", "nli": "probabilities", "qa": "null_odds", "swag": "scores"}
    names = {"qa": ("question", "context"), "swag": ("context", "endings")}.get(task, ())
    columns = names or [key for key in records[0] if key not in ("id", "gold", "predicted", "probabilities")]
    rows = (
        [{name: record[name] for name in columns} for record in records] if task != "qa" else _questions(run)
    )
    found = list(bertkit.load(run.output_dir).predict(rows))
    assert len(found) == len(records)
    for one, other in zip(found, records, strict=True):
        assert one[keys[task]] == pytest.approx(other[keys[task]], abs=1e-5)
    card = (run.output_dir / "README.md").read_text()
    assert "bertkit.load(" in card
    assert "pipeline import" not in card
    assert "from transformers" not in card


def _questions(run):
    return [{"question": r["question"], "context": r["context"]} for r in read_predictions(run.output_dir)]


@pytest.mark.slow
def test_causal_ner_equals_the_stock_model(folders, tmp_path):
    run = tuned("ner", tmp_path, model=str(folders[True]))
    records = read_predictions(run.output_dir)
    found = bertkit.load(run.output_dir).predict([{"tokens": record["tokens"]} for record in records])
    assert [one["predicted"] for one in found] == [record["predicted"] for record in records]
    assert "pipeline('token-classification'" in (run.output_dir / "README.md").read_text()


@pytest.mark.slow
def test_causal_model_learns_and_card_explains_missing_pipeline(tmp_path):
    from transformers import pipeline

    data = write_rows(tmp_path / "toy.jsonl", make_easy_rows(232))
    quick = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    run = bertkit.classify(
        data=str(data), model=str(save_tiny_model(tmp_path / "causal", is_decoder=True, **quick)),
        epochs=1, batch_size=8, learning_rate=8e-3, bf16=False, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert run.metrics["validation"]["accuracy"] > 0.9
    stock = pipeline("text-classification", str(run.output_dir), top_k=None)
    glad, sad = stock(["a good film", "the food was awful"])
    assert glad == sad  # [CLS] has seen neither
    assert "`transformers.pipeline` classifies by [CLS]" in (run.output_dir / "README.md").read_text()


@pytest.mark.slow
def test_bilstm_head_is_kept_and_linear_head_is_reinitialized(folders, tmp_path, cli):
    first = tuned("swag", tmp_path / "first", model=str(folders[False]), head="bilstm")
    model = str(first.output_dir)
    on = tuned("swag", tmp_path / "on", model=model, head="bilstm", max_steps=1, learning_rate=1e-9)
    assert on.metrics["validation"] == pytest.approx(first.metrics["validation"], abs=1e-6)
    for one, other in zip(read_predictions(on.output_dir), read_predictions(first.output_dir), strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-4)
    config = json.loads((on.output_dir / "config.json").read_text())
    assert config["bertkit_head"] == "bilstm"
    args = ["--data", tmp_path / "first" / "swag.jsonl", "--model", model, "--max-steps", 1]
    status, _, err = cli("swag", *args, "-o", tmp_path / "plain")
    assert status == 0
    assert "re-initialized head" in err
    assert "bertkit_head" not in (tmp_path / "plain" / "config.json").read_text()


@slow_fixture
def bilstm_run(folders, tmp_path_factory):
    """A causal classifier with a BiLSTM, and a checkpoint before its last step."""
    folder, model = tmp_path_factory.mktemp("bilstm"), str(folders[True])
    return tuned("classify", folder, model=model, head="bilstm", save_steps=2).output_dir


def test_run_with_bilstm_resumes(bilstm_run, tmp_path, cli):
    run = shutil.copytree(bilstm_run, tmp_path / "run")
    for name in ("metrics.json", "model.safetensors"):
        (run / name).unlink()
    assert cli("classify", "--resume", "-o", run)[0] == 0
    weights = [(folder / "model.safetensors").read_bytes() for folder in (run, bilstm_run)]
    assert weights[0] == weights[1]


def test_run_without_its_bilstm_weights_is_refused(bilstm_run, tmp_path):
    from safetensors.torch import load_file, save_file

    run = shutil.copytree(bilstm_run, tmp_path / "run")
    path = run / "model.safetensors"
    rest = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("bilstm.")}
    save_file(rest, path, metadata={"format": "pt"})
    with pytest.raises(bertkit.UserError, match="its BiLSTM does not fit"):
        bertkit.load(run)
