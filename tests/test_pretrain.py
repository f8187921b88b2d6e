"""Pre-training from text to a checkpoint that others load, and what must hold on the way."""

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
from test_equivalence import SGD, assert_close, weights
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForPreTraining, pipeline

import bertkit
from bertkit.data.corpus.store import write_corpus
from bertkit.metrics.pretraining import score_pretraining, score_unigram
from bertkit.modeling.forward import compute_logits
from bertkit.modeling.losses import PretrainingLoss
from bertkit.modeling.pretraining import build_bert_config, gather_masked_positions
from bertkit.tasks.pretrain_config import MODEL_SIZES

COMMAND = "pretrain-mlm-nsp"


@pytest.fixture
def text(tmp_path):
    return write_rows(tmp_path / "text.jsonl", make_document_rows(120))


def pretrained(text, folder, **settings):
    usual = {"max_length": 32, "batch_size": 8, "bf16": False, "learning_rate": 3e-3}
    return bertkit.pretrain_mlm_nsp(data=str(text), output_dir=str(folder), **usual | settings)


def batch_of(vocabulary, places=4):
    """Six texts of unlike length with up to four places to predict, the last of none."""
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
def test_logits_at_masked_places_are_those_of_the_whole(name, tmp_path):
    _, config = tiny_of(name, tmp_path / "model")
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    batch = batch_of(config.vocab_size)
    whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    index = batch["masked_lm_positions"].unsqueeze(-1).expand(-1, -1, whole.shape[-1])
    found = compute_logits(gather_masked_positions(model), batch)
    torch.testing.assert_close(found.words, whole.gather(1, index), atol=1e-5, rtol=1e-5)
    assert found.sentence is None
    again = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(again, whole)  # without places it is the stock model


def test_the_loss_is_that_of_the_stock_model_over_all_places():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model, batch = BertForPreTraining(config).eval(), batch_of(60)
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
        loss.sum_losses(compute_logits(gather_masked_positions(model), batch), batch),
    )
    assert counts["mlm"] == (labels >= 0).sum()
    assert float(sum(sums[part] / counts[part] for part in sums)) == pytest.approx(float(stock), rel=1e-5)


@pytest.mark.parametrize(("size", "millions"), [("base", 110), ("large", 336)])
def test_sizes_have_the_parameters_of_the_paper(size, millions):
    with torch.device("meta"):
        model = BertForPreTraining(build_bert_config(30522, MODEL_SIZES[size], 0))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=1)


# ---- runs


def test_learns_and_others_load_it(text, tmp_path):
    run = pretrained(
        text, tmp_path / "run", size="tiny", vocab_size=120, epochs=60, batch_size=16, learning_rate=1e-3
    )
    found = run.metrics["validation"]
    assert set(found) == {"loss", "mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy"}
    assert found["loss"] == pytest.approx(found["mlm_loss"] + found["nsp_loss"])
    assert found["mlm_loss"] < run.metrics["baselines"]["unigram"]["mlm_loss"] - 1
    assert pipeline("fill-mask", str(run.output_dir))("The [MASK] film.")[0]["score"] > 0
    _, info = AutoModelForMaskedLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"]
    sample = read_predictions(run.output_dir, "masked_samples.jsonl")[0]
    assert [sample["masked"].split()[place] for place in sample["places"]].count("[MASK]") > 0
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    tuned = bertkit.classify(data=str(data), model=str(run.output_dir), max_steps=2, bf16=False,
                             output_dir=str(tmp_path / "tuned"))  # fmt: skip
    assert tuned.metrics["model"] == "run"
    assert "`bert-tiny` pre-trained from new weights by `pretrain-mlm-nsp` on" in card_of(run.output_dir)
    assert "`run` fine-tuned for `classify` on" in card_of(tmp_path / "tuned")


def card_of(folder):
    return (folder / "README.md").read_text("utf-8")


@pytest.mark.parametrize("objective", ["mlm", "mlm+sop"])
def test_other_objectives(objective, text, tmp_path):
    run = pretrained(text, tmp_path / "run", vocab_size=120, objective=objective, max_steps=3)
    assert ("nsp_loss" in run.metrics["validation"]) == (objective != "mlm")
    assert AutoTokenizer.from_pretrained(run.output_dir).mask_token == "[MASK]"


