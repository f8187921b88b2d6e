"""Entity tags in IOB2: tag ids and entity boundaries.

Inside bertkit, a tag is `B-TYPE`, `I-TYPE` or `O`. The tags of entities without a type are `B` and `I`, and
their type is "". The module `schemes` converts the tags of files to this form and back.

Flat arrays [words] hold the words of all sentences. Sentence i is `flat[offsets[i] : offsets[i + 1]]`, where
`offsets` is [n + 1].
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise, repeat

import numpy as np

from bertkit.data.column_types import iter_chunks
from bertkit.utils.ragged import compute_offsets

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


def find_first_position(mask: np.ndarray, offsets: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of sentence and word for the first True of a flat mask, or None."""
    if not mask.any():
        return None
    index = int(mask.argmax())
    sentence = int(find_sentence_indices(np.array([index]), offsets)[0])
    return sentence, index - int(offsets[sentence])


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
        """Parse the names of the tags.

        Raises:
            ValueError: A name is not an IOB2 tag, a name occurs twice, or O is missing.
        """
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

    def find_first_unknown(self, sentences: TagSequences) -> tuple[int, int] | None:
        """Return the indices of sentence and word for the first tag that is not in the set, or None."""
        first_sentence = 0
        for part in iter_chunks(sentences):
            if position := find_first_position(self.encode(part) < 0, compute_sentence_offsets(part)):
                return first_sentence + position[0], position[1]
            first_sentence += len(part)
        return None

    def find_entity_bounds(self, tag_ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of `find_entity_bounds` for flat tag ids."""
        return find_entity_bounds(self.type_ids[tag_ids], self.is_begin[tag_ids], offsets)

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
