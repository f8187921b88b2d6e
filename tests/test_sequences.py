"""Sequences equal the tokenizer's own truncation, and windows contain every token."""

import numpy as np
import pytest
from conftest import NEUTRAL_WORDS, make_features, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.collators import PaddingCollator
from bertkit.data.features import build_features, truncate
from bertkit.data.tokens import SequenceTemplate, encode

text = st.lists(st.sampled_from([*NEUTRAL_WORDS, "zebra!", "Größe"]), max_size=30).map(" ".join)
TOKENIZERS = {"bert": make_tokenizer(), "roberta": make_tokenizer(roberta=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    first=text,
    second=st.none() | text.map("x ".__add__),
    max_length=st.integers(8, 40),
    side=st.sampled_from(["head", "tail"]),
)
def test_head_and_tail_truncation_equal_longest_first(name, first, second, max_length, side):
    tokenizer = TOKENIZERS[name]
    columns = [[first]] + ([] if second is None else [[second]])
    features = build_features(columns, None, tokenizer, max_length, side, cache=False)
    tokenizer.truncation_side = "right" if side == "head" else "left"
    wanted = tokenizer(
        first, second, truncation="longest_first", max_length=max_length, return_token_type_ids=True
    )
    tokenizer.backend_tokenizer.no_truncation()
    assert features[0]["input_ids"][0].tolist() == wanted["input_ids"]
    assert features[0]["token_type_ids"][0].tolist() == wanted["token_type_ids"]


numbers = st.integers(0, 60).map(np.arange)  # all different, so that a window has one place


@given(texts=st.lists(numbers, min_size=1, max_size=2), budget=st.integers(4, 30))
def test_windows_contain_every_token(texts, budget):
    stops = np.array([list(map(len, texts))])
    counts, ranges = truncate(np.zeros_like(stops), stops, budget, "windows")
    windows = [
        [text[a:b] for text, a, b in zip(texts, start, stop, strict=True)]
        for start, stop in zip(ranges.start, ranges.stop, strict=True)
    ]
    assert counts.tolist() == [len(windows)]
    assert all(sum(map(len, window)) <= budget for window in windows)
    for column, whole in enumerate(texts):
        position, seen = 0, np.zeros(len(whole), bool)
        for window in windows:
            part = window[column]
            while not np.array_equal(whole[position : position + len(part)], part):
                position += 1
            seen[position : position + len(part)] = True
        assert seen.all()


def test_head_and_tail_keeps_a_quarter_from_the_start_and_the_rest_from_the_end():
    _, ranges = truncate(np.array([[0]]), np.array([[100]]), 8, "head+tail")
    assert (ranges.start.tolist(), ranges.stop.tolist()) == ([[0, 94]], [[2, 100]])


def test_head_and_tail_of_a_pair_are_joined_in_the_sequence():
    tokenizer = make_tokenizer()
    words = tokenizer.convert_ids_to_tokens(range(10, 30))
    first, second = " ".join(words), " ".join(words[:2])
    features = build_features([[first, "a"], [second, "a"]], None, tokenizer, 13, "head+tail", cache=False)
    assert features[0]["input_ids"][0].tolist() == [2, 10, 11, 24, 25, 26, 27, 28, 29, 3, 10, 11, 3]
    assert features.sequence_lengths.tolist() == [13, 5]


def test_truncation_settings_in_the_tokenizer_file_are_ignored(tmp_path):
    from bertkit.models.loading import ModelSource, load_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(16)
    tokenizer.backend_tokenizer.enable_padding(length=16)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(ModelSource("x", tmp_path))
    assert encode(["the film " * 100, "a"], loaded).lengths.tolist() == [200, 1]


def test_the_same_texts_are_encoded_once(monkeypatch, tmp_path):
    tokenizer = make_tokenizer()
    first = encode(["the film", "a room"], tokenizer)
    failure = lambda *_: pytest.fail("encoded again")  # noqa: E731
    monkeypatch.setattr("bertkit.data.tokens.tokenize_batches", failure)
    again = encode(["the film", "a room"], tokenizer)
    assert isinstance(again.values, np.memmap)
    assert (again.values.tolist(), again.offsets.tolist()) == (first.values.tolist(), first.offsets.tolist())


def test_special_tokens_are_read_off_the_tokenizer():
    assert SequenceTemplate.from_tokenizer(TOKENIZERS["bert"], pair=True).slots == (2, ~0, 3, ~1, 3)
    assert SequenceTemplate.from_tokenizer(TOKENIZERS["roberta"], pair=True).slots == (2, ~0, 3, 3, ~1, 3)


def test_the_collator_pads_on_the_right():
    items = [{"input_ids": [np.array([2, 7, 3])], "token_type_ids": [np.array([0, 0, 0])]},
             {"input_ids": [np.array([2, 3])], "token_type_ids": [np.array([0, 0])]}]  # fmt: skip
    with_kinds, without = (PaddingCollator(9, return_token_type_ids=kinds)(items) for kinds in (True, False))
    assert without["input_ids"].tolist() == [[2, 7, 3], [2, 3, 9]]
    assert without["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert with_kinds.keys() - without.keys() == {"token_type_ids"}


def test_length_keys_order_by_longest_sequence_then_by_count():
    features = make_features([[5, 5, 5], [9], [9, 2], [9]])
    assert features.lengths.tolist() == [15, 9, 11, 9]
    assert np.argsort(features.length_keys, kind="stable").tolist() == [0, 1, 3, 2]