@pytest.mark.parametrize("name", ["roberta", "albert", "electra", "distilbert", "modernbert"])
def test_goes_on_from_any_architecture(name, text, tmp_path):
    folder, _ = tiny_of(name, tmp_path / "model")
    run = pretrained(
        text, tmp_path / "run", model=str(folder), objective="mlm", max_steps=2, whole_word_masking=True
    )
    assert "`model` further pre-trained by `pretrain-mlm-nsp` on" in card_of(run.output_dir)
    assert math.isfinite(run.metrics["validation"]["mlm_loss"])
    _, info = AutoModelForMaskedLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"]


def test_8_x_1_is_2_x_4_is_1_x_8(tiny_without_dropout, text, tmp_path):
    def run(batch, steps):
        return pretrained(text, tmp_path / f"{batch}x{steps}", model=str(tiny_without_dropout), epochs=2, batch_size=batch,
                          gradient_accumulation_steps=steps, **SGD)  # fmt: skip

    whole = run(8, 1)
    for other in (run(2, 4), run(1, 8)):
        assert other.metrics["training"]["loss"] == pytest.approx(whole.metrics["training"]["loss"], rel=1e-5)
        assert_close(weights(whole), weights(other), 1e-5)


def test_checkpointing_computes_layers_again_and_changes_nothing(tiny, text, tmp_path, monkeypatch):
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
            text, tmp_path / f"{saving}", model=str(tiny), max_steps=6, gradient_checkpointing=saving
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


