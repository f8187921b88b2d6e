"""Entity tags in IOB2: tag ids and entity boundaries.

Inside bertkit, a tag is `B-TYPE`, `I-TYPE` or `O`. The tags of entities without a type are `B` and `I`, and
their type is "". `to_iob2` and `from_iob2` convert the tags of files to this form and back.

Flat arrays [words] hold the words of all sentences. Sentence i is `flat[offsets[i] : offsets[i + 1]]`, where
`offsets` is [n + 1].
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat

import numpy as np

from bertkit.data.table import iter_chunks
from bertkit.utils.arrays import compute_offsets

OUTSIDE = "O"
TagSequences = Sequence[Sequence[str]]  # tags of n sentences


def format_tag(letter: str, type: str, separator: str = "-") -> str:
    """Return a tag such as `B-PER`, or only the letter if the type is empty."""
    return f"{letter}{separator}{type}" if type else letter


def build_iob2_labels(types: Iterable[str]) -> list[str]:
    """Return the labels of a model: O, and then both B and I of each type."""
    return [OUTSIDE, *(format_tag(letter, type) for type in sorted(set(types)) for letter in "BI")]


def compute_sentence_offsets(sentences: Sequence[Sequence[object]]) -> np.ndarray:
    """Return the index of each sentence's first word [n + 1]. The last entry is the number of words."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return compute_offsets(lengths)


def split_by_offsets(flat: Sequence[str], offsets: np.ndarray) -> list[list[str]]:
    """Split a flat list into sentences."""
    return [list(flat[start:stop]) for start, stop in pairwise(offsets.tolist())]


def find_first(sentences: TagSequences, tags: Collection[str]) -> tuple[int, int] | None:
    """Return the indices of sentence and word for the first of these tags, or None."""
    if not tags:
        return None
    positions = (
        (index, word)
        for index, sentence in enumerate(sentences)
        for word, tag in enumerate(sentence)
        if tag in tags
    )
    return next(positions, None)


