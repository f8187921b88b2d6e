"""Detect the tag scheme of a file, and convert tags to IOB2 and back."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

import numpy as np

from bertkit.data.column_types import iter_chunks
from bertkit.data.ner.tags import (
    OUTSIDE,
    TagSequences,
    compute_sentence_offsets,
    find_entity_bounds,
    format_tag,
    mark_sentence_starts,
    split_by_offsets,
)

# Letters by scheme: for the first, an inner, the last and the only word of an entity. If two schemes fit
# equally well, detection prefers the earlier one. IOB1 differs from IOB2 in one rule: the first word of an
# entity gets B only if the entity directly follows another of the same type, and I otherwise.
SCHEMES = {"IOB2": "BIIB", "IOB1": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "IO": "IIII"}
LETTERS = "OBIMELSU?"  # the index of a letter is its id; "?" is the letter of invalid tags
BEGINS_ENTITY = np.array([letter in "BSU" for letter in LETTERS])  # after any word
ENDS_ENTITY = np.array([letter in "ELSU" for letter in LETTERS])  # before any word


@dataclass(frozen=True)
class Scheme:
    """A notation for entity tags.

    Attributes:
        name: A key of `SCHEMES`.
        separator: Character between letter and type, or "" for IO tags that consist of the type only.
    """

    name: str = "IOB2"
    separator: str = "-"

    def __str__(self) -> str:
        """Return a description such as `BIOES (B-TYPE, I-TYPE, E-TYPE, S-TYPE, O)`."""
        letters = dict.fromkeys(SCHEMES[self.name])
        return f"{self.name} ({', '.join(self.format_tag(letter, 'TYPE') for letter in letters)}, {OUTSIDE})"

    def format_tag(self, letter: str, type: str) -> str:
        """Return the tag of an entity's word, such as `B-PER`."""
        return format_tag(letter, type, self.separator) if self.separator else type

    def parse(self, tag: str) -> tuple[str, str]:
        """Return letter and type of a tag. The letter is "?" if the tag is invalid."""
        if tag == OUTSIDE:
            return OUTSIDE, ""
        if not self.separator:
            return ("I" if tag else "?"), tag
        letter, separator, type = tag[:1], tag[1:2], tag[2:]  # a type may contain further separators
        has_type = separator == self.separator and type
        is_valid = letter in tuple("BIMELSU") and (len(tag) == 1 or has_type)
        return (letter, type) if is_valid else ("?", "")


def detect_scheme(sentences: TagSequences, preferred: Scheme | None = None) -> Scheme:
    """Detect the scheme of a split: the scheme that the fewest tags violate.

    The scheme is IO if the only letter is I. The split may also contain tags that belong to no scheme, see
    `find_invalid_tag`.

    Args:
        sentences: The tags of each sentence.
        preferred: The scheme of the training split. It is returned unless another scheme fits better, because
            a small split may lack letters that would identify the scheme.
    """
    tags = set(chain.from_iterable(sentences)) - {OUTSIDE}
    default = preferred or Scheme()
    if not tags:
        return default
    separator = _detect_separator(tags, default)
    any_scheme = Scheme("IO", separator)  # only the separator affects parsing
    has_only_i = {any_scheme.parse(tag)[0] for tag in tags} <= {"O", "I", "?"}
    names = ["IO"] if has_only_i else [name for name in SCHEMES if name != "IO"]
    candidates = [Scheme(name, separator) for name in names]
    if preferred and preferred.separator == separator:
        candidates.insert(0, preferred)

    num_mismatches = np.zeros(len(candidates), np.int64)
    for part in iter_chunks(sentences):
        parsed = _ParsedTags.parse(part, any_scheme)
        num_mismatches += [
            np.count_nonzero(parsed.expected_letters(scheme) != parsed.letters) for scheme in candidates
        ]
    return candidates[int(num_mismatches.argmin())]


def find_invalid_tag(sentences: TagSequences, scheme: Scheme) -> tuple[int, int] | None:
    """Return the indices of sentence and word for the first tag outside the scheme, or None."""
    is_invalid = {tag: scheme.parse(tag)[0] == "?" for tag in dict.fromkeys(chain.from_iterable(sentences))}
    if not any(is_invalid.values()):
        return None
    return next(
        (index, word)
        for index, tags in enumerate(sentences)
        for word, tag in enumerate(tags)
        if is_invalid[tag]
    )


def to_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """Convert tags to IOB2 with the separator "-".

    Illegal sequences are read by conlleval's rule. B, S and U always begin an entity. I, M, E and L begin an
    entity after O, after another type, and after the end of an entity (E, L, S, U).

    Raises:
        ValueError: A tag does not belong to the scheme.
    """
    return _ParsedTags.parse(sentences, scheme).convert(Scheme())


def from_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """Convert IOB2 tags to another scheme. In IO, adjacent entities of one type become one entity.

    Raises:
        ValueError: A tag is not an IOB2 tag.
    """
    return _ParsedTags.parse(sentences, Scheme()).convert(scheme)


def count_violations(sentences: TagSequences, scheme: Scheme) -> int:
    """Return the number of tags that violate the scheme, such as an I after O in IOB2."""
    return sum(
        int(np.count_nonzero(find_violations(part, scheme).is_violation)) for part in iter_chunks(sentences)
    )


