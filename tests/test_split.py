"""Shares set aside: by seed, stratified, and never the same text on both sides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.rows import Rows
from bertkit.data.split import SplitKeys, make_splits, sample_rows, split_stratified
from bertkit.errors import UserError

texts_and_labels = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=80)


@given(rows=texts_and_labels, fraction=st.floats(0, 0.9), seed=st.integers(0, 9))
def test_no_text_on_both_sides_and_no_row_lost(rows, fraction, seed):
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    kept, aside = split_stratified(texts, labels, fraction, seed)
    assert sorted([*kept, *aside]) == list(range(len(rows)))
    assert not {texts[i] for i in kept} & {texts[i] for i in aside}


def test_every_stratum_gives_its_share():
    labels = ["a"] * 100 + ["b"] * 20 + ["c"]
    _, aside = split_stratified(range(121), labels, 0.1, 0)
    assert [sum(labels[i] == name for i in aside) for name in "abc"] == [10, 2, 0]


def test_small_strata_together_give_their_share():
    labels = [number // 4 for number in range(100)]  # 25 classes of 4 rows
    kept, aside = split_stratified(range(100), labels, 0.1, 0)
    assert len(aside) == 10
    assert {labels[i] for i in kept} == set(range(25))


def test_the_seed_decides():
    parts = [split_stratified(range(50), [0] * 50, 0.2, seed)[1].tolist() for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]


def test_training_rows_that_are_also_evaluated_on_are_left_out_and_said():
    train = Rows.from_columns({"text": ["a", "b", "c", "b"]}, "train")
    both = {"train": train, "validation": Rows.from_columns({"text": ["b"]}, "v")}
    splits, notes = make_splits(
        both, lambda rows: SplitKeys(rows["text"], rows["text"], rows["text"]), None, 0
    )
    assert splits["train"]["text"] == ["a", "c"]
    assert "2 training rows left out" in notes[0]


def test_draw_keeps_the_order_and_the_places():
    rows = Rows.from_columns({"text": list("abcdefgh")}, "f")
    some = sample_rows(rows, 3, 1)
    assert some["text"] == sorted(some["text"])
    assert [rows["text"][number - 1] for number in some.row_numbers] == some["text"]
    assert sample_rows(rows, 99, 1) is rows
    assert np.array_equal(sample_rows(rows, 3, 1).row_numbers, some.row_numbers)


def test_of_one_row_nothing_can_be_set_aside_whatever_the_share():
    keys = SplitKeys(["a"], ["a"], [0])
    with pytest.raises(UserError, match=r"f: there is only one row, .* add rows, or pass --validation FILE$"):
        make_splits({"train": Rows.from_columns({"text": ["a"]}, "f")}, lambda _: keys, 0.5, 0)
