"""Models whose files name their weights otherwise than transformers: all weights are saved and loaded."""

import shutil

import pytest
import torch
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_document_rows,
    make_tokenizer,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from safetensors.torch import load_file, save_file
from test_architectures import PAD, SIZE

import bertkit
from bertkit.errors import RunInterrupted, UserError
from bertkit.models.loading import ModelSource, load_config, load_model, load_tokenizer
from bertkit.models.tagger import save_model
from bertkit.run_directory import RunDir
from bertkit.training.trainer import BertkitTrainer, load_weights, save_weights
from bertkit.utils.files import write_checksums

WEIGHTS = "model.safetensors"
SETTINGS = {"epochs": 2, "batch_size": 12, "max_length": 32, "learning_rate": 5e-3, "bf16": False}
RENAMED = ["nomic_bert", "gte", "jina_embeddings_v3"]  # transformers splits some of their weights, too


def rename(folder, renames):
    """Replace parts of the names of the weights of a model."""
    weights = load_file(folder / WEIGHTS)
    for old, new in renames.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


def use_old_names(folder):
    """Rename the weights of a BERT as in the file of bert-base-uncased."""
    return rename(folder, {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"})


def make_model(name, folder, auto_class="AutoModel"):
    """A tiny model whose file has other names than transformers: "bert" has those of bert-base-uncased."""
    import transformers

    if name == "bert":
        return use_old_names(save_tiny_model(folder))
    pytest.importorskip(f"transformers.models.{name}")
    config = transformers.AutoConfig.for_model(
        name,
        vocab_size=len(make_tokenizer()),
        num_key_value_heads=2,
        **SIZE | PAD | {"max_position_embeddings": 64},
    )
    save_tiny_model(folder, config)
    if auto_class != "AutoModel":
        getattr(transformers, auto_class).from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A function that returns the folder of a model, which it makes once."""
    folder = tmp_path_factory.mktemp("models")

    def get(name):
        return folder / name if (folder / name).exists() else make_model(name, folder / name)

    return get


@pytest.fixture
def best_weights(monkeypatch):
    """The weights at the first evaluation, which has the best score, unlike the last one."""
    weights = {}

    def is_new_best(self, _):
        is_first = self.state.best_global_step is None
        if is_first:
            weights.update({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        return is_first

    monkeypatch.setattr(BertkitTrainer, "is_new_best", is_new_best)
    return weights


def make_rows(task, kind):
    if task != "classify":
        return make_document_rows(40) if task == "pretrain_mlm_nsp" else ROW_MAKERS[task](24)
    rows = make_toy_rows(24)
    if kind == "regression":
        return [{**row, "label": len(row["text"]) / 50} for row in rows]
    if kind == "multi-label":
        return [{**row, "label": [row["label"], "long"][: 1 + len(row["text"]) // 40]} for row in rows]
    return [{**row, "text_pair": row["text"]} for row in rows] if kind == "pairs" else rows


# Task, model and settings by name.
RUNS = {
    "pairs": ("classify", "bert", {"text_pair_column": "text_pair"}),
    "regression": ("classify", "bert", {"problem": "regression"}),
    "multi-label": ("classify", "bert", {"problem": "multi-label"}),
    "nli": ("nli", "bert", {}),
    "ner": ("ner", "bert", {}),
    "tagger": ("ner", "bert", {"head": "bilstm"}),
    "bilstm": ("qa", "bert", {"head": "bilstm"}),
    "qa": ("qa", "bert", {}),
    "swag": ("swag", "bert", {}),
    "pretrain_mlm_nsp": ("pretrain_mlm_nsp", "bert", {"objective": "mlm"}),
    "nomic_bert": ("classify", "nomic_bert", {}),
    "gte": ("classify", "gte", {}),
    "lora": ("classify", "gte", {"lora": 2, "learning_rate": 0.1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_a_saved_run_has_the_scores_of_its_best_checkpoint(kind, models, best_weights, tmp_path):
    task, model, settings = RUNS[kind]
    data = write_rows(tmp_path / "rows.jsonl", make_rows(task, kind))
    run = getattr(bertkit, task)(
        data=str(data), model=str(models(model)), output_dir=str(tmp_path / "run"), **SETTINGS | settings
    )
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 2  # the best one is not the last one
    scores = bertkit.evaluate(run.output_dir).metrics["validation"]
    assert scores == pytest.approx(run.metrics["validation"], abs=1e-6)
    saved = load_file(run.output_dir / WEIGHTS)
    if kind == "lora":  # the saved weights contain the adapters
        first = read_predictions(run.output_dir, "training_log.jsonl")[0]
        assert scores["nll"] == pytest.approx(first["eval_loss"], abs=1e-5)
    else:
        assert all(torch.equal(tensor, best_weights[name]) for name, tensor in saved.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("bert", {}), ("gte", {"lora": 2})])
def test_a_resumed_run_is_bit_identical(name, settings, models, tmp_path, stop_at):
    data = write_rows(tmp_path / "rows.jsonl", make_toy_rows(24))
    options = {"data": str(data), "model": str(models(name)), **SETTINGS, "batch_size": 8, **settings}
    stop_at(4)
    with pytest.raises(RunInterrupted):
        bertkit.classify(**options, output_dir=str(tmp_path / "resumed"))
    bertkit.classify(output_dir=str(tmp_path / "resumed"), resume=True)
    bertkit.classify(**options, output_dir=str(tmp_path / "whole"))
    for file in (WEIGHTS, "predictions.jsonl", "training_log.jsonl"):
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


# ---- names of saved models


@pytest.mark.parametrize("name", ["bert", *RENAMED])
def test_a_model_is_saved_with_its_own_names(name, models, tmp_path):
    from transformers import AutoModelForSequenceClassification

    source = ModelSource(name, models(name))
    model = load_model(AutoModelForSequenceClassification, source, load_config(source), new_head=True)
    save_model(model, tmp_path, None, load_tokenizer(source))
    weights = model.state_dict()
    assert load_file(tmp_path / WEIGHTS).keys() == weights.keys()
    again, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert all(torch.equal(tensor, weights[path]) for path, tensor in again.state_dict().items())


def test_a_prefix_in_the_file_does_not_change_the_name_of_the_head(tmp_path):
    """transformers would write `new.classifier.weight` for files like those of Alibaba-NLP."""
    from transformers import AutoModelForSequenceClassification

    make_model("gte", tmp_path / "model", "AutoModelForMaskedLM")
    source = ModelSource("gte", rename(tmp_path / "model", {"gte.": "new."}))
    model = load_model(AutoModelForSequenceClassification, source, load_config(source), new_head=True)
    save_model(model, tmp_path / "saved", None, load_tokenizer(source))
    assert load_file(tmp_path / "saved" / WEIGHTS).keys() == model.state_dict().keys()


# ---- checkpoints


def make_checkpoint(folder, model, changes=None):
    """Write the weights of a model, changed: None removes a weight."""
    folder.mkdir()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()} | (changes or {})
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / WEIGHTS)
    return folder


def build(auto_class, **settings):
    from transformers import BertConfig

    return auto_class.from_config(BertConfig(vocab_size=60, **SIZE | settings))


def assert_loads(model, checkpoint, weights):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_weights(model, checkpoint)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_checkpoints_of_several_files_and_with_old_names_of_bert_are_loaded(tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = build(AutoModelForSequenceClassification)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 1
    assert_loads(model, tmp_path / "sharded", weights)
    assert_loads(model, use_old_names(make_checkpoint(tmp_path / "old", model)), weights)


def test_weights_that_are_shared_are_saved_once_and_loaded(tmp_path):
    from transformers import AutoModelForMaskedLM

    model = build(AutoModelForMaskedLM)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_weights(model, tmp_path)
    assert len(weights.keys() - load_file(tmp_path / WEIGHTS).keys()) == 2  # of output weights and their bias
    assert_loads(model, tmp_path, weights)
    assert model.cls.predictions.decoder.weight is model.get_input_embeddings().weight


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bert.pooler.dense.weight": None}, "lacks bert.pooler.dense.weight"),
        ({"other": torch.ones(1)}, "has also other"),
        ({"cls.seq_relationship.bias": None, "other": torch.ones(1)}, "lacks cls.seq_relationship.bias"),
    ],
)
def test_checkpoints_of_other_weights_are_refused(changes, problem, tmp_path):
    from transformers import AutoModelForPreTraining

    model = build(AutoModelForPreTraining, tie_word_embeddings=False)
    with pytest.raises(UserError) as error:
        load_weights(model, make_checkpoint(tmp_path / "checkpoint-3", model, changes))
    assert f"checkpoint-3: its weights do not fit the settings in run.yaml ({problem}); " in str(error.value)


@pytest.mark.slow
def test_a_resumed_run_needs_all_weights(cli, tiny, toy, tmp_path, stop_at):
    run = tmp_path / "run"
    stop_at(1)
    assert cli("classify", "--data", toy, "--model", tiny, "--batch-size", 16, "-o", run)[0] == 130
    checkpoint = RunDir(run).find_last_checkpoint()
    rename(checkpoint, {"word_embeddings": "tokens"})
    write_checksums(checkpoint)
    words = [
        f"{checkpoint}: its weights do not fit",
        "lacks bert.embeddings.word_embeddings.weight",
        "--overwrite",
    ]
    assert_refused(cli, tmp_path, ["--resume", "-o", run], words)


# ---- weights that are missing in a model or in a run


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("run")
    data = write_rows(folder / "rows.jsonl", make_toy_rows(24))
    return bertkit.classify(
        data=str(data), model=str(tiny), max_steps=1, output_dir=str(folder / "run")
    ).output_dir


def change_weights(source, folder, change):
    shutil.copytree(source, folder)
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


def remove(name):
    return lambda weights: weights.pop(name)


def shorten(name):
    return lambda weights: weights.update({name: weights[name][:-1].clone()})


@pytest.mark.parametrize("change", [remove, shorten])
def test_a_model_that_lacks_weights_of_its_encoder_is_refused(change, cli, tiny, toy, tmp_path):
    name = "encoder.layer.1.output.dense.weight"
    folder = change_weights(tiny, tmp_path / "model", change(name))
    words = ["--model model: its weights", name, "use another model or download it again"]
    assert_refused(cli, tmp_path, ["--data", toy, "--model", folder, "-o", tmp_path / "run"], words)


@pytest.mark.parametrize(
    "part", ["classifier.bias", "bert.pooler.dense.weight", "bert.embeddings.LayerNorm.bias"]
)
def test_a_run_that_lacks_weights_is_refused(part, cli, run, tmp_path):
    folder = change_weights(run, tmp_path / "run", remove(part))
    words = [f"{folder}: its weights", part, "train the run again"]
    assert_refused(cli, tmp_path, [folder], words, "evaluate")


def test_a_model_without_a_pooler_is_accepted(tiny, tmp_path):
    from transformers import AutoModel, AutoModelForSequenceClassification

    folder = change_weights(tiny, tmp_path / "model", remove("pooler.dense.weight"))
    source = ModelSource("model", folder)
    expected = load_file(folder / "model.safetensors")["encoder.layer.1.output.dense.weight"]
    encoder = load_model(AutoModel, source, load_config(source))
    model = load_model(AutoModelForSequenceClassification, source, load_config(source), new_head=True)
    for loaded in (encoder, model.base_model):
        assert torch.equal(loaded.encoder.layer[1].output.dense.weight, expected)
