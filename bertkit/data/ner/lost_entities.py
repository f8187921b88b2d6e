"""Find the gold entities and words that the tokens of a model cannot express."""

from dataclasses import dataclass
from itertools import chain, compress

import numpy as np

from bertkit.data.ner.decoding import mark_shared_tokens
from bertkit.data.ner.rows import find_types
from bertkit.data.ner.tags import TagSet, build_iob2_labels, compute_sentence_offsets, find_sentence_indices
from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count, shorten_repr

LOST_ENTITIES_FIX = "choose a model with shorter tokens with --model, or let entities begin and end at spaces"
MAX_LOST_FRACTION = 0.5  # of the training entities; training with more lost entities is refused


@dataclass(frozen=True)
class LostEntities:
    """The entities of a split that no prediction can equal, and its words that have letters but no token.

    Attributes:
        rows: Parsed rows with tags.
        offsets: [rows + 1] index of each row's first word.
        num_entities: Number of gold entities.
        first: [lost] index of the first word of each lost entity among the words of all rows.
        last: [lost] index of its last word.
        words: Indices of the words that have letters or digits but no token.
    """

    rows: Rows
    offsets: np.ndarray
    num_entities: int
    first: np.ndarray
    last: np.ndarray
    words: np.ndarray

    @property
    def are_too_many(self) -> bool:
        """Whether the model cannot learn from these entities."""
        return len(self.first) > MAX_LOST_FRACTION * self.num_entities

    def describe_entities(self) -> str:
        """Return the number of lost entities with an example."""
        example = self._format_words(self.first[0], self.last[0])
        entities = format_count(self.num_entities, "entity", "entities")
        return (
            f"{len(self.first):,} of {entities} cannot be predicted, because they begin or end inside a "
            f"token or at a word without a token, such as {example}"
        )

    def describe_words(self) -> str:
        """Return the number of words without a token with an example."""
        words = format_count(
            len(self.words), "word has letters or digits but", "words have letters or digits but"
        )
        return f"{words} no token, such as {self._format_words(self.words[0], self.words[0])}"

    def describe(self) -> list[str]:
        """Return warnings about this split."""
        entities = [self.describe_entities()] if len(self.first) else []
        return [*entities, *([self.describe_words()] if len(self.words) else [])]

    def _format_words(self, first: int, last: int) -> str:
        row = int(find_sentence_indices(np.array([first]), self.offsets)[0])
        start, stop = int(first - self.offsets[row]), int(last - self.offsets[row]) + 1
        words = self.rows["tokens"][row][start:stop]
        text = shorten_repr(words[0] if len(words) == 1 else words)
        return f"{text} in {self.rows.format_location(row, start)}"


def find_lost_entities(rows: Rows, first_token: np.ndarray) -> LostEntities:
    """Find the entities that differ from their tags if these are assigned to tokens and decoded again.

    The first word of an entity must have a token that no earlier word has. Its last word must have a token
    that no later word has.

    Args:
        rows: Parsed rows with the columns `tokens` and `iob2`.
        first_token: [words] number of the token that each word is predicted at; -1 for a word without tokens.
    """
    offsets = compute_sentence_offsets(rows["tokens"])
    tags = TagSet(build_iob2_labels(find_types(rows)))
    is_first, is_last = tags.find_entity_bounds(tags.encode(rows["iob2"]), offsets)
    first, last = np.flatnonzero(is_first), np.flatnonzero(is_last)
    has_no_token = first_token < 0
    with_earlier, with_later = mark_shared_tokens(first_token)
    is_lost = (has_no_token | with_earlier)[first] | (has_no_token | with_later)[last]
    words = np.flatnonzero(has_no_token)
    texts = list(compress(chain.from_iterable(rows["tokens"]), has_no_token.tolist()))
    has_letters = {text: any(map(str.isalnum, text)) for text in set(texts)}
    is_text = np.fromiter(map(has_letters.__getitem__, texts), bool, len(texts))
    return LostEntities(rows, offsets, len(first), first[is_lost], last[is_lost], words[is_text])


def require_predictable(lost: LostEntities) -> None:
    """Raise a `UserError` if most of the training entities cannot be predicted."""
    if lost.are_too_many:
        raise UserError(f"{lost.rows.files[0]}: {lost.describe_entities()}; {LOST_ENTITIES_FIX}")
