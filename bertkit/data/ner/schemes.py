"""The schemes in which files write entity tags, and the way from each to IOB2 and back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from bertkit.data.ner.tags import (
    OUTSIDE,
    TagSequences,
    compute_offsets,
    find_entity_bounds,
    find_first_position,
    format_tag,
    mark_sentence_starts,
    split_by_offsets,
)

# The letters for the first, an inner, the last and the only token of an entity. Detection takes the
# earlier of two that fit alike. IOB1 writes B only where an entity of the same type stands before.
SCHEMES = {"IOB2": "BIIB", "IOB1": "BIIB", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES", "IO": "IIII"}
LETTERS = "OBIMELSU?"  # by number; the last is for what is no tag
BEGINS_ENTITY = np.array([letter in "BSU" for letter in LETTERS])  # an entity, whatever stands before
ENDS_ENTITY = np.array([letter in "ELSU" for letter in LETTERS])  # an entity, whatever comes after


@dataclass(frozen=True)
class Scheme:
    """How entity tags are written.

    Attributes:
        name: one of `SCHEMES`.
        separator: what stands between letter and type; "" where types stand alone (IO).
    """

    name: str = "IOB2"
    separator: str = "-"

    def __str__(self) -> str:
        """`BIOES (B-TYPE, I-TYPE, E-TYPE, S-TYPE, O)`."""
        letters = dict.fromkeys(SCHEMES[self.name])
        return f"{self.name} ({', '.join(self.format_tag(letter, 'TYPE') for letter in letters)}, {OUTSIDE})"

    def format_tag(self, letter: str, type: str) -> str:
        """An entity's tag as it is written."""
        return format_tag(letter, type, self.separator) if self.separator else type

    def parse(self, tag: str) -> tuple[str, str]:
        """Letter and type of a tag; the letter is "?" where it cannot be read."""
        if tag == OUTSIDE:
            return OUTSIDE, ""
        if not self.separator:
            return ("I" if tag else "?"), tag
        letter, mark, type = tag[:1], tag[1:2], tag[2:]  # a type may hold further separators
        readable = letter in tuple("BIMELSU") and (len(tag) == 1 or (mark == self.separator and type))
        return (letter, type) if readable else ("?", "")


def detect_scheme(sentences: TagSequences, preferred: Scheme | None = None) -> Scheme:
    """The scheme of a split's tags: the one that would have written the fewest of them otherwise.

    Only I letters are IO. A tag that the scheme cannot read is found by `first_unreadable`.

    Args:
        like: the training split's scheme, kept where no other fits better: a small split may show only
            some letters.
    """
    tags = set(chain.from_iterable(sentences)) - {OUTSIDE}
    usual = preferred or Scheme()
    if not tags:
        return usual
    separator = _separator(tags, usual)
    read = _Read.of(sentences, Scheme("IO", separator))  # the letters of all schemes are read alike
    only_inner = set(read.letters.tolist()) <= {LETTERS.index(letter) for letter in "OI?"}
    names = ["IO"] if only_inner else [name for name in SCHEMES if name != "IO"]
    candidates = [Scheme(name, separator) for name in names]
    if preferred and preferred.separator == separator:
        candidates.insert(0, preferred)
    return min(candidates, key=lambda scheme: np.count_nonzero(read.written(scheme) != read.letters))


def find_invalid_tag(sentences: TagSequences, scheme: Scheme) -> tuple[int, int] | None:
    """Sentence and token, from 0, of the first that is no tag of such a scheme; None where all are."""
    read = _Read.of(sentences, scheme)
    return find_first_position(read.letters == LETTERS.index("?"), read.offsets)


def to_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """The tags in IOB2, with "-" for separator; illegal sequences by conlleval's rule.

    Entities begin at B, S and U, and at I, M, E and L where the tag before is O, of another type, or
    ended its entity (E, L, S, U). Raises `ValueError` at a tag that cannot be read.
    """
    return _Read.of(sentences, scheme).rewritten(Scheme())


def from_iob2(sentences: TagSequences, scheme: Scheme) -> list[list[str]]:
    """IOB2 tags in a scheme; IO does not tell touching entities of one type apart. Raises as `to_iob2`."""
    return _Read.of(sentences, Scheme()).rewritten(scheme)


def count_violations(sentences: TagSequences, scheme: Scheme) -> int:
    """How many tags the scheme would have written otherwise, such as an I with nothing before it in IOB2."""
    return int(np.count_nonzero(find_violations(sentences, scheme).is_violation))


