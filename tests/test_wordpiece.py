"""Training WordPiece vocabularies: any script, deterministic, and loadable by AutoTokenizer."""

import json

import numpy as np
import pytest
from conftest import assert_refused
from transformers import AutoTokenizer

from bertkit.api import train_tokenizer
from bertkit.data.wordpiece import (
    CONTINUATION_PREFIX,
    SPECIAL_TOKENS,
    evaluate_tokenizer,
    sample_texts,
    select_alphabet,
    train_wordpiece,
)
from bertkit.errors import UserError

ENGLISH = [
    "The baker opens the café at six. The baker's sister opens it at seven on Sundays.",
    "Naïve visitors ask for the résumé of the day; the baker gives them bread.",
    "Bread needs flour, water, salt and time. The river is low, the river is loud.",
]
KOREAN = [
    "바닷가 마을에는 작은 빵집이 하나 있습니다. 빵집 주인은 새벽에 일어납니다.",
    "아이들은 학교에 가는 길에 빵집에 들릅니다. 빵집 앞에는 오래된 나무가 있습니다.",
    "봄에는 강물이 많고 여름에는 강물이 적습니다. 마을 사람들은 강을 좋아합니다.",
]
CHINESE = ["海边的小镇有一家面包店。", "面包店的主人每天很早起床。", "孩子们上学的时候去面包店。"]
JAPANESE = ["がっこうのまえにパンやがあります。", "こどもたちはパンがだいすきです。"]
CASES = {"lower-cased": {}, "cased": {"lowercase": False}}


def train(texts, **settings):
    return train_wordpiece(lambda: iter(texts), **{"vocab_size": 400, **settings})


def write(path, texts):
    path.write_text("\n".join(texts) + "\n", "utf-8")
    return path


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("texts", [KOREAN, CHINESE, JAPANESE], ids=["ko", "zh", "ja"])
def test_text_in_any_script_survives_a_round_trip(texts, case):
    made = train(texts, **CASES[case])
    for text in texts:
        assert round_trip(made.tokenizer, text).replace(" ", "") == text.replace(" ", "")


def test_korean_keeps_its_syllables_and_spaces():
    text = "아이들은 빵집에 들릅니다."
    tokenizer = train(KOREAN).tokenizer
    assert round_trip(tokenizer, text) == text
    assert "빵집" in tokenizer.get_vocab()


def test_a_chinese_character_is_a_word():
    tokenizer = train(CHINESE).tokenizer
    assert tokenizer.tokenize("面包店") == ["面", "包", "店"]
    assert not [token for token in tokenizer.get_vocab() if token.startswith(CONTINUATION_PREFIX)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "the cafe opens"),
        ({"strip_accents": False}, "the café opens"),
        ({"lowercase": False}, "The café opens"),
        ({"lowercase": False, "strip_accents": True}, "The cafe opens"),
    ],
)
def test_case_and_accent_settings(settings, text):
    assert round_trip(train(ENGLISH, **settings).tokenizer, "The café opens") == text


def test_a_few_foreign_words_do_not_affect_accent_stripping():
    made = train([*ENGLISH * 10, "빵집"])
    assert made.strip_accents


def test_notes_describe_accent_stripping():
    assert "would decompose Hangul" in train(KOREAN).notes[0]
    assert "stripping accents decomposes Hangul" in train(KOREAN, strip_accents=True).notes[0]
    assert "--no-strip-accents" in train(ENGLISH).notes[0]


@pytest.mark.parametrize("settings", [{}, {"lowercase": False}, {"strip_accents": True}])
def test_words_are_normalized_like_berts_normalizer(settings):
    """Each text repeats one word or mark, so that its normalized form becomes a token."""
    words = [
        "Café",
        "İstanbul",
        "ﬁn",
        "가방",
        "がっこう",
        "हिन्दी",
        "a\u00adb",
        "x\u200dy",
        "Å",
        "ß",
        "中",
        "½",
        "$",
    ]
    tokenizer = train([f"{word}\u3000{word}\t{word}" for word in words], **settings).tokenizer
    tokenized = [tokenizer.tokenize(word) for word in words]
    assert [tokens for tokens in tokenized if len(tokens) != 1 or tokens == ["[UNK]"]] == []


