"""Masking: whole words, the fractions of Devlin et al. 2018, and independence of the batch."""

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from conftest import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertkit.data.masking import (
    KEPT,
    MASK,
    RANDOM,
    UNUSED,
    BatchWords,
    TokenMasker,
    find_continuation_tokens,
    hashed_bits,
    hashed_uniform,
    measure_masking,
    select_greedily,
)

CASES = sorted((Path(__file__).parent / "golden" / "masks").glob("*.json"))
PAD, CLS, SEP, MASK_ID = range(4)
SPECIAL, SIZE = 5, 1000  # of a vocabulary: special tokens first, then those that begin a word
CONTINUES = np.arange(SIZE) >= 700
WHOLE_WORDS = pytest.mark.parametrize("continues", [CONTINUES, None], ids=["whole words", "single tokens"])


def make_masker(continues=CONTINUES, **settings):
    return TokenMasker(MASK_ID, np.arange(SPECIAL, SIZE), continues, **settings)


def pad(rows, left=0, right=0):
    """Return the rows padded to the longest and further, and which tokens are special."""
    length = left + max(map(len, rows), default=0) + right
    ids = np.full((len(rows), length), PAD)
    for row, tokens in enumerate(rows):
        ids[row, left : left + len(tokens)] = tokens
    return ids, ids < SPECIAL


def chosen_positions(masked, row=0):
    """Return the positions to predict in a row."""
    return masked.masked_lm_positions[row, masked.actions[row] != UNUSED]


ROWS = st.lists(
    st.lists(st.sampled_from([CLS, SEP, 10, 11, 12, 800, 801]), max_size=30), min_size=1, max_size=5
)
SETTINGS = st.fixed_dictionaries({
    "continues": st.sampled_from([CONTINUES, None]), "seed": st.integers(0, 2**40),
    "mlm_probability": st.floats(0, 1), "max_predictions_per_seq": st.integers(1, 12),
})  # fmt: skip


# ---- random numbers


def test_hashed_uniform_depends_only_on_seed_stream_key_and_position():
    keys = np.array([5, 7, 2**62, 0])
    all_of_them = hashed_uniform(42, keys, 9, stream=3)
    assert np.array_equal(hashed_uniform(42, keys[[2, 1]], 4, stream=3), all_of_them[[2, 1], :4])
    assert np.array_equal(hashed_uniform(42, keys.astype(np.uint64), 9, stream=3), all_of_them)
    assert hex(hashed_bits(42, keys, 1)[0, 0]) == "0x2a8bb0085a92e848"  # so that old runs can be repeated


def test_hashed_uniform_is_uniform_and_uncorrelated():
    first = hashed_uniform(42, np.arange(500), 200)
    counts = np.bincount((first * 100).astype(int).ravel(), minlength=100)
    assert (first.min() >= 0, first.max() < 1, len(counts)) == (True, True, 100)
    assert np.abs(counts - 1000).max() < 5 * 1000**0.5
    others = [
        hashed_uniform(43, np.arange(500), 200), hashed_uniform(42, np.arange(500), 200, stream=1),
        hashed_uniform(42, np.arange(500, 1000), 200), np.roll(first, 1, axis=0), np.roll(first, 1, axis=1),
    ]  # fmt: skip
    for other in others:
        assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 5 / first.size**0.5


# ---- words


def train_tokenizer(model, pre_tokenizer, decoder, trainer, texts):
    backend = Tokenizer(model)
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoder
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", mask_token="hidden")


def byte_level():
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "hidden"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = ["masking hides masks, and unmasking shows them"] * 3
    blank = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train_tokenizer(models.BPE(), blank, decoders.ByteLevel(), trainer, texts)


def unigram():
    texts = ["masking hides masks, and unmasking shows them", "今日は雨 서울에서 Ġarb"] * 3
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<pad>", "hidden", "<unk>"], unk_token="<unk>"
    )
    return train_tokenizer(models.Unigram(), pre_tokenizers.Metaspace(), decoders.Metaspace(), trainer, texts)


def word_level():
    vocab = {"<pad>": 0, "<mask>": 1, "mask": 2, "ing": 3}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", mask_token="<mask>")


EXPECTED = {
    make_tokenizer: {"##a": True, "a": False, "the": False, "[MASK]": False},
    byte_level: {"i": True, "Ġ": False, ",": False, "ã": True, "hidden": False},
    unigram: {"s": True, "▁": False, ",": False, "今": False, "서": True, "Ġ": True, "hidden": False},
    word_level: {"mask": False, "ing": False, "<mask>": False},
}


@pytest.mark.parametrize("make", EXPECTED)
def test_continuation_tokens_are_found_for_each_tokenizer_type(make):
    tokenizer = make()
    vocabulary, found = tokenizer.get_vocab(), find_continuation_tokens(tokenizer)
    shown = {token: bool(found[vocabulary[token]]) for token in EXPECTED[make]}
    assert shown == EXPECTED[make]
    assert len(found) == len(tokenizer)


