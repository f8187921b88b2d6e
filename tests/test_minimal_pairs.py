"""`evaluate --minimal-pairs`: scores equal to one forward pass per mask, groups, baselines and errors."""

import json
import re
import shutil

import pytest
import torch
from conftest import assert_refused, save_tiny_model, write_rows
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, BertConfig

import bertkit
from bertkit.data.table import Rows
from bertkit.tasks.pretrain.minimal_pairs import MinimalPairs, load_minimal_pairs

PAIRS = [
    {"sentence_good": "a great film", "sentence_bad": "a film great", "UID": "order", "field": "syntax"},
    {"sentence_good": "the plot was fine .", "sentence_bad": "the plot was was fine .", "UID": "double"},
    {"sentence_good": "good good", "sentence_bad": "good good", "UID": "double", "field": "syntax"},
]


@pytest.fixture(scope="module")
def language_models(tmp_path_factory):
    """Random BERTs with a masked and with a left-to-right LM head, by name of the head."""
    folder = tmp_path_factory.mktemp("heads")
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(folder / "encoder"))
    tiny = {
        "vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "initializer_range": 0.5, "max_position_embeddings": 32,
    }  # fmt: skip
    for name, auto_class in (("masked", AutoModelForMaskedLM), ("causal", AutoModelForCausalLM)):
        torch.manual_seed(1)
        model = auto_class.from_config(BertConfig(**tiny, is_decoder=name == "causal"))
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@torch.no_grad()
def score_by_loop(folder, text):
    """One forward pass per token, with the logits of all positions."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids, total = tokenizer(text, return_tensors="pt")["input_ids"], 0.0
    causal = folder.name == "causal"
    model = (AutoModelForCausalLM if causal else AutoModelForMaskedLM).from_pretrained(folder).eval()
    for position in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, position] = tokenizer.mask_token_id
        logits = model(ids if causal else masked).logits[0, position - causal]
        total += float(logits.log_softmax(-1)[ids[0, position]])
    return total


@pytest.mark.slow
@pytest.mark.parametrize("head", ["masked", "causal"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_scores_equal_those_of_one_pass_per_token(language_models, tmp_path, head, batch_size):
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    more = {"batch_size": batch_size} if batch_size else {}
    run = bertkit.evaluate(
        language_models / head, minimal_pairs=str(data), output_dir=tmp_path / "out", **more
    )
    records = [json.loads(line) for line in (tmp_path / "out/pairs.jsonl").read_text("utf-8").splitlines()]
    for record in records:
        for kind in ("good", "bad"):
            expected = score_by_loop(language_models / head, record[f"sentence_{kind}"])
            assert record[f"score_{kind}"] == pytest.approx(expected, abs=1e-5)
    assert [record["correct"] for record in records] == [
        record["score_good"] > record["score_bad"] for record in records
    ]
    assert records[2]["correct"] is False  # a tie
    assert run.metrics["score"].startswith("pseudo") == (head == "masked")


def test_groups_baselines_and_page(language_models, cli, tmp_path):
    (tmp_path / "pairs").mkdir()
    write_rows(tmp_path / "pairs/order.jsonl", PAIRS[:1])
    write_rows(tmp_path / "pairs/double.jsonl", PAIRS[1:])
    args = ["evaluate", language_models / "masked", "--minimal-pairs", tmp_path / "pairs"]
    status, out, err = cli(*args, "-o", tmp_path / "out", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert {name: group["pairs"] for name, group in found["phenomena"].items()} == {"order": 1, "double": 2}
    assert {name: group["pairs"] for name, group in found["fields"].items()} == {"(none)": 1, "syntax": 2}
    assert found["phenomena"]["double"]["accuracy"] <= 0.5  # one of them is a tie
    assert found["ties"] == pytest.approx(1 / 3)
    baselines = found["baselines"]
    assert baselines["length"]["accuracy"] == pytest.approx(1 / 3)  # only the doubled word is longer
    assert baselines["length"]["ties"] == pytest.approx(2 / 3)
    assert baselines["unigram"]["accuracy"] == pytest.approx(1 / 3)
    assert baselines["unigram"]["tokens"] == "the sentences of the pairs"
    low, high = found["interval"]
    assert low < found["accuracy"] < high
    page = (tmp_path / "out/report.html").read_text("utf-8")
    assert "the plot was was fine ." in page or "a film great" in page
    assert "order" in page
    again = cli(*args, "-o", tmp_path / "out", "--overwrite")
    assert again[0] == 0
    assert "baseline unigram" in again[1]


@pytest.mark.slow
def test_unigram_baseline_of_a_run_counts_its_training_text(runs, tmp_path):
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    run = bertkit.evaluate(runs / "pretrain-mlm-nsp", minimal_pairs=str(data), output_dir=tmp_path / "out")
    assert run.metrics["baselines"]["unigram"]["tokens"] == "the training text"


@pytest.mark.slow
def test_unigram_baseline_counts_no_text_that_has_changed(runs, cli, tmp_path):
    run = shutil.copytree(runs / "pretrain-mlm-nsp", tmp_path / "run")
    settings = (run / "run.yaml").read_text("utf-8")
    (run / "run.yaml").write_text(re.sub(r"(train: [\d,]+ rows, )\w+", r"\g<1>0123456789abcdef", settings))
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    status, out, err = cli("evaluate", run, "--minimal-pairs", data, "-o", tmp_path / "out", "--json")
    assert status == 0, err
    assert "the data of this run has changed" in err
    assert json.loads(out)["baselines"]["unigram"]["tokens"] == "the sentences of the pairs"


def test_several_processes_are_refused(language_models, cli, tmp_path, monkeypatch):
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    args = [language_models / "masked", "--minimal-pairs", data, "-o", tmp_path / "out"]
    assert_refused(cli, tmp_path, args, ["--minimal-pairs", "one process"], command="evaluate")


def test_sample_has_equally_many_pairs_of_each_phenomenon():
    names = ["a"] * 50 + ["b"] * 5 + ["c"] * 5
    rows = Rows.from_columns({"sentence_good": names, "sentence_bad": names}, "pairs")
    pairs = MinimalPairs("pairs", "pairs", rows, names, None)
    assert sorted(pairs.sample(6, 0).phenomena) == ["a", "a", "b", "b", "c", "c"]
    assert len(pairs.sample(40, 0).phenomena) == 40
    assert pairs.sample(99, 0) is pairs


def test_table_of_pairs_needs_no_names_of_phenomena(tmp_path):
    (tmp_path / "agreement.csv").write_text("sentence_good,sentence_bad\nit is,it are\n", "utf-8")
    pairs = load_minimal_pairs(tmp_path / "agreement.csv", "--minimal-pairs")
    assert (pairs.phenomena, pairs.fields) == (["agreement"], None)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"good": "a", "bad": "b"}], ["sentence_good", "columns: good, bad"]),
        ([{"sentence_good": "a film", "sentence_bad": " "}], ["row 1", "sentence_bad is empty"]),
        ([{"sentence_good": "a film", "sentence_bad": None}], ["row 1", "has no text"]),
        ([{"sentence_good": "film " * 40, "sentence_bad": "b"}], ["row 1", "42 tokens, more than the 32"]),
    ],
)
def test_unusable_pairs_are_refused(language_models, cli, tmp_path, rows, words):
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    args = [language_models / "masked", "--minimal-pairs", data, "-o", tmp_path / "out"]
    assert_refused(cli, tmp_path, args, words, command="evaluate")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--by", "field"], ["--by", "does not apply to --minimal-pairs"]),
        (["--compare", "other"], ["--compare", "omit it"]),
        (["--minimal-pairs", "nowhere"], ["--minimal-pairs nowhere", "no such file"]),
    ],
)
def test_flags_of_rows_are_refused(language_models, cli, tmp_path, flags, words):
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    args = [language_models / "masked", "--minimal-pairs", data, "-o", tmp_path / "out", *flags]
    assert_refused(cli, tmp_path, args, words, command="evaluate")


def test_model_without_language_modeling_head_is_refused(tiny, cli, tmp_path):
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    args = [tiny, "--minimal-pairs", data, "-o", tmp_path / "out"]
    assert_refused(cli, tmp_path, args, ["have no masked LM head"], command="evaluate")