def test_special_tokens_have_the_first_ids():
    tokenizer = train(ENGLISH).tokenizer
    assert tokenizer.convert_ids_to_tokens(range(5)) == SPECIAL_TOKENS
    assert tokenizer("bread", "time").input_ids[0] == tokenizer.cls_token_id == 2
    assert tokenizer("bread", "time").token_type_ids[-1] == 1
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_training_is_deterministic():
    first = train(ENGLISH, vocab_size=90).tokenizer.get_vocab()
    assert all(train(ENGLISH, vocab_size=90).tokenizer.get_vocab() == first for _ in range(5))


def test_tokens_are_the_most_frequent_words_and_parts():
    tokenizer = train(["low low lowest slow"] * 5 + ["lowly"]).tokenizer
    assert tokenizer.tokenize("low slow lowly") == ["low", "slow", "low", "##l", "##y"]


def test_vocab_size_must_cover_the_characters():
    with pytest.raises(UserError, match=r"--vocab-size 20: .* pass at least (\d+)") as error:
        train(ENGLISH, vocab_size=20)
    least = int(str(error.value).split("at least ")[1].split(",")[0])
    assert [len(train(ENGLISH, vocab_size=least + more).tokenizer) for more in (0, 10)] == [least, least + 10]


def test_a_smaller_vocabulary_than_requested_gives_a_note():
    made = train(ENGLISH, vocab_size=5000)
    assert f"{len(made.tokenizer):,} tokens instead of 5,000" in made.notes[-1]


def test_rare_characters_get_no_token():
    texts = [*ENGLISH * 100, "ж"]
    few, all_of_them = train(texts), train(texts, coverage=1.0)
    assert few.tokenizer.tokenize("ж bread") == ["[UNK]", "bread"]
    assert all_of_them.tokenizer.tokenize("ж bread") == ["ж", "bread"]
    assert any("too rare for a token: 1 of" in note for note in few.notes)
    assert all_of_them.alphabet_size == few.alphabet_size + 1


def test_rare_characters_get_tokens_if_there_is_room():
    made = train([*ENGLISH * 100, "ж"], vocab_size=5000)
    assert made.tokenizer.tokenize("ж") == ["ж"]
    assert not any("too rare" in note for note in made.notes)


def test_equally_rare_characters_are_treated_alike():
    counts = {"a": 97, "b": 1, "c": 1, "d": 1}
    rooms = [len(select_alphabet(counts, coverage, 2)) for coverage in (0.95, 0.98, 1.0)]
    assert rooms == [1, 4, 4]
    assert select_alphabet(counts, 0.5, 4) == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_words_too_long_for_bert_are_counted_and_skipped():
    """The trainer takes time quadratic in a word: this one would take a quarter of an hour."""
    endless = "lowest" * 200_000
    made = train(["low low lowest", endless, "q" * 100, "x" * 101])
    assert any("2 words are longer than 100 characters" in note for note in made.notes)
    assert made.tokenizer.tokenize(endless) == ["[UNK]"]
    assert "##qq" in made.tokenizer.get_vocab()
    assert "##xx" not in made.tokenizer.get_vocab()
    assert not any("longer" in note for note in train(ENGLISH).notes)


