"""Any encoder through the same command: a tiny random one of each architecture learns the toy."""

import functools
import json

import pytest
from conftest import (
    ROW_MAKERS,
    assert_refused,
    make_ner_rows,
    make_qa_rows,
    make_swag_rows,
    make_tokenizer,
    make_toy_rows,
    read_predictions,
    save_tiny_model,
    write_rows,
)

import bertkit
from bertkit.models.loading import get_max_positions
from bertkit.tasks.ner.predictions import viterbi_decode

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PAD = {"pad_token_id": 0}
ARCHITECTURES = {
    "bert": SIZE | {"max_position_embeddings": 64},
    "roberta": SIZE | PAD | {"max_position_embeddings": 65},
    "xlm-roberta": SIZE | PAD | {"max_position_embeddings": 65},
    "albert": SIZE | {"embedding_size": 16, "max_position_embeddings": 64},
    "electra": SIZE | {"embedding_size": 16, "max_position_embeddings": 64},
    "distilbert": PAD | {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
                         "max_position_embeddings": 64},
    "deberta-v2": SIZE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                          "max_position_embeddings": 64},
    "modernbert": SIZE | PAD | {"local_attention": 8, "reference_compile": False,
                                "max_position_embeddings": 64},
    "longformer": SIZE | PAD | {"attention_window": 8, "max_position_embeddings": 65},
    "big_bird": SIZE | {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1,
                        "max_position_embeddings": 64},
}  # fmt: skip


VOCAB_SIZE = len(make_tokenizer())


