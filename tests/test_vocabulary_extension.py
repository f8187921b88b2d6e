"""`train-tokenizer --extend`: words of a text become tokens of a model, with means of embeddings."""

import json

import pytest
import torch
from conftest import assert_refused, make_toy_rows, save_tiny_model, write_rows
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig

import bertkit

TRAIN = "train-tokenizer"


@pytest.fixture
def domain_text(tmp_path):
    path = tmp_path / "domain.txt"
    path.write_text("the goodbad film was greatgood\n" * 3 + "a goodbad plotfilm\n", "utf-8")
    return path


def test_words_are_tokens_with_the_mean_of_their_old_embeddings(tiny, domain_text, cli, tmp_path):
    folder = tmp_path / "extended"
    status, out, err = cli(TRAIN, "--data", domain_text, "--extend", tiny, "-o", folder, "--json")
    assert status == 0, err
    found = json.loads(out)
    old, new = (AutoTokenizer.from_pretrained(path) for path in (tiny, folder))
    assert found["words"] == ["goodbad", "greatgood"]  # `plotfilm` occurs once
    assert found["added"] == 2
    assert found["tokens_per_word"] < found["tokens_per_word_before"]
    before, after = (AutoModel.from_pretrained(path).get_input_embeddings().weight for path in (tiny, folder))
    assert len(after) == len(before) + 2 == found["vocab_size"]
    assert torch.equal(after[: len(before)], before)
    for word in found["words"]:
        assert new.tokenize(word) == [word]
        old_ids = old(word, add_special_tokens=False)["input_ids"]
        assert len(old_ids) > 1
        [token_id] = new(word, add_special_tokens=False)["input_ids"]
        assert torch.allclose(after[token_id], before[old_ids].mean(0))
    text = "the film was a great plot"
    assert new(text)["input_ids"] == old(text)["input_ids"]
    assert bertkit.embed(model=str(folder), text=["the goodbad film"]).vectors.shape == (1, 32)
    assert cli(TRAIN, "--data", domain_text, "--extend", tiny, "-o", folder)[0] == 2  # exists
    status, out, _ = cli(TRAIN, "--data", domain_text, "--extend", tiny, "-o", folder, "--overwrite")
    assert (status, "2 of them new" in out) == (0, True)


@pytest.mark.parametrize("tied", [True, False])
def test_output_layer_is_extended(tied, domain_text, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(tmp_path / "encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config)
    torch.nn.init.normal_(model.get_output_embeddings().bias)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    size = len(tokenizer) + 1
    result = bertkit.train_tokenizer(
        data=domain_text, extend=str(tmp_path / "model"), vocab_size=size, output_dir=tmp_path / "extended"
    )
    assert result.statistics["added"] == 1
    extended = AutoModelForMaskedLM.from_pretrained(tmp_path / "extended")
    old_ids = tokenizer(result.statistics["words"][0], add_special_tokens=False)["input_ids"]
    for name in ("weight", "bias") if tied else ("weight",):  # transformers does not load an untied bias
        old, new = (getattr(one.get_output_embeddings(), name) for one in (model, extended))
        assert len(new) == size
        assert torch.allclose(new[-1], old[old_ids].mean(0), atol=1e-6)
    assert (extended.get_output_embeddings().weight is extended.get_input_embeddings().weight) == tied


@pytest.mark.slow
def test_extended_model_is_fine_tuned(tiny, domain_text, tmp_path):
    bertkit.train_tokenizer(data=domain_text, extend=str(tiny), output_dir=tmp_path / "extended")
    rows = write_rows(tmp_path / "rows.jsonl", make_toy_rows(40))
    run = bertkit.classify(
        data=rows, model=str(tmp_path / "extended"), output_dir=tmp_path / "run", max_steps=1, max_length=32
    )
    assert run.metrics["training"]["steps"] == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--cased"], ["--cased", "keeps the settings of the model's tokenizer"]),
        (["--vocab-size", 10], ["--vocab-size 10", "tokens already"]),
    ],
)
def test_flags_of_a_new_vocabulary_are_refused(flags, words, tiny, domain_text, cli, tmp_path):
    args = ["--data", domain_text, "--extend", tiny, "-o", tmp_path / "out", *flags]
    assert_refused(cli, tmp_path, args, words, TRAIN)


def test_bytes_that_cannot_be_decoded_are_reported(tiny, domain_text, cli, tmp_path):
    domain_text.write_bytes(domain_text.read_bytes() + b"a bad \xff film\n")
    status, _, err = cli(
        TRAIN,
        "--data",
        domain_text,
        "--extend",
        tiny,
        "--encoding-errors",
        "skip",
        "-o",
        tmp_path / "extended",
    )
    assert status == 0, err
    assert "domain.txt: " in err


def test_text_without_new_words_and_other_tokenizers_are_refused(tiny, cli, tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("the film was good\n" * 5, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert_refused(cli, tmp_path, ["--data", path, "--extend", tiny], ["no word that occurs 3 times"], TRAIN)
    args = ["--data", path, "-o", tmp_path / "out", "--extend"]
    assert_refused(cli, tmp_path, [*args, tiny], ["no word that occurs 3 times"], TRAIN)
    words = save_tiny_model(tmp_path / "words")
    content = json.loads((words / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    content["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    (words / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    settings = json.loads((words / "tokenizer_config.json").read_text("utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (words / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    assert_refused(cli, tmp_path, [*args, words], ["its tokenizer is WordLevel", "WordPiece"], TRAIN)
