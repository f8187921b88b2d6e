"""`--objective rtd`: replaced token detection, and the checkpoints of discriminator and generator."""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import (
    assert_refused,
    make_document_rows,
    make_tokenizer,
    make_toy_rows,
    read_predictions,
    write_rows,
)
from safetensors.torch import load_file
from test_equivalence import SGD, assert_close, weights
from test_pretrain import COMMAND, pretrained
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    ElectraConfig,
    pipeline,
)

import bertkit
from bertkit.data.collators import PaddingCollator
from bertkit.data.masking import build_masker, build_special_tokens_mask
from bertkit.models.forward import compute_logits
from bertkit.models.losses import sum_parts
from bertkit.models.packing import enable_packing
from bertkit.models.replaced_tokens import (
    DISCRIMINATOR_WEIGHT,
    ReplacedTokenCollator,
    ReplacedTokenLoss,
    ReplacedTokenModel,
    build_generator_config,
    reduce_replaced_token_logits,
    sample_tokens,
    score_majority,
    score_replaced_tokens,
)
from bertkit.models.scratch import build_config
from bertkit.tasks.pretrain.config import MODEL_SIZES
from flops import SequenceCounts, count_training_flops

SHAPE = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "vocab_size": 60, "generator_size": 0.5}


def build_model(vocab_size, dropout=0.0):
    config = build_config("electra", vocab_size, (2, 16, 2), 0)
    config.update({"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout})
    torch.manual_seed(0)
    generator = AutoModelForMaskedLM.from_config(build_generator_config(config, 0.5))
    return ReplacedTokenModel(AutoModelForPreTraining.from_config(config), generator).eval()


def make_batch(keys, tokenizer):
    """Return the batch of texts whose length and tokens depend on the key."""
    is_special = build_special_tokens_mask(tokenizer)
    pad = PaddingCollator(tokenizer.pad_token_id, return_token_type_ids=True)
    masker = build_masker(tokenizer, is_special, False, mlm_probability=0.4, max_predictions_per_seq=5)
    items = []
    for key in keys:
        ids = np.random.default_rng(key).integers(5, len(tokenizer), 4 + key)
        ids = np.array([tokenizer.cls_token_id, *ids, tokenizer.sep_token_id])
        items.append({
            "input_ids": [ids], "token_type_ids": [np.zeros_like(ids)], "key": key, "next_sentence_label": 0
        })  # fmt: skip
    return ReplacedTokenCollator(pad, masker, is_special, has_pairs=False)(items)


# ---- the model


def test_samples_follow_the_distribution():
    logits = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0]).log().expand(10_000, 6)
    uniform = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(sample_tokens(logits, uniform), minlength=6) / 10_000
    assert counts.tolist() == pytest.approx([0.0, 0.5, 0.0, 0.3, 0.2, 0.0], abs=0.02)
    ends = sample_tokens(logits[:2], torch.tensor([0.0, 1.0]))  # fp32 rounds numbers close to 1
    assert ends.tolist() == [1, 4]  # tokens with a probability of 0 are never sampled


def test_only_masked_tokens_are_replaced_by_samples_of_the_generator():
    tokenizer = make_tokenizer()
    model, batch = build_model(len(tokenizer)), make_batch([3, 9, 1], tokenizer)
    inputs = []
    model.discriminator.register_forward_pre_hook(
        lambda _, __, kwargs: inputs.append(kwargs["input_ids"]), with_kwargs=True
    )
    logits = compute_logits(model, batch)
    expected = sample_tokens(logits.prediction_logits, batch["sampling_uniform"])
    for row in range(3):
        replaced = batch["original_ids"][row].clone()
        used = batch["masked_lm_labels"][row] >= 0
        replaced[batch["masked_lm_positions"][row][used]] = expected[row][used]
        assert inputs[0][row].tolist() == replaced.tolist()
    assert torch.equal(logits.is_replaced, inputs[0] != batch["original_ids"])
    assert logits.is_replaced.any()


def test_the_loss_equals_that_of_the_models_of_transformers():
    tokenizer = make_tokenizer()
    model, batch = build_model(len(tokenizer)), make_batch([3, 9, 1], tokenizer)
    logits, loss = compute_logits(model, batch), ReplacedTokenLoss()
    labels = torch.full_like(batch["input_ids"], -100)
    for row, (places, some) in enumerate(
        zip(batch["masked_lm_positions"], batch["masked_lm_labels"], strict=True)
    ):
        labels[row, places[some >= 0]] = some[some >= 0]
    inputs = {name: batch[name] for name in ("attention_mask", "token_type_ids")}
    generator_loss = model.generator(batch["input_ids"], **inputs, labels=labels).loss
    sampled = sample_tokens(logits.prediction_logits, batch["sampling_uniform"])
    replaced = batch["original_ids"].clone()
    for row in range(3):
        used = batch["is_masked"][row]
        replaced[row, batch["masked_lm_positions"][row][used]] = sampled[row][used]
    is_replaced = (replaced != batch["original_ids"]).long()
    discriminator_loss = model.discriminator(replaced, **inputs, labels=is_replaced).loss
    counts, sums = loss.count_items(batch), loss.sum_losses(logits, batch)
    found = sum_parts(loss, {part: sums[part] / counts[part] for part in sums})
    assert float(found) == pytest.approx(float(generator_loss + 50 * discriminator_loss), rel=1e-5)


