"""WordPiece vocabularies, and the morphemes of Korean texts as units of vocabularies and of masking."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import regex
from tokenizers import Tokenizer, models
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bertkit.data.language import BATCH_CHARACTERS, batch_texts, count_characters
from bertkit.errors import UserError
from bertkit.settings.run_settings import DEFAULT_VOCAB_SIZE, WordUnits
from bertkit.utils.compat import require_extra
from bertkit.utils.text import replace_surrogates

CLUSTER = regex.compile(r"\X")  # a character with its combining marks, such as the Jamo of a syllable
MORPHEME_SPACE = regex.compile(r"\s")


# ---- morphemes


def require_analyzer() -> None:
    """Check that the morphological analyzer kiwipiepy is installed."""
    require_extra("korean", ["kiwipiepy"], "--word-units morphemes")


def get_analyzer_version() -> str:
    """Return the versions of the analyzer and its model; other versions may find other morphemes."""
    return " ".join(f"{name} {version(name)}" for name in ("kiwipiepy", "kiwipiepy_model"))


@cache
def _load_analyzer() -> Any:
    """Load the analyzer, which takes seconds."""
    require_analyzer()
    from kiwipiepy import Kiwi

    # A name of several words would be one morpheme that contains spaces.
    return Kiwi(load_multi_dict=False)


def find_unit_starts(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the positions of the characters at which the units of each text begin, ascending and without 0.

    A unit is a morpheme, or several morphemes that share a character: the verb stem and the past tense of
    "갔다" share the syllable "갔". A unit also begins after each white space.
    """
    composed = [_compose(replace_surrogates(text)) for text in texts]
    analyses = _load_analyzer().tokenize([text for text, _ in composed])
    unit_starts = []
    for text, (_, positions), morphemes in zip(texts, composed, analyses, strict=True):
        starts, stop = [], 0
        for morpheme in morphemes:
            if morpheme.len and morpheme.start >= stop:  # has no character in common with a previous one
                starts.append(morpheme.start if positions is None else positions[morpheme.start])
            stop = max(stop, morpheme.end)
        after_spaces = [match.end() for match in MORPHEME_SPACE.finditer(text)]
        merged = np.unique(np.array([*starts, *after_spaces], np.int64))
        unit_starts.append(merged[merged > 0])
    return unit_starts


def split_units(texts: Sequence[str]) -> list[list[str]]:
    """Return the parts of each text that begin at the starts of `find_unit_starts`, with trailing spaces."""
    return [
        [text[start:stop] for start, stop in zip([0, *starts], [*starts, len(text)], strict=True)]
        for text, starts in zip(texts, (starts.tolist() for starts in find_unit_starts(texts)), strict=True)
    ]