TENS = [" ".join(f"w{number}" for number in range(ten, ten + 10)) for ten in range(0, 600_000, 10)]
SAMPLES = {  # texts, and bounds of the fraction of their words in the sample
    "lines": (TENS[:9_000], (1, 1)),
    "one line": ([" ".join(TENS[:9_000])], (1, 1)),
    "many lines": (TENS, (0.1, 0.3)),
    "one long line": ([" ".join(TENS)], (0.1, 0.3)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_bounded_and_evenly_spaced_whole_words(name):
    texts, (least, most) = SAMPLES[name]
    words = [int(word[1:]) for stretch in sample_texts(iter(texts)) for word in stretch.split()]
    total = 10 * len(TENS if most < 1 else TENS[:9_000])
    assert words == sorted(set(words))
    assert least * total <= len(words) <= most * total
    assert np.mean(words) == pytest.approx(total / 2, rel=0.02)


@pytest.mark.slow
def test_the_unk_fraction_is_measured_over_the_whole_text():
    texts = ["lowest" * 200_000, *["low low lowest\n" * 70_000] * 2]
    made = evaluate_tokenizer(train(texts).tokenizer, iter(texts))
    assert made["unknown"] < 0.01


def test_lone_surrogates_are_replaced():
    assert train([*ENGLISH, "bread \ud800"]).alphabet_size > 20


@pytest.mark.parametrize("settings", [[], ["--cased"], ["--strip-accents"]])
def test_auto_tokenizer_loads_the_trained_tokenizer(cli, tmp_path, settings):
    file = write(tmp_path / "ko.txt", KOREAN + ENGLISH)
    status, out, _ = cli("train-tokenizer", "--data", file, "-o", tmp_path / "tok", "--json", *settings)
    output = json.loads(out)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tok")
    expected = {"lowercase": "--cased" not in settings, "strip_accents": "--strip-accents" in settings}
    made = train(KOREAN + ENGLISH, vocab_size=30_000, **expected).tokenizer
    assert status == 0
    assert {key: output[key] for key in expected} == expected
    assert (output["vocab_size"], output["unknown"]) == (len(loaded), 0)
    assert (type(loaded), loaded.model_max_length) == (type(made), 512)
    assert [loaded(text).input_ids for text in KOREAN + ENGLISH] == [
        made(text).input_ids for text in KOREAN + ENGLISH
    ]
    assert (tmp_path / "tok" / "vocab.txt").read_text("utf-8").splitlines()[:5] == SPECIAL_TOKENS


def test_data_can_be_files_directories_patterns_and_the_sample(cli, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    write(texts / "a.txt", ENGLISH[:2])
    write(texts / "b.txt", ENGLISH[2:])
    whole = write(tmp_path / "whole.txt", ENGLISH)
    made = [train_tokenizer(data=data, output_dir=tmp_path / f"tok{number}").statistics
            for number, data in enumerate([whole, texts, texts / "*.txt"])]  # fmt: skip
    assert made[0] == made[1] == made[2]
    status, out, err = cli("train-tokenizer", "--data", "sample")
    assert (status, "runs/tokenizer-sample" in out, "accents are stripped" in err) == (0, True, True)


@pytest.mark.slow
def test_the_text_is_read_as_in_pre_training(cli, tmp_path):
    """Column, encoding and document separator are those of the settings."""
    rows = [json.dumps({"lyrics": text, "note": "Zzz"}) for text in ENGLISH]
    files = {
        "rows": (write(tmp_path / "rows.jsonl", rows), ["--text-column", "lyrics"]),
        "utf-16": (tmp_path / "wide.txt", ["--encoding", "utf-16"]),
        "separator": (write(tmp_path / "parts.txt", ["%%%", *ENGLISH]), ["--document-separator", "%%%"]),
        "bad bytes": (tmp_path / "bad.txt", ["--encoding-errors", "skip"]),
    }  # fmt: skip
    files["utf-16"][0].write_text("\n".join(ENGLISH), "utf-16")
    files["bad bytes"][0].write_bytes(b"\xff\n".join(text.encode() for text in ENGLISH))
    wanted = train(ENGLISH).tokenizer.get_vocab()
    for name, (file, more) in files.items():
        args = ["--data", file, "--vocab-size", 400, "-o", tmp_path / name, *more]
        status, _, err = cli("train-tokenizer", *args)
        assert (status, AutoTokenizer.from_pretrained(tmp_path / name).get_vocab()) == (0, wanted), name
    assert err.count("bad.txt: 2 bytes left out: not UTF-8") == 1


@pytest.mark.slow
def test_a_tokenizer_is_replaced_only_with_overwrite(cli, tmp_path):
    file, folder = write(tmp_path / "en.txt", ENGLISH), tmp_path / "tok"
    args = ["--data", file, "-o", folder]
    assert cli("train-tokenizer", *args)[0] == 0
    before = (folder / "vocab.txt").read_text("utf-8")
    assert_refused(cli, tmp_path, args, ["contains a tokenizer", "--overwrite"], "train-tokenizer")
    assert cli("train-tokenizer", *args, "--cased", "--overwrite")[0] == 0
    assert (folder / "vocab.txt").read_text("utf-8") != before


@pytest.mark.parametrize(
    ("content", "args", "words"),
    [
        ("", [], ["no text"]),
        (" \n\n\t\n", [], ["no text"]),
        (b"caf\xe9", [], ["text.txt", "not UTF-8"]),
        (ENGLISH[0], ["--vocab-size", 10], ["--vocab-size 10", "--character-coverage"]),
        (ENGLISH[0], ["--data", "missing.txt"], ["missing.txt", "no such file"]),
        (ENGLISH[0], ["-o", "text.txt"], ["text.txt", "is a file"]),
        (ENGLISH[0], ["-o", "."], ["not part of a tokenizer", "text.txt", "choose another directory"]),
    ],
)
def test_refusals(cli, tmp_path, content, args, words):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "text.txt").write_bytes(content)
    args = ["--data", "text.txt", "-o", "tok", *args]
    assert_refused(cli, tmp_path, args, words, "train-tokenizer")
