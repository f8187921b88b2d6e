"""Detect the tag scheme of a file, and convert tags to IOB2 and back."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
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
ENTITY_LETTERS = ("BI", "BES", "BLU")  # of a type in IOB2, BIOES and BILOU that show the scheme
LETTERS = "OBIMELSU?"  # the index of a letter is its id; "?" is the letter of invalid tags
BEGINS_ENTITY = np.array([letter in "BSU" for letter in LETTERS])  # after any word
ENDS_ENTITY = np.array([letter in "ELSU" for letter in LETTERS])  # before any word


@dataclass(frozen=True)
class Scheme:
    """A notation for entity tags.

    Attributes:
        name: A key of `SCHEMES`.
        separator: Character between letter and type, or "" for IO tags that consist of the type only.
        has_suffix: Whether the letter follows the type, as in `PER-B`.
        is_lowercase: Whether the letters are written in lower case, as in `b-PER`.
        outside: The tag of words outside of entities.
    """

    name: str = "IOB2"
    separator: str = "-"
    has_suffix: bool = False
    is_lowercase: bool = False
    outside: str = OUTSIDE

    def __str__(self) -> str:
        """Return a description such as `BIOES (B-TYPE, I-TYPE, E-TYPE, S-TYPE, O)`."""
        letters = dict.fromkeys(SCHEMES[self.name])
        tags = [*(self.format_tag(letter, "TYPE") for letter in letters), self.outside]
        return f"{self.name} ({', '.join(tags)})"

    @property
    def is_unusual(self) -> bool:
        """Whether the letter is a suffix or in lower case."""
        return self.has_suffix or self.is_lowercase

    def format_tag(self, letter: str, type: str) -> str:
        """Return the tag of an entity's word, such as `B-PER`."""
        if not self.separator:
            return type
        written = letter.lower() if self.is_lowercase else letter
        if self.has_suffix and type:
            return type + self.separator + written
        return format_tag(written, type, self.separator)

    def parse(self, tag: str) -> tuple[str, str]:
        """Return letter and type of a tag. The letter is "?" if the tag is invalid."""
        if tag in (OUTSIDE, self.outside):
            return OUTSIDE, ""
        if not self.separator:
            return ("I" if tag else "?"), tag
        # A type may contain further separators.
        letter, separator, type = (
            (tag[-1:], tag[-2:-1], tag[:-2]) if self.has_suffix else (tag[:1], tag[1:2], tag[2:])
        )
        has_type = separator == self.separator and type
        letters = "bimelsu" if self.is_lowercase else "BIMELSU"
        is_valid = letter in tuple(letters) and (len(tag) == 1 or has_type)
        return (letter.upper(), type) if is_valid else ("?", "")


def detect_scheme(sentences: TagSequences, preferred: Scheme | None = None) -> Scheme:
    """Detect the scheme of a split: the scheme that the fewest tags violate.

    The scheme is IO if the only letter is I. The split may also contain tags that belong to no scheme, see
    `find_invalid_tag`. A letter may be a suffix or in lower case if all tags have this form, and if a type
    has the letters of an entity, such as `PER-B` and `PER-I`.

    Args:
        sentences: The tags of each sentence.
        preferred: The scheme of the training split. It is returned unless another scheme fits better, because
            a small split may lack letters that would identify the scheme.
    """
    default = preferred or Scheme()
    tags = set(chain.from_iterable(sentences))
    if tags <= {OUTSIDE, default.outside}:
        return default
    any_scheme = _detect_notation(tags, default)  # the name does not affect parsing
    has_only_i = {any_scheme.parse(tag)[0] for tag in tags} <= {"O", "I", "?"}
    names = ["IO"] if has_only_i else [name for name in SCHEMES if name != "IO"]
    candidates = [replace(any_scheme, name=name) for name in names]
    if preferred and replace(preferred, name="IO") == any_scheme:
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
        tag_table = np.array([[scheme.outside] * len(types), *entity_tags], object)
        tags = tag_table[self.expected_letters(scheme), self.types]
        return split_by_offsets(tags.tolist(), self.offsets)


def _detect_notation(tags: Collection[str], default: Scheme) -> Scheme:
    """Return an IO scheme in the notation of the tags; its separator is "" if the tags have no letters."""
    notations = [Scheme("IO", separator) for separator in "-_"]
    notations.sort(key=lambda notation: notation.separator != default.separator)  # the default wins ties
    if default.is_unusual:
        notations.insert(0, replace(default, name="IO"))
    entity_tags = set(tags) - {OUTSIDE, default.outside}

    def count_valid(notation: Scheme) -> int:
        return sum(notation.parse(tag)[0] != "?" for tag in entity_tags)

    best = max(notations, key=count_valid)
    if count_valid(best) * 2 >= len(entity_tags):
        return best
    # A split of training tags that are types may contain only types that look like tags.
    unusual = _list_unusual(tags) if default.separator else ()
    return next((notation for notation in unusual if not _find_other(tags, notation)), Scheme("IO", ""))


def _list_unusual(tags: Collection[str]) -> Iterator[Scheme]:
    """Yield the notations with suffixes or lower case in which a type has the letters of an entity."""
    for has_suffix, is_lowercase in ((True, False), (False, True), (True, True)):
        outside = next((tag for tag in (OUTSIDE, *"o-") if tag in tags), OUTSIDE)
        for separator in "-_":
            notation = Scheme("IO", separator, has_suffix, is_lowercase, outside)
            letters_by_type: dict[str, set[str]] = {}
            for letter, type in map(notation.parse, tags):
                letters_by_type.setdefault(type, set()).add(letter)
            if any(
                letters >= set(entity) for letters in letters_by_type.values() for entity in ENTITY_LETTERS
            ):
                yield notation


def _find_other(tags: Collection[str], notation: Scheme) -> list[str]:
    """Return the tags that do not belong to a notation, sorted."""
    return sorted(tag for tag in tags if notation.parse(tag)[0] == "?")


def describe_notation(tags: Collection[str], scheme: Scheme) -> str | None:
    """Return a note if the letters of the tags are suffixes or in lower case, or look so; None otherwise.

    Args:
        tags: The distinct tags of the training rows.
        scheme: Their scheme.
    """
    if scheme.is_unusual:
        form = " and ".join(
            ["letters as suffixes"] * scheme.has_suffix + ["letters in lower case"] * scheme.is_lowercase
        )
        return f"the tags look like {scheme.name} with {form}, and are read as {scheme}"
    for notation in () if scheme.separator else _list_unusual(tags):
        examples = sorted(tag for tag in tags if notation.parse(tag)[0] == "B" and len(tag) > 1)
        other = _find_other(tags, notation)
        if examples and other:
            return (
                f"each tag is read as a type: {examples[0]!r} looks like the first word of an entity, but "
                f"{other[0]!r} has no such letter; write all tags in one form"
            )
    return None
