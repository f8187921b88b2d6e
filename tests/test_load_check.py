"""The check of a loaded model: padding, number format, and the tokens of tokenizer.json."""

import json
import random

import numpy as np
import pytest
import torch
from conftest import make_tokenizer, make_toy_rows, save_tiny_model, write_rows

import bertkit
from bertkit.models import load_check
from bertkit.models.loading import ModelSource
from bertkit.training.failures import report_precision_errors
from bertkit.utils.reporting import Reporter, use_reporter

pytestmark = pytest.mark.load_check

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}


class Warnings(Reporter):
    """Keeps the warnings."""

    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def make_config(name, **settings):
    from transformers import AutoConfig

    defaults = {"vocab_size": len(make_tokenizer()), "max_position_embeddings": 64, "pad_token_id": 0} | SIZE
    return AutoConfig.for_model(name, **defaults | settings)


def build(name, **settings):
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(make_config(name, **settings))


@pytest.mark.parametrize(
    ("name", "settings", "depends"),
    [
        ("bert", {}, False), ("roberta", {}, False),
        ("deberta", DEBERTA, False), ("longformer", {"attention_window": 8}, False), ("fnet", {}, True),
        ("nystromformer", {}, True), ("convbert", {"embedding_size": 32, "head_ratio": 1}, True),
    ],
)  # fmt: skip
def test_outputs_that_depend_on_padding_are_reported(name, settings, depends):
    reporter = Warnings()
    model = build(name, **settings)
    for _ in range(2):  # the second result is from the cache
        with use_reporter(reporter):
            load_check.warn_about_padding(model, make_tokenizer(), 64)
    message = (
        f"{name}: its outputs for a text depend on the padding of the batch; predict with --batch-size 1"
    )
    assert reporter.warnings == [message] * 2 * depends


def test_the_check_is_cached_and_changes_nothing(monkeypatch):
    model, tokenizer = build("bert").train(), make_tokenizer()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    calls = []
    monkeypatch.setattr(model.base_model, "forward", _count(calls, model.base_model.forward))
    for _ in range(2):
        load_check.warn_about_padding(model, tokenizer, 64)
        assert load_check.find_precision_error(model, tokenizer, 64, "bf16") is None
    assert len(calls) == 3  # alone, together, and one step
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_check_keeps_statistics_and_depends_on_weights():
    """I-BERT updates statistics in training."""
    tokenizer = make_tokenizer()
    model = build("ibert")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert load_check.find_precision_error(model, tokenizer, 64, "bf16") is None
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    model = build("fnet")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    reporter = Warnings()
    with use_reporter(reporter):
        load_check.warn_about_padding(model, tokenizer, 64)
        load_check.warn_about_padding(build("fnet"), tokenizer, 64)
    assert len(reporter.warnings) == 1


def _count(calls, function):
    def call(*args, **kwargs):
        calls.append(1)
        return function(*args, **kwargs)

    return call


def test_an_architecture_without_bf16_is_found():
    tokenizer = make_tokenizer()
    model = build("deberta", **DEBERTA)
    assert "BFloat16" in load_check.find_precision_error(model, tokenizer, 64, "bf16")
    assert load_check.find_precision_error(model, tokenizer, 64, "fp32") is None


@pytest.mark.slow
def test_bf16_that_is_not_possible_is_refused_or_replaced(cli, tmp_path, monkeypatch):
    folder = save_tiny_model(tmp_path / "model", make_config("deberta", **DEBERTA))
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))
    args = ["classify", "--data", data, "--model", folder, "--max-steps", 2, "--batch-size", 4, "-o"]
    for more in ([], ["--dry-run"]):
        status, _, err = cli(*args, tmp_path / "run", "--bf16", *more)
        assert (status, "deberta: cannot be trained in bf16" in err) == (2, True)
        assert "; pass --no-bf16" in " ".join(err.split())
    monkeypatch.setattr("bertkit.utils.devices.is_bf16_faster", lambda: True)
    status, _, err = cli(*args, tmp_path / "run")
    assert (status, "; training in fp32" in " ".join(err.split())) == (0, True)
    cli(*args, tmp_path / "fp32", "--no-bf16")
    runs = [tmp_path / name for name in ("run", "fp32")]
    weights, others = ((run / "model.safetensors").read_bytes() for run in runs)
    assert weights == others
    assert json.loads((runs[0] / "metrics.json").read_text())["training"]["precision"] == "fp32"


