"""Held-out rows are stratified and reproducible, and no text is in both splits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.split import SplitKeys, make_splits, sample_rows, split_stratified
from bertkit.data.table import Rows
from bertkit.errors import UserError

texts_and_labels = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=80)


@given(rows=texts_and_labels, fraction=st.floats(0, 0.9), seed=st.integers(0, 9))
def test_no_text_is_in_both_splits_and_no_row_is_lost(rows, fraction, seed):
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    train, held_out = split_stratified(np.array(texts), np.array(labels), fraction, seed)
    assert sorted([*train, *held_out]) == list(range(len(rows)))
    assert not {texts[i] for i in train} & {texts[i] for i in held_out}


def test_the_same_fraction_of_every_stratum_is_held_out():
    labels = ["a"] * 100 + ["b"] * 20 + ["c"]
    _, held_out = split_stratified(np.arange(121), np.array(labels), 0.1, 0)
    assert [sum(labels[i] == name for i in held_out) for name in "abc"] == [10, 2, 0]


def test_the_whole_fraction_is_held_out_of_small_strata():
    labels = [number // 4 for number in range(100)]  # 25 classes of 4 rows
    train, held_out = split_stratified(np.arange(100), np.array(labels), 0.1, 0)
    assert len(held_out) == 10
    assert {labels[i] for i in train} == set(range(25))


def test_the_split_depends_on_the_seed_only():
    parts = [split_stratified(np.arange(50), np.zeros(50), 0.2, seed)[1].tolist() for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]


def test_training_rows_in_an_evaluation_split_are_removed_with_a_note():
    train = Rows.from_columns({"text": ["a", "b", "c", "b"]}, "train")
    both = {"train": train, "validation": Rows.from_columns({"text": ["b"]}, "v")}
    splits, notes = make_splits(both, lambda rows: SplitKeys(*[rows.hash_columns(["text"])] * 3), None, 0)
    assert splits["train"]["text"] == ["a", "c"]
    assert "2 training rows left out" in notes[0]


def test_sampled_rows_keep_their_order_and_row_numbers():
    rows = Rows.from_columns({"text": list("abcdefgh")}, "f")
    some = sample_rows(rows, 3, 1)
    assert some["text"] == sorted(some["text"])
    assert [rows["text"][number - 1] for number in some.row_numbers] == some["text"]
    assert sample_rows(rows, 99, 1) is rows
    assert np.array_equal(sample_rows(rows, 3, 1).row_numbers, some.row_numbers)


def test_holding_out_of_a_single_row_is_an_error():
    keys = SplitKeys(np.array([1]), np.array([1]), np.array([0]))
    with pytest.raises(UserError, match=r"f: there is only one row, .* add rows, or pass --validation FILE$"):
        make_splits({"train": Rows.from_columns({"text": ["a"]}, "f")}, lambda _: keys, 0.5, 0)
    keys = SplitKeys(np.array([1, 1]), np.array([1, 1]), np.array([0, 0]))
    with pytest.raises(UserError, match="f: all 2 rows are equal, so none can be held out"):
        make_splits({"train": Rows.from_columns({"text": ["a", "a"]}, "f")}, lambda _: keys, 0.5, 0)


def test_few_groups_of_rows_with_a_common_text_are_named():
    rows = Rows.from_columns({"premise": [str(number % 2) for number in range(40)]}, "train.jsonl")

    def get_keys(rows):
        return SplitKeys(np.arange(len(rows)), rows.hash_columns(["premise"]), np.zeros(len(rows), int))

    with pytest.raises(UserError, match="the 40 rows form only 2 such groups, too few to hold out 10%"):
        make_splits({"train": rows}, get_keys, None, 0, keep_overlap=True)


def test_rows_with_one_common_text_are_not_called_equal():
    rows = Rows.from_columns({"premise": ["a"] * 4}, "train.jsonl")
    keys = SplitKeys(np.arange(4), np.zeros(4, int), np.zeros(4, int))
    with pytest.raises(UserError, match="all 4 rows have a common text, so none can be held out"):
        make_splits({"train": rows}, lambda _: keys, None, 0, keep_overlap=True)
