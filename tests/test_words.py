"""Words and their tokens: every word is predicted exactly once, whatever its characters."""

import numpy as np
import pytest
import regex
from conftest import NEUTRAL_WORDS, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertkit.data.language import WordSpans, join_words, split_words
from bertkit.tasks.ner.features import build_windows, build_word_features, encode_words, expand_windows
from bertkit.tasks.ner.predictions import compute_emissions
from bertkit.tasks.ner.rows import ContextColumn
from bertkit.tasks.ner.tags import TagSet

# Korean, Chinese, emoji made of several, combining marks, zero-width and control characters, all planes.
STRANGE = [
    "서울",
    "은",
    "北京",
    "👩‍👩‍👧",
    "🇰🇷",
    "é",
    "e\u0301",
    "\u0301",
    "\u200b",
    "\u200d",
    "\x07",
    "\ufeff",
    "İ",
    "ﬁ",
]
CHARACTERS = st.characters(exclude_categories=["Cs"])
TOKENS = st.lists(
    st.sampled_from([*NEUTRAL_WORDS, *STRANGE]) | st.text(CHARACTERS, max_size=6), min_size=1, max_size=20
)


def trained(model, trainer, normalizer, pre_tokenizer, decoder):
    """Train a small tokenizer of another family with BERT's special tokens."""
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, pre_tokenizer, decoder
    backend.train_from_iterator([" ".join([*NEUTRAL_WORDS, *STRANGE])] * 3, trainer)
    special = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=special)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


BERT = normalizers.BertNormalizer()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
TOKENIZERS = {
    "wordpiece": make_tokenizer(),
    "byte-level": trained(
        models.BPE(), trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False,
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(),
    ),
    "unigram": trained(
        models.Unigram(), trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="[UNK]",
                                                  show_progress=False),
        normalizers.NFKC(), pre_tokenizers.Metaspace(), decoders.Metaspace(),
    ),
}  # fmt: skip


def spaced(sentences):
    return [" ".join(tokens) for tokens in sentences]