@dataclass(frozen=True)
class TagViolations:
    """The tags of a split that violate its scheme.

    Attributes:
        is_violation: [words] bool, whether the tag violates the scheme.
        is_continuation: [words] bool, whether the tag's letter continues an entity (I, M, E, L).
        follows_other_type: [words] bool, whether the previous word of the sentence is in an entity of another
            type.
        offsets: [n + 1] index of each sentence's first word.
    """

    is_violation: np.ndarray
    is_continuation: np.ndarray
    follows_other_type: np.ndarray
    offsets: np.ndarray

    def group_by_kind(self) -> dict[str, np.ndarray]:
        """Return the flat indices of violations by kind. Kinds without violations are left out.

        * `type-changes`: The tag continues an entity, but the entity before it has another type.
        * `inside-first`: The tag continues an entity, but there is no entity before it.
        * `ill-formed`: Any other violation.
        """
        kinds = {
            "type-changes": self.is_continuation & self.follows_other_type,
            "inside-first": self.is_continuation & ~self.follows_other_type,
            "ill-formed": ~self.is_continuation,
        }
        indices = {kind: (self.is_violation & mask).nonzero()[0] for kind, mask in kinds.items()}
        return {kind: words for kind, words in indices.items() if len(words)}


def find_violations(sentences: TagSequences, scheme: Scheme) -> TagViolations:
    """Find the tags that violate a scheme."""
    parsed = _ParsedTags.parse(sentences, scheme)
    type_before = np.where(mark_sentence_starts(parsed.offsets), -1, np.roll(parsed.types, 1))
    return TagViolations(
        is_violation=parsed.expected_letters(scheme) != parsed.letters,
        is_continuation=np.isin(parsed.letters, [LETTERS.index(letter) for letter in "IMEL"]),
        follows_other_type=(type_before >= 0) & (type_before != parsed.types),
        offsets=parsed.offsets,
    )


@dataclass(frozen=True)
class _ParsedTags:
    """Tags split into letters and types.

    Attributes:
        letters: [words] index of each tag's letter in `LETTERS`.
        types: [words] index of each tag's type in `names`; -1 for O and invalid tags.
        names: Names of the types.
        offsets: [n + 1] index of each sentence's first word.
    """

    letters: np.ndarray
    types: np.ndarray
    names: list[str]
    offsets: np.ndarray

    @classmethod
    def parse(cls, sentences: TagSequences, scheme: Scheme) -> "_ParsedTags":
        """Parse the tags of sentences."""
        # Each distinct tag is parsed once, since a file may have millions of words but has few tags.
        distinct = list(dict.fromkeys(chain.from_iterable(sentences)))
        parsed = [scheme.parse(tag) for tag in distinct]
        names = sorted({type for letter, type in parsed if letter not in "O?"})
        letters = np.array([LETTERS.index(letter) for letter, _ in parsed], np.int64)
        types = np.array([-1 if letter in "O?" else names.index(type) for letter, type in parsed], np.int64)
        index_by_tag = {tag: index for index, tag in enumerate(distinct)}
        offsets = compute_sentence_offsets(sentences)
        flat = map(index_by_tag.__getitem__, chain.from_iterable(sentences))
        tag_index = np.fromiter(flat, np.int64, int(offsets[-1]))
        return cls(letters[tag_index], types[tag_index], names, offsets)

    def expected_letters(self, scheme: Scheme) -> np.ndarray:
        """Return the indices of the letters that a scheme requires for the entities [words]."""
        begins = BEGINS_ENTITY[self.letters] | np.roll(ENDS_ENTITY[self.letters], 1)
        starts, ends = find_entity_bounds(self.types, begins, self.offsets)
        first, inner, last, only = (LETTERS.index(letter) for letter in SCHEMES[scheme.name])
        if scheme.name == "IOB1":
            adjacent = (self.types == np.roll(self.types, 1)) & ~mark_sentence_starts(self.offsets)
            letters = np.where(starts & adjacent, first, inner)
        else:
            letters = np.array([[inner, last], [first, only]])[starts.astype(int), ends.astype(int)]
        return np.where(self.types >= 0, letters, LETTERS.index(OUTSIDE))

    def convert(self, scheme: Scheme) -> list[list[str]]:
        """Return the tags of each sentence in another scheme.

        Raises:
            ValueError: A tag is invalid.
        """
        if (self.letters == LETTERS.index("?")).any():
            raise ValueError("a tag does not belong to the scheme; see find_invalid_tag")
        types = [*self.names, ""]  # O has the type index -1, which selects the last entry
        entity_tags = [[scheme.format_tag(letter, type) for type in types] for letter in LETTERS[1:]]
        tag_table = np.array([[OUTSIDE] * len(types), *entity_tags], object)
        tags = tag_table[self.expected_letters(scheme), self.types]
        return split_by_offsets(tags.tolist(), self.offsets)


def _detect_separator(tags: Collection[str], default: Scheme) -> str:
    """Return the separator with the most valid tags, or "" if fewer than half of the tags are valid."""

    def count_valid(separator: str) -> int:
        return sum(Scheme("IO", separator).parse(tag)[0] != "?" for tag in tags)

    separators = sorted("-_", key=lambda separator: separator != default.separator)  # the default wins ties
    best = max(separators, key=count_valid)
    return best if count_valid(best) * 2 >= len(tags) else ""
