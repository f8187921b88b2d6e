"""Gold entities and answers that are assigned to tokens and decoded again are unchanged."""

import random
import unicodedata
from functools import cache, partial

import numpy as np
import pytest
import torch
from conftest import make_tokenizer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from bertkit.data.language import join_words, split_words
from bertkit.data.table import Rows
from bertkit.data.tokens import encode_with_offsets
from bertkit.errors import UserError
from bertkit.tasks.ner.checks import find_lost_entities, require_predictable
from bertkit.tasks.ner.features import build_word_features, encode_words
from bertkit.tasks.ner.predictions import compute_emissions, viterbi_decode
from bertkit.tasks.ner.rows import convert_spans_to_tags, extract_entities
from bertkit.tasks.ner.tags import TagSet, split_by_offsets
from bertkit.tasks.qa.features import Limits, build_question_features
from bertkit.tasks.qa.predictions import merge_windows

decompose = partial(unicodedata.normalize, "NFD")
TEXTS = {
    "short words": "I saw Q and Z, in  town 3.5 km $5 (Q) don't Bruun’s x",
    "composed": "Bogotá Malmö 서울은 é ﬁn ½ ㎏",
    "decomposed": decompose("Bogotá Malmö 서울은 é ﬁn ½ ㎏"),
    "emoji": "met 👍🏽 👩‍👩‍👧 🇰🇷 x1️⃣ €€5 and so",
    "korean": "김민수는 대전 광주에 갔다",
    "half-width": "ﾊﾟﾝ と ﾊﾞｽ ①",
    "zero width": "a\u200bb the\u200d fi\u200blm",
    "devanagari": "हिन्दी क्षेत्र नमस्ते",
}
WORDS = sorted({word for text in TEXTS.values() for word in text.split()})
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}


