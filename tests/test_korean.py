"""Morphemes as units of masking and of vocabularies, on real Hangul in every form."""

import json
import sys
import unicodedata

import numpy as np
import pytest
import torch
from conftest import assert_refused
from rich.cells import cell_len
from transformers import AutoTokenizer

from bertkit.charts import shorten_name
from bertkit.data.corpus.documents import TextOptions
from bertkit.data.corpus.store import load_corpus, open_corpus, write_corpus
from bertkit.data.masking import MlmCollator, build_masker, build_special_tokens_mask
from bertkit.data.wordpiece import find_continuations, find_unit_starts, split_units, train_wordpiece

pytest.importorskip("kiwipiepy")
NSP = "pretrain-mlm-nsp"
SENTENCES = [
    "바닷가 마을에는 작은 빵집이 하나 있습니다.", "빵집 주인은 새벽에 일어나서 빵을 굽습니다.",
    "아이들은 학교에 가는 길에 빵집에 들렀습니다.", "어제는 친구와 강가에서 오래 걸었어요 😀",
    "大韓民國의 수도는 서울이고 Busan에는 바다가 있다.", "할머니께서 시장에서 생선을 사 오셨다.",
    "비가 와서 우산을 썼지만 옷이 다 젖었다ㅠㅠ", "그 영화는 지루하지 않고 음악이 아름다웠다.",
]  # fmt: skip


@pytest.fixture
def korean_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join("\n".join(SENTENCES[i % 8 :] + SENTENCES) for i in range(72)), "utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer():
    """Tokenizer whose tokens are characters and frequent parts of words."""
    return train_wordpiece(lambda: iter(SENTENCES * 3), 300).tokenizer


# ---- units