def config_of(name, **changes):
    from transformers import AutoConfig

    special = {"cls_token_id": 2, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    return AutoConfig.for_model(name, vocab_size=VOCAB_SIZE, **ARCHITECTURES[name] | special | changes)


def tiny_of(name, folder, **changes):
    config = config_of(name, **changes)
    return save_tiny_model(folder, config, roberta="pad_token_id" in ARCHITECTURES[name]), config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that saves the model of an architecture once, and returns its folder."""
    folder = tmp_path_factory.mktemp("architectures")
    return functools.cache(lambda name: tiny_of(name, folder / name)[0])


def make_easy_rows(count):
    """Short texts with the word `good` or `bad`, for models that must learn in few steps."""
    rows = [row for row in make_toy_rows(12 * count, longest=4) if {"good", "bad"} & set(row["text"].split())]
    return rows[:count]


def few_steps(train, name, rows, tmp_path, **settings):
    """The run of a task on some rows, far from learnt."""
    data = write_rows(tmp_path / "toy.jsonl", rows)
    usual = {"max_steps": 3, "batch_size": 8, "learning_rate": 3e-3, "max_length": 64, "bf16": False}
    model = settings.pop("model", None) or tiny_of(name, tmp_path / "model")[0]
    return train(data=str(data), model=str(model), output_dir=str(tmp_path / "run"), **usual | settings)


# Changes of the configuration, rows, epochs and learning rate. Large initial weights learn in few steps.
LEARNING = ({"initializer_range": 0.2}, 208, 1, 8e-3)
OTHER_LEARNING = dict.fromkeys(["albert", "electra"], ({"initializer_range": 0.15}, 160, 2, 5e-3))
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
OTHER_NO_DROPOUT = {"distilbert": {"dropout": 0.0, "attention_dropout": 0.0}, "modernbert": {}}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fine_tuned_models_give_the_same_predictions_in_a_pipeline_and_are_calibrated(name, tmp_path):
    from transformers import pipeline

    changes, count, epochs, learning_rate = OTHER_LEARNING.get(name, LEARNING)
    changes = changes | OTHER_NO_DROPOUT.get(name, NO_DROPOUT)
    folder, config = tiny_of(name, tmp_path / "model", **changes)
    rows = make_easy_rows(count + 24)
    assert get_max_positions(config) == 64
    run = bertkit.classify(
        data=str(write_rows(tmp_path / "train.jsonl", rows[:-24])), model=str(folder),
        validation=str(write_rows(tmp_path / "validation.jsonl", rows[-24:])), epochs=epochs, batch_size=8,
        learning_rate=learning_rate, max_length=64, bf16=False, output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert run.metrics["validation"]["accuracy"] > 0.9
    found = pipeline("text-classification", str(run.output_dir))("a good film", truncation=True)
    assert found[0]["label"] == "positive"
    assert_calibration_divides_the_logits_by_the_temperature(run.output_dir)


def assert_calibration_divides_the_logits_by_the_temperature(run):
    """Calibrate a run on rows of which it predicts a third wrongly."""
    from bertkit.data.table import Rows

    def compute_logits():
        predictor = bertkit.load(run)
        parsed, _ = predictor.task.parse_rows(Rows.from_dicts(make_toy_rows(20, seed=3), "rows"))
        return predictor.compute_outputs(parsed).logits

    new = make_toy_rows(40, seed=5)
    for index, record in enumerate(bertkit.load(run).predict(new)):
        wrong = {"positive": "negative", "negative": "positive"}[record["predicted"]]
        new[index]["label"] = record["predicted"] if index % 3 else wrong
    before = compute_logits()
    temperature = bertkit.calibrate(run, data=new).temperature
    assert temperature != pytest.approx(1, abs=1e-3)
    assert compute_logits() == pytest.approx(before / temperature, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_multiple_choice_scores_equal_those_of_the_stock_head(name, saved, tmp_path):
    import torch
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    run = few_steps(bertkit.swag, name, make_swag_rows(40), tmp_path, model=saved(name), max_steps=1)
    model = AutoModelForMultipleChoice.from_pretrained(run.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    for record in read_predictions(run.output_dir):
        contexts = [record["context"]] * len(record["endings"])
        batch = tokenizer(contexts, record["endings"], padding=True, return_tensors="pt")
        if name == "distilbert":  # has no segments, and no parameter for them
            batch.pop("token_type_ids", None)
        with torch.no_grad():
            stock = model(**{key: tensor.unsqueeze(0) for key, tensor in batch.items()}).logits[0]
        assert stock.tolist() == pytest.approx(record["scores"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_words_are_tagged_in_windows_as_by_the_stock_head(name, saved, tmp_path):
    import numpy as np
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    run = few_steps(bertkit.ner, name, make_ner_rows(40), tmp_path, model=saved(name), max_steps=1)
    model = AutoModelForTokenClassification.from_pretrained(run.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    tags = bertkit.load(run.output_dir).task.state.tags
    for record in read_predictions(run.output_dir):
        batch = tokenizer(record["tokens"], is_split_into_words=True, return_tensors="pt")
        words = batch.word_ids()
        if name == "distilbert":
            batch.pop("token_type_ids", None)
        with torch.no_grad():
            stock = model(**batch).logits[0].log_softmax(-1).numpy()
        found = stock[[words.index(number) for number in range(len(record["tokens"]))]]
        numbers = viterbi_decode(found, np.array([0, len(found)]), *tags.build_transitions())
        assert tags.decode(numbers) == record["predicted"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_answers_have_the_scores_of_the_stock_head(name, saved, tmp_path):
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    run = few_steps(bertkit.qa, name, make_qa_rows(40), tmp_path, model=saved(name), max_steps=1)
    model = AutoModelForQuestionAnswering.from_pretrained(run.output_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(run.output_dir)
    records = read_predictions(run.output_dir)
    assert records
    for record in records:
        batch = tokenizer(record["question"], record["context"], return_tensors="pt")
        if name == "distilbert":
            batch.pop("token_type_ids", None)
        with torch.no_grad():
            output = model(**batch)
        start, stop = (
            batch.char_to_token(0, place, sequence_index=1) for place in (record["start"], record["end"] - 1)
        )
        score = float(output.start_logits[0, start] + output.end_logits[0, stop])
        assert score == pytest.approx(record["score"], abs=1e-4)


HEADS = [
    "AutoModelForSequenceClassification",
    "AutoModelForMultipleChoice",
    "AutoModelForTokenClassification",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("auto_class", HEADS)
def test_dividing_the_output_layer_divides_the_logits(name, auto_class):
    import torch
    import transformers

    from bertkit.models.heads import append_layer_inputs, find_output_layer, set_parameters

    config = config_of(name)
    config.num_labels = 3
    model = getattr(transformers, auto_class).from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    shape = (1, 4, 12) if auto_class.endswith("MultipleChoice") else (4, 12)
    batch = {"input_ids": torch.randint(5, 60, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    batch["input_ids"][..., [3, 4, -1]] = config.sep_token_id  # longformer attends to three of them
    with torch.no_grad():
        before = model(**batch).logits
        name, layer = find_output_layer(model)
        if auto_class == HEADS[0]:  # the inputs of the layer are needed for a temperature of each row
            with append_layer_inputs(model) as size:
                logits, vectors = model(**batch).logits.split([3, size], -1)
            assert torch.allclose(logits, before, atol=1e-5)
            assert torch.allclose(layer(vectors), before, atol=1e-5)
        parameters = dict(layer.named_parameters(name))
        set_parameters(model, {key: value / 1.7 for key, value in parameters.items()})
        after = model(**batch).logits
    assert set(parameters) <= set(model.state_dict())
    assert before.abs().max() > 0.01
    assert torch.allclose(after, before / 1.7, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"albert"}))
def test_layers_are_distinguished(name):
    from transformers import AutoModelForSequenceClassification

    from bertkit.models.layers import map_parameters_to_layers

    model = AutoModelForSequenceClassification.from_config(config_of(name))
    numbers = map_parameters_to_layers(model, "--freeze")
    assert set(numbers.values()) == {0, 1, 2, 3}


@pytest.mark.slow
def test_shared_layers_cannot_be_distinguished(saved, tmp_path):
    folder = saved("albert")
    data = write_rows(tmp_path / "toy.jsonl", make_toy_rows(40))
    with pytest.raises(bertkit.UserError, match="--freeze: albert has no separate encoder layers"):
        bertkit.classify(data=str(data), model=str(folder), freeze=1, output_dir=str(tmp_path / "run"))
    with pytest.raises(bertkit.UserError, match="--layer-decay: albert has no separate encoder layers"):
        bertkit.classify(data=str(data), model=str(folder), layer_decay=0.9, output_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "ner"])
def test_missing_activation_checkpointing_is_refused_before_training(cli, task, saved, tmp_path):
    data = write_rows(tmp_path / "toy.jsonl", ROW_MAKERS[task](40))
    args = ["--data", data, "--model", saved("albert"), "--gradient-checkpointing", "-o", tmp_path / "run"]
    words = ["--gradient-checkpointing: albert does not support it; omit it"]
    assert_refused(cli, tmp_path, args, words, command=task)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "ner", "qa", "swag"])
def test_padding_is_on_the_right_regardless_of_the_tokenizer(task, tmp_path):
    """On the left it would move BERT's positions, and [CLS] from where stock heads look."""
    found = []
    for side in ("right", "left"):
        folder = save_tiny_model(tmp_path / side)
        config = folder / "tokenizer_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"padding_side": side}))
        run = getattr(bertkit, task)(
            data=str(write_rows(tmp_path / "rows.jsonl", ROW_MAKERS[task](40))), model=str(folder),
            max_steps=1, batch_size=8, bf16=False, output_dir=str(tmp_path / f"run-{side}"),
        )  # fmt: skip
        found.append(read_predictions(run.output_dir))
        assert json.loads((run.output_dir / config.name).read_text()).get("padding_side", "right") == "right"
    assert found[0] == found[1]


def test_a_window_for_each_layer_is_selected_with_the_layers():
    from bertkit.models.layers import select_layers_of_config

    config = config_of("longformer", attention_window=[8, 4])
    select_layers_of_config(config, [1])
    assert (config.num_hidden_layers, config.attention_window) == (1, [4])


@pytest.mark.slow
def test_predictions_of_longformer_are_explained(cli, saved, tmp_path):
    """Its encoder pads the batch to a multiple of the window."""
    run = few_steps(
        bertkit.classify, "longformer", make_toy_rows(40), tmp_path, model=saved("longformer"), max_steps=1
    )
    _, out, _ = cli("predict", run.output_dir, "--text", "a good film", "--explain")
    record = json.loads(out)
    assert [word["word"] for word in record["explanation"]] == ["a", "good", "film"]
    assert record["completeness_error"] < 0.05


def test_adapters_without_linear_layers_are_refused():
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from bertkit.methods.lora import add_adapters

    groups = {f"{name}_groups": 2 for name in ("q", "k", "v", "intermediate", "output")}
    config = AutoConfig.for_model("squeezebert", vocab_size=20, embedding_size=32, **SIZE, **groups)
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(bertkit.UserError, match="--lora 4: squeezebert has no linear layers to adapt"):
        add_adapters(model, 4)


@pytest.mark.slow
def test_a_config_without_padding_token_gets_that_of_the_tokenizer(tmp_path):
    """Left-to-right models often lack it, and their heads need it."""
    from transformers import GPT2Config

    more = {"bos_token_id": 2, "eos_token_id": 3, "vocab_size": len(make_tokenizer()), "n_positions": 64}
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, **more)
    model = save_tiny_model(tmp_path / "gpt", config)
    bertkit.classify(
        data=make_toy_rows(40), model=model, output_dir=tmp_path / "run", max_steps=1, bf16=False
    )
    together = list(bertkit.predict(tmp_path / "run", text=["good", "a day that was bad"]))
    alone = [next(iter(bertkit.predict(tmp_path / "run", text=[row["text"]]))) for row in together]
    for first, second in zip(together, alone, strict=True):
        assert first["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_a_head_that_transformers_does_not_have_is_named(tmp_path):
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForQuestionAnswering

    from bertkit.models.loading import find_model, load_config, load_model
    from bertkit.models.pretraining import find_missing_heads

    more = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = AutoConfig.for_model("eurobert", vocab_size=len(make_tokenizer()), **SIZE, **more)
    source = find_model(str(save_tiny_model(tmp_path / "model", config)))
    problem = "--model model: transformers has no question answering head for eurobert; use another model"
    with pytest.raises(bertkit.UserError, match=problem):
        load_model(AutoModelForQuestionAnswering, source, load_config(source))
    gpt2 = AutoConfig.for_model("gpt2", vocab_size=20, n_embd=32, n_head=2, n_layer=1)
    with pytest.raises(bertkit.UserError, match="has no masked LM head for gpt2"):
        find_missing_heads(AutoModelForMaskedLM, source, gpt2)


def test_relative_positions_have_no_limit_but_a_trained_length():
    from bertkit.models.loading import get_trained_length

    config = config_of("deberta-v2", position_biased_input=False)
    assert get_max_positions(config) is None
    assert get_trained_length(config, make_tokenizer()) == 64


def test_lists_of_other_modules_are_not_encoder_layers():
    """XLM has a list for each part of its layers; Funnel has layers after its encoder."""
    from transformers import FunnelConfig, FunnelModel, XLMConfig, XLMModel

    from bertkit.models.layers import find_encoder_layers
    from bertkit.run.prepare import select_layers
    from bertkit.settings.run_settings import FineTuningConfig

    xlm = XLMConfig(vocab_size=20, emb_dim=32, n_layers=2, n_heads=2)
    sizes = {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64}
    funnel = FunnelConfig(vocab_size=20, block_sizes=[1, 1], num_decoder_layers=2, **sizes)
    assert find_encoder_layers(XLMModel(xlm)) is None
    assert find_encoder_layers(FunnelModel(funnel)) is None
    with pytest.raises(bertkit.UserError, match="--num-layers: funnel has no separate encoder layers"):
        select_layers(funnel, FineTuningConfig(num_layers=1), "model")
