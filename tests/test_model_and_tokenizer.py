"""Models and tokenizers that do not fit each other: other numbers of token types or of tokens."""

import json

import pytest
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_tokenizer,
    make_toy_rows,
    save_tiny_model,
    write_rows,
)

import bertkit

SIZE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def save_one_type_model(folder, model_type="roberta"):
    """A model with one token type, whose tokenizer gives the second text the type 1, as in BERT."""
    from transformers import AutoConfig

    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model(
        model_type, vocab_size=len(make_tokenizer()), max_position_embeddings=66, type_vocab_size=1, **SIZE,
        **special,
    )  # fmt: skip
    return save_tiny_model(folder, config)


def make_pair_rows(count):
    return [
        {"sentence1": row["text"], "sentence2": row["text"][::-1], "label": row["label"]}
        for row in make_toy_rows(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "swag", "qa"])
@pytest.mark.parametrize("model_type", ["roberta", "yoso"])
def test_pairs_are_trained_with_one_token_type(task, model_type, tmp_path):
    from transformers import AutoTokenizer

    folder = save_one_type_model(tmp_path / "model", model_type)
    rows = make_pair_rows(40) if task == "classify" else ROW_MAKERS[task](40)
    run = getattr(bertkit, task)(
        data=str(write_rows(tmp_path / "rows.jsonl", rows)), model=str(folder), max_steps=2, batch_size=4,
        bf16=False, max_length=64, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert len(list(bertkit.load(run.output_dir).predict(rows[:3]))) == 3
    saved = AutoTokenizer.from_pretrained(run.output_dir)
    assert saved.model_input_names == ["input_ids", "attention_mask"]


def test_token_types_are_only_for_models_with_several(tmp_path):
    import transformers

    from bertkit.models.forward import EnsembleModel, average_outputs
    from bertkit.models.loading import select_inputs, takes_token_type_ids

    def build(name, **settings):
        config = transformers.AutoConfig.for_model(name, vocab_size=20, **SIZE, **settings)
        return transformers.AutoModelForSequenceClassification.from_config(config)

    bert, roberta = build("bert"), build("roberta", type_vocab_size=1)
    assert takes_token_type_ids(bert)
    assert not takes_token_type_ids(roberta)
    assert not takes_token_type_ids(build("deberta-v2", type_vocab_size=0))
    batch = {"input_ids": 1, "token_type_ids": 2}
    assert select_inputs(bert, batch) == batch
    assert select_inputs(roberta, batch) == {"input_ids": 1}
    # each member of an ensemble gets the inputs that it reads
    assert takes_token_type_ids(EnsembleModel([roberta, bert], average_outputs))


def test_a_graph_of_one_token_type_does_not_read_token_types():
    import transformers

    from bertkit.commands.export import _build_example_inputs

    config = transformers.RobertaConfig(vocab_size=20, type_vocab_size=1, **SIZE)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    assert set(_build_example_inputs(model, has_choices=False)[0]) == {"input_ids", "attention_mask"}


@pytest.fixture
def three_types(tmp_path):
    """A model with two token types, whose tokenizer gives [CLS] the type 2, as those of Funnel and XLNet."""
    folder = save_tiny_model(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for template in ("single", "pair"):
        tokenizer["post_processor"][template][0]["SpecialToken"]["type_id"] = 2
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_a_token_type_that_a_model_lacks_is_refused(cli, three_types, tmp_path):
    data = write_rows(tmp_path / "train.jsonl", make_toy_rows(40))
    problem = "gives the token type 2, but its weights have only 2 token types (0 to 1); correct"
    args = ["--data", data, "--model", three_types, "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, [problem])
    args = [three_types, "--text", "good", "-o", tmp_path / "vectors.npy"]
    assert_refused(cli, tmp_path, args, [problem], "embed")
    status, out, err = cli("check", "classify", "--data", data, "--model", three_types)
    assert (status, problem in " ".join((out + err).split())) == (2, True)


@pytest.mark.slow
def test_a_new_model_has_the_token_types_of_its_tokenizer(three_types, text, tmp_path):
    run = bertkit.pretrain_mlm_nsp(
        data=str(text), tokenizer=str(three_types), max_steps=1, max_length=32, batch_size=4, bf16=False,
        num_layers=1, hidden_size=32, num_heads=2, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert json.loads((run.output_dir / "config.json").read_text())["type_vocab_size"] == 3


# ---- tokens without embeddings


def add_tokens(folder, tokens):
    """Add tokens to the tokenizer of a model, but not to its embeddings."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(tokens)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def larger_tokenizer(tmp_path):
    return add_tokens(save_tiny_model(tmp_path / "model"), ["<url>"])


def make_url_rows(count):
    return [row | {"text": row["text"] + " <url>"} for row in make_toy_rows(count)]


@pytest.mark.slow
def test_embeddings_are_added_in_training(cli, larger_tokenizer, tmp_path):
    data = write_rows(tmp_path / "train.jsonl", make_url_rows(40))
    status, _, err = cli(
        "classify", "--data", data, "--model", larger_tokenizer, "--max-steps", 2, "--no-bf16", "-o",
        tmp_path / "run",
    )  # fmt: skip
    size = len(make_tokenizer())
    note = f"its tokenizer has {size + 1:,} token ids, but its weights only {size:,} embeddings; training"
    assert status == 0, err
    assert note in " ".join(err.split())
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["vocab_size"] == size + 1
    assert len(list(bertkit.load(tmp_path / "run").predict([{"text": "good <url>"}]))) == 1
    with pytest.raises(bertkit.UserError, match=r"token ids, but its weights only .*; train the run again"):
        bertkit.load(add_tokens(tmp_path / "run", ["<url>", "<mail>"]))


def test_every_kind_of_model_can_be_resized():
    import transformers

    from bertkit.models.loading import adapt_to_tokenizer
    from bertkit.models.replaced_tokens import ReplacedTokenModel
    from bertkit.models.tagger import EncoderWithHead

    tokenizer = make_tokenizer()
    size = len(tokenizer)
    tokenizer.add_tokens(["<url>", "<mail>"])
    berts = [transformers.BertConfig(vocab_size=size, **SIZE) for _ in range(2)]
    electra = transformers.ElectraConfig(vocab_size=size, embedding_size=32, **SIZE)
    replaced = ReplacedTokenModel(
        transformers.ElectraForPreTraining(electra), transformers.ElectraForMaskedLM(electra)
    )
    encoder = EncoderWithHead(transformers.BertModel(berts[1]))
    for model in (transformers.BertForMaskedLM(berts[0]), encoder, replaced):
        adapt_to_tokenizer(model, tokenizer)
        assert model.get_input_embeddings().num_embeddings == size + 2
        assert model.config.vocab_size == size + 2
    generator = replaced.generator
    assert generator.generator_lm_head.out_features == generator.config.vocab_size == size + 2
    assert generator.generator_lm_head.weight is replaced.discriminator.get_input_embeddings().weight


@pytest.mark.parametrize("flag", ["--lora", "--freeze"])
def test_untrained_embeddings_are_not_frozen(cli, larger_tokenizer, flag, tmp_path):
    data = write_rows(tmp_path / "train.jsonl", make_url_rows(40))
    args = ["--data", data, "--model", larger_tokenizer, flag, 1, "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, [f"{flag} 1: freezes the embeddings, but those of 1 new token"])


def test_other_commands_name_both_numbers(cli, larger_tokenizer, tmp_path):
    size = len(make_tokenizer())
    problem = f"its tokenizer has {size + 1:,} token ids, but its weights only {size:,} embeddings"
    args = [larger_tokenizer, "--text", "good", "-o", tmp_path / "vectors.npy"]
    fix = f"resize_token_embeddings({size + 1})"
    assert_refused(cli, tmp_path, args, [problem, fix], command="embed")
    data = write_rows(tmp_path / "train.jsonl", make_url_rows(40))
    args = ["--data", data, "--model", larger_tokenizer, "--method", "linear-probe", "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, [problem, fix])
    _, out, _ = cli("check", "classify", "--data", data, "--model", larger_tokenizer, "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert f"has {size + 1:,} token ids, but its weights only {size:,}" in findings["embeddings"]["message"]