def test_fp16_needs_an_accelerator(cli, text, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    args = ["--data", text, "--model", tiny, "--fp16"]
    assert_refused(cli, tmp_path, args, ["--fp16"], COMMAND)


def test_bf16_trains(text, tiny, tmp_path):
    run = pretrained(text, tmp_path / "run", model=str(tiny), max_steps=2, bf16=True)
    assert run.metrics["training"]["precision"] == "bf16"
    assert math.isfinite(run.metrics["validation"]["loss"])


@pytest.mark.parametrize("scratch", [True, False])
def test_resumes_in_the_middle_of_an_epoch_to_the_same_weights(
    scratch, cli, tiny, text, tmp_path, monkeypatch, stop_at
):
    new = ["--hidden-size", 16, "--num-heads", 2, "--vocab-size", 60]
    options = ["--data", text, *(new if scratch else ["--model", tiny])]
    options += ["--epochs", 2, "--batch-size", 8, "--max-length", 32, "--no-bf16"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    status, out, _ = cli(COMMAND, *options, "-o", whole, "--json")
    assert status == 0
    middle = json.loads(out)["training"]["steps"] * 3 // 4  # of the second epoch

    stop_at(middle)
    assert cli(COMMAND, *options, "-o", cut)[0] == 130
    monkeypatch.chdir(tmp_path)
    assert cli(COMMAND, "--resume", "-o", cut)[0] == 0
    for name in ("model.safetensors", "masked_samples.jsonl", "training_log.jsonl"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


def test_any_number_of_workers_gives_the_same_weights(tiny, text, tmp_path):
    one, two = (
        pretrained(
            text,
            tmp_path / f"of-{workers}",
            model=str(tiny),
            epochs=2,
            set=[f"dataloader_num_workers={workers}"],
        )
        for workers in (0, 2)
    )
    assert_close(weights(one), weights(two), 0.0)


# ---- examples


def features_of(text, tiny, **settings):
    """Features, collator and task of a text, as a run has them."""
    from bertkit.modeling.loading import load_tokenizer
    from bertkit.tasks.pretrain import Pretrain
    from bertkit.tasks.pretrain_config import PretrainConfig
    from bertkit.utils.reporting import Reporter

    task = Pretrain(PretrainConfig(data=str(text), model=str(tiny), max_length=32, **settings))
    found = task.load_data(Reporter())
    tokenizer = load_tokenizer(task.model_source)
    model = BertForPreTraining(BertConfig.from_pretrained(tiny))
    return task.featurize(found.splits["train"], tokenizer), task.collator(tokenizer, model)


def test_each_epoch_has_examples_of_its_own_and_the_same_number(text, tiny):
    features, collate = features_of(text, tiny)
    n = len(features)
    first, second = ([features[epoch * n + at] for at in range(n)] for epoch in (0, 1))
    assert features.length_keys_for_epoch(1).tolist() == [len(item["input_ids"][0]) for item in second]
    texts = [{tuple(item["input_ids"][0].tolist()) for item in items} for items in (first, second)]
    assert len(texts[0] & texts[1]) < n / 2
    again = collate([features[3], features[0]])
    alone = collate([features[0]])
    for name in ("masked_lm_positions", "masked_lm_labels", "next_sentence_label"):
        assert torch.equal(again[name][1], alone[name][0])  # in any company, at any time
    assert (np.array([item["next_sentence_label"] for item in first]) == 0).mean() == pytest.approx(
        0.5, abs=0.03
    )


def test_pieces_stand_where_they_belong(text, tiny):
    features, collate = features_of(text, tiny)
    item = features[0]
    batch = collate([item])
    ids, used = item["input_ids"][0], batch["masked_lm_labels"][0] >= 0
    places = batch["masked_lm_positions"][0][used]
    assert ids[places].tolist() == batch["masked_lm_labels"][0][used].tolist()
    unchanged = np.delete(np.arange(len(ids)), places)
    assert batch["input_ids"][0][unchanged].tolist() == ids[unchanged].tolist()
    assert int(used.sum()) == round(0.15 * (len(ids) - 3))
    assert batch["masked_lm_positions"].shape == (1, round(0.15 * 32))


def test_a_preview_measures_and_writes_nothing(cli, text, tmp_path):
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


@pytest.mark.parametrize(("given", "share"), [({}, 0.1), ({"dropout": 0.0}, 0.0), ({"dropout": 0.3}, 0.3)])
def test_dropout_is_of_pre_training_alone(given, share, text, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr("bertkit.pipeline.session.enable_fast_dropout", trained.append)
    run = pretrained(text, tmp_path / "run", hidden_size=16, num_heads=2, max_steps=1, vocab_size=60, **given)
    found = {module.p for module in trained[0].modules() if isinstance(module, torch.nn.Dropout)}
    config = BertConfig.from_pretrained(run.output_dir)
    assert found == {share}
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)


def test_new_weights_of_a_layer_put_out_what_varies_alike_at_any_width():
    shapes = [MODEL_SIZES[size] for size in ("tiny", "small", "base", "large")]
    spread = [build_bert_config(100, shape, 0).initializer_range for shape in shapes]
    assert spread[2:] == [0.02, 0.02]  # the paper's
    assert [s * math.sqrt(h) for s, (_, h, _) in zip(spread[:3], shapes[:3], strict=True)] == pytest.approx(
        [0.02 * math.sqrt(768)] * 3
    )


# ---- scores


def test_scores_are_over_all_that_is_predicted():
    kept = np.array([[6.0, 1, 2, 0.5, 1, 1], [0.0, 0, 0, 0.9, 0, 1], [3.0, 1, 1, 0.4, 1, 1]], np.float32)
    found = score_pretraining(kept, pairs=True)
    assert found["mlm_loss"] == pytest.approx(3.0)
    assert found["mlm_accuracy"] == pytest.approx(2 / 3)
    assert (found["nsp_loss"], found["nsp_accuracy"]) == (pytest.approx(0.6), pytest.approx(2 / 3))
    assert found["perplexity"] == pytest.approx(math.exp(3.0))
    assert score_pretraining(kept, pairs=False)["loss"] == pytest.approx(3.0)


def test_unigram_is_the_cross_entropy_of_frequencies(tiny, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    corpus = write_corpus([["good good bad"], ["good bad"]], tokenizer, tmp_path)
    good, bad = tokenizer.convert_tokens_to_ids(["good", "bad"])
    size = max(good, bad) + 1  # each piece that is there counts once more: none is impossible
    losses = {good: -math.log(3 / (3 + size)), bad: -math.log(2 / (3 + size))}
    found = score_unigram(corpus, np.array([0]), corpus, np.array([1]))
    assert found["mlm_loss"] == pytest.approx((losses[good] + losses[bad]) / 2)


# ---- what is refused


REFUSED = {
    "no such file": (["--data", "nowhere.txt"], ["nowhere.txt", "no such file"]),
    "heads": (["--hidden-size", 30, "--num-heads", 4], ["--num-heads 4", "divide", "--hidden-size 30"]),
    "positions": (["--max-length", 513], ["--max-length 513", "512 positions"]),
    "shares": (
        ["--mask-replace-prob", 0.8, "--random-replace-prob", 0.3],
        ["--mask-replace-prob 0.8", "together at most 1"],
    ),
    "vocabulary": (["--vocab-size", 20], ["--vocab-size 20", "characters"]),
    "no tokenizer": (["--tokenizer", "./nowhere"], ["--tokenizer ./nowhere", "does not exist"]),
    "two tokenizers": (["--vocab-size", 90, "--tokenizer", "minilm"], ["--vocab-size", "--tokenizer"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, cli, text, tmp_path):
    args, words = REFUSED[case]
    data = [] if "--data" in args else ["--data", text]
    assert_refused(cli, tmp_path, [*data, *args], words, COMMAND)


def test_an_empty_text_is_refused(cli, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    assert_refused(cli, tmp_path, ["--data", tmp_path / "empty.txt"], ["empty.txt", "only blanks"], COMMAND)


def test_a_text_of_which_nothing_can_be_set_aside_is_refused(cli, tiny, tmp_path):
    (tmp_path / "one.txt").write_text("One film.")
    args = ["--data", tmp_path / "one.txt", "--model", tiny]
    assert_refused(
        cli, tmp_path, args, ["one.txt", "only one sentence", "more text", "--validation"], COMMAND
    )


def test_a_preview_of_fewer_examples_than_asked_for_says_so(cli, text, tiny):
    args = [COMMAND, "--data", text, "--model", tiny, "--max-length", 32, "--json", "--preview"]
    there = int(json.loads(cli(*args, 9999)[1])["examples"])
    assert f"an epoch has {there:,} examples: these are all of them" in cli(*args, there + 1)[2]
    assert "these are all" not in cli(*args, there)[2]


def test_a_run_from_scratch_is_repeated_by_its_settings(cli, text, tmp_path):
    shape = ["--hidden-size", 16, "--num-heads", 2, "--vocab-size", 60, "--max-steps", 1]
    assert cli(COMMAND, "--data", text, *shape, "-o", tmp_path / "one")[0] == 0
    assert cli(COMMAND, "--recipe", tmp_path / "one" / "run.yaml", "-o", tmp_path / "two")[0] == 0
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("given", [("--size", "base"), ("--dropout", 0)])
def test_scratch_settings_beside_a_model_are_refused(given, cli, text, tiny, tmp_path):
    args = ["--data", text, "--model", tiny, *given]
    assert_refused(cli, tmp_path, args, [given[0], "from scratch", "--model"], COMMAND)


NEW = {
    "mlm+nsp": "new heads over pieces and pairs, of which its weights have none",
    "mlm": "new heads over pieces,",
}


@pytest.mark.parametrize("objective", NEW)
def test_heads_that_begin_anew_are_told(objective, cli, text, tiny, tmp_path):
    args = ["--data", text, "--max-length", 32, "--objective", objective, "--preview", 1, "--model"]
    assert f"; {NEW[objective]}" in cli(COMMAND, *args, "minilm")[2]
    run = pretrained(text, tmp_path / "run", model=str(tiny), objective="mlm", max_steps=1)
    err = cli(COMMAND, *args, run.output_dir)[2]
    assert ("new heads over pairs" in err) == (objective == "mlm+nsp")
    assert "pieces" not in err.split("model: run; ")[1].splitlines()[0]


def test_a_model_that_judges_no_pairs_is_refused_for_them(cli, text, tmp_path):
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


def test_documents_of_one_sentence_are_told_of(cli, tiny, tmp_path):
    data = write_rows(tmp_path / "short.jsonl", make_document_rows(60, longest=1))
    args = ["--data", data, "--model", tiny, "--max-length", 32, "--preview", 1]
    status, _, err = cli(COMMAND, *args)
    assert status == 0
    assert "have one sentence, so nothing follows it" in err


def test_one_document_is_cut_up_and_said(cli, tiny, tmp_path):
    data = write_rows(
        tmp_path / "one.jsonl", [{"text": " ".join(row["text"] for row in make_document_rows(60))}]
    )
    status, _, err = cli(
        COMMAND, "--data", data, "--model", tiny, "--max-steps", 1, "--batch-size", 4, "-o", tmp_path / "run"
    )
    assert status == 0
    assert "one document: cut into 20 stretches" in err
    assert "the text is one document: a second text that does not follow is taken from elsewhere in it" in err


# ---- files, and what is made of them once


def preview(cli, data, *args):
    status, _, err = cli(
        COMMAND, "--data", data, "--vocab-size", 120, "--max-length", 32, "--preview", 1, *args
    )
    assert status == 0, err
    return err


def test_a_tokenizer_is_trained_once(cli, text, tmp_path):
    again = "trained on this text before"
    first = preview(cli, text)
    assert "training a tokenizer on text.jsonl" in first
    assert again not in first
    second = preview(cli, text)
    assert again in second
    assert "training a tokenizer" not in second
    notes = [line for line in first.splitlines() if "accents" in line or "pieces, not" in line]
    assert notes
    assert [line for line in notes if line not in second] == []
    assert again not in preview(cli, text, "--cased")
    assert again not in preview(cli, text, "--vocab-size", 110)
    text.write_text(text.read_text() + json.dumps({"text": "One more."}) + "\n")
    assert again not in preview(cli, text)


def test_without_a_cache_a_tokenizer_is_trained_all_the_same(cli, text, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTKIT_CACHE_DIR", str(tmp_path / "file"))
    assert "a WordPiece tokenizer of" in preview(cli, text)


def test_examples_are_not_said_to_be_cut(cli, text, tiny, tmp_path):
    assert "of the training texts are over" not in preview(cli, text)
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--batch-size", 4, "--dry-run"]
    status, out, err = cli(COMMAND, *args)
    assert (status, "of the training texts" in out + err) == (0, False)
    run = pretrained(text, tmp_path / "run", model=str(tiny), max_steps=1)
    assert "examples of up to 32 pieces" in (run.output_dir / "README.md").read_text()


def folder_of(tmp_path, **counts):
    """A folder of text files by name, of so many documents."""
    for seed, (name, count) in enumerate(counts.items()):
        rows = make_document_rows(count, seed=seed)
        lines = "\n\n".join(row["text"].replace(". ", ".\n") for row in rows)
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(lines + "\n")
    return tmp_path / "texts"


@pytest.mark.parametrize("validation", ["valid", "validation", "dev"])
def test_files_of_a_folder_are_splits_by_their_names(validation, tiny, tmp_path):
    folder = folder_of(tmp_path, **{"train": 60, "wiki." + validation: 30, "test": 25})
    settings = {"model": str(tiny), "text_format": "sentences", "max_steps": 1}
    run = pretrained(folder, tmp_path / "run", **settings)
    about = run.metrics["data"]
    assert 55 <= about["train"] <= 60
    assert (about["validation"], about["test"]) == (30, 25)
    assert run.metrics["test"]["mlm_loss"] > 0
    other = write_rows(tmp_path / "other.jsonl", make_document_rows(22, seed=7))
    named = pretrained(folder, tmp_path / "named", validation=str(other), **settings)
    assert named.metrics["data"]["validation"] == 22


def test_a_folder_without_a_training_file_is_all_training_text(cli, tmp_path):
    err = preview(cli, folder_of(tmp_path, valid=60, test=30), "--text-format", "sentences")
    assert "no file is named after training: all 2 are training text, test.txt, valid.txt as well" in err
    assert "set aside" in err


def test_titles_are_not_taken_for_splits(cli, tmp_path):
    titles = {"a train to the sea": 20, "the test": 20, "gardens": 20, "stones": 20, "rivers": 20}
    err = preview(cli, folder_of(tmp_path, **titles))
    assert "all 5 are training text" in err
    (tmp_path / "texts" / "rivers.txt").unlink()
    assert "left out, not named after a split: gardens.txt, stones.txt" in preview(cli, tmp_path / "texts")


def test_random_second_texts_are_of_another_document_where_there_are_few(tiny, tmp_path):
    sentences = [make_document_rows(150, seed=seed, longest=1) for seed in range(3)]
    rows = [{"text": " ".join(row["text"] for row in document)} for document in sentences]
    features, _ = features_of(write_rows(tmp_path / "few.jsonl", rows), tiny)
    corpus, plan = features.corpus, features.get_plan(0)
    assert len(corpus.document_offsets) - 1 >= 20

    def origin(piece):
        sentence = np.searchsorted(corpus.sentence_offsets, piece, "right") - 1
        return corpus.parent_ids[np.searchsorted(corpus.document_offsets, sentence, "right") - 1]

    random = plan.labels == 1
    assert random.mean() == pytest.approx(0.5, abs=0.05)
    assert (origin(plan.a_start) != origin(plan.b_start))[random].all()
    assert len(set(origin(plan.a_start))) == 3
