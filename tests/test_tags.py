"""Tag schemes are detected, read by conlleval's rule, and converted back without loss."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.tasks.ner.tags import (
    SCHEMES,
    Scheme,
    TagSet,
    build_iob2_labels,
    count_violations,
    describe_notation,
    detect_scheme,
    find_first,
    find_invalid_tag,
    from_iob2,
    to_iob2,
)

IOB2 = "O B-PER B-PER I-PER O B-LOC B-LOC I-LOC I-LOC B-PER"
WRITTEN = {
    "IOB2": IOB2,
    "IOB1": "O I-PER B-PER I-PER O I-LOC B-LOC I-LOC I-LOC I-PER",
    "BIOES": "O S-PER B-PER E-PER O S-LOC B-LOC I-LOC E-LOC S-PER",
    "BILOU": "O U-PER B-PER L-PER O U-LOC B-LOC I-LOC L-LOC U-PER",
    "BMES": "O S-PER B-PER E-PER O S-LOC B-LOC M-LOC E-LOC S-PER",
}
IO = "O I-PER I-PER O I-LOC I-PER"
schemes = st.builds(Scheme, st.sampled_from(list(SCHEMES)), st.sampled_from("-_"))
types = st.sampled_from(["PER", "LOC", "creative-work_2"])
entities = st.lists(st.tuples(types | st.none(), st.integers(1, 4)), max_size=8)
anything = st.lists(
    st.lists(st.just("O") | st.builds("{}-{}".format, st.sampled_from("BIMELSU"), types), max_size=8)
)


def split(text):
    return [line.split() for line in text.split("|")]


def written(entities_of_sentence, scheme):
    """Entities (type, length) and outsides (None, length) of one sentence as the scheme writes them."""
    first, inner, last, only = SCHEMES[scheme.name]
    tags, before = [], None
    for type, length in entities_of_sentence:
        letters = only if length == 1 else first + inner * (length - 2) + last
        if scheme.name == "IOB1":
            letters = ("B" if type == before else "I") + inner * (length - 1)
        tags += [letter + scheme.separator + type for letter in letters] if type else ["O"] * length
        before = type
    return tags


@pytest.mark.parametrize("name", WRITTEN)
def test_each_scheme_is_detected_and_converted_both_ways(name):
    tags = split(WRITTEN[name])
    assert detect_scheme(tags) == Scheme(name)
    assert to_iob2(tags, Scheme(name)) == split(IOB2)
    assert from_iob2(split(IOB2), Scheme(name)) == tags
    assert count_violations(tags, Scheme(name)) == 0


def test_io_with_letters_and_bare_types():
    wanted = split("O B-PER I-PER O B-LOC B-PER")
    bare = IO.replace("I-", "")
    for text, scheme in ((IO, Scheme("IO")), (bare, Scheme("IO", ""))):
        assert detect_scheme(split(text)) == scheme
        assert to_iob2(split(text), scheme) == wanted
        assert from_iob2(wanted, scheme) == split(text)
        assert count_violations(split(text), scheme) == 0


def test_separators_and_tags_without_types():
    assert detect_scheme(split("B_creative-work I_creative-work O")) == Scheme("IOB2", "_")
    assert to_iob2(split("B_creative-work I_creative-work O"), Scheme("IOB2", "_")) == split(
        "B-creative-work I-creative-work O"
    )
    assert detect_scheme(split("O B E S B I E")) == Scheme("BIOES")
    assert to_iob2(split("O B E S"), Scheme("BIOES")) == split("O B I B")
    assert from_iob2(split("O B I B"), Scheme("BIOES")) == split("O B E S")


@pytest.mark.parametrize("separator", "-_")
@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "IOB1"])
@pytest.mark.parametrize(
    ("notation", "form"),
    [
        ({"has_suffix": True}, "letters as suffixes"),
        ({"is_lowercase": True}, "letters in lower case"),
        ({"has_suffix": True, "is_lowercase": True}, "letters as suffixes and letters in lower case"),
        ({"has_suffix": True, "outside": "-"}, "letters as suffixes"),
        ({"is_lowercase": True, "outside": "o"}, "letters in lower case"),
    ],
)
def test_letters_may_be_suffixes_or_in_lower_case(name, separator, notation, form):
    scheme = Scheme(name, separator, **notation)
    tags = from_iob2(split(IOB2), scheme)
    first = {False: "B{}PER", True: "PER{}B"}[scheme.has_suffix].format(separator)
    written_first = first.replace("B", "b") if scheme.is_lowercase else first
    assert written_first in tags[0]
    assert scheme.outside == tags[0][0]
    assert detect_scheme(tags) == scheme
    assert to_iob2(tags, scheme) == split(IOB2)
    assert count_violations(tags, scheme) == 0
    assert (
        describe_notation(set(tags[0]), scheme)
        == f"the tags look like {name} with {form}, and are read as {scheme}"
    )
    single = [[written_first, scheme.outside]]
    assert replace(detect_scheme(single, scheme), name=name) == scheme
    assert detect_scheme(split("B-PER I-PER O"), scheme) == Scheme()


@pytest.mark.parametrize(
    "text",
    [
        "O vitamin-B",
        "vitamin-B vitamin-C",
        "vitamin-B vitamin-E",
        "e-mail u-turn O",
        "n v i b",
        "type-I type-S",
    ],
)
def test_types_that_end_or_begin_with_a_letter_are_types(text):
    assert detect_scheme(split(text)) == Scheme("IO", "")
    assert describe_notation(set(text.split()), Scheme("IO", "")) is None


def test_tags_that_look_like_entities_among_others_are_types_with_a_note():
    tags = split("TOWN-B TOWN-I drug O")
    assert detect_scheme(tags) == Scheme("IO", "")
    assert describe_notation(set(tags[0]), Scheme("IO", "")) == (
        "each tag is read as a type: 'TOWN-B' looks like the first word of an entity, but 'drug' has no such "
        "letter; write all tags in one form"
    )
    assert detect_scheme(split("TOWN-B TOWN-I"), preferred=Scheme("IO", "")) == Scheme("IO", "")


@pytest.mark.slow
@given(sentences=st.lists(entities, max_size=5), scheme=schemes)
def test_legal_tags_survive_a_round_trip(sentences, scheme):
    if scheme.name == "IO":  # touching entities of one type are one
        sentences = [
            [
                entity_or_outside
                for entity in entities_of_sentence
                for entity_or_outside in (entity, (None, 1))
            ]
            for entities_of_sentence in sentences
        ]
    tags = [written(entities_of_sentence, scheme) for entities_of_sentence in sentences]
    iob2 = to_iob2(tags, scheme)
    assert iob2 == [written(entities_of_sentence, Scheme()) for entities_of_sentence in sentences]
    assert from_iob2(iob2, scheme) == tags
    assert count_violations(tags, scheme) == 0
    assert count_violations(tags, detect_scheme(tags)) == 0
    assert detect_scheme(tags, preferred=scheme) == scheme


@pytest.mark.slow
@given(sentences=anything, scheme=schemes)
def test_illegal_tags_are_read_and_counted(sentences, scheme):
    iob2 = to_iob2(sentences, Scheme(scheme.name))
    assert count_violations(iob2, Scheme()) == 0
    back = from_iob2(iob2, Scheme(scheme.name))
    differing = sum(a != b for x, y in zip(sentences, back, strict=True) for a, b in zip(x, y, strict=True))
    assert count_violations(sentences, Scheme(scheme.name)) == differing


@pytest.mark.slow
@given(sentences=anything)
def test_entities_begin_by_conllevals_rule(sentences):
    for tags, iob2 in zip(sentences, to_iob2(sentences, Scheme()), strict=True):
        for before, tag, found in zip(["O", *tags], tags, iob2, strict=False):
            begins = tag[0] in "BSU" or before == "O" or before[0] in "ELSU" or before[2:] != tag[2:]
            assert found == ("O" if tag == "O" else f"{'B' if begins else 'I'}-{tag[2:]}")


def test_scheme_with_fewer_violations_is_detected():
    assert detect_scheme(split("B-PER O I-LOC O I-LOC I-LOC")) == Scheme("IOB1")
    assert detect_scheme(split("B-PER O B-PER O I-LOC I-LOC")) == Scheme("IOB2")
    assert detect_scheme(split("B-PER O I-LOC")) == Scheme("IOB2")
    assert detect_scheme(split("B-PER I-PER O B-PER E-PER|B-PER I-PER O B-PER I-PER")) == Scheme("IOB2")


def test_a_small_split_keeps_the_scheme_of_training():
    assert detect_scheme(split("O S-PER")) == Scheme("BIOES")
    for name, text in {"BMES": "S-PER O", "IOB1": "I-PER O", "BILOU": "O O", "IO": "I-PER"}.items():
        assert detect_scheme(split(text), preferred=Scheme(name)) == Scheme(name)
    assert detect_scheme(split("O B"), preferred=Scheme("IOB2", "_")) == Scheme("IOB2", "_")
    assert detect_scheme(split("I-PER I-PER"), preferred=Scheme()) == Scheme("IO")
    assert detect_scheme(split("B-PER I-PER I-PER"), preferred=Scheme("BIOES")) == Scheme()
    assert detect_scheme([]) == Scheme()


def test_invalid_tag_is_found():
    tags = split("O O|B-PER I-PER PER||O")
    assert detect_scheme(tags) == Scheme()
    assert find_invalid_tag(tags, Scheme()) == (1, 2)
    assert find_invalid_tag(tags[:1], Scheme()) is None
    for wrong in ("", "X-PER", "B-", "B_PER", "b-PER", "O-PER"):
        assert find_invalid_tag([["O", wrong]], Scheme()) == (0, 1)
        with pytest.raises(ValueError, match="does not belong to the scheme"):
            to_iob2([["O", wrong]], Scheme())


def test_scheme_description_shows_its_tags():
    assert str(Scheme("BILOU", "_")) == "BILOU (B_TYPE, I_TYPE, L_TYPE, U_TYPE, O)"
    assert str(Scheme("IO", "")) == "IO (TYPE, O)"


def test_tag_ids_follow_the_order_of_the_model():
    tags = TagSet(["I-PER", "O", "B-LOC", "I-LOC", "B-PER"])
    assert tags.types == ["LOC", "PER"]
    assert tags.outside_id == 1
    assert tags.is_begin.tolist() == [False, False, True, False, True]
    assert tags.type_ids.tolist() == [1, -1, 0, 0, 1]
    sentences = split("B-PER I-PER||O B-ORG B-LOC")
    numbers = tags.encode(sentences)
    assert numbers.tolist() == [4, 0, 1, -1, 2]
    assert tags.decode(numbers[:3]) == ["B-PER", "I-PER", "O"]
    assert find_first(sentences, {"B-ORG"}) == (2, 1)
    assert find_first(sentences[:2], {"B-ORG"}) is None
    assert build_iob2_labels(["PER", "LOC", "PER"]) == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert build_iob2_labels([""]) == ["O", "B", "I"]
    assert TagSet(["O", "B", "I"]).types == [""]


@pytest.mark.parametrize("names", [["B-PER", "I-PER"], ["O", "PER"], ["O", "B-PER", "B-PER"], ["O", "S-PER"]])
def test_invalid_tag_set_is_refused(names):
    with pytest.raises(ValueError, match="not a set of IOB2 tags"):
        TagSet(names)


def test_legal_sequences_are_those_without_faults():
    tags = TagSet(["I-PER", "O", "B-LOC", "I-LOC", "B-PER"])
    initial, pair = tags.build_transitions()
    _, apart = tags.build_transitions(allow_adjacent=False)
    for a, before in enumerate(tags.names):
        assert initial[a] == (count_violations([[before]], Scheme()) == 0)
        for b, tag in enumerate(tags.names):
            alone = ["B" + before[1:] if a != tags.outside_id else "O", tag]  # without `before`'s own fault
            assert pair[a, b] == (count_violations([alone], Scheme()) == 0)
            same = tags.type_ids[a] == tags.type_ids[b]
            assert apart[a, b] == (pair[a, b] and not (same and tags.is_begin[b]))


def test_an_entity_type_without_b_tags_may_begin_with_i():
    initial, pair = TagSet(["O", "I-PER", "B-LOC", "I-LOC"]).build_transitions()
    assert initial.tolist() == [True, True, True, False]
    assert np.flatnonzero(~pair[:, 1]).tolist() == []


@pytest.mark.parametrize("mark", ["-", "_"])
def test_marks_of_words_outside_of_entities_are_no_types(mark):
    scheme = detect_scheme([[mark, "PER", "LOC"], [mark]])
    assert to_iob2([[mark, "PER", "LOC"]], scheme) == [["O", "B-PER", "B-LOC"]]
    assert detect_scheme([["O", mark, "PER"]]).outside == "O"