def test_outputs_do_not_depend_on_the_other_examples():
    tokenizer = make_tokenizer()
    model, keys = build_model(len(tokenizer)), [3, 9, 1, 7]
    together = make_batch(keys, tokenizer)
    sums = reduce_replaced_token_logits(compute_logits(model, together), together, len(keys))
    for row, key in enumerate(keys):
        batch = make_batch([key], tokenizer)
        alone = reduce_replaced_token_logits(compute_logits(model, batch), batch, 1)
        torch.testing.assert_close(alone[0], sums[row], atol=1e-4, rtol=1e-4)
    assert not torch.equal(together["sampling_uniform"][0], together["sampling_uniform"][1])


def test_packing_does_not_change_the_outputs():
    tokenizer = make_tokenizer()
    batch, packed = make_batch([3, 9, 1], tokenizer), build_model(len(tokenizer))
    padded = compute_logits(build_model(len(tokenizer)).train(), batch)
    for submodel in packed.submodels.values():
        enable_packing(submodel)
    logits = compute_logits(packed.train(), batch)
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(logits.replaced_logits[mask], padded.replaced_logits[mask])
    used = batch["is_masked"]
    torch.testing.assert_close(logits.prediction_logits[used], padded.prediction_logits[used])


def test_the_generator_has_the_shape_of_the_reference_implementation():
    base = build_config("electra", 30522, MODEL_SIZES["base"], 0)
    generator = build_generator_config(base, 1 / 3)
    assert (generator.hidden_size, generator.num_attention_heads) == (256, 4)
    assert (generator.num_hidden_layers, generator.intermediate_size) == (12, 1024)
    assert generator.embedding_size == base.embedding_size == 768
    odd = build_generator_config(build_config("electra", 99, (2, 200, 2), 0), 1.0)
    assert odd.hidden_size % odd.num_attention_heads == 0


def test_flops_are_those_of_both_models():
    model = build_model(60)
    sequences = SequenceCounts(torch.bincount(torch.tensor([9, 9])), 3)
    discriminator = count_training_flops(model.discriminator, SequenceCounts(sequences.length_counts))
    generator = count_training_flops(model.generator, sequences)
    assert count_training_flops(model, sequences) == discriminator + generator > discriminator > 0


# ---- scores


def test_scores_are_over_all_tokens():
    # mlm: loss, correct, predictions; rtd: loss, correct, tokens; both, found, replaced
    sums = np.array([[4.0, 1, 2, 3.0, 8, 10, 1, 2, 2], [2.0, 1, 2, 5.0, 10, 10, 2, 2, 2]])
    scores = score_replaced_tokens(sums)
    assert scores == pytest.approx({
        "loss": 1.5 + DISCRIMINATOR_WEIGHT * 0.4, "mlm_loss": 1.5, "mlm_accuracy": 0.5,
        "perplexity": np.exp(1.5), "rtd_loss": 0.4, "rtd_accuracy": 0.9, "rtd_precision": 0.75,
        "rtd_recall": 0.75, "rtd_f1": 0.75, "replaced": 0.2,
    })  # fmt: skip
    assert score_majority(0.2) == pytest.approx({"rtd_accuracy": 0.8, "rtd_loss": 0.500402}, rel=1e-5)
    assert score_majority(0.0) == {"rtd_accuracy": 1.0, "rtd_loss": 0.0}


# ---- runs