def find_words_in_loop(tokens):
    """Return the words of a row as lists of positions, with a plain loop."""
    words, last_special = [], True
    for place, token in enumerate(tokens):
        if token >= SPECIAL:
            if last_special or not CONTINUES[token]:
                words.append([])
            words[-1].append(place)
        last_special = token < SPECIAL
    return words


@given(ROWS)
def test_word_spans_equal_a_plain_loop(rows):
    ids, special = pad(rows)
    words = BatchWords.from_batch(ids, special, CONTINUES)
    found = [list(range(start, start + size)) for start, size in zip(words.starts, words.sizes, strict=True)]
    of_rows = [find_words_in_loop(row) for row in ids]
    shifted = [[row * ids.shape[1] + at for at in word] for row, some in enumerate(of_rows) for word in some]
    assert found == shifted
    assert words.word_counts.tolist() == list(map(len, of_rows))
    assert words.token_counts.tolist() == [sum(map(len, some)) for some in of_rows]


# ---- selection


def select_in_loop(sizes, limit):
    """Select words by Google's rule, with a plain loop."""
    taken, total = [], 0
    for size in sizes:
        taken.append(total + size <= limit)
        total += size if taken[-1] else 0
    return taken


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=25), st.integers(0, 30)), min_size=1, max_size=6)
)
def test_greedy_selection_equals_a_plain_loop(rows):
    size = np.full((len(rows), max(len(sizes) for sizes, _ in rows)), 10**6)
    for row, (sizes, _) in enumerate(rows):
        size[row, : len(sizes)] = sizes
    found = select_greedily(size, np.array([limit for _, limit in rows]))
    for row, (sizes, limit) in enumerate(rows):
        assert found[row].tolist()[: len(sizes)] == select_in_loop(sizes, limit)
        assert not found[row, len(sizes) :].any()


@pytest.mark.slow
@given(ROWS, SETTINGS)
def test_as_many_words_are_chosen_as_fit(rows, settings):
    ids, special = pad(rows)
    masked = make_masker(**settings)(ids, special, np.arange(len(rows)))
    most = settings["max_predictions_per_seq"]
    for row, tokens in enumerate(ids):
        words = find_words_in_loop(tokens)
        if settings["continues"] is None:
            words = [[place] for word in words for place in word]
        wanted = round(sum(map(len, words)) * settings["mlm_probability"])
        limit = min(most, max(wanted, min(map(len, words), default=0)))
        found = set(chosen_positions(masked, row).tolist())
        assert all(found.isdisjoint(word) or found.issuperset(word) for word in words)
        left = [len(word) for word in words if found.isdisjoint(word)]
        assert len(found) <= limit < len(found) + min(left, default=most + 1)
        assert found <= {place for word in words for place in word}


@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (9, 1), (10, 2), (30, 4), (60, 9), (200, 20)])
def test_number_of_chosen_tokens(n, k):
    ids, special = pad([[CLS, *[10] * n, SEP]])
    for continues in (CONTINUES, None):
        assert len(chosen_positions(make_masker(continues)(ids, special, np.array([3])))) == k


def test_words_that_exceed_the_limit_are_skipped():
    ids, special = pad([[10, 800, 800, SEP, 10, 800, 10, 800], [10, 800, 800]])
    for key in range(20):
        masked = make_masker(max_predictions_per_seq=2)(ids, special, np.array([key, key]))
        assert chosen_positions(masked).tolist() in ([4, 5], [6, 7])  # round(0.15 * 7) is 1, so the shortest
        assert chosen_positions(masked, 1).tolist() == []


# ---- output


@pytest.mark.slow
@WHOLE_WORDS
@given(rows=ROWS, key=st.integers(0, 2**62), left=st.integers(0, 9), right=st.integers(0, 9))
def test_an_example_is_masked_alike_in_any_batch(continues, rows, key, left, right):
    mask, keys = make_masker(continues, mlm_probability=0.4), np.arange(len(rows)) + key
    together = mask(*pad(rows, left, right), keys)
    for row, tokens in enumerate(rows):
        alone = mask(*pad([tokens]), keys[row : row + 1])
        assert (chosen_positions(together, row) - left).tolist() == chosen_positions(alone).tolist()
        assert together.masked_lm_labels[row].tolist() == alone.masked_lm_labels[0].tolist()
        assert together.input_ids[row, left : left + len(tokens)].tolist() == alone.input_ids[0].tolist()


@pytest.mark.slow
@given(ROWS, SETTINGS)
def test_the_output_arrays_are_consistent(rows, settings):
    ids, special = pad(rows)
    before = ids.copy()
    masked = make_masker(**settings)(ids, special, np.arange(len(rows)))
    shape = (len(rows), settings["max_predictions_per_seq"])
    assert (masked.masked_lm_positions.shape, masked.masked_lm_labels.shape) == (shape, shape)
    assert np.array_equal(ids, before)
    restored = masked.input_ids.copy()
    for row in range(len(rows)):
        positions, used = chosen_positions(masked, row), masked.actions[row] != UNUSED
        assert (np.diff(positions) > 0).all()
        assert not used[len(positions) :].any()
        assert (masked.masked_lm_labels[row][~used] == -100).all()
        assert (masked.masked_lm_positions[row][~used] == 0).all()
        restored[row, positions] = masked.masked_lm_labels[row][used]
    assert np.array_equal(restored, ids)