@pytest.mark.slow
@given(st.lists(TOKENS, min_size=1, max_size=5))
def test_tokens_belong_to_the_words_that_the_tokenizer_reports(sentences):
    tokenizer = TOKENIZERS["wordpiece"]
    encoded = encode_words(sentences, spaced(sentences), tokenizer, cache=False)
    at = 0
    for row, tokens in enumerate(sentences):
        [expected] = tokenizer.backend_tokenizer.encode_batch([tokens], True, add_special_tokens=False)
        first = {word: token_index for token_index, word in reversed(list(enumerate(expected.word_ids)))}
        ours = encoded.first_token[at : at + len(tokens)]
        start = encoded.ids.offsets[row]
        assert encoded.ids[row].tolist() == expected.ids
        assert [int(c - start) if c >= 0 else None for c in ours] == [
            first.get(n) for n in range(len(tokens))
        ]
        at += len(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("family", TOKENIZERS)
@given(sentences=st.lists(TOKENS, min_size=1, max_size=5), max_length=st.integers(8, 40))
def test_labels_survive_tokenization_and_prediction(family, sentences, max_length):
    """The tag of each word reaches its tokens and returns to the same word, once, in any window."""
    tags = TagSet(["O", *(f"{letter}-{kind}" for kind in range(9) for letter in "BI")])
    total = sum(map(len, sentences))
    gold = np.arange(total) % 19
    features = build_word_features(
        sentences, spaced(sentences), gold, TOKENIZERS[family], max_length, cache=False
    )
    assert features.labels is not None
    logits = np.where(np.arange(19) == features.labels[:, None], 9.0, 0.0)
    found = compute_emissions(logits, features, tags)
    assert found.shape == (total, 19)
    first = np.r_[True, features.prediction_index[1:] != features.prediction_index[:-1]] & (
        features.prediction_index >= 0
    )
    assert (found.argmax(1)[first] == gold[first]).all()
    assert np.unique(features.prediction_index[first]).tolist() == list(range(features.logit_offsets[-1]))
    assert (features.sequence_lengths <= max_length).all()
    assert len(features) == len(features.sequence_lengths)  # a window is an example: no sentence is too long


@pytest.mark.slow
@pytest.mark.parametrize("family", TOKENIZERS)
@given(tokens=st.lists(st.sampled_from([*NEUTRAL_WORDS, *STRANGE[:6]]), min_size=1, max_size=12))
def test_tokens_of_a_word_spell_it(family, tokens):
    tokenizer = TOKENIZERS[family]
    encoded = encode_words([tokens], spaced([tokens]), tokenizer, cache=False)
    stops = [*encoded.first_token[1:], len(encoded.ids.values)]
    for token, start, stop in zip(tokens, encoded.first_token, stops, strict=True):
        spelled = tokenizer.decode(encoded.ids.values[start:stop], clean_up_tokenization_spaces=False)
        spellings = [token, normalizers.NFKC().normalize_str(token), BERT.normalize_str(token)]
        unknown = not spelled.replace("[UNK]", "").strip()
        assert unknown or spelled.replace(" ", "") in [one.replace(" ", "") for one in spellings]


def test_words_without_tokens_and_words_in_one_token():
    encoded = encode_words([["the", "\x07", "film"]], ["the \x07 film"], make_tokenizer(), False)
    assert encoded.first_token.tolist() == [0, -1, 1]
    letters = list("the film")
    assert join_words(letters) == "the film"
    encoded = encode_words([letters], ["the film"], make_tokenizer(), cache=False)
    assert encoded.first_token.tolist() == [0, 0, 0, -1, 1, 1, 1, 1]


def test_word_without_tokens_follows_its_neighbors():
    from bertkit.tasks.ner.predictions import viterbi_decode

    tags = TagSet(["O", "B-X", "I-X"])
    tokens = ["the", "\x07", "film", "\x07"]
    features = build_word_features([tokens], [" ".join(tokens)], None, make_tokenizer(), 16, cache=False)
    inside, apart = np.array([[0, 9.0, 0], [0, 0, 9.0]]), np.array([[0, 9.0, 0], [0, 9.0, 0]])
    lonely = np.array([[9.0, 0, 0], [0, 8.0, 9.0]])  # the last would rather be an I, after an O
    paths = [
        viterbi_decode(
            compute_emissions(logits, features, tags), features.word_offsets, *tags.build_transitions()
        )
        for logits in (inside, apart, lonely)
    ]
    assert [path.tolist() for path in paths] == [[1, 2, 2, 0], [1, 0, 1, 0], [0, 0, 1, 0]]


def test_words_in_one_token_continue_its_entity():
    from bertkit.tasks.ner.predictions import viterbi_decode

    tags, letters = TagSet(["O", "B-X", "I-X"]), list("the film was")
    features = build_word_features([letters], ["the film was"], None, make_tokenizer(), 16, cache=False)
    logits = np.array([[0, 9.0, 0], [0, 0, 9.0], [9.0, 0, 0]])
    path = viterbi_decode(
        compute_emissions(logits, features, tags), features.word_offsets, *tags.build_transitions()
    )
    assert path.tolist() == [1, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]


TEXTS = {
    "Dr. Kim's film": ["Dr", ".", "Kim", "'", "s", "film"],
    "서울은 크다": ["서", "울", "은", "크", "다"],
    "北京in": ["北", "京", "in"],
    "हिन्दी naïve": ["हिन्दी", "naïve"],
    "a 👩‍👩‍👧 b": ["a", "👩‍👩‍👧", "b"],
}


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_a_text(text):
    assert split_words(text) == TEXTS[text]


@given(st.text(CHARACTERS))
def test_words_cover_the_whole_text(text):
    words = split_words(text)
    assert "".join(words) == regex.sub(r"\s", "", text)
    sentence = WordSpans.from_words([words], [text])
    assert [text[a:b] for a, b in zip(sentence.start, sentence.stop, strict=True)] == words


@pytest.mark.slow
@given(st.lists(st.integers(0, 60), min_size=1, max_size=6), st.integers(4, 20))
def test_each_token_is_predicted_once_where_it_has_most_context(lengths, budget):
    bounds = np.cumsum([0, *lengths])
    plan = build_windows(bounds[:-1], bounds[1:], budget)
    decided = np.concatenate(
        [np.arange(a, b) for a, b in zip(plan.predict_start, plan.predict_stop, strict=True)]
    )
    assert decided.tolist() == list(range(bounds[-1]))
    assert ((plan.start <= plan.predict_start) & (plan.predict_stop <= plan.stop)).all()
    assert (plan.stop - plan.start <= budget).all()
    for row, length in enumerate(lengths):
        some = range(plan.window_offsets[row], plan.window_offsets[row + 1])
        assert len(some) == 1 or length > budget
        for token_index in range(bounds[row], bounds[row + 1]):
            poorer = {w: min(token_index - plan.start[w], plan.stop[w] - 1 - token_index) for w in some
                      if plan.start[w] <= token_index < plan.stop[w]}  # fmt: skip
            [mine] = [w for w in some if plan.predict_start[w] <= token_index < plan.predict_stop[w]]
            assert poorer[mine] >= max(poorer.values()) - 1


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=1, max_size=3), st.integers(4, 30)
)
def test_context_consists_of_whole_sentences_of_the_same_document(documents, budget):
    lengths = [length for document in documents for length in document]
    bounds = np.cumsum([0, *lengths])
    ends = np.cumsum([0, *map(len, documents)])
    number = np.repeat(np.arange(len(documents)), list(map(len, documents)))
    alone = build_windows(bounds[:-1], bounds[1:], budget)
    row = np.repeat(np.arange(len(lengths)), np.diff(alone.window_offsets))
    limits = np.stack([bounds[ends[number[row]]], bounds[ends[number[row] + 1]]], axis=1)
    plan = expand_windows(alone, bounds, limits, budget)
    assert (plan.stop - plan.start <= budget).all()
    for window in range(len(plan.start)):
        size = lengths[row[window]]
        if size >= budget:
            assert (plan.start[window], plan.stop[window]) == (alone.start[window], alone.stop[window])
            continue
        first, last = np.searchsorted(bounds, [plan.start[window], plan.stop[window]])
        assert (bounds[first], bounds[last]) == (plan.start[window], plan.stop[window])
        assert number[first] == number[last - 1] == number[row[window]]
        room = budget - (plan.stop[window] - plan.start[window])
        left = lengths[first - 1] if first > 0 and number[first - 1] == number[row[window]] else 99
        right = lengths[last] if last < len(lengths) and number[last] == number[row[window]] else 99
        assert room < min(left, right)