@dataclass(frozen=True)
class TagViolations:
    """The tags that a scheme would have written otherwise; all are flat [total] but the offsets.

    Attributes:
        wrong: whether each is one.
        goes_on: whether its letter goes on with an entity (I, M, E, L).
        changes: whether the token before it, in its sentence, is in an entity of another type.
        offsets: [n + 1] the first token of each sentence.
    """

    is_violation: np.ndarray
    is_continuation: np.ndarray
    follows_other_type: np.ndarray
    offsets: np.ndarray

    def group_by_kind(self) -> dict[str, np.ndarray]:
        """Kind -> where its tags stand: `type-changes`, `inside-first` (nothing began), `ill-formed`."""
        kinds = {
            "type-changes": self.is_continuation & self.follows_other_type,
            "inside-first": self.is_continuation & ~self.follows_other_type,
            "ill-formed": ~self.is_continuation,
        }
        found = {kind: (self.is_violation & mask).nonzero()[0] for kind, mask in kinds.items()}
        return {kind: at for kind, at in found.items() if len(at)}


def find_violations(sentences: TagSequences, scheme: Scheme) -> TagViolations:
    """Which tags the scheme would have written otherwise, and in what way they stand."""
    read = _Read.of(sentences, scheme)
    before = np.where(mark_sentence_starts(read.offsets), -1, np.roll(read.types, 1))
    goes_on = np.isin(read.letters, [LETTERS.index(letter) for letter in "IMEL"])
    wrong = read.written(scheme) != read.letters
    return TagViolations(wrong, goes_on, (before >= 0) & (before != read.types), read.offsets)


@dataclass(frozen=True)
class _Read:
    """Tags in parts: flat [total] numbers of letters and types (-1 outside), and the types' names."""

    letters: np.ndarray
    types: np.ndarray
    names: list[str]
    offsets: np.ndarray

    @classmethod
    def of(cls, sentences: TagSequences, scheme: Scheme) -> "_Read":
        """Each different tag is parsed once: they are few where tokens are millions."""
        distinct = list(dict.fromkeys(chain.from_iterable(sentences)))
        parsed = [scheme.parse(tag) for tag in distinct]
        names = sorted({type for letter, type in parsed if letter not in "O?"})
        letters = np.array([LETTERS.index(letter) for letter, _ in parsed], np.int64)
        types = np.array([-1 if letter in "O?" else names.index(type) for letter, type in parsed], np.int64)
        places = {tag: place for place, tag in enumerate(distinct)}
        offsets = compute_offsets(sentences)
        flat = map(places.__getitem__, chain.from_iterable(sentences))
        tokens = np.fromiter(flat, np.int64, int(offsets[-1]))
        return cls(letters[tokens], types[tokens], names, offsets)

    def written(self, scheme: Scheme) -> np.ndarray:
        """[total] the numbers of the letters with which the scheme writes these entities."""
        begins = BEGINS_ENTITY[self.letters] | np.roll(ENDS_ENTITY[self.letters], 1)
        starts, ends = find_entity_bounds(self.types, begins, self.offsets)
        first, inner, last, only = (LETTERS.index(letter) for letter in SCHEMES[scheme.name])
        if scheme.name == "IOB1":
            touching = (self.types == np.roll(self.types, 1)) & ~mark_sentence_starts(self.offsets)
            letters = np.where(starts & touching, first, inner)
        else:
            letters = np.array([[inner, last], [first, only]])[starts.astype(int), ends.astype(int)]
        return np.where(self.types >= 0, letters, LETTERS.index(OUTSIDE))

    def rewritten(self, scheme: Scheme) -> list[list[str]]:
        """The sentences in another scheme. Raises `ValueError` where a tag could not be read."""
        if (self.letters == LETTERS.index("?")).any():
            raise ValueError("a tag is not of the scheme (see first_unreadable)")
        types = [*self.names, ""]  # the last is found by the -1 of O
        rows = [
            [OUTSIDE] * len(types),
            *([scheme.format_tag(letter, t) for t in types] for letter in LETTERS[1:]),
        ]
        return split_by_offsets(
            np.array(rows, object)[self.written(scheme), self.types].tolist(), self.offsets
        )


def _separator(tags: Iterable[str], usual: Scheme) -> str:
    """The mark by which most different tags can be read; "" where that is less than half of them."""
    tags = list(tags)

    def count(mark: str) -> int:
        return sum(Scheme("IO", mark).parse(tag)[0] != "?" for tag in tags)

    marks: Sequence[str] = sorted("-_", key=lambda mark: mark != usual.separator)
    best = max(marks, key=count)
    return best if count(best) * 2 >= len(tags) else ""
