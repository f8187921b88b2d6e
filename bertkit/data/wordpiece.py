"""A WordPiece vocabulary of one's own text, as BERT's tokenizers have it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bertkit.data.alphabet import (
    WordBatches,
    build_translation,
    count_characters,
    find_word_characters,
    measure_decomposition,
    normalize_counts,
    sample_texts,
    select_alphabet,
)
from bertkit.errors import UserError

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # the pieces 0 to 4
CONTINUATION_PREFIX = "##"
MODEL_MAX_LENGTH = 512  # BERT's positions
DEFAULT_COVERAGE = 0.9999
DECOMPOSITION_THRESHOLD = 0.01  # share of the characters from which on they are not taken apart unasked
MAX_ALPHABET_FRACTION = (
    0.1  # share of the pieces that characters may be, at the start of words and within, however rare
)
MIN_FREQUENCY = 2  # a piece that stands in the text once is the text, not its language

TextFactory = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class WordPieceResult:
    """A trained tokenizer and how it came about.

    Attributes:
        tokenizer: transformers' BertTokenizerFast.
        strip_accents: whether it strips accents, as said or as chosen.
        alphabet: how many characters have pieces of their own.
    """

    tokenizer: Any
    strip_accents: bool
    alphabet_size: int
    notes: list[str] = field(default_factory=list)


def train_wordpiece(
    texts: TextFactory,
    vocab_size: int = 30_000,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    coverage: float = DEFAULT_COVERAGE,
) -> WordPieceResult:
    """Train a tokenizer; the same texts give the same pieces with the same numbers.

    Args:
        texts: gives the texts afresh at each call; they are read twice, and never held: memory grows with
            the number of different words.
        strip_accents: None strips them where letters are lower-cased, unless that takes apart what the
            text is written in.
        coverage: the share of the text that characters with pieces of their own make up at least.

    Raises:
        UserError: there is no text, or its characters alone are more than `vocab_size`.
    """
    counts = count_characters(texts())
    strip, notes = _stripping(measure_decomposition(counts), lowercase, strip_accents)
    normalizer = BertNormalizer(True, True, strip, lowercase)
    found = normalize_counts(counts, normalizer)
    if not found:
        raise UserError("no text in there: only blanks and control characters")
    characters = select_alphabet(found, coverage, int(MAX_ALPHABET_FRACTION * vocab_size / 2))
    within = find_word_characters(found, normalizer)
    notes += _left_out(found, characters)
    words = WordBatches(texts(), build_translation(counts, normalizer, within))
    vocabulary = _pieces(iter(words), vocab_size, characters, within)
    notes += words.describe_skipped()
    if len(vocabulary) < vocab_size:
        notes.append(f"{len(vocabulary):,} pieces, not {vocab_size:,}: no others stand in the text twice")
    return WordPieceResult(_tokenizer(vocabulary, lowercase, strip), strip, len(characters), notes)


def _stripping(apart: tuple[float, str], lowercase: bool, said: bool | None) -> tuple[bool, list[str]]:
    """Whether accents are stripped, and why."""
    share, script = apart
    of_these = f"{script} and the like, {share:.0%} of the characters"
    if said is not None:
        broken = said and share >= DECOMPOSITION_THRESHOLD
        return said, [f"stripping accents takes apart {of_these}"] if broken else []
    if not lowercase:
        return False, ["accents are kept, since capital letters are"]
    if share >= DECOMPOSITION_THRESHOLD:
        return False, [f"accents are kept: stripping them would take apart {of_these}"]
    return True, ["accents are stripped, as in BERT's lower-casing models; --no-strip-accents keeps them"]


def _left_out(found: Counter[str], characters: Sequence[str]) -> list[str]:
    """A note on the characters that get no piece, if any."""
    if len(found) == len(characters):
        return []
    rare = 1 - sum(found[character] for character in characters) / found.total()
    return [
        f"characters too rare for a piece: {len(found) - len(characters):,} of {len(found):,}, "
        f"{rare:.3%} of the text; a higher --character-coverage keeps more"
    ]


def _pieces(
    words: Iterator[list[str]], vocab_size: int, characters: Sequence[str], within: set[str]
) -> dict[str, int]:
    """Piece -> number, of texts with their words between blanks.

    The trainer numbers characters within words in the order of a hash map and settles ties by number, so
    that it never trains the same twice; declared beforehand, as special pieces, they have their numbers.
    """
    fixed = [*SPECIAL_TOKENS, *(CONTINUATION_PREFIX + one for one in characters if one in within)]
    needed = len(fixed) + len(characters)
    if vocab_size < needed:
        raise UserError(
            f"--vocab-size {vocab_size}: the text's {len(characters):,} characters and the special pieces "
            f"are {needed:,} pieces already; give at least {needed}, or a lower --character-coverage"
        )
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    backend.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=MIN_FREQUENCY, special_tokens=fixed, show_progress=False,
        initial_alphabet=list(characters), limit_alphabet=len(characters), continuing_subword_prefix=CONTINUATION_PREFIX,
    )  # fmt: skip
    backend.train_from_iterator(words, trainer)
    return backend.get_vocab()


def _tokenizer(vocabulary: dict[str, int], lowercase: bool, strip_accents: bool) -> Any:
    from transformers import BertTokenizerFast

    return BertTokenizerFast(
        vocab=vocabulary,
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        model_max_length=MODEL_MAX_LENGTH,
    )


def evaluate_tokenizer(tokenizer: Any, texts: Iterator[str]) -> dict[str, Any]:
    """How the tokenizer does on a sample from all over the texts: the share of unknown pieces, and pieces a
    word (Chinese characters and marks of punctuation are words).
    """
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(sample_texts(texts), add_special_tokens=False)
    ids = np.concatenate([np.array(encoding.ids, np.int64) for encoding in encodings])
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    begins = np.array([not piece.startswith(CONTINUATION_PREFIX) for piece in pieces])
    return {
        "unknown": float(np.mean(ids == tokenizer.unk_token_id)),
        "tokens_per_word": len(ids) / int(begins[ids].sum()),
    }