def test_context_is_read_and_not_predicted():
    document = [(text.split(), text) for text in ("the film was", "it was very good", "we saw it")]
    words, texts = zip(*document, strict=True)
    context = ContextColumn(words, texts, np.array([1]), np.array([[0, 3]]))
    tokens, text = document[1]
    alone = build_word_features([tokens], [text], None, make_tokenizer(), 32, cache=False)
    with_all = build_word_features([tokens], [text], None, make_tokenizer(), 32, context, cache=False)
    assert (
        with_all.get_sequence(0)[0][with_all.positions[0]].tolist() == alone.get_sequence(0)[0][1:-1].tolist()
    )
    assert with_all.sequence_lengths[0] == alone.sequence_lengths[0] + 6
    assert with_all.logit_offsets.tolist() == alone.logit_offsets.tolist() == [0, 4]


@pytest.mark.slow
def test_sentences_in_several_parts_give_the_predictions_of_each_sentence(monkeypatch):
    """More sentences than are processed at a time: the parts are numbered consecutively."""
    words = [[*NEUTRAL_WORDS[: 1 + number % 7], "\x07"] for number in range(2 * 64 + 40)]
    monkeypatch.setattr("bertkit.tasks.ner.features.CHUNK_ROWS", 64)
    labels = np.arange(sum(map(len, words))) % 5
    features = build_word_features(words, spaced(words), labels, make_tokenizer(), 6, cache=False)
    predictions, labels_by_word = features.prediction_index, labels
    assert (predictions >= 0).sum() == len(predictions) - len(words) == features.logit_offsets[-1]
    assert predictions[predictions >= 0].tolist() == list(range(features.logit_offsets[-1]))
    assert (features.labels == labels_by_word[predictions >= 0]).all()
    last = build_word_features(words[-9:], spaced(words[-9:]), None, make_tokenizer(), 6, cache=False)
    first_window = features.window_offsets[-10]
    for number in range(len(last)):
        expected, item = last[number], features[first_window + number]
        assert item["input_ids"][0].tolist() == expected["input_ids"][0].tolist()
        assert item["positions"][0].tolist() == expected["positions"][0].tolist()
