"""`--objective ltr`: left-to-right language models, and checkpoints that can be used elsewhere."""

import json
from typing import get_args

import numpy as np
import pytest
import torch
from conftest import (
    assert_refused,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)
from test_architectures import SIZE, tiny_of
from test_pretrain import COMMAND, pretrained
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline

import bertkit
from bertkit.data.collators import PaddingCollator
from bertkit.data.masking import CausalLmCollator
from bertkit.models.forward import compute_logits
from bertkit.models.pretraining import add_masked_position_hook
from bertkit.settings.declaration import get_settings
from bertkit.tasks.pretrain.config import PretrainConfig
from bertkit.tasks.pretrain.objectives import CAUSAL_ARCHITECTURES, OBJECTIVES

NEEDED = {
    "electra": {"embedding_size": 16},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 32},
}


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "causal", is_decoder=True, use_cache=False)


def test_every_value_of_the_objective_setting_is_defined():
    assert set(OBJECTIVES) == set(get_args(get_settings(PretrainConfig)["objective"].type))


# ---- the model


def build_untrained_model(name, objective, tokenizer):
    settings = SIZE | {"vocab_size": 60, "max_position_embeddings": 65, "pad_token_id": 0}
    config = OBJECTIVES[objective].configure_model(
        AutoConfig.for_model(name, **settings | NEEDED.get(name, {})), "tiny", tokenizer
    )
    torch.manual_seed(0)
    return OBJECTIVES[objective].auto_class.from_config(config).eval()


@pytest.mark.parametrize("name", sorted(CAUSAL_ARCHITECTURES))
def test_a_later_token_does_not_change_earlier_logits(name, tiny):
    ids = torch.randint(5, 60, (2, 12), generator=torch.Generator().manual_seed(1))
    other = ids.clone()
    other[:, 7:] = (ids[:, 7:] - 4) % 55 + 5
    for objective in ("ltr", "mlm"):
        model = build_untrained_model(name, objective, AutoTokenizer.from_pretrained(tiny))
        with torch.no_grad():
            one, two = (model(input_ids=some).logits for some in (ids, other))
        assert torch.allclose(one[:, :7], two[:, :7], atol=1e-6) == (objective == "ltr")
        assert not torch.allclose(one[:, 7:], two[:, 7:], atol=1e-6)


# ---- predictions


def test_each_token_is_predicted_at_the_previous_position():
    texts = [np.array([2, 9, 8, 7, 3]), np.array([2, 6, 3])]
    special = np.isin(np.arange(60), [0, 2, 3])
    batch = CausalLmCollator(PaddingCollator(0, return_token_type_ids=False), special)(
        [{"input_ids": [ids]} for ids in texts]
    )
    places, labels = batch["masked_lm_positions"], batch["masked_lm_labels"]
    for ids, row, at, wanted in zip(texts, batch["input_ids"], places, labels, strict=True):
        used = wanted != -100
        assert wanted[used].tolist() == ids[1:].tolist()
        assert row[at[used]].tolist() == ids[:-1].tolist()


def test_the_loss_equals_that_of_transformers(causal):
    model = AutoModelForCausalLM.from_pretrained(causal).eval()
    texts = [np.array([2, 9, 8, 7, 3]), np.array([2, 6, 3])]
    batch = CausalLmCollator(PaddingCollator(0, False), np.zeros(100, bool))(
        [{"input_ids": [ids]} for ids in texts]
    )
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    stock = model(batch["input_ids"], batch["attention_mask"], labels=labels).loss
    words = compute_logits(add_masked_position_hook(model), batch).prediction_logits
    ours = torch.nn.functional.cross_entropy(words.flatten(0, 1), batch["masked_lm_labels"].flatten())
    assert float(ours) == pytest.approx(float(stock), rel=1e-5)


@pytest.mark.slow
def test_preview_shows_that_nothing_is_masked(cli, text, tiny):
    args = ["--data", text, "--model", tiny, "--max-length", 32, "--objective", "ltr", "--preview", 5]
    status, out, _ = cli(COMMAND, *args, "--json")
    found = json.loads(out)
    assert status == 0
    assert [found[name] for name in ("selected", "mask", "random", "kept")] == [1.0, 0.0, 0.0, 1.0]
    assert 0 < found["special_selected"] < 0.2  # [SEP]
    assert "[MASK]" not in cli(COMMAND, *args)[1]


