"""`pretrain-mlm-nsp --word-budget`: steps, models at numbers of words, curves, and bits per byte."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import assert_refused, make_document_rows, read_predictions, write_rows
from test_pretrain import COMMAND
from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerCallback

import bertkit
from bertkit.errors import UserError
from bertkit.training.samplers import count_words_by_step

SIZE = ["--hidden-size", 16, "--num-heads", 2, "--vocab-size", 60, "--max-length", 32, "--no-bf16"]
PAIRS = [{"sentence_good": "a great film", "sentence_bad": "a film great"}]


def count_text_words(path):
    return sum(len(json.loads(line)["text"].split()) for line in path.read_text("utf-8").splitlines())


@pytest.fixture
def held_out(tmp_path):
    return write_rows(tmp_path / "held-out.jsonl", make_document_rows(5, seed=9))


@pytest.mark.slow
def test_run_reads_the_budget_and_is_bit_identical_after_an_interruption(
    cli, short_text, held_out, tmp_path, monkeypatch, stop_at
):
    words = count_text_words(short_text)
    budget = 2 * words
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    options = ["--data", short_text, "--validation", held_out, *SIZE, "--objective", "mlm"]
    options += ["--short-seq-prob", 0, "--batch-size", 8, "--word-budget", budget, "--probe", pairs]
    options += ["--save-words", f"{words // 2},{words}"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    status, out, err = cli(COMMAND, *options, "-o", whole, "--json")
    assert status == 0, err
    assert "2.0 passes over the text" in err
    metrics = json.loads(out)
    curve = metrics["words"]["curve"]
    assert [point["words"] for point in curve] == [words // 2, words, budget]
    assert metrics["words"]["seen"] == pytest.approx(budget)  # all sentences of two epochs
    assert metrics["training"]["steps"] == curve[-1]["step"] == 2 * curve[1]["step"]
    assert {"loss", "bits_per_byte", "probe_minimal_pairs"} <= curve[0].keys()
    assert metrics["probe"]["pairs"] == 1
    log = read_predictions(whole, "training_log.jsonl")
    assert [line["words"] for line in log if "eval_loss" in line][-1] == pytest.approx(budget)
    page = (whole / "report.html").read_text("utf-8")
    assert "Bits per byte by words" in page
    kept = sorted(path.name for path in (whole / "words").iterdir())
    assert kept == sorted([str(words // 2), str(words), str(budget)])
    for name in kept:
        assert AutoModelForMaskedLM.from_pretrained(whole / "words" / name).config.hidden_size == 16
        AutoTokenizer.from_pretrained(whole / "words" / name)

    stop_at(curve[0]["step"])
    assert cli(COMMAND, *options, "-o", resumed)[0] == 130
    monkeypatch.chdir(tmp_path)
    assert cli(COMMAND, "--resume", "-o", resumed)[0] == 0
    files = ["model.safetensors", "training_log.jsonl", *(f"words/{name}/model.safetensors" for name in kept)]
    for name in files:
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_words_of_a_run_that_ends_early_are_those_it_has_read(short_text, held_out, tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    words = count_text_words(short_text)
    run = bertkit.pretrain_mlm_nsp(
        data=short_text, validation=str(held_out), hidden_size=16, num_heads=2, vocab_size=60, max_length=32,
        bf16=False, objective="mlm", batch_size=8, word_budget=words, save_words="10,20",
        output_dir=tmp_path / "run", callbacks=[Stop()],
    )  # fmt: skip
    found = run.metrics["words"]
    assert run.metrics["training"]["steps"] == 2
    assert 20 < found["seen"] < words / 2
    assert [point["words"] for point in found["curve"]] == [10, 20]
    assert sorted(path.name for path in (run.output_dir / "words").iterdir()) == ["10", "20"]


def test_text_without_words_ends_no_budget():
    class Features:
        def __len__(self):
            return 8

        def length_keys_for_epoch(self, epoch):
            return np.ones(8, int)

        def count_words_for_epoch(self, epoch):
            return np.zeros(8)

    with pytest.raises(UserError, match="--word-budget 9: the training text has no words"):
        count_words_by_step(SimpleNamespace(phase_features=[Features()]), 4, 1, 0, 9)


@pytest.mark.slow
def test_bits_per_byte_are_those_of_the_text(cli, short_text, held_out, tmp_path):
    options = ["--data", short_text, "--validation", held_out, *SIZE, "--max-steps", 2]
    status, out, _ = cli(COMMAND, *options, "-o", tmp_path / "run", "--json")
    assert status == 0
    metrics = json.loads(out)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    texts = [json.loads(line)["text"] for line in held_out.read_text("utf-8").splitlines()]
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    # sentences are split at spaces, which belong to no sentence
    num_bytes = sum(len(text.encode()) for text in texts) - sum(text.count(". ") for text in texts)
    for scores in (metrics["validation"], metrics["baselines"]["unigram"]):
        expected = scores["mlm_loss"] / math.log(2) * tokens / num_bytes
        assert scores["bits_per_byte"] == pytest.approx(expected, rel=0.02)


def test_words_and_bytes_of_spans_are_those_of_their_documents(tmp_path):
    from conftest import make_tokenizer

    from bertkit.data.corpus.store import write_corpus

    documents = [["the film was good", "great plot ."], ["a bad film ."]]
    corpus = write_corpus(documents, make_tokenizer(), tmp_path)
    offsets = corpus.sentence_offsets[corpus.document_offsets].astype(int)
    assert corpus.measure(offsets[:-1], offsets[1:]).tolist() == [[7, 29], [4, 12]]
    assert corpus.measure(offsets[:1], offsets[-1:]).tolist() == [[11, 41]]
    [[words, num_bytes]] = corpus.measure(np.array([0]), np.array([2]))
    assert (words, num_bytes) == pytest.approx((7 * 2 / offsets[1], 29 * 2 / offsets[1]))
    assert corpus.count_tokens_per_byte(np.array([1])) == pytest.approx((offsets[2] - offsets[1]) / 12)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--save-words", "1k"], ["--save-words 1k", "applies only to --word-budget"]),
        (
            ["--word-budget", 900, "--save-words", "1k"],
            ["--save-words 1k", "outside of 1 to --word-budget 900"],
        ),
        (["--word-budget", "2k", "--save-words", "1k,3k"], ["outside of 1 to --word-budget 2,000"]),
        (["--word-budget", "2x"], ["--word-budget: '2x' is not a whole number"]),
        (["--word-budget", "0k"], ["--word-budget: 0 is out of bounds"]),
        (["--word-budget", 900, "--save-words", "many"], ["--save-words many", "cannot parse it"]),
        (["--word-budget", 900, "--phases", "16:0.5,32:0.5"], ["--phases", "single length"]),
        (["--word-budget", 900, "--max-steps", 3], ["--word-budget", "omit --max-steps"]),
        (["--word-budget", 900, "--time-limit", 3], ["--word-budget", "omit --time-limit"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags, words, cli, short_text, tmp_path):
    assert_refused(cli, tmp_path, ["--data", short_text, "-o", tmp_path / "run", *flags], words, COMMAND)


def test_a_number_of_words_has_one_notation_everywhere(tmp_path):
    from bertkit.settings.recipes import read_recipe
    from bertkit.settings.validation import validate_settings
    from bertkit.tasks.pretrain.config import PretrainConfig

    (tmp_path / "few.yaml").write_text("task: pretrain-mlm-nsp\nsettings:\n  word_budget: 5M\n")
    recipe = read_recipe(str(tmp_path / "few.yaml"), "pretrain-mlm-nsp", PretrainConfig)
    passed = validate_settings(PretrainConfig, {"word_budget": "5000k"}, "pretrain_mlm_nsp()")
    assert recipe.settings["word_budget"] == passed["word_budget"] == 5_000_000


def test_minimal_pairs_do_not_probe_replaced_token_detection(cli, short_text, tmp_path):
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    args = ["--data", short_text, "--objective", "rtd", "--probe", pairs, "-o", tmp_path / "run"]
    assert_refused(cli, tmp_path, args, ["--probe", "predicts no tokens"], COMMAND)


@pytest.mark.parametrize(
    ("text", "count"),
    [("500k", 500_000), ("500K", 500_000), ("2M", 2_000_000), ("2m", 2_000_000), ("7", 7)]
    + [(text, None) for text in ("", "k", "1.5M", "-1", "2G")],
)
def test_numbers_of_words_may_have_a_unit(text, count):
    from bertkit.tasks.pretrain.config import parse_word_count

    assert parse_word_count(text) == count


def test_default_numbers_of_words_are_those_of_the_challenge():
    from bertkit.tasks.pretrain.config import PretrainConfig

    names = list(PretrainConfig(data="text", word_budget=100_000_000).list_word_checkpoints())
    assert names == [f"{n}M" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, *range(10, 101, 10))]
    assert list(PretrainConfig(data="text", word_budget=2_500_000).list_word_checkpoints()) == [
        "1M",
        "2M",
        "2500k",
    ]