@pytest.mark.slow
def test_a_run_learns_and_every_command_loads_its_parts(cli, tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(240, longest=4))
    run = pretrained(
        text, tmp_path / "run", objective="rtd", hidden_size=64, num_layers=1, num_heads=2, vocab_size=120,
        epochs=10, batch_size=16, max_length=64, learning_rate=3e-3, dropout=0.0,
    )  # fmt: skip
    scores, baselines = run.metrics["validation"], run.metrics["baselines"]
    assert scores["mlm_loss"] < baselines["unigram"]["mlm_loss"] - 0.3
    assert scores["rtd_loss"] < baselines["majority"]["rtd_loss"]
    assert baselines["majority"]["rtd_accuracy"] == pytest.approx(1 - scores["replaced"])
    log = read_predictions(run.output_dir, "training_log.jsonl")
    assert {"mlm_loss", "rtd_loss", "rtd_accuracy", "eval_rtd_f1"} <= log[-1].keys()
    assert log[-1]["rtd_loss"] < 1  # without the factor of the sum
    assert log[-1]["loss"] == pytest.approx(log[-1]["mlm_loss"] + 50 * log[-1]["rtd_loss"], rel=0.1)

    discriminator, info = AutoModelForPreTraining.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert discriminator.config.architectures == ["ElectraForPreTraining"]
    generator, info = AutoModelForMaskedLM.from_pretrained(
        run.output_dir / "generator", output_loading_info=True
    )
    assert not info["missing_keys"] | info["unexpected_keys"]
    for name, parameter in discriminator.electra.embeddings.named_parameters():
        assert torch.equal(parameter, generator.electra.embeddings.get_parameter(name))
    status, out, _ = cli("fill-mask", run.output_dir / "generator", "good [MASK] film", "--json")
    assert status == 0
    assert json.loads(out)
    status, _, err = cli("fill-mask", run.output_dir, "good [MASK] film")
    assert (status, "no masked LM head" in err) == (2, True)
    assert f"use its generator, {run.output_dir / 'generator'}" in err
    assert len(pipeline("feature-extraction", str(run.output_dir))("good film")[0]) > 2

    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(60))
    fine_tuned = bertkit.classify(
        data=str(data), model=str(run.output_dir), output_dir=str(tmp_path / "classify"), max_steps=2,
        bf16=False,
    )  # fmt: skip
    assert fine_tuned.metrics["model"] == "run"

    again = tmp_path / "again"
    args = ["--data", text, "--objective", "rtd", "--model", run.output_dir, "--max-steps", 1, "--no-bf16"]
    status, _, err = cli(COMMAND, *args, "--lr", 1e-6, "-o", again)
    assert status == 0
    assert "new generator" not in err
    assert "re-initialized" not in err
    found = json.loads((again / "metrics.json").read_text())["validation"]
    assert found["mlm_loss"] == pytest.approx(scores["mlm_loss"], abs=0.2)  # the saved generator continues
    assert_refused(cli, tmp_path, [*args, "--generator-size", 0.5], ["--generator-size", "omit"], COMMAND)
    shutil.rmtree(run.output_dir / "generator")
    assert "new generator" in cli(COMMAND, *args, "-o", tmp_path / "new")[2]


@pytest.mark.slow
def test_a_saved_generator_that_does_not_fit_is_refused(short_text, cli, tmp_path):
    shape = {**SHAPE, "max_length": 32, "max_steps": 1}
    folder = pretrained(short_text, tmp_path / "electra", objective="rtd", **shape).output_dir
    vocab_size = AutoConfig.from_pretrained(folder).vocab_size
    args = ["--data", short_text, "--objective", "rtd", "--model", folder, "--max-steps", 1]
    for architecture, sizes, problem in (
        (BertConfig, {}, "is a bert model, not an ELECTRA generator"),
        (ElectraConfig, {"embedding_size": 24}, "its embeddings differ in size"),
    ):
        config = architecture(
            vocab_size=vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=32, **sizes,
        )  # fmt: skip
        shutil.rmtree(folder / "generator")
        AutoModelForMaskedLM.from_config(config).save_pretrained(folder / "generator")
        words = [f"{folder / 'generator'}: {problem}", "remove this directory"]
        assert_refused(cli, tmp_path, args, words, COMMAND)


@pytest.mark.slow
def test_accumulation_and_packing_are_equivalent(tmp_path):
    text = write_rows(tmp_path / "text.jsonl", make_document_rows(8))

    def run(name, **settings):
        return pretrained(
            text, tmp_path / name, objective="rtd", epochs=1, dropout=0.0, **SHAPE, **SGD | settings
        )

    whole = run("8x1")
    assert whole.metrics["data"]["train"] % 8 > 0  # a short last batch
    for other in (
        run("2x4 packed", batch_size=2, gradient_accumulation_steps=4, pack=True),
        run("1x8", batch_size=1, gradient_accumulation_steps=8),
    ):
        assert other.metrics["training"]["loss"] == pytest.approx(whole.metrics["training"]["loss"], rel=1e-5)
        assert_close(weights(whole), weights(other), 1e-5)
        folders = (whole.output_dir / "generator", other.output_dir / "generator")
        assert_close(*(load_file(folder / "model.safetensors") for folder in folders), 1e-5)


def test_preview_shows_the_masked_texts(cli, text):
    args = ["--data", text, "--objective", "rtd", "--vocab-size", 60, "--max-length", 32, "--preview", 5]
    status, out, _ = cli(COMMAND, *args, "--json")
    found = json.loads(out)
    assert status == 0
    assert 0.1 < found["selected"] < 0.2
    assert 0.5 < found["mask"] < 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--generator-size", 0.5], ["--generator-size", "mlm+nsp has no generator"]),
        (["--objective", "rtd"], ["--objective rtd", "is not an ELECTRA model"]),
    ],
)
def test_refusals(flags, words, cli, text, tiny, tmp_path):
    assert_refused(cli, tmp_path, ["--data", text, "--model", tiny, *flags], words, COMMAND)