def find_continuations(texts: Sequence[str], spans: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return whether each token continues the unit of the previous token of its text [tokens].

    No token is split: units that share a token are joined.

    Args:
        spans: [tokens, 2] start and stop of each token in its text, in characters.
    """
    is_continuation = np.zeros(len(spans), bool)
    stops = np.cumsum(lengths)
    for text, starts, first, stop in zip(texts, find_unit_starts(texts), stops - lengths, stops, strict=True):
        spaces = [match.start() for match in MORPHEME_SPACE.finditer(text)]
        token_starts, token_stops = spans[first:stop].T
        # The tokens of SentencePiece include the space before a word.
        first_characters = token_starts[1:] + np.isin(token_starts[1:], spaces)
        last_characters = np.maximum(token_starts[:-1], token_stops[:-1] - 1)
        is_continuation[first + 1 : stop] = np.searchsorted(
            starts, first_characters, "right"
        ) <= np.searchsorted(starts, last_characters, "right")
    return is_continuation


def _compose(text: str) -> tuple[str, np.ndarray | None]:
    """Return a text in NFC, which the analyzer expects, and the position of each of its characters in `text`.

    The positions are None if the text does not change.
    """
    if unicodedata.is_normalized("NFC", text):
        return text, None
    parts, positions = [], []
    for match in CLUSTER.finditer(text):
        part = unicodedata.normalize("NFC", match[0])
        parts.append(part)
        is_unchanged = len(part) == len(match[0])
        positions += [match.start() + index * is_unchanged for index in range(len(part))]
    return "".join(parts), np.array(positions)


# ---- morphemes in the training of a vocabulary

BOUNDARY = "\ufdd0"  # before a morpheme that continues a word; a Unicode noncharacter
BMP_SIZE = 1 << 16  # code points of Unicode's Basic Multilingual Plane
REPLACEMENT_OFFSET = 0xF0000  # Supplementary Private Use Area-A, which has a code point for each of the BMP
MORPHEME_START = regex.compile(f"(?<=(.?)){BOUNDARY}+(.?)", regex.DOTALL)


def mark_morphemes(texts: list[str]) -> list[str]:
    """Return the texts with a boundary before each morpheme that continues a word."""
    return [
        "".join(
            f"{BOUNDARY}{unit}" if index and not previous[-1:].isspace() else unit
            for index, (previous, unit) in enumerate(zip(["", *units], units, strict=False))
        )
        for units in split_units([text.replace(BOUNDARY, "") for text in texts])
    ]


def separate_morphemes(text: str, word_characters: set[str]) -> str:
    """Return a marked text with spaces instead of boundaries, and replaced first characters.

    A boundary is removed if a character follows that is a word by itself, or one without a replacement. It is
    also removed after a space, which the normalizer adds after a character that is a word by itself: the
    tokenizer begins a word there.
    """

    def replace(match: regex.Match[str]) -> str:
        previous, character = match.groups()
        if not previous or previous.isspace():
            return character
        is_replaced = character in word_characters and ord(character) < BMP_SIZE
        return f" {get_replacement(character)}" if is_replaced else character

    return MORPHEME_START.sub(replace, text)


def get_replacement(character: str) -> str:
    """Return the character that represents "##" and a character of the BMP."""
    return chr(REPLACEMENT_OFFSET + ord(character))


def merge_tokens(vocabulary: dict[str, int], prefix: str, size: int) -> dict[str, int]:
    """Return the first `size` tokens, numbered from 0, with `prefix` for replaced first characters.

    The trainer may find a token twice, with a replaced first character and inside a morpheme.
    """
    tokens: dict[str, None] = {}
    for token in sorted(vocabulary, key=vocabulary.__getitem__):
        code = ord(token[0]) - REPLACEMENT_OFFSET
        is_replaced = 0 <= code < BMP_SIZE
        tokens[f"{prefix}{chr(code)}{token[1:]}" if is_replaced else token] = None
    return {token: index for index, token in enumerate(list(tokens)[:size])}


# ---- training

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # ids 0 to 4
CONTINUATION_PREFIX = "##"
MODEL_MAX_LENGTH = 512  # number of positions of BERT models
DEFAULT_COVERAGE = 0.9999
DECOMPOSITION_THRESHOLD = 0.01  # accents are kept if stripping decomposes this fraction of the characters
MAX_ALPHABET_FRACTION = 0.1  # of the vocabulary; each character has two tokens, with and without "##"
MIN_FREQUENCY = 2  # minimum number of occurrences of a token in the text
MAX_CHARS_PER_WORD = 100  # the tokenizers of BERT replace a longer word by [UNK]
EXCERPT_CHARACTERS = 1_000  # length of an excerpt in a sample
WHITESPACE = re.compile(r"\s")
LONG_WORD = re.compile(rf"\S{{{MAX_CHARS_PER_WORD + 1},}}")
# In these scripts a combining mark is an accent. In other scripts it is a vowel, a voicing mark or a letter.
ACCENTED_SCRIPTS = {"LATIN", "GREEK", "CYRILLIC", "COMBINING"}


@dataclass(frozen=True)
class WordPieceResult:
    """A trained `BertTokenizerFast`, with notes for the console."""

    tokenizer: Any
    strip_accents: bool
    alphabet_size: int
    notes: list[str] = field(default_factory=list)


def train_wordpiece(
    texts: Callable[[], Iterator[str]],
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    coverage: float = DEFAULT_COVERAGE,
    word_units: WordUnits = "words",
) -> WordPieceResult:
    """Train a tokenizer. Training is deterministic: the same texts give the same tokens and ids.

    Args:
        texts: Function that returns a new iterator over the texts. The texts are streamed twice; memory grows
            only with the number of different words.
        vocab_size: Maximum number of tokens, including special tokens.
        strip_accents: Whether the tokenizer strips accents. By default it does so if it lower-cases text,
            unless this would decompose characters, such as Hangul syllables.
        coverage: Minimum fraction of the text that consists of characters that are tokens.
        word_units: With "morphemes", no token of the vocabulary is learned across morphemes.
    """
    raw_counts = count_characters(texts())
    strip, notes = _decide_stripping(raw_counts, lowercase, strip_accents)
    normalizer = BertNormalizer(True, True, strip, lowercase)
    counts = normalize_counts(raw_counts, normalizer)
    if not counts:
        raise UserError("no text: only white space and control characters were found; pass other files")
    alphabet = select_alphabet(counts, coverage, int(MAX_ALPHABET_FRACTION * vocab_size / 2))
    word_characters = find_word_characters(counts, normalizer)
    if len(counts) > len(alphabet):
        fraction = 1 - sum(counts[character] for character in alphabet) / counts.total()
        notes.append(
            f"characters too rare for a token: {len(counts) - len(alphabet):,} of {len(counts):,} "
            f"({fraction:.3%} of the text); pass a higher --character-coverage to keep more"
        )
    has_morphemes = word_units == "morphemes"
    translation = build_translation(raw_counts, normalizer, word_characters)
    num_skipped = 0

    def iter_words() -> Iterator[list[str]]:
        """Yield batches of texts with spaces between words or morphemes, without long words.

        Long words are useless for training, and the trainer takes time quadratic in the length of a word.
        """
        nonlocal num_skipped
        for batch in batch_texts(texts()):
            words = []
            for text in mark_morphemes(batch) if has_morphemes else batch:
                separated, num_long = LONG_WORD.subn("", text.translate(translation))
                num_skipped += num_long
                words.append(separate_morphemes(separated, word_characters) if has_morphemes else separated)
            yield words

    vocabulary = _train_vocabulary(iter_words(), vocab_size, alphabet, word_characters, has_morphemes)
    if num_skipped:
        long_words = "1 word is" if num_skipped == 1 else f"{num_skipped:,} words are"
        notes.append(
            f"{long_words} longer than {MAX_CHARS_PER_WORD} characters: always [UNK], so skipped in training"
        )
    if len(vocabulary) < vocab_size:
        notes.append(
            f"{len(vocabulary):,} tokens instead of {vocab_size:,}: no other candidate occurs twice in the "
            "text"
        )
    from transformers import BertTokenizerFast

    tokenizer = BertTokenizerFast(
        vocab=vocabulary, do_lower_case=lowercase, strip_accents=strip, model_max_length=MODEL_MAX_LENGTH
    )
    return WordPieceResult(tokenizer, strip, len(alphabet), notes)


def _decide_stripping(
    counts: Mapping[str, int], lowercase: bool, requested: bool | None
) -> tuple[bool, list[str]]:
    """Return whether accents are stripped, and a list of at most one note on the reason.

    Stripping also removes other parts of characters: Hangul syllables are decomposed into letters, and
    Devanagari loses vowels. `counts` are the character counts of the text.
    """
    keep, strip = (BertNormalizer(True, False, strip_accents, False) for strip_accents in (False, True))
    kept_counts = normalize_counts(counts, keep)
    scripts: Counter[str] = Counter()
    for character, count in kept_counts.items():
        script = unicodedata.name(character, "").replace("-", " ").partition(" ")[0]
        if script not in ACCENTED_SCRIPTS and strip.normalize_str(character) != character:
            scripts[script.capitalize()] += count
    fraction = scripts.total() / max(kept_counts.total(), 1)  # of the characters except white space
    script = max(scripts, key=lambda name: (scripts[name], name), default="")
    characters = f"{script} and similar characters ({fraction:.0%} of the text)"
    decomposes = fraction >= DECOMPOSITION_THRESHOLD
    if requested is not None:
        return requested, [f"stripping accents decomposes {characters}"] if requested and decomposes else []
    if not lowercase:
        return False, ["accents are kept because capital letters are kept"]
    if decomposes:
        return False, [f"accents are kept because stripping them would decompose {characters}"]
    hint = "to keep them, use bertkit train-tokenizer --no-strip-accents"
    return True, [f"accents are stripped, as in BERT's uncased models; {hint}"]


def _train_vocabulary(
    words: Iterator[list[str]], vocab_size: int, alphabet: Sequence[str], word_characters: set[str],
    has_morphemes: bool,
) -> dict[str, int]:  # fmt: skip
    """Return ids by token, given texts with spaces between words or morphemes."""
    # By default the trainer is not deterministic: it gives ids to continuation characters ("##a") in the
    # order of a hash map, and breaks ties between candidates by these ids. If the continuation characters
    # are declared as special tokens, their ids are fixed.
    inner_characters = [character for character in alphabet if character in word_characters]
    continuations = [CONTINUATION_PREFIX + character for character in inner_characters]
    fixed = [*SPECIAL_TOKENS, *continuations]
    required = len(fixed) + len(alphabet)
    if vocab_size < required:
        raise UserError(
            f"--vocab-size {vocab_size}: the {len(alphabet):,} characters of the text and the special "
            f"tokens take {required:,} tokens; pass at least {required}, or a lower --character-coverage"
        )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    backend.pre_tokenizer = WhitespaceSplit()
    initial_alphabet = [*alphabet]
    if has_morphemes:
        initial_alphabet += [get_replacement(char) for char in inner_characters if ord(char) < BMP_SIZE]
    trainer = WordPieceTrainer(
        # Each token may be found twice, see `merge_tokens`.
        vocab_size=2 * vocab_size if has_morphemes else vocab_size,
        min_frequency=MIN_FREQUENCY, special_tokens=fixed, show_progress=False,
        initial_alphabet=initial_alphabet, limit_alphabet=len(initial_alphabet),
        continuing_subword_prefix=CONTINUATION_PREFIX,
    )  # fmt: skip
    backend.train_from_iterator(words, trainer)
    vocabulary = backend.get_vocab()
    return merge_tokens(vocabulary, CONTINUATION_PREFIX, vocab_size) if has_morphemes else vocabulary


# ---- characters


def normalize_counts(counts: Mapping[str, int], normalizer: BertNormalizer) -> Counter[str]:
    """Return the character counts of the normalized text, without white space.

    BERT's normalizer works character by character, so normalizing each distinct character is enough.
    """
    normalized: Counter[str] = Counter()
    for character, count in counts.items():
        for part in normalizer.normalize_str(character):
            if not part.isspace():
                normalized[part] += count
    return normalized


def select_alphabet(counts: Mapping[str, int], coverage: float, max_characters: int) -> list[str]:
    """Return the most frequent characters, sorted by code point.

    Up to `max_characters` are returned, or more if they are needed to cover the fraction `coverage` of the
    text. Characters with the same frequency are either all selected or all left out.
    """
    ascending = np.sort(np.fromiter(counts.values(), np.int64, len(counts)))
    is_needed = np.cumsum(ascending) > (1 - coverage) * ascending.sum()
    coverage_threshold = ascending[np.argmax(is_needed)]
    size_threshold = ascending[-max_characters - 1] + 1 if max_characters < len(ascending) else 1
    threshold = min(coverage_threshold, size_threshold)
    return sorted(character for character, count in counts.items() if count >= threshold)


def find_word_characters(characters: Iterable[str], normalizer: BertNormalizer) -> set[str]:
    """Return the characters that can be inside a word.

    Other characters, such as punctuation and Chinese ones, are always words by themselves.
    """
    pre_tokenize, normalize = BertPreTokenizer().pre_tokenize_str, normalizer.normalize_str
    return {character for character in characters if len(pre_tokenize(normalize(f"a{character}a"))) == 1}


def build_translation(
    counts: Mapping[str, int], normalizer: BertNormalizer, word_characters: set[str]
) -> dict[int, str]:
    """Return a table for `str.translate` that normalizes text and separates words by spaces.

    The table maps each character to its normalized form, with spaces around characters that are words by
    themselves. Translation takes half the time of the normalizer and the pre-tokenizer.
    """

    def translate(character: str) -> str:
        parts = normalizer.normalize_str(character)
        return "".join(part if part in word_characters or part.isspace() else f" {part} " for part in parts)

    return {ord(character): translate(character) for character in counts}


# ---- evaluation


def evaluate_tokenizer(tokenizer: Any, texts: Iterator[str]) -> dict[str, Any]:
    """Evaluate a tokenizer on a sample of the texts.

    Returns:
        `unknown` (the fraction of [UNK] tokens) and `tokens_per_word`. Each Chinese character and each
        punctuation mark counts as a word.
    """
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(sample_texts(texts), add_special_tokens=False)
    token_ids = np.concatenate([np.array(encoding.ids, np.int64) for encoding in encodings])
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    begins_word = np.array([not token.startswith(CONTINUATION_PREFIX) for token in tokens])
    return {
        "unknown": float(np.mean(token_ids == tokenizer.unk_token_id)),
        "tokens_per_word": len(token_ids) / int(begins_word[token_ids].sum()),
    }


def sample_texts(texts: Iterable[str]) -> list[str]:
    """Return evenly spaced excerpts of the texts that begin and end at word boundaries.

    Up to a million characters of text are returned completely. From longer texts, between half a million and
    a million characters are sampled.
    """
    excerpts: list[str] = []
    offset, step = 0, EXCERPT_CHARACTERS
    for batch in batch_texts(texts):
        text = "\n".join(batch)
        while (start := len(excerpts) * step - offset) < len(text):
            stop = start + EXCERPT_CHARACTERS
            excerpts.append(text[_find_word_boundary(text, start) : _find_word_boundary(text, stop)])
            if len(excerpts) > BATCH_CHARACTERS // EXCERPT_CHARACTERS:
                excerpts, step = excerpts[::2], 2 * step
        offset += len(text) + 1
    return excerpts


def _find_word_boundary(text: str, position: int) -> int:
    """Return the index of the next white space; return `position` if none is near (as in Chinese)."""
    match = WHITESPACE.search(text, position, position + MAX_CHARS_PER_WORD + 1) if position else None
    return match.start() if match else position