def find_sentence_indices(indices: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the index of the sentence that contains each flat index."""
    return np.searchsorted(offsets, indices, side="right") - 1


def mark_sentence_starts(offsets: np.ndarray) -> np.ndarray:
    """Return whether each word is the first of its sentence [words]."""
    is_first = np.zeros(int(offsets[-1]), bool)
    is_first[offsets[:-1][np.diff(offsets) > 0]] = True
    return is_first


def find_entity_bounds(
    types: np.ndarray, begins: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the first and the last word of each entity by conlleval's rule.

    A B tag always begins an entity. An I tag begins an entity if the previous word is outside, has another
    type, or is in another sentence. Illegal tag sequences therefore contain entities as well.

    Args:
        types: [words] type id of each word; -1 for words outside of entities.
        begins: [words] bool, whether the tag itself begins an entity.
        offsets: [n + 1] index of each sentence's first word.

    Returns:
        Two [words] bool arrays: whether a word is the first of an entity, and whether it is the last.
    """
    is_inside = types >= 0
    is_start = is_inside & (begins | mark_sentence_starts(offsets) | (types != np.roll(types, 1)))
    # np.roll moves the very first word to the end. This is harmless, since it never continues an entity.
    is_continued = np.roll(is_inside & ~is_start, -1)
    return is_start, is_inside & ~is_continued


class TagSet:
    """The IOB2 tags of a model, in the order of its label ids.

    Attributes:
        names: The tags, in the order of their ids.
        types: The entity types, sorted.
        is_begin: [tags] bool, True for B tags.
        type_ids: [tags] int, index of each tag's type in `types`; -1 for O.
        outside_id: The id of O.
    """

    def __init__(self, names: Sequence[str]) -> None:
        parts = [name.partition("-") for name in names]
        non_entity_names = [
            name for name, (letter, _, _) in zip(names, parts, strict=True) if letter not in ("B", "I")
        ]
        if non_entity_names != [OUTSIDE] or len(set(names)) < len(names):
            raise ValueError(f"not a set of IOB2 tags: {list(names)}")
        self.names = list(names)
        self.types = sorted({type for letter, _, type in parts if letter != OUTSIDE})
        self.is_begin = np.array([letter == "B" for letter, _, _ in parts])
        id_by_type = {type: type_id for type_id, type in enumerate(self.types)}
        self.type_ids = np.array([-1 if letter == OUTSIDE else id_by_type[type] for letter, _, type in parts])
        self.outside_id = self.names.index(OUTSIDE)

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, sentences: TagSequences) -> np.ndarray:
        """Return the tag ids of all sentences [words]. The id of a tag that is not in the set is -1."""
        id_by_tag = {name: tag_id for tag_id, name in enumerate(self.names)}
        tag_ids = map(id_by_tag.get, chain.from_iterable(sentences), repeat(-1))
        return np.fromiter(tag_ids, np.int64, int(compute_sentence_offsets(sentences)[-1]))

    def decode(self, tag_ids: np.ndarray) -> list[str]:
        """Return the tags for the ids as a flat list, which `split_by_offsets` splits into sentences."""
        return np.array(self.names, object)[tag_ids].tolist()

    def find_entities(self, tag_ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the flat indices of the first and the last word of each entity; see `find_entity_bounds`."""
        is_first, is_last = find_entity_bounds(self.type_ids[tag_ids], self.is_begin[tag_ids], offsets)
        return np.flatnonzero(is_first), np.flatnonzero(is_last)

    def build_transitions(self, allow_adjacent: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the tags that may begin a sentence, and the tags that may follow each other.

        An I tag continues an entity of its type. It may begin an entity only if the set has no B tag of its
        type, which is true for the labels of some models.

        Args:
            allow_adjacent: Whether an entity may directly follow another of the same type. The IO scheme
                cannot express this.

        Returns:
            [tags] bool, whether a tag may begin a sentence, and [tags, tags] bool, whether the second tag may
            follow the first.
        """
        types_with_b = set(self.type_ids[self.is_begin].tolist())
        initial = self.is_begin | np.array([type_id not in types_with_b for type_id in self.type_ids])
        same_type = self.type_ids[:, None] == self.type_ids
        transitions = initial | same_type
        if not allow_adjacent:
            transitions &= ~(same_type & self.is_begin)
        return initial, transitions


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
    return find_first(sentences, _find_other(set(chain.from_iterable(sentences)), scheme))


def to_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """Convert tags to IOB2 with the separator "-".

    Illegal sequences are read by conlleval's rule. B, S and U always begin an entity. I, M, E and L begin an
    entity after O, after another type, and after the end of an entity (E, L, S, U).
    """
    return _ParsedTags.parse(sentences, scheme).convert(Scheme())


def from_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """Convert IOB2 tags to another scheme. In IO, adjacent entities of one type become one entity."""
    return _ParsedTags.parse(sentences, Scheme()).convert(scheme)


def count_violations(sentences: TagSequences, scheme: Scheme) -> int:
    """Return the number of tags that violate the scheme, such as an I after O in IOB2."""
    kinds = (find_violations(part, scheme)[0] for part in iter_chunks(sentences))
    return sum(len(words) for words_by_kind in kinds for words in words_by_kind.values())


def find_violations(sentences: TagSequences, scheme: Scheme) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Find the tags that violate a scheme.

    Returns:
        The indices among all words of the tags that violate the scheme by kind, and the index of each
        sentence's first word [n + 1]. Kinds without violations are left out:

        * `type-changes`: The letter (I, M, E, L) continues an entity, but that before it has another type.
        * `inside-first`: The letter continues an entity, but there is no entity before it.
        * `ill-formed`: Any other violation.
    """
    parsed = _ParsedTags.parse(sentences, scheme)
    is_violation = parsed.expected_letters(scheme) != parsed.letters
    is_continuation = np.isin(parsed.letters, [LETTERS.index(letter) for letter in "IMEL"])
    type_before = np.where(mark_sentence_starts(parsed.offsets), -1, np.roll(parsed.types, 1))
    follows_other_type = (type_before >= 0) & (type_before != parsed.types)
    kinds = {
        "type-changes": is_continuation & follows_other_type,
        "inside-first": is_continuation & ~follows_other_type,
        "ill-formed": ~is_continuation,
    }
    indices = {kind: np.flatnonzero(is_violation & mask) for kind, mask in kinds.items()}
    return {kind: words for kind, words in indices.items() if len(words)}, parsed.offsets


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
        """Return the tags of each sentence in another scheme."""
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
    # `_` and `-` are no types, unless other words are O.
    outside = next((mark for mark in "_-" if mark in tags and OUTSIDE not in tags), OUTSIDE)
    types = Scheme("IO", "", outside=outside)
    return next((notation for notation in unusual if not _find_other(tags, notation)), types)


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
    """Return a note if letters of tags are suffixes or in lower case, or if only some tags have letters."""
    if scheme.is_unusual:
        form = " and ".join(
            ["letters as suffixes"] * scheme.has_suffix + ["letters in lower case"] * scheme.is_lowercase
        )
        return f"the tags look like {scheme.name} with {form}, and are read as {scheme}"
    for notation in () if scheme.separator else (Scheme(outside=scheme.outside), *_list_unusual(tags)):
        examples = sorted(tag for tag in tags if notation.parse(tag)[0] == "B" and len(tag) > 1)
        other = _find_other(tags, notation)
        if examples and other:
            return (
                f"each tag is read as a type: {examples[0]!r} looks like the first word of an entity, but "
                f"{other[0]!r} has no such letter; write all tags in one form"
            )
    return None
