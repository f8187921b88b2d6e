"""Entity tags in IOB2 as numbers, and where entities begin and end.

Everywhere in bertkit a tag is `B-TYPE`, `I-TYPE` or `O`, or bare `B` and `I` where entities have no type
(the type ""); `schemes` brings what files hold to that and back. Sentences stand one after the other in
flat arrays [total]; sentence i is flat[offsets[i]:offsets[i + 1]], offsets being [n + 1].
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat

import numpy as np

OUTSIDE = "O"
TagSequences = Sequence[Sequence[str]]  # the words, or the tags, of n sentences


def format_tag(letter: str, type: str, separator: str = "-") -> str:
    """`B-PER`; the bare letter where there is no type."""
    return f"{letter}{separator}{type}" if type else letter


def build_iob2_labels(types: Iterable[str]) -> list[str]:
    """The labels of a model for these types: O, then B and I of each, also where training lacks one."""
    return [OUTSIDE, *(format_tag(letter, type) for type in sorted(set(types)) for letter in "BI")]


def compute_offsets(sentences: Sequence[Sequence[object]]) -> np.ndarray:
    """[n + 1] where each sentence begins in a flat array; the last is the number of tokens."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.concatenate([[0], np.cumsum(lengths)])


def split_by_offsets(flat: Sequence[str], offsets: np.ndarray) -> list[list[str]]:
    """A flat list as a list of sentences."""
    return [list(flat[start:stop]) for start, stop in pairwise(offsets.tolist())]


def find_first_position(mask: np.ndarray, offsets: np.ndarray) -> tuple[int, int] | None:
    """Sentence and token, from 0, of the first True of a flat mask; None where all are False."""
    if not mask.any():
        return None
    index = int(mask.argmax())
    sentence = int(find_sentence_indices(np.array([index]), offsets)[0])
    return sentence, index - int(offsets[sentence])


def find_sentence_indices(indices: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The sentence that each flat index lies in."""
    return np.searchsorted(offsets, indices, side="right") - 1


def mark_sentence_starts(offsets: np.ndarray) -> np.ndarray:
    """[total] bool, True at the first token of each sentence that has one."""
    first = np.zeros(int(offsets[-1]), bool)
    first[offsets[:-1][np.diff(offsets) > 0]] = True
    return first


def find_entity_bounds(
    types: np.ndarray, begins: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where entities begin and where they end, by conlleval's rule.

    An entity begins at a tag that says so, and at any other where the token before is outside, of
    another type, or in another sentence; so illegal sequences have entities as well.

    Args:
        types: [total] the number of each token's type, -1 outside.
        begins: [total] bool, whether the tag itself begins an entity.

    Returns:
        Two [total] bool arrays: the first and the last token of each entity.
    """
    inside = types >= 0
    starts = inside & (begins | mark_sentence_starts(offsets) | (types != np.roll(types, 1)))
    goes_on = np.roll(inside & ~starts, -1)  # what rolls round is a sentence's first token: never True
    return starts, inside & ~goes_on


class TagSet:
    """The IOB2 tags of a model by its label numbers, in whatever order the model has them.

    Attributes:
        names: the `C` tags by number.
        types: the entity types, sorted.
        is_begin: [C] bool, True at B tags.
        type_of: [C] int, the place of each tag's type in `types`, -1 for O.
        outside: the number of O.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Raises `ValueError` where a name is no IOB2 tag, stands twice, or O is missing."""
        parts = [name.partition("-") for name in names]
        wrong = [name for name, (letter, _, _) in zip(names, parts, strict=True) if letter not in ("B", "I")]
        if wrong != [OUTSIDE] or len(set(names)) < len(names):
            raise ValueError(f"not a set of IOB2 tags: {list(names)}")
        self.names = list(names)
        self.types = sorted({type for letter, _, type in parts if letter != OUTSIDE})
        self.is_begin = np.array([letter == "B" for letter, _, _ in parts])
        places = {type: place for place, type in enumerate(self.types)}
        self.type_ids = np.array(
            [-1 if name == OUTSIDE else places[name.partition("-")[2]] for name in names]
        )
        self.outside_id = self.names.index(OUTSIDE)

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, sentences: TagSequences) -> np.ndarray:
        """[total] int, the tags of all sentences as numbers; -1 for a tag that is not of the set."""
        table = {name: number for number, name in enumerate(self.names)}
        found = map(table.get, chain.from_iterable(sentences), repeat(-1))
        return np.fromiter(found, np.int64, int(compute_offsets(sentences)[-1]))

    def decode(self, numbers: np.ndarray) -> list[str]:
        """The tags of flat numbers; `as_sentences` makes sentences of them."""
        return np.array(self.names, object)[numbers].tolist()

    def find_first_unknown(self, sentences: TagSequences) -> tuple[int, int] | None:
        """Sentence and token, from 0, of the first tag that is not of the set; None where all are."""
        return find_first_position(self.encode(sentences) < 0, compute_offsets(sentences))

    def find_entity_bounds(self, numbers: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`entity_bounds` of flat numbers."""
        return find_entity_bounds(self.type_ids[numbers], self.is_begin[numbers], offsets)

    def build_transitions(self, allow_adjacent: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Which tags may begin a sentence, [C] bool, and which may follow which, [C, C] bool (from, to).

        I goes on with an entity of its type. It may begin one only where the set has no B of that type,
        as some models' labels do.

        Args:
            adjacent: whether two entities of one type may touch, which the IO scheme cannot write.
        """
        begun = set(self.type_ids[self.is_begin].tolist())
        initial = self.is_begin | np.array([type not in begun for type in self.type_ids])
        same = self.type_ids[:, None] == self.type_ids
        pair = initial | same
        if not allow_adjacent:
            pair &= ~(same & self.is_begin)
        return initial, pair