@WHOLE_WORDS
def test_empty_batches_are_masked(continues):
    for shape in ((0, 8), (2, 0), (2, 8)):
        masked = make_masker(continues)(np.zeros(shape, int), np.ones(shape, bool), np.arange(shape[0]))
        assert (masked.masked_lm_labels == -100).all()
        assert set(measure_masking(masked, *pad([[]] * shape[0]), continues).values()) == {0.0}


def test_different_seeds_and_keys_give_different_masks():
    ids, special = pad([[10] * 100])
    found = [
        tuple(chosen_positions(make_masker(seed=seed)(ids, special, np.array([key]))))
        for seed in range(9)
        for key in range(9)
    ]
    assert len(set(found)) == 81


# ---- statistics


@pytest.fixture(scope="module")
def many():
    """256 rows of 512 tokens: [CLS] A [SEP] B [SEP], about 30 % of them continuing a word."""
    ids = np.random.default_rng(0).integers(SPECIAL, SIZE, (256, 512))
    ids[:, 0], ids[:, 200], ids[:, 511] = CLS, SEP, SEP
    return ids, ids < SPECIAL


@WHOLE_WORDS
def test_masking_fractions_of_many_tokens(many, continues):
    ids, special = many
    masked = make_masker(continues, max_predictions_per_seq=80)(ids, special, np.arange(len(ids)))
    rates = measure_masking(masked, ids, special, continues)
    total = (masked.actions != UNUSED).sum()
    assert total == len(ids) * 76  # round(0.15 * 509) of each: there is always a word that fits
    assert rates["selected"] == pytest.approx(76 / 509)
    for name, fraction in (("mask", 0.8), ("random", 0.1), ("kept", 0.1)):
        tolerance = 4 * (fraction * (1 - fraction) / total) ** 0.5
        assert abs(rates[name] - fraction) < tolerance
    assert (rates["special_selected"], rates["whole_words"]) == (0.0, 1.0)
    if continues is None:
        assert measure_masking(masked, ids, special, CONTINUES)["whole_words"] < 0.9


@WHOLE_WORDS
def test_replacements_match_the_recorded_actions(many, continues):
    ids, special = many
    masked = make_masker(continues, max_predictions_per_seq=80)(ids, special, np.arange(len(ids)))
    row = np.arange(len(ids))[:, None]
    found, labels = masked.input_ids[row, masked.masked_lm_positions], masked.masked_lm_labels
    assert (found[masked.actions == MASK] == MASK_ID).all()
    assert (found[masked.actions == KEPT] == labels[masked.actions == KEPT]).all()
    random_tokens = found[masked.actions == RANDOM]
    assert (random_tokens.min() >= SPECIAL, random_tokens.max()) == (True, SIZE - 1)
    assert len(np.unique(random_tokens)) > 0.8 * (SIZE - SPECIAL)
    assert abs(random_tokens.mean() - ids[~special].mean()) < 5 * SIZE / 12**0.5 / len(random_tokens) ** 0.5
    assert (random_tokens == labels[masked.actions == RANDOM]).mean() < 0.01


@pytest.mark.parametrize("row", [[CLS, *range(10, 60), SEP], [CLS, *[10, 800] * 25, SEP]])
def test_each_position_is_equally_likely(row):
    times = 4000
    ids, special = pad([row] * times)
    masked = make_masker(mlm_probability=0.24)(ids, special, np.arange(times))
    assert (masked.actions != UNUSED).sum() == 12 * times
    row, slot = np.nonzero(masked.actions != UNUSED)
    counts = np.bincount(masked.masked_lm_positions[row, slot])[1:51]
    assert np.abs(counts - 0.24 * times).max() < 4 * (0.24 * 0.76 * times) ** 0.5


# ---- golden


def test_there_are_golden_cases():
    assert len(CASES) > 5


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path):
    case = json.loads(path.read_text("utf-8"))
    tokens = case["tokens"].split()
    vocabulary = dict(zip(dict.fromkeys(["[PAD]", "[CLS]", "[SEP]", "[MASK]", *tokens]), count()))
    names = list(vocabulary)
    continuing = np.array([name.startswith("##") for name in names]) if case["whole_words"] else None
    ids = np.array([[vocabulary[token] for token in tokens]])
    mask = TokenMasker(vocabulary["[MASK]"], np.arange(4, len(names)), continuing, **case["settings"])
    masked = mask(ids, ids < 4, np.array([case["key"]]))
    shown = [" ".join(names[token] for token in some) for some in
             (masked.input_ids[0], masked.masked_lm_labels[0, masked.actions[0] != UNUSED])]  # fmt: skip
    assert shown == [case["masked"], case["labels"]]
    assert ids[0, chosen_positions(masked)].tolist() == [
        vocabulary[token] for token in case["labels"].split()
    ]
