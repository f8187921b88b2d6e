"""Planning the examples of an epoch: sentence pairs, ordered pairs, and single segments."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from bertkit.data.corpus.examples import (
    MAX_SPAN_SENTENCES,
    EpochPlan,
    SelectedDocuments,
    TargetLengths,
    build_nsp_pairs,
    build_segments,
    build_sop_pairs,
    describe_pairs,
    plan_epoch,
    resize_plan,
    split_into_segments,
)

MAKERS = [build_nsp_pairs, build_sop_pairs, build_segments]


def corpus(documents, origins=None):
    """Make a corpus from the sentence lengths of documents; `origins` are the parent ids."""
    lengths = [length for document in documents for length in document]
    return SimpleNamespace(
        sentence_offsets=np.cumsum([0, *lengths]).astype(np.uint32),
        document_offsets=np.cumsum([0, *map(len, documents)]).astype(np.uint32),
        parent_ids=None if origins is None else np.array(origins),
    )


def make_plan(make, text, capacity, seed=0, epoch=0, chosen=None, short_seq_prob=0.1):
    chosen = np.arange(len(text.document_offsets) - 1) if chosen is None else np.array(chosen)
    return plan_epoch(make, text, chosen, capacity, seed, epoch, short_seq_prob)


def find_document(text, token):
    sentence = np.searchsorted(text.sentence_offsets, token, "right") - 1
    return np.searchsorted(text.document_offsets, sentence, "right") - 1


def count_uses(plan, examples, num_tokens):
    """Return [num_tokens] how often each token is in an A, and in a B, of these examples."""
    counts = []
    for start, length in ((plan.a_start, plan.a_length), (plan.b_start, plan.b_length)):
        ends = np.zeros(num_tokens + 1, int)
        np.add.at(ends, start[examples], 1)
        np.add.at(ends, start[examples] + length[examples], -1)
        counts.append(np.cumsum(ends)[:-1])
    return counts


def plans_equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(vars(first).values(), vars(second).values(), strict=True))


def random_corpus(count, sentences=30, seed=0):
    rng = np.random.default_rng(seed)
    return corpus([rng.integers(1, 61, rng.integers(1, sentences + 1)).tolist() for _ in range(count)])


sentences = st.lists(st.integers(1, 60), min_size=1, max_size=30)
several = st.lists(sentences, min_size=2, max_size=12).map(corpus)
no_single = st.lists(sentences.filter(lambda lengths: len(lengths) > 1), min_size=2, max_size=12).map(corpus)
capacities = st.integers(2, 125)
probabilities = st.sampled_from([0, 0.1, 1])


@pytest.mark.slow
@given(text=several, capacity=capacities, seed=st.integers(0, 99), short=probabilities)
def test_pairs_fit_and_stay_within_documents(text, capacity, seed, short):
    plan = make_plan(build_nsp_pairs, text, capacity, seed, short_seq_prob=short)
    assert (plan.a_length + plan.b_length <= capacity).all()
    assert (plan.a_length > 0).all()
    assert (plan.b_length > 0).all()
    a, b = find_document(text, plan.a_start), find_document(text, plan.b_start)
    assert np.array_equal(find_document(text, plan.a_start + plan.a_length - 1), a)
    assert np.array_equal(find_document(text, plan.b_start + plan.b_length - 1), b)
    assert np.array_equal(a != b, plan.labels == 1)
    assert (np.diff(a) >= 0).all()


@pytest.mark.slow
@given(text=several, capacity=capacities, seed=st.integers(0, 99))
def test_positive_pairs_are_contiguous_except_for_truncation(text, capacity, seed):
    plan = make_plan(build_nsp_pairs, text, capacity, seed)
    follows = plan.labels == 0
    gap = (plan.b_start - plan.a_start - plan.a_length)[follows]
    is_truncated = (plan.a_length + plan.b_length)[follows] == capacity
    assert (gap >= 0).all()
    assert (gap[~is_truncated] == 0).all()
    whole = np.isin(plan.b_start[follows], text.sentence_offsets)
    assert whole[~is_truncated].all()


def test_gaps_in_positive_pairs_come_from_truncation():
    text = corpus([[50, 60], [50, 60]])
    for epoch in range(20):
        plan = make_plan(build_nsp_pairs, text, 80, epoch=epoch, short_seq_prob=0)[np.array([0])]
        if plan.labels[0] == 0:
            assert plan.a_length[0] == plan.b_length[0] == 40
            assert 0 <= plan.a_start[0] <= 10
            assert 50 <= plan.b_start[0] <= 70


def test_truncation_removes_tokens_from_both_ends_of_the_longer_text():
    text = corpus([[200, 30], [200, 30]] * 5000)
    plan = make_plan(build_nsp_pairs, text, 130, short_seq_prob=0)
    plan = plan[plan.labels == 0]
    assert set(plan.b_length) == {30}
    assert set(plan.a_length) == {100}
    front = plan.a_start % 230
    assert abs(front.mean() - 50) < 6 * 5 / np.sqrt(len(plan))  # binomial: 100 tokens, 1 / 2
    assert 4.5 < front.std() < 5.5


@pytest.mark.slow
@given(text=no_single, capacity=capacities, seed=st.integers(0, 99), short=probabilities)
def test_half_of_the_pairs_are_positive_within_one(text, capacity, seed, short):
    """This also holds if every sentence fills a chunk."""
    plan = make_plan(build_nsp_pairs, text, capacity, seed, short_seq_prob=short)
    assert abs((plan.labels == 0).sum() - (plan.labels == 1).sum()) <= 1


def test_half_of_ten_thousand_pairs_are_positive():
    plan = make_plan(build_nsp_pairs, random_corpus(4000), 125)
    assert len(plan) > 10_000
    assert abs((plan.labels == 0).mean() - 0.5) < 0.0001


def test_labels_are_balanced_throughout_the_corpus():
    plan = make_plan(build_nsp_pairs, random_corpus(4000), 125)
    tenths = [label.mean() for label in np.array_split(plan.labels, 10)]
    assert 0.4 < min(tenths) <= max(tenths) < 0.6


@pytest.mark.slow
@given(text=several, capacity=capacities, seed=st.integers(0, 99))
def test_segments_cover_all_sentences_once(text, capacity, seed):
    documents = SelectedDocuments.from_corpus(text, np.arange(len(text.document_offsets) - 1))
    segments = split_into_segments(documents, TargetLengths(capacity, 0.1), np.random.default_rng(seed))
    assert segments.start[0] == 0
    assert segments.stop[-1] == len(text.sentence_offsets) - 1
    assert np.array_equal(segments.start[1:], segments.stop[:-1])
    assert np.isin(text.document_offsets[1:-1], segments.start).all()
    for chunk in np.unique(
        segments.chunk_ids
    ):  # as many sentences as needed, the last of which reaches the target
        own = segments.chunk_ids == chunk
        first, stop, target = segments.start[own][0], segments.stop[own][-1], segments.target_length[own][0]
        assert text.sentence_offsets[stop - 1] - text.sentence_offsets[first] < target
        assert (
            text.sentence_offsets[stop] - text.sentence_offsets[first] >= target
            or stop in text.document_offsets
        )


def test_every_token_is_used_once_apart_from_random_second_texts():
    text = corpus([[1] * 30] * 400)  # no chunk is too long, so nothing is truncated
    for epoch in range(3):
        plan = make_plan(build_nsp_pairs, text, 12, epoch=epoch)
        first, _ = count_uses(plan, slice(None), 12_000)
        _, second = count_uses(plan, plan.labels == 0, 12_000)
        assert (first + second == 1).all()


def test_random_second_texts_start_uniformly_at_sentences():
    text = corpus([[1] * length for length in (5, 10, 20, 40)] * 25)
    plans = [make_plan(build_nsp_pairs, text, 12, epoch=epoch) for epoch in range(30)]
    begins = np.concatenate([plan.b_start[plan.labels == 1] for plan in plans])
    counts = np.bincount(begins, minlength=25 * 75)
    assert chisquare(counts).pvalue > 0.001


def test_all_sentences_are_used_about_equally_often():
    text = corpus([[5] * 20] * 300)
    plans = [make_plan(build_nsp_pairs, text, 45, epoch=epoch) for epoch in range(10)]
    counts = np.sum([np.sum(count_uses(plan, slice(None), 30_000), 0) for plan in plans], 0)
    random = np.concatenate([plan.b_length[plan.labels == 1] for plan in plans]).astype(float)
    spread = np.sqrt((random**2).sum() / 300)  # of a Poisson number of random second texts
    by_document = counts.reshape(300, 100).sum(1)
    assert abs(by_document - by_document.mean()).max() < 5 * spread
    assert spread < 0.1 * by_document.mean()
    assert counts.min() >= 5


def test_random_second_texts_fill_the_pair():
    text = corpus([[1] * 1000] * 20)
    plan = make_plan(build_nsp_pairs, text, 50, short_seq_prob=0)
    random = plan.labels == 1
    to_the_end = (plan.b_start + plan.b_length) % 1000 == 0
    assert ((plan.a_length + plan.b_length == 50) | to_the_end)[random].all()
    assert to_the_end[random].mean() < 0.1


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("probability", [0, 0.1, 0.5])
def test_short_targets_have_the_requested_frequency(make, probability):
    text = corpus([[1] * 1000] * 100)
    plan = make_plan(make, text, 101, short_seq_prob=probability)
    length = plan.a_length + plan.b_length
    ends = (plan.a_start // 1000 != (plan.a_start + 110) // 1000) | (
        plan.b_start // 1000 != (plan.b_start + 110) // 1000
    )
    short = length[~ends] < 101
    assert binomtest(int(short.sum()), len(short), probability * 0.99).pvalue > 0.001
    if probability:
        assert length[~ends].min() < 20
        assert abs(length[~ends][short].mean() - 51) < 4


@pytest.mark.parametrize("make", MAKERS)
def test_plans_are_determined_by_seed_and_epoch(make):
    text = random_corpus(50)
    plan = make_plan(make, text, 60, 3, 2)
    assert plans_equal(plan, make_plan(make, text, 60, 3, 2))
    assert not plans_equal(plan, make_plan(make, text, 60, 3, 1))
    assert not plans_equal(plan, make_plan(make, text, 60, 2, 2))


@pytest.mark.parametrize("make", MAKERS)
def test_only_selected_documents_are_used(make):
    text, chosen = random_corpus(50), [3, 4, 17, 40, 49]
    plan = make_plan(make, text, 60, chosen=chosen)
    assert set(find_document(text, plan.a_start)) == set(chosen)
    assert set(find_document(text, plan.b_start[plan.b_length > 0])) <= set(chosen)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("make", MAKERS)
def test_plans_do_not_depend_on_the_offset_dtype(make, kind):
    text = random_corpus(20)
    other = SimpleNamespace(
        **vars(text)
        | {name: vars(text)[name].astype(kind) for name in ("sentence_offsets", "document_offsets")}
    )
    plan = make_plan(make, other, 60)
    assert plans_equal(plan, make_plan(make, text, 60))
    kinds = [value.dtype for value in vars(plan).values()]
    assert kinds == [np.int64, np.int32, np.int64, np.int32, np.int8]


@pytest.mark.parametrize("make", MAKERS)
def test_offsets_near_the_maximum_of_their_dtype_do_not_overflow(make):
    text = corpus([[20] * 10] * 4)
    far = SimpleNamespace(**vars(text) | {"sentence_offsets": text.sentence_offsets + np.uint32(2**32 - 801)})
    plan, moved = make_plan(make, text, 300), make_plan(make, far, 300)
    assert np.array_equal(plan.a_start + 2**32 - 801, moved.a_start)
    assert np.array_equal(plan.a_length, moved.a_length)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60),
    capacity=capacities,
    seed=st.integers(0, 99),
)
def test_random_second_texts_in_one_document_come_from_elsewhere(lengths, capacity, seed):
    text = corpus([lengths])
    plan = make_plan(build_nsp_pairs, text, capacity, seed)
    a_stop, b_stop = plan.a_start + plan.a_length, plan.b_start + plan.b_length
    random = plan.labels == 1
    assert ((b_stop <= plan.a_start) | (plan.b_start > a_stop))[random].all()
    after = random & (plan.b_start > a_stop)  # at least the next sentence is left out
    sentence = np.searchsorted(text.sentence_offsets, a_stop - 1, "right") - 1
    begin = np.searchsorted(text.sentence_offsets, plan.b_start, "right") - 1
    assert (begin - sentence > 1)[after].all()
    assert (plan.a_length + plan.b_length <= capacity).all()


def test_one_long_document_gives_both_labels():
    plan = make_plan(build_nsp_pairs, corpus([[1] * 1000]), 20, short_seq_prob=0)
    assert abs((plan.labels == 0).sum() - (plan.labels == 1).sum()) <= 1
    random = plan.labels == 1
    rest = plan.a_start + 20  # where the continuation of A stops
    assert ((plan.b_start + plan.b_length <= plan.a_start) | (plan.b_start >= rest))[random].all()
    assert set(make_plan(build_nsp_pairs, corpus([[10, 10, 10]]), 60).labels) == {0}
    assert len(make_plan(build_nsp_pairs, corpus([[10]]), 60)) == 0


@pytest.mark.slow
@given(
    documents=st.lists(st.lists(sentences, min_size=1, max_size=5), min_size=2, max_size=5),
    capacity=capacities,
    seed=st.integers(0, 99),
)
def test_random_second_texts_come_from_another_original_document(documents, capacity, seed):
    origins = [number for number, stretches in enumerate(documents) for _ in stretches]
    text = corpus([stretch for stretches in documents for stretch in stretches], origins)
    plan = make_plan(build_nsp_pairs, text, capacity, seed)
    a, b = (text.parent_ids[find_document(text, start)] for start in (plan.a_start, plan.b_start))
    assert (a != b)[plan.labels == 1].all()
    assert (a == b)[plan.labels == 0].all()
    assert set(a) == set(range(len(documents)))


def test_parts_of_one_document_count_as_one_document():
    text = corpus([[1] * 100] * 10, origins=[0] * 10)
    chosen = np.array([0, 1, 2, 5, 6, 9])
    plan = make_plan(build_nsp_pairs, text, 20, chosen=chosen, short_seq_prob=0)
    random, rest = plan.labels == 1, plan.a_start + 20  # where the continuation of A stops
    assert 0.4 < random.mean() < 0.6
    assert ((plan.b_start + plan.b_length <= plan.a_start) | (plan.b_start >= rest))[random].all()
    assert np.isin(find_document(text, plan.b_start), chosen).all()
    assert (find_document(text, plan.b_start) == find_document(text, plan.b_start + plan.b_length - 1)).all()
    assert "one document" in describe_pairs(text, chosen, plan)[0]
    assert describe_pairs(corpus([[1] * 100] * 10), chosen) == []


def test_documents_of_one_sentence_give_only_negative_pairs():
    plan = make_plan(build_nsp_pairs, corpus([[5]] * 50), 20)
    assert len(plan) == 50
    assert set(plan.labels) == {1}
    plan = make_plan(build_nsp_pairs, corpus([[5]] * 50 + [[5, 5]] * 10), 20, short_seq_prob=0)
    assert (plan.labels == 0).sum() == 10
    assert (plan.labels == 1).sum() == 50


@pytest.mark.parametrize("make", MAKERS)
def test_empty_sentences_and_documents_are_skipped(make):
    text = corpus([[0, 3, 0, 4, 0], [0, 0], [], [5, 0, 0, 0, 0, 0, 0], [2, 2, 0]])
    for epoch in range(30):
        plan = make_plan(make, text, 6, epoch=epoch)
        assert (plan.a_length > 0).all()
        assert make is build_segments or (plan.b_length > 0).all()
    for documents in ([], [[]], [[0, 0]]):
        assert len(make_plan(make, corpus(documents), 6)) == 0


def test_a_long_document_is_divided_into_spans():
    text = corpus([[1] * (5 * MAX_SPAN_SENTENCES + 1)] * 2)
    documents = SelectedDocuments.from_corpus(text, np.arange(2))
    first, stop = documents.split_into_spans()
    assert len(first) == 12
    assert np.array_equal(first[1:], stop[:-1])
    assert set((stop - first).tolist()) <= {853, 854}
    plan = make_plan(build_nsp_pairs, text, 50)
    assert (find_document(text, plan.a_start) != find_document(text, plan.b_start))[plan.labels == 1].all()


@pytest.mark.slow
@given(text=several, capacity=capacities, seed=st.integers(0, 99), short=probabilities)
def test_sop_pairs_are_consecutive_or_swapped(text, capacity, seed, short):
    plan = make_plan(build_sop_pairs, text, capacity, seed, short_seq_prob=short)
    swapped = plan.labels == 1
    assert abs(swapped.sum() - (~swapped).sum()) <= 1
    assert (plan.a_length + plan.b_length <= capacity).all()
    assert np.array_equal(find_document(text, plan.a_start), find_document(text, plan.b_start))
    assert (plan.a_start + plan.a_length <= plan.b_start)[~swapped].all()
    assert (plan.b_start + plan.b_length <= plan.a_start)[swapped].all()
    first, second = count_uses(plan, slice(None), int(text.sentence_offsets[-1]))
    assert (first + second <= 1).all()


@pytest.mark.slow
@given(text=several, capacity=capacities, seed=st.integers(0, 99), short=probabilities)
def test_single_segments_cover_all_tokens_in_whole_sentences(text, capacity, seed, short):
    plan = make_plan(build_segments, text, capacity, seed, short_seq_prob=short)
    stop = plan.a_start + plan.a_length
    assert plan.a_start[0] == 0
    assert stop[-1] == text.sentence_offsets[-1]
    assert np.array_equal(plan.a_start[1:], stop[:-1])
    assert (plan.a_length <= capacity).all()
    assert np.array_equal(find_document(text, plan.a_start), find_document(text, stop - 1))
    longest = np.diff(text.sentence_offsets).max()
    if not short and capacity >= longest:
        assert np.isin(stop, text.sentence_offsets).all()
        following = text.sentence_offsets[np.searchsorted(text.sentence_offsets, stop[:-1]) + 1]
        more = following - plan.a_start[:-1] > capacity
        assert (more | np.isin(stop[:-1], text.sentence_offsets[text.document_offsets])).all()
    assert not plan.b_length.any()
    assert not plan.labels.any()


def test_a_plan_is_resized_to_any_length():
    plan = make_plan(build_nsp_pairs, random_corpus(200), 60)
    n = len(plan)
    for size in (n, n - 7, n + 7, 2 * n + 3, 0):
        other = resize_plan(plan, size, np.random.default_rng(0))
        assert len(other) == size
        assert (np.diff(other.a_start) >= 0).all()
        assert abs((other.labels == 0).sum() - (other.labels == 1).sum()) <= 3
    short, again = (resize_plan(plan, n - 7, np.random.default_rng(seed)) for seed in (0, 1))
    assert len(np.unique(short.a_start)) == n - 7
    assert not plans_equal(short, again)
    with pytest.raises(ValueError, match="without examples"):
        resize_plan(plan[np.array([], int)], 3, np.random.default_rng(0))


def test_a_plan_takes_little_memory():
    plan = make_plan(build_nsp_pairs, random_corpus(500), 60)
    assert sum(value.nbytes for value in vars(plan).values()) * 2_000_000 / len(plan) < 60e6


def describe_nsp_pairs(documents):
    text = corpus(documents)
    chosen = np.arange(len(documents))
    plan: EpochPlan = plan_epoch(build_nsp_pairs, text, chosen, 20, 0, 0, 0.1)
    return describe_pairs(text, chosen, plan)


def test_notes_describe_unusual_pairs():
    assert describe_nsp_pairs([[5] * 10] * 500) == []
    assert "one document" in describe_nsp_pairs([[5] * 1000])[0]
    assert len(describe_nsp_pairs([[5] * 1000])) == 1
    single, fraction = describe_nsp_pairs([[5]] * 1500 + [[5, 5]] * 500)
    assert single.startswith("1,500 of 2,000 documents (75%) have one sentence")
    assert fraction.startswith("25.0% of the pairs are IsNext")
    assert "100%" in describe_pairs(corpus([[5]] * 10), np.arange(10))[0]