# ---- runs


@pytest.mark.slow
def test_training_learns_and_transformers_loads_the_checkpoint(text, tmp_path):
    run = pretrained(
        text, tmp_path / "run", objective="ltr", hidden_size=64, num_layers=1, num_heads=2, vocab_size=120,
        epochs=2, batch_size=8, learning_rate=1e-2,
    )  # fmt: skip
    found = run.metrics["validation"]
    assert set(found) == {"loss", "lm_loss", "lm_accuracy", "perplexity", "bits_per_byte"}
    assert found["lm_loss"] < run.metrics["baselines"]["unigram"]["lm_loss"] - 0.5
    model, info = AutoModelForCausalLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert (model.config.is_decoder, model.config.use_cache, info["missing_keys"]) == (True, False, set())
    sample = read_predictions(run.output_dir, "masked_samples.jsonl")[0]
    assert sample["masked"].split()[1:] == sample["tokens"]
    assert sample["lm_loss"] > 0
    card = (run.output_dir / "README.md").read_text()
    assert "each token from the previous ones" in card
    code = card.partition("```python\n")[2].partition("```")[0].replace("[CLS] ...", "[CLS] the film")
    namespace = {}
    exec(code.replace("\nmodel(", "\nfound = model("), namespace)
    generated = namespace["found"][0]["generated_text"]
    assert generated.startswith("[CLS] the film")
    assert len(generated) > len("[CLS] the film")
    again = pretrained(
        text, tmp_path / "again", objective="ltr", model=str(run.output_dir), max_steps=2, learning_rate=1e-5
    )
    assert again.metrics["validation"]["lm_loss"] < found["lm_loss"] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["roberta", "electra"])
def test_a_bidirectional_model_can_continue_left_to_right(name, text, tmp_path):
    folder, _ = tiny_of(name, tmp_path / "model")
    run = pretrained(text, tmp_path / "run", model=str(folder), objective="ltr", max_steps=2)
    _, info = AutoModelForCausalLM.from_pretrained(run.output_dir, output_loading_info=True)
    assert not info["missing_keys"]
    assert pipeline("text-generation", str(run.output_dir))("good", max_new_tokens=2)


@pytest.mark.slow
def test_a_tokenizer_needs_no_mask(text, tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    run = pretrained(text, tmp_path / "run", model=str(folder), objective="ltr", max_steps=1)
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))
    tuned = bertkit.classify(data=str(data), model=str(run.output_dir), max_steps=1, bf16=False,
                             output_dir=str(tmp_path / "tuned"))  # fmt: skip
    assert AutoConfig.from_pretrained(tuned.output_dir).is_decoder


# ---- refusals


@pytest.mark.parametrize(
    "flags", [["--mlm-probability", 0.2], ["--whole-word-masking"], ["--mask-replace-prob", 0.5],
              ["--max-predictions-per-seq", 4]],
)  # fmt: skip
def test_masking_settings_are_refused(flags, cli, text, tmp_path):
    args = ["--data", text, "--objective", "ltr", "--vocab-size", 120, *flags]
    assert_refused(cli, tmp_path, args, [flags[0], "--objective ltr masks nothing"], COMMAND)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "mlm+sop"])
def test_a_left_to_right_model_is_refused_for_other_objectives(objective, cli, text, causal, tmp_path):
    args = ["--data", text, "--model", causal, "--objective", objective]
    words = [f"--objective {objective}", "left-to-right", "--objective ltr"]
    assert_refused(cli, tmp_path, args, words, COMMAND)


def test_an_architecture_without_causal_attention_is_refused(cli, text, tmp_path):
    folder, _ = tiny_of("albert", tmp_path / "model")
    args = ["--data", text, "--model", folder, "--objective", "ltr"]
    assert_refused(cli, tmp_path, args, ["--objective ltr", "albert", "--objective mlm"], COMMAND)