def wrap(backend):
    from transformers import PreTrainedTokenizerFast

    special = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B [SEP]"
    backend.post_processor = processors.Sequence(
        [
            *([backend.post_processor] if backend.post_processor else []),
            processors.TemplateProcessing("[CLS] $A [SEP]", pair=pair, special_tokens=special),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **IDS)


def make_byte_level(pre_tokenizer, normalizer=None, trims=False):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.normalizer = pre_tokenizer, normalizer or normalizers.Sequence([])
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    backend.train_from_iterator(list(TEXTS.values()) * 3, trainer)
    if trims:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return wrap(backend)


def make_unigram(name):
    """DeBERTa-v2, whose tokens include the space before a word, or XLM-R, whose tokens do not."""
    from transformers import DebertaV2Tokenizer, XLMRobertaTokenizer

    characters = sorted(
        {"▁", *"".join(TEXTS.values()), *unicodedata.normalize("NFC", "".join(WORDS))} - {" "}
    )
    scores = [(f"▁{word}", -1.0) for word in {unicodedata.normalize("NFC", word) for word in WORDS[::2]}]
    scores += [(character, -5.0) for character in characters]
    if name == "deberta-v2":
        special = [(token, 0.0) for token in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")]
        return DebertaV2Tokenizer(vocab=[*special, *scores], unk_id=3)
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")]
    return XLMRobertaTokenizer(vocab=[*special, *scores])


def make_wordpiece(normalizer):
    characters = sorted(set("".join(TEXTS.values()).lower()))[::2]  # the other words are [UNK]
    tokens = [*SPECIAL, *WORDS[::2], *characters, *("##" + character for character in characters)]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    return wrap(backend)


Whitespace, ByteLevel = pre_tokenizers.Whitespace, pre_tokenizers.ByteLevel
TOKENIZERS = {
    "deberta-v2": lambda: make_unigram("deberta-v2"),
    "xlm-r": lambda: make_unigram("xlm-r"),
    "roberta": lambda: make_byte_level(ByteLevel(add_prefix_space=True), trims=True),
    "gpt-2": lambda: make_byte_level(ByteLevel(add_prefix_space=False)),
    "modernbert": lambda: make_byte_level(ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "nfkc": lambda: make_byte_level(ByteLevel(add_prefix_space=False), normalizers.NFKC()),
    "robbert-2023": lambda: make_byte_level(
        pre_tokenizers.Sequence(
            [Whitespace(), ByteLevel(add_prefix_space=True), pre_tokenizers.Punctuation()]
        ),
        trims=True,
    ),
    "wordpiece": lambda: make_wordpiece(normalizers.BertNormalizer(lowercase=False)),
    "uncased": lambda: make_wordpiece(normalizers.BertNormalizer(lowercase=True)),
}


@cache
def get_tokenizer(name):
    return TOKENIZERS[name]()


CASES = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
FAMILIES = pytest.mark.parametrize("family", TOKENIZERS)


def mark_words(text):
    """Return [characters] the number of the word between spaces that each character is in; -1 for spaces."""
    numbers, number = [], 0
    for index, character in enumerate(text):
        number += character == " " and text[index - 1] != " "
        numbers.append(-1 if character == " " else number)
    return numbers


def tag_characters(text, entities):
    """Return IOB2 tags of the characters; every word whose number is in `entities` is an entity."""
    tags, before = [], None
    for word in mark_words(text):
        tags.append("O" if word not in entities else f"{'I' if word == before else 'B'}-X")
        before = word
    return tags


def decode_gold(words, texts, gold, tokenizer, max_length=128):
    """Return the tags that a perfect model predicts, and the features."""
    tags = TagSet(["O", "B-X", "I-X"])
    features = build_word_features(words, texts, tags.encode(gold), tokenizer, max_length, cache=False)
    logits = np.where(np.arange(3) == features.labels[:, None], 9.0, 0.0)
    path = viterbi_decode(
        compute_emissions(logits, features, tags), features.word_offsets, *tags.build_transitions()
    )
    return split_by_offsets(tags.decode(path), features.word_offsets), features


@CASES
@FAMILIES
def test_gold_entities_survive_tokens_and_decoding(family, text):
    """Entities are words between spaces. The labeled words are characters, words, or spans of a text."""
    tokenizer, rng = get_tokenizer(family), random.Random(0)
    entities = {word for word in range(len(text.split())) if rng.random() < 0.6}
    tags = tag_characters(text, entities)
    characters = decode_gold([list(text)], [join_words(list(text))], [tags], tokenizer)[0]
    assert characters == [tags]
    words = text.split()
    word_tags = ["B-X" if number in entities else "O" for number in range(len(words))]
    assert decode_gold([words], [join_words(words)], [word_tags], tokenizer)[0] == [word_tags]
    numbers = mark_words(text)
    spans = [
        [numbers.index(word), len(numbers) - numbers[::-1].index(word), "X"] for word in sorted(entities)
    ]
    split = split_words(text)
    span_tags = convert_spans_to_tags(Rows.from_columns({"text": [text]}, "rows"), 0, spans, text, split)
    assert decode_gold([split], [text], [span_tags], tokenizer, 12)[0] == [span_tags]  # several windows
    found = extract_entities(span_tags, split, text)
    assert [[entity["start"], entity["end"], "X"] for entity in found] == spans


@CASES
@FAMILIES
def test_gold_answers_survive_tokens_and_decoding(family, text):
    """Answers are one or two words between spaces."""
    numbers = mark_words(text)
    starts = [numbers.index(word) for word in range(len(text.split()))]
    stops = [len(numbers) - numbers[::-1].index(word) for word in range(len(starts))]
    spans = [*zip(starts, stops, strict=True), *zip(starts[:-1], stops[1:], strict=True)]
    answers = [[{"text": text[a:b], "answer_start": a}] for a, b in spans]
    limits = Limits(max_length=128, max_query_length=8, doc_stride=64, max_answer_length=64, n_best=1)
    features = build_question_features(
        ["who"] * len(spans), [text] * len(spans), answers, get_tokenizer(family), limits, cache=False
    )
    assert not features.answers_without_tokens
    logits = np.zeros((len(spans), 2, int(features.sequence_lengths.max())), np.float32)
    for window, positions in enumerate(features.labels.tolist()):
        logits[window, [0, 1], positions] = 9
    reduced = features.reduce_logits(torch.from_numpy(logits), np.arange(len(spans)), {}).numpy()
    nbest = merge_windows(reduced, features)
    found = [(int(a), int(b)) for a, b in zip(nbest.start, nbest.stop, strict=True)]
    assert found == spans


@FAMILIES
def test_lost_entities_are_those_that_decoding_does_not_return(family):
    """Entities begin and end at any character; spaces belong to no token."""
    rng, lost_numbers = random.Random(1), []
    for text in TEXTS.values():
        for _ in range(3):
            first = rng.randrange(len(text))
            last = rng.randrange(first, min(len(text), first + 8))
            tags = ["O"] * first + ["B-X"] + ["I-X"] * (last - first) + ["O"] * (len(text) - last - 1)
            [decoded], features = decode_gold([list(text)], [text], [tags], get_tokenizer(family))
            rows = Rows.from_columns({"tokens": [list(text)], "iob2": [tags]}, "rows")
            lost = find_lost_entities(rows, features.prediction_index)
            expected = [] if decoded == tags else [first]
            assert lost.first.tolist() == expected
            assert lost.num_entities == 1
            lost_numbers.append(len(expected))
    assert 0 < sum(lost_numbers) < len(lost_numbers)


@FAMILIES
def test_white_space_belongs_to_no_token_and_all_other_characters_to_one(family):
    texts = [" I saw Q \u3000", "\n", "", "so €€5", TEXTS["decomposed"]]
    tokens = encode_with_offsets(texts, get_tokenizer(family), cache=False)
    covered = [set() for _ in texts]
    rows = np.repeat(np.arange(len(texts)), tokens.ids.lengths)
    for row, start, stop in zip(rows, tokens.start.tolist(), tokens.stop.tolist(), strict=True):
        assert texts[row][start:stop] == texts[row][start:stop].strip()
        covered[row] |= set(range(start, stop))
    for text, characters in zip(texts, covered, strict=True):
        assert characters == {index for index, character in enumerate(text) if not character.isspace()}


def make_dropping_tokenizer():
    """A tokenizer without [UNK] for unknown characters, which therefore have no token."""
    backend = Tokenizer(models.BPE({token: n for n, token in enumerate([*SPECIAL, *"abcdef"])}, []))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return wrap(backend)


def test_letters_without_tokens_are_reported_with_an_example():
    words = ["ab", "Q", "a\u200b", "\u200b", "cQ", "Qd"]
    tags = ["O", "B-X", "O", "O", "B-X", "B-X"]
    tokens = encode_words([words], [" ".join(words)], make_dropping_tokenizer(), cache=False)
    assert (tokens.first_token >= 0).tolist() == [True, False, True, False, True, True]
    spans = encode_with_offsets(["cQ Qd \x07b", "\u200bb Q"], make_dropping_tokenizer(), cache=False)
    assert list(zip(spans.start.tolist(), spans.stop.tolist(), strict=True)) == [
        (0, 2),
        (3, 5),
        (7, 8),
        (1, 2),
    ]
    rows = Rows.from_columns({"tokens": [words], "iob2": [tags]}, "train.jsonl")
    lost = find_lost_entities(rows, tokens.first_token)
    assert lost.describe() == [
        "1 of 3 entities cannot be predicted, because they begin or end inside a token or at a word without "
        "a token, such as 'Q' in train.jsonl: row 1",
        "1 word has letters or digits but no token, such as 'Q' in train.jsonl: row 1",
    ]
    require_predictable(lost)


def test_check_does_not_count_spaces_as_words_without_tokens():
    from bertkit.tasks.ner.checks import find_words_without_tokens

    rows = Rows.from_columns({"tokens": [list("a b\u200b")]}, "train.jsonl")
    tokens = encode_words(rows["tokens"], ["a b\u200b"], make_dropping_tokenizer(), cache=False)
    found = list(find_words_without_tokens("train", rows, np.array([0, -1, 1, -1]), tokens.word_offsets))
    assert [finding.count for finding in found] == [1]


def test_training_is_refused_if_most_entities_cannot_be_predicted():
    from bertkit.tasks.ner.config import NerConfig
    from bertkit.tasks.ner.task import Ner

    task = Ner(NerConfig(max_length=32, token_column="tokens", tag_column="tags"))
    task.state.tags, task.use_cache = TagSet(["O", "B-X", "I-X"]), False
    words = [list("the film"), list("the film"), ["film"]]
    inside = ["O"] * 5 + ["B-X", "I-X", "I-X"]
    rows = Rows.from_columns(
        {"tokens": words, "text": ["the film", "the film", "film"], "iob2": [inside, inside, ["B-X"]]}, "rows"
    )
    with pytest.raises(
        UserError, match=r"rows: 2 of 3 entities cannot .* \['i', 'l', 'm'\] in rows: row 1; "
    ):
        task.featurize(rows, make_tokenizer(), training=True)
    [warning] = task.featurize(rows, make_tokenizer()).warnings
    assert warning.startswith("2 of 3 entities")
    half = rows.select([0, 2])
    assert len(task.featurize(half, make_tokenizer(), training=True).warnings) == 1
    assert task.featurize(rows.select([2]), make_tokenizer(), training=True).warnings == []


def test_words_around_an_empty_word_share_their_token():
    words, tags = [["t", "", "h", "e", " ", "f"]], [["B-X", "I-X", "I-X", "I-X", "O", "O"]]
    assert decode_gold(words, ["the f"], tags, make_tokenizer())[0] == tags


def test_decomposed_syllables_are_words_of_a_text():
    text = decompose("서울은")
    assert split_words(text) == [decompose(syllable) for syllable in "서울은"]


def test_answers_end_behind_the_marks_of_their_last_letter():
    """A model may point at the first of the tokens of a letter: `e` and an accent."""
    text = "caf" + decompose("é") + " bar"
    features = build_question_features(
        ["who"], [text], None, get_tokenizer("gpt-2"),
        Limits(max_length=64, max_query_length=8, doc_stride=8, max_answer_length=30, n_best=1), cache=False,
    )  # fmt: skip
    spans = {(int(a), int(b)) for a, b in zip(features.contexts.start, features.contexts.stop, strict=True)}
    assert (3, 5) in spans
    assert not any(stop == 4 or start == 4 for start, stop in spans)


def test_attributions_belong_to_the_word_of_their_token():
    from bertkit.commands.explain import _sum_by_word

    text, tokenizer = "Q saw Bruun (Z)", get_tokenizer("robbert-2023")
    tokens = encode_with_offsets([text], tokenizer, cache=False)
    decoded = [tokenizer.convert_ids_to_tokens(int(token)).strip("Ġ") for token in tokens.ids.values]
    [words] = _sum_by_word(
        [text], tokenizer, np.array(list(map(len, decoded)), float), np.ones(len(decoded), bool)
    )
    assert [(word.word, word.attribution) for word in words] == [
        ("Q", 1), ("saw", 3), ("Bruun", 5), ("(", 1), ("Z", 1), (")", 1)
    ]  # fmt: skip