def test_errors_of_a_number_format_in_a_step_have_a_fix():
    """BigBird's sparse attention needs long texts, which the check does not have."""
    model = build("bert")
    problem = r"bert: cannot be trained in bf16 .*; pass --no-bf16"
    with pytest.raises(bertkit.UserError, match=problem), report_precision_errors(model, "bf16"):
        raise RuntimeError("Index put requires the source and destination dtypes match, got Float")
    for precision, message in (("fp32", "expected scalar type Float"), ("bf16", "shapes do not match")):
        with pytest.raises(RuntimeError, match=message), report_precision_errors(model, precision):
            raise RuntimeError(message)


@pytest.mark.parametrize("length", [8, 600])
def test_attention_with_queries_in_fp32_has_gradients_under_autocast(length):
    """Jina rotates queries and keys in fp32."""
    from bertkit.models.cpu import attend_fast

    def make(dtype):
        return torch.randn(2, 2, length, 8, dtype=dtype, requires_grad=True)

    query, key, value = make(torch.float32), make(torch.float32), make(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attend_fast(torch.nn.Module(), query, key, value, None, dropout=0.1)
    output.float().sum().backward()
    assert query.grad.dtype == torch.float32
    assert value.grad.dtype == torch.bfloat16


def make_funnel():
    from transformers import FunnelConfig

    return FunnelConfig(
        vocab_size=len(make_tokenizer()), block_sizes=[1, 1, 1], d_model=32, n_head=2, d_head=16, d_inner=64,
        num_decoder_layers=1, architectures=["FunnelModel"],
    )  # fmt: skip


def test_texts_that_are_too_short_for_an_architecture_are_found():
    from transformers import FunnelForSequenceClassification

    funnel = FunnelForSequenceClassification(make_funnel())
    assert "broadcast shape" in load_check._find_length_error(funnel, np.array([2, 5, 3]))
    assert load_check._find_length_error(funnel, np.arange(2, 12)) is None
    assert load_check._find_length_error(build("bert"), np.array([2, 3])) is None


@pytest.mark.slow
def test_texts_that_are_too_short_are_refused_in_prediction(cli, tmp_path):
    folder = save_tiny_model(tmp_path / "model", make_funnel())
    rows = [row | {"text": "the film was very good and " + row["text"]} for row in make_toy_rows(24)]
    data = write_rows(tmp_path / "toy.jsonl", rows)
    run = bertkit.classify(
        data=str(data), model=str(folder), max_steps=1, bf16=False, output_dir=str(tmp_path / "run")
    ).output_dir
    words = "funnel: cannot read a text of 3 tokens"
    for args in (["predict", run], ["embed", folder, "-o", tmp_path / "vectors.npy"]):
        status, _, err = cli(*args, "--text", "good")
        assert (status, words in " ".join(err.split())) == (2, True), err


# ---- the tokenizer


def save_cased_tokenizer(folder, config):
    """A cased tokenizer.json that is split at white space only, beside a BertTokenizer's config."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "Ferry", "C++", "the", "ferry", "c", "+"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ModelSource("model", folder)


def test_a_tokenizer_json_that_is_not_used_is_reported_with_a_fix_that_works(tmp_path):
    from bertkit.models.loading import add_tokens, load_tokenizer

    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 48}
    source = save_cased_tokenizer(tmp_path / "model", config)
    reporter = Warnings()
    texts = ["the ferry", "The Ferry C++"]
    for _ in range(2):  # the second result is from the cache
        with use_reporter(reporter):
            load_check.warn_about_tokenizer(source, load_tokenizer(source), texts)
    assert len(reporter.warnings) == 2
    assert reporter.warnings[0] == reporter.warnings[1]
    assert "so that 'The Ferry C++' becomes 'the ferry c +'; replace" in reporter.warnings[0]
    fix = reporter.warnings[0].partition("tokenizer_config.json by ")[2]
    (source.folder / "tokenizer_config.json").write_text(fix)
    tokenizer = load_tokenizer(source)
    assert tokenizer.model_max_length == 48
    add_tokens(tokenizer, ["<e1>"])  # the tokens of a task do not count
    with use_reporter(reporter):
        load_check.warn_about_tokenizer(source, tokenizer, [*texts, "The <e1>Ferry"])
    assert len(reporter.warnings) == 2


@pytest.mark.parametrize("task", ["classify", "ner", "qa", "swag", "nli"])
def test_each_task_has_texts_to_compare(task, tmp_path):
    from conftest import ROW_MAKERS

    from bertkit.run.load_data import load_data
    from bertkit.tasks import task_definition

    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](40))
    loaded = load_data(task, task_definition(task).config(data=str(data)))
    texts = loaded.task.input_schema.sample_texts(loaded.dataset.splits["train"], 30)
    assert len(texts) == 30
    assert all(isinstance(text, str) and text for text in texts)


@pytest.mark.slow
def test_every_kind_of_training_runs_the_check(text, tiny, tmp_path, monkeypatch):
    calls = []
    original = load_check.warn_about_tokenizer

    def check(source, tokenizer, texts):
        calls.append(texts)
        original(source, tokenizer, texts)

    monkeypatch.setattr("bertkit.run.session.warn_about_tokenizer", check)
    common = {"model": str(tiny), "max_steps": 1, "batch_size": 4, "bf16": False, "dry_run": True}
    bertkit.pretrain_mlm_nsp(data=str(text), max_length=32, **common)
    data = str(write_rows(tmp_path / "toy.jsonl", make_toy_rows(40)))
    bertkit.classify(data=data, lora=2, **common)
    bertkit.classify(data=data, model=str(tiny), method="contrastive", bf16=False, dry_run=True)
    bertkit.classify(data=data, model=str(tiny), method="linear-probe", dry_run=True)
    assert [len(texts) > 30 for texts in calls] == [True] * 4


def test_embed_reports_outputs_that_depend_on_padding(cli, tmp_path):
    folder = save_tiny_model(tmp_path / "model", make_config("fnet"))
    args = ["embed", folder, "--text", "good", "-o", tmp_path / "vectors.npy", "--overwrite"]
    assert "fnet: its outputs for a text depend" in cli(*args)[2]
    assert "fnet" not in cli(*args, "--batch-size", 1)[2]


@pytest.mark.slow
def test_predict_reports_outputs_that_depend_on_padding_and_serve_avoids_them(cli, tmp_path, monkeypatch):
    from bertkit.commands.configs import ServeConfig
    from bertkit.serve import models as models_module
    from bertkit.serve.models import Metrics

    folder = save_tiny_model(tmp_path / "model", make_config("fnet"))
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(24))
    run = bertkit.classify(
        data=str(data), model=str(folder), max_steps=1, bf16=False, output_dir=str(tmp_path / "run")
    ).output_dir
    args = ["predict", run, "--text", "good", "--text", "the film was very good"]
    assert "fnet: its outputs for a text depend" in cli(*args)[2]
    assert "fnet" not in cli(*args, "--batch-size", 1)[2]
    predictor = models_module.load_predictor(str(run))
    monkeypatch.setattr(models_module, "load_predictor", lambda _: predictor)
    config = ServeConfig(run=["RUN"], max_batch_size=8, max_delay_ms=0.0, max_request_tokens=1000)
    models_module.load_served_model("run", "run", config, Metrics())
    assert predictor.task.config.eval_batch_size == 1


def test_xlnet_is_refused_plainly(cli, tmp_path):
    from conftest import assert_refused
    from transformers import XLNetConfig

    config = XLNetConfig(vocab_size=len(make_tokenizer()), d_model=32, n_layer=1, n_head=2, d_inner=32)
    folder = save_tiny_model(tmp_path / "model", config)
    args = [folder, "--text", "good", "-o", tmp_path / "vectors.npy"]
    words = ["xlnet is not supported, because its [CLS] is the last token"]
    assert_refused(cli, tmp_path, args, words, "embed")


def test_reformer_is_refused_plainly(tmp_path):
    from bertkit.models.loading import load_config

    (tmp_path / "config.json").write_text('{"model_type": "reformer"}')
    with pytest.raises(bertkit.UserError, match="reformer is not supported, because it is only trained on"):
        load_config(ModelSource("model", tmp_path))


def test_no_positions_mean_no_limit():
    from bertkit.models.loading import get_max_positions

    assert get_max_positions(make_config("bert", max_position_embeddings=-1)) is None
