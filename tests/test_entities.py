"""Entity scores equal conlleval's rule and seqeval's; decoding gives the best legal path."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval.scheme import IOB2

from bertkit.stats.baseline_models import predict_frequent_tag
from bertkit.tasks.ner.predictions import (
    compute_word_accuracy,
    count_entities,
    score_entities,
    score_types,
    viterbi_decode,
)
from bertkit.tasks.ner.tags import (
    Scheme,
    TagSet,
    build_iob2_labels,
    compute_sentence_offsets,
    split_by_offsets,
    to_iob2,
)

TAGS = TagSet(["B-PER", "I-LOC", "O", "I-PER", "B-LOC", "B-X-Y", "I-X-Y"])
lengths_and_seeds = {"lengths": st.lists(st.integers(0, 7), max_size=12), "seed": st.integers(0, 10**6)}


def conlleval(tags):
    """Entities (start, end, type) of one sentence, token by token: start and end of chunk as published."""
    found, start = set(), None
    parsed_tags = [(tag[0], tag[2:]) for tag in tags]
    for index, (letter, type) in enumerate([*parsed_tags, ("O", "")]):
        before, before_type = parsed_tags[index - 1] if index else ("O", "")
        changed = type != before_type
        if before != "O" and (letter in "BO" or changed):
            found.add((start, index - 1, before_type))
        if letter != "O" and (letter == "B" or before == "O" or changed):
            start = index
    return found


def sample_tags(lengths, seed, legal=False):
    """Two sides of random tags as lists of names, and their offsets."""
    rng, offsets = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    gold = rng.integers(0, len(TAGS), offsets[-1])
    predicted = np.where(rng.random(offsets[-1]) < 0.6, gold, rng.integers(0, len(TAGS), offsets[-1]))
    sides = [split_by_offsets(TAGS.decode(numbers), offsets) for numbers in (gold, predicted)]
    return *([to_iob2(side, Scheme()) for side in sides] if legal else sides), offsets


def counted(gold, predicted, offsets):
    return count_entities(TAGS.encode(gold), TAGS.encode(predicted), offsets, TAGS)


@given(**lengths_and_seeds)
def test_counts_equal_conllevals_rule(lengths, seed):
    gold, predicted, offsets = sample_tags(lengths, seed)
    counts = counted(gold, predicted, offsets)
    assert counts.shape == (len(lengths), 3, 3)
    for row, a, b in zip(counts, map(conlleval, gold), map(conlleval, predicted), strict=True):
        for place, name in enumerate(TAGS.types):
            wanted = [sum(entity[2] == name for entity in some) for some in (a & b, b, a)]
            assert row[place].tolist() == wanted


def test_many_long_sentences_equal_conllevals_rule():
    gold, predicted, offsets = sample_tags(np.random.default_rng(0).integers(0, 60, 2000), 1)
    pairs = [(conlleval(a), conlleval(b)) for a, b in zip(gold, predicted, strict=True)]
    wanted = [[len(a & b), len(b), len(a)] for a, b in pairs]
    assert counted(gold, predicted, offsets).sum(1).tolist() == wanted


def assert_equal_to_seqeval(gold, predicted, offsets, **options):
    if not offsets[-1]:
        return
    counts, options = counted(gold, predicted, offsets), options | {"zero_division": 0}
    report = seqeval.classification_report(gold, predicted, output_dict=True, **options)
    ours = score_entities(counts)
    for score in ("precision", "recall"):
        assert ours[score] == pytest.approx(report["micro avg"][score])
    assert ours["f1"] == pytest.approx(report["micro avg"]["f1-score"])
    for name, scores in score_types(counts, TAGS).items():
        theirs = report.get(name, {"precision": 0, "recall": 0, "f1-score": 0, "support": 0})
        assert list(scores.values()) == pytest.approx(list(theirs.values()))
    accuracy = compute_word_accuracy(TAGS.encode(gold), TAGS.encode(predicted))
    assert accuracy == pytest.approx(seqeval.accuracy_score(gold, predicted))


@pytest.mark.slow
@given(**lengths_and_seeds)
def test_legal_tags_score_as_in_seqevals_strict_mode(lengths, seed):
    gold, predicted, offsets = sample_tags(lengths, seed, legal=True)
    if any(tag != "O" for tags in gold + predicted for tag in tags):  # seqeval fails where no entity is
        assert_equal_to_seqeval(gold, predicted, offsets, mode="strict", scheme=IOB2)


@pytest.mark.slow
@given(**lengths_and_seeds)
def test_any_tags_score_as_in_seqevals_default_mode(lengths, seed):
    gold, predicted, offsets = sample_tags(lengths, seed)
    if any(tag != "O" for tags in gold + predicted for tag in tags):
        assert_equal_to_seqeval(gold, predicted, offsets)


def test_scores_of_a_small_example():
    gold, predicted = [["B-PER", "I-PER", "O", "B-LOC"], []], [["B-PER", "I-PER", "O", "B-PER"], []]
    counts = counted(gold, predicted, compute_sentence_offsets(gold))
    assert score_entities(counts) == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    found = score_types(counts, TAGS)
    assert found["PER"] == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "entities": 1}
    assert found["X-Y"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "entities": 0}
    untyped, none = TagSet(["O", "B", "I"]), np.array([], int)
    assert list(score_types(count_entities(none, none, np.array([0]), untyped), untyped)) == ["entity"]
    assert compute_word_accuracy(none, none) == 0.0


def test_evaluate_interface_equals_seqeval():
    from bertkit.metrics import Entities

    gold = [["S-PER", "O", "B-LOC", "E-LOC"], ["O"]]
    predicted = [["S-PER", "O", "B-LOC", "I-LOC"], ["S-LOC"]]
    wanted = {"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "accuracy": 0.6}
    assert Entities().compute(predictions=predicted, references=gold) == pytest.approx(wanted)
    assert seqeval.f1_score(gold, predicted) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="sentence lengths differ"):
        Entities().compute(predictions=[["O"], ["O"]], references=[["O"], ["O", "O"]])


def test_frequent_tag_baseline_predicts_most_frequent_training_tag():
    words, tags = ["Rome", "Rome", "Rome", "in", "May", "May"], np.array([3, 1, 3, 0, 4, 2])
    assert predict_frequent_tag(words, tags, ["May", "Rome", "june", "in"], outside=0).tolist() == [
        2,
        3,
        0,
        0,
    ]
    assert predict_frequent_tag([], tags[:0], ["in"], outside=5).tolist() == [5]


def is_legal(path, initial, pair):
    return all(initial[path[:1]]) and all(pair[a, b] for a, b in pairwise(path))


@pytest.mark.slow
@given(**lengths_and_seeds | {"lengths": st.lists(st.integers(0, 4), max_size=6)}, adjacent=st.booleans())
def test_decoding_gives_the_best_legal_path(lengths, seed, adjacent):
    tags = TagSet(["B-PER", "I-LOC", "O", "I-PER", "B-LOC"])
    initial, pair = tags.build_transitions(adjacent)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    emissions = np.random.default_rng(seed).normal(size=(offsets[-1], len(tags))).astype(np.float32)
    found = np.split(viterbi_decode(emissions, offsets, initial, pair), offsets[1:-1])
    for scores, path in zip(np.split(emissions, offsets[1:-1]), found, strict=True):
        tokens = np.arange(len(scores))
        paths = [p for p in map(list, product(range(5), repeat=len(scores))) if is_legal(p, initial, pair)]
        assert path.tolist() == max(paths, key=lambda p: scores[tokens, p].sum(dtype=float))
        usual = scores.argmax(1)
        assert path.tolist() == usual.tolist() or not is_legal(usual, initial, pair)


@pytest.mark.slow
def test_decoding_of_a_very_long_sentence_and_in_parts(monkeypatch):
    initial, pair = TagSet(build_iob2_labels(["LOC", "ORG", "PER"])).build_transitions()
    emissions = np.random.default_rng(0).normal(size=(20_000, len(pair)))
    whole = viterbi_decode(emissions, np.array([0, 20_000]), initial, pair)
    assert initial[whole[0]]
    assert all(pair[whole[:-1], whole[1:]])
    offsets = np.array([0, 30, 30, 33, 80, 130, 137])
    at_once = viterbi_decode(emissions[:137], offsets, initial, pair)
    monkeypatch.setattr("bertkit.tasks.ner.predictions.MAX_BATCH_SCORES", 60)  # two sentences at a time
    assert viterbi_decode(emissions[:137], offsets, initial, pair).tolist() == at_once.tolist()
