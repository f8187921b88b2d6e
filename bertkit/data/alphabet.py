"""The characters of a text, counted: which get pieces of their own, which stripping accents would take
apart, and how words are spelled with them.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertkit.utils.text import replace_surrogates

BATCH_CHARACTERS = 1_000_000  # characters read at a time
SAMPLE_CHARACTERS = 1_000  # characters of a sample that stand together
WHITESPACE = re.compile(r"\s")
CODE_POINTS = 0x110000
MAX_CHARS_PER_WORD = 100  # characters: BERT's tokenizers make a longer word [UNK], whatever pieces there are
LONG_WORD = re.compile(rf"\S{{{MAX_CHARS_PER_WORD + 1},}}")
# A mark on a letter of these is an accent; of others it is a vowel, a voicing, or a third of a syllable.
ACCENTED_SCRIPTS = {"LATIN", "GREEK", "CYRILLIC", "COMBINING"}


def batch_texts(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about a million characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(replace_surrogates(text))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def sample_texts(texts: Iterable[str]) -> list[str]:
    """Stretches from word to word, evenly far apart in all of the texts: all of them, or of more than a
    million characters half a million at least, so that nothing grows with the text.
    """
    kept: list[str] = []
    before, step = 0, SAMPLE_CHARACTERS
    for batch in batch_texts(texts):
        text = "\n".join(batch)
        while (at := len(kept) * step - before) < len(text):
            kept.append(text[_blank(text, at) : _blank(text, at + SAMPLE_CHARACTERS)])
            if len(kept) > BATCH_CHARACTERS // SAMPLE_CHARACTERS:
                kept, step = kept[::2], 2 * step
        before += len(text) + 1
    return kept


def _blank(text: str, at: int) -> int:
    """The first blank from a place on; the place itself where no word ends soon, as in Chinese."""
    found = WHITESPACE.search(text, at, at + MAX_CHARS_PER_WORD + 1) if at else None
    return found.start() if found else at


def count_characters(texts: Iterable[str]) -> dict[str, int]:
    """How often each character stands in the texts."""
    counts = np.zeros(CODE_POINTS, np.int64)
    for batch in batch_texts(texts):
        codes = np.frombuffer("".join(batch).encode("utf-32-le"), np.uint32)
        counts += np.bincount(codes, minlength=CODE_POINTS)
    return {chr(code): int(counts[code]) for code in np.flatnonzero(counts)}


def normalize_counts(counts: Mapping[str, int], normalizer: BertNormalizer) -> Counter[str]:
    """The same of the normalised text, without blanks: BERT's normaliser goes character by character."""
    found: Counter[str] = Counter()
    for character, count in counts.items():
        for part in normalizer.normalize_str(character):
            if not part.isspace():
                found[part] += count
    return found


def measure_decomposition(counts: Mapping[str, int]) -> tuple[float, str]:
    """The share of the text's characters (without blanks) that lose more than an accent when accents are
    stripped, and the script of most of them: Hangul falls apart, Devanagari loses its vowels.
    """
    keep, strip = (BertNormalizer(True, False, how, False) for how in (False, True))
    seen = normalize_counts(counts, keep)
    scripts: Counter[str] = Counter()
    for character, count in seen.items():
        script = unicodedata.name(character, "").replace("-", " ").partition(" ")[0]
        if script not in ACCENTED_SCRIPTS and strip.normalize_str(character) != character:
            scripts[script.capitalize()] += count
    most = max(scripts, key=lambda name: (scripts[name], name), default="")
    return scripts.total() / max(seen.total(), 1), most


def select_alphabet(counts: Mapping[str, int], coverage: float, max_characters: int) -> list[str]:
    """The most frequent characters, by code: as many as `room` allows, and more where `coverage` of the
    text takes more; of those that are equally frequent all are there or none.
    """
    ascending = np.sort(np.fromiter(counts.values(), np.int64, len(counts)))
    spared = np.cumsum(ascending) > (1 - coverage) * ascending.sum()
    least = ascending[np.argmax(spared)]
    least = min(least, ascending[-max_characters - 1] + 1 if max_characters < len(ascending) else 1)
    return sorted(character for character, count in counts.items() if count >= least)


def find_word_characters(characters: Iterable[str], normalizer: BertNormalizer) -> set[str]:
    """Those that can go on a word; the others (punctuation, Chinese) are always words by themselves."""
    split = BertPreTokenizer().pre_tokenize_str
    return {one for one in characters if len(split(normalizer.normalize_str(f"a{one}a"))) == 1}


def build_translation(
    counts: Mapping[str, int], normalizer: BertNormalizer, word_characters: set[str]
) -> dict[int, str]:
    """For `str.translate`: each character as normalised, with blanks around what is not `within` words.

    A text so written has its words between blanks, twice as fast as normaliser and pre-tokenizer find them.
    """

    def spelled(character: str) -> str:
        parts = normalizer.normalize_str(character)
        return "".join(part if part in word_characters or part.isspace() else f" {part} " for part in parts)

    return {ord(character): spelled(character) for character in counts}


class WordBatches:
    """The texts, read once, with their words between blanks; those too long are left out and counted.

    Nothing can be learned from them, and the trainer's time grows with the square of a word.
    """

    def __init__(self, texts: Iterable[str], spelled: dict[int, str]) -> None:
        self.texts, self.translation, self.num_skipped = texts, spelled, 0

    def __iter__(self) -> Iterator[list[str]]:
        for batch in batch_texts(self.texts):
            yield [self._fitting(text.translate(self.translation)) for text in batch]

    def _fitting(self, text: str) -> str:
        fitting, count = LONG_WORD.subn("", text)
        self.num_skipped += count
        return fitting

    def describe_skipped(self) -> list[str]:
        """What was left out so far, if anything."""
        if not self.num_skipped:
            return []
        words = "1 word is" if self.num_skipped == 1 else f"{self.num_skipped:,} words are"
        return [
            f"{words} longer than {MAX_CHARS_PER_WORD} characters: [UNK] in any case, so nothing is learned"
        ]