UNITS = {
    "particles and endings": ("학교에서 친구를 만났어요.", "학교|에서 |친구|를 |만났|어요|."),
    "shared syllables": ("예뻐서 샀다", "예뻐서 |샀|다"),  # 예쁘 + 어서 share 뻐, 사 + 었 share 샀
    "mixed scripts": ("大韓民國은 abc를 2023년에", "大韓民國|은 |abc|를 |2023|년|에"),
    "emoji outside the basic plane": ("😀😀 영화가", "😀|😀 |영화|가"),
    "jamo": ("ㅋㅋㅋ 영화는", "ㅋㅋㅋ |영화|는"),
    "several spaces": (" 영화가  좋다", " |영화|가 | |좋|다"),
    "lone surrogate": ("\ud800 영화가", "\ud800 |영화|가"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNITS)
def test_units_are_morphemes_that_share_no_character(case):
    text, expected = UNITS[case]
    assert split_units([text]) == [expected.split("|")]


@pytest.mark.parametrize("case", sorted(set(UNITS) - {"lone surrogate"}))
def test_units_of_decomposed_text_are_those_of_composed_text(case):
    text, expected = UNITS[case]
    decomposed = unicodedata.normalize("NFD", text)
    assert [unicodedata.normalize("NFC", unit) for unit in split_units([decomposed])[0]] == expected.split(
        "|"
    )


def test_empty_texts_have_no_units():
    assert [starts.tolist() for starts in find_unit_starts(["", "가"])] == [[], []]


def test_units_that_share_a_token_are_joined():
    text = "학교에서 갔다"  # 학교 | 에서 | 갔 | 다
    spans = np.array([[0, 1], [1, 3], [3, 4], [5, 6], [6, 7]])  # 학 교에 서 갔 다
    assert find_continuations([text], spans, np.array([5])).tolist() == [False, True, True, False, False]
    spans = np.array([[0, 2], [2, 4], [4, 6], [6, 7]])  # as in SentencePiece, a token includes the space
    assert find_continuations([text], spans, np.array([4])).tolist() == [False] * 4
    spans = np.array([[0, 1], [0, 1], [1, 2]])  # the bytes of one character in two tokens
    assert find_continuations(["갔다"], spans, np.array([3])).tolist() == [False, True, False]


def test_the_first_token_of_a_text_never_continues_a_unit():
    spans = np.array([[0, 1], [1, 2], [0, 1], [1, 2]])
    assert find_continuations(["학교", "학교"], spans, np.array([2, 2])).tolist() == [
        False,
        True,
        False,
        True,
    ]


# ---- the corpus


@pytest.mark.slow
def test_the_corpus_stores_units_and_is_found_in_the_cache(korean_text, tokenizer, monkeypatch):
    corpora = {
        units: load_corpus([korean_text], TextOptions(), tokenizer, units) for units in ("words", "morphemes")
    }
    assert corpora["words"].is_continuation is None
    found = corpora["morphemes"].is_continuation
    assert found.shape == corpora["morphemes"].token_ids.shape
    monkeypatch.setattr("bertkit.data.wordpiece.find_unit_starts", None)  # would fail if it were called
    again = load_corpus([korean_text], TextOptions(), tokenizer, "morphemes")
    assert np.array_equal(again.is_continuation, found)


def test_units_of_the_corpus_are_those_of_its_sentences(tokenizer, tmp_path):
    corpus = write_corpus([SENTENCES, ["\x07", *SENTENCES]], tokenizer, tmp_path, word_units="morphemes")
    encoded = [tokenizer(text, add_special_tokens=False, return_offsets_mapping=True) for text in SENTENCES]
    spans = np.array([span for one in encoded for span in one["offset_mapping"]])
    expected = find_continuations(SENTENCES, spans, np.array([len(one["input_ids"]) for one in encoded]))
    assert open_corpus(tmp_path).is_continuation.tolist() == expected.tolist() * 2
    assert corpus.counts["sentences"] == 2 * len(SENTENCES)


# ---- masking


def preview(cli, data, *args):
    args = ["--data", data, "--vocab-size", 400, "--max-length", 128, "--whole-word-masking", *args]
    status, out, err = cli(NSP, *args, "--preview", 400, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_15_percent_of_the_tokens_are_chosen_in_whole_morphemes(cli, korean_text):
    found = preview(cli, korean_text, "--word-units", "morphemes")
    assert found["selected"] == pytest.approx(0.15, abs=0.005)
    assert found["whole_words"] == 1.0
    assert [found[name] for name in ("mask", "random", "kept")] == pytest.approx([0.8, 0.1, 0.1], abs=0.03)


@pytest.mark.slow
def test_a_model_trains_on_masked_morphemes_with_a_vocabulary_of_morphemes(cli, korean_text, tmp_path):
    run = tmp_path / "run"
    options = ["--data", korean_text, "--vocab-size", 400, "--max-length", 32, "--num-layers", 1]
    options += ["--hidden-size", 16, "--num-heads", 2, "--max-steps", 2]
    status, _, err = cli(NSP, *options, "--whole-word-masking", "--word-units", "morphemes", "-o", run)
    assert status == 0, err
    assert "in whole morphemes" in err
    assert "word_units: morphemes" in (run / "run.yaml").read_text("utf-8")
    sentences = [line for line in korean_text.read_text("utf-8").split("\n") if line]
    expected = train_wordpiece(lambda: iter(sentences), 400, word_units="morphemes").tokenizer
    assert AutoTokenizer.from_pretrained(run).get_vocab() == expected.get_vocab()
    of_words = train_wordpiece(lambda: iter(sentences), 400).tokenizer
    assert expected.get_vocab() != of_words.get_vocab()


def test_words_and_morphemes_give_different_masks(korean_text, tokenizer, tmp_path):
    is_special = build_special_tokens_mask(tokenizer)
    masker = build_masker(tokenizer, is_special, True, max_predictions_per_seq=20)

    def pad(items):
        return {"input_ids": torch.tensor([item["input_ids"] for item in items])}

    collator = MlmCollator(pad, masker, is_special, has_pairs=False)
    corpus = write_corpus([SENTENCES], tokenizer, tmp_path, word_units="morphemes")
    ids, units = corpus.token_ids[:90].astype(int), corpus.is_continuation[:90]
    chosen = []
    for item in ({"is_continuation": units}, {}):
        batch = collator([{"input_ids": ids.tolist(), "key": 5, **item}])
        places = batch["masked_lm_positions"][0][batch["masked_lm_labels"][0] >= 0].tolist()
        chosen.append(set(places))
    groups = np.cumsum(~units)  # the unit of each token
    assert all(chosen[0].issuperset(np.flatnonzero(groups == groups[place])) for place in chosen[0])
    assert chosen[0] != chosen[1]


REFUSED = {
    "no whole words": (["--word-units", "morphemes"], ["--word-units morphemes", "add --whole-word-masking"]),
    "nothing masked": (
        ["--word-units", "morphemes", "--objective", "ltr"], ["--word-units", "--objective ltr"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, cli, korean_text, tmp_path):
    args, words = REFUSED[case]
    assert_refused(cli, tmp_path, ["--data", korean_text, *args], words, NSP)


@pytest.mark.parametrize("command", [[NSP, "--whole-word-masking"], ["train-tokenizer"]])
def test_without_the_analyzer_the_extra_is_named(command, cli, korean_text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    args = [*command[1:], "--data", korean_text, "--word-units", "morphemes"]
    assert_refused(cli, tmp_path, args, ["kiwipiepy", "pip install 'bertkit[korean]'"], command[0])


# ---- vocabularies


def train(word_units, texts=SENTENCES * 3):
    return train_wordpiece(lambda: iter(texts), 400, word_units=word_units).tokenizer.get_vocab()


def test_no_token_of_a_vocabulary_crosses_morphemes():
    units = {unit.strip().lower() for units in split_units(SENTENCES) for unit in units}
    vocabularies = {name: train(name) for name in ("words", "morphemes")}
    inside = {
        name: [token for token in vocabulary if not any(token.removeprefix("##") in unit for unit in units)]
        for name, vocabulary in vocabularies.items()
    }
    assert [token for token in inside["morphemes"] if not token.startswith("[")] == []
    assert len(inside["words"]) > 20


def test_particles_continue_words():
    vocabulary = train("morphemes", [*SENTENCES, "집에서 길에서 강에서 바다에서"] * 3)
    assert {"##에서", "##습니다", "학교"} <= set(vocabulary)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert all(max(map(ord, token)) < 0xF0000 for token in vocabulary)


@pytest.mark.parametrize("text", ["(집)에서", "「집」에서", "中國에서", "'집'에서"])
def test_particles_begin_words_after_characters_that_are_words(text):
    vocabulary = train("morphemes", [text] * 9)
    assert "에서" in vocabulary
    assert "##에서" not in vocabulary


def test_a_text_survives_a_round_trip():
    tokenizer = train_wordpiece(lambda: iter(SENTENCES), 400, word_units="morphemes").tokenizer
    text = SENTENCES[2]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert tokenizer.unk_token_id not in tokenizer(text).input_ids


@pytest.mark.slow
def test_the_command_trains_the_vocabulary(cli, korean_text, tmp_path):
    args = ["--data", korean_text, "--vocab-size", 400, "--word-units", "morphemes"]
    status, out, err = cli("train-tokenizer", *args, "-o", tmp_path / "t", "--json")
    assert status == 0, err
    tokens = (tmp_path / "t" / "vocab.txt").read_text("utf-8").split("\n")
    assert json.loads(out)["vocab_size"] == len(tokens) - 1
    assert "##습니다" in tokens


# ---- output


def test_columns_of_the_console_are_aligned_by_display_width(capsys):
    from bertkit.experiments.experiment import print_plan

    runs = [{"folder": name, "data": "x"} for name in ("영화평/seed0", "reviews/seed0")]
    print_plan({"runs": runs, "model": ""})
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert [cell_len(line[: line.rindex("x")]) for line in lines] == [15, 15]


def test_names_in_charts_are_shortened_by_display_width():
    assert shorten_name("경제와 사회 그리고 생활과 문화") == "경제와 사회 그리…"
    assert shorten_name("a" * 18) == "a" * 18
    assert shorten_name("a" * 19) == "a" * 17 + "…"


@pytest.mark.charts
def test_charts_keep_hangul_as_text():
    from bertkit.charts import render_chart

    svg = render_chart("예측", lambda axes: axes.set_title("경제 정치 大韓")).svg
    assert "경제 정치 大韓</text>" in svg


def tokenize_forms(texts, text):
    """Return `strip_accents` of a vocabulary of the texts, and the tokens of a text in NFC and NFD."""
    result = train_wordpiece(lambda: iter(texts), 400)
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    return result.strip_accents, [result.tokenizer.tokenize(form) for form in forms]


def test_a_vocabulary_of_composed_hangul_has_no_tokens_for_decomposed_hangul():
    strips, (composed, decomposed) = tokenize_forms(SENTENCES * 3, SENTENCES[2])
    assert (strips, "[UNK]" in composed, "[UNK]" in decomposed) == (False, False, True)


def test_a_vocabulary_of_decomposed_hangul_gives_equal_tokens_for_both_forms():
    texts = [unicodedata.normalize("NFD", text) for text in SENTENCES * 3]
    strips, (composed, decomposed) = tokenize_forms(texts, SENTENCES[2])
    assert strips is True
    assert composed == decomposed
    assert "[UNK]" not in composed
