"""The data checks of `ner`, and the gold entities and words that the tokens of a model cannot express."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

import numpy as np

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows
from bertkit.data.tokens import TokenCounts
from bertkit.errors import UserError, format_count, format_list, shorten_repr
from bertkit.tasks.base import UNREAD_NOTE
from bertkit.tasks.checks import (
    MAX_LOCATIONS,
    Finding,
    TaskChecks,
    find_unvalidated,
    format_fraction,
    locate_rows,
    report_rows,
)
from bertkit.tasks.ner.features import encode_words
from bertkit.tasks.ner.predictions import mark_shared_tokens
from bertkit.tasks.ner.rows import WIDENED_SPANS_NOTE, find_types
from bertkit.tasks.ner.tags import (
    Scheme,
    TagSet,
    build_iob2_labels,
    compute_sentence_offsets,
    describe_notation,
    detect_scheme,
    find_sentence_indices,
    find_violations,
)

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
        first_token: [words] number of the token that each word is predicted at; -1 for a word without tokens.
    """
    offsets = compute_sentence_offsets(rows["tokens"])
    tags = TagSet(build_iob2_labels(find_types(rows)))
    first, last = tags.find_entities(tags.encode(rows["iob2"]), offsets)
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


MIN_ENTITIES = 10  # types with fewer training entities are reported
MAX_SENTENCE_WORDS = 250  # longer sentences suggest that blank lines are missing
VIOLATION_MESSAGES = {
    "inside-first": "continue an entity that did not begin, or that has ended",
    "type-changes": "continue an entity of another type",
    "ill-formed": "do not follow the scheme",
}
CONLLEVAL_FIX = (
    "as in conlleval, an entity begins there; write the tag that begins an entity, or the right type"
)


class NerChecks(TaskChecks):
    """The checks of `ner`."""

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        return [rows["text"]]

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        return [tuple(tags) for tags in rows["iob2"]] if "iob2" in rows.columns else None

    def count_labels(self, rows: Rows) -> dict[str, int]:
        return dict(count_entities_by_type(rows).most_common()) if "iob2" in rows.columns else {}

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Find types with few training entities, and types without validation entities."""
        train = counts["train"]
        # `check_rows` reports types with one entity.
        if rare := [entity_type for entity_type, count in train.items() if 1 < count < MIN_ENTITIES]:
            names = format_list(rare)
            message = f"types with fewer than {MIN_ENTITIES} entities in the training rows: {names}"
            yield Finding("note", "rare", message, "too few to learn well; add more of them", len(rare))
        yield from find_unvalidated(train, counts.get("validation", {}), "types")

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        scheme, train = self.task.state.scheme, parsed.splits["train"]
        for split, rows in parsed.splits.items():
            original = dataset.splits[split]
            kept = set(zip(rows.file_index.tolist(), rows.row_numbers.tolist(), strict=True))
            locations = zip(original.file_index.tolist(), original.row_numbers.tolist(), strict=True)
            yield from report_rows(
                "note", "no-words", original,
                [index for index, location in enumerate(locations) if location not in kept],
                f"{split} rows have no words and are left out", "",
            )  # fmt: skip
            lengths = np.fromiter(map(len, rows["tokens"]), np.int64, len(rows))
            yield from report_rows(
                "warning", "long-sentences", rows, np.flatnonzero(lengths > MAX_SENTENCE_WORDS),
                f"{split} sentences have more than {MAX_SENTENCE_WORDS} words "
                f"(the longest {lengths.max():,})",
                "check whether blank lines between sentences are missing",
            )  # fmt: skip
            if "tags" in rows.columns:
                yield from find_illegal_tags(split, rows, scheme)
        tag_counts = Counter(chain.from_iterable(train["tags"]))
        if note := describe_notation(tag_counts, scheme):
            problem, _, fix = note.partition("; ")
            num_tags = tag_counts.total() - tag_counts[scheme.outside]
            yield Finding("warning" if fix else "note", "notation", problem, fix, num_tags)
        if types := sorted(
            entity_type for entity_type, count in count_entities_by_type(train).items() if count == 1
        ):
            singletons = {f"B-{entity_type}" if entity_type else "B" for entity_type in types}
            indices = [index for index, tags in enumerate(train["iob2"]) if singletons & set(tags)]
            yield Finding(
                "warning", "type-once", f"types with one entity in the training rows: {format_list(types)}",
                "a typing error, or too few to learn; correct the tag, or add more of them", len(types),
                locate_rows(train, indices),
            )  # fmt: skip
        # The findings above report the other notes with their rows.
        notes = [note for note in notes if WIDENED_SPANS_NOTE in note or UNREAD_NOTE in note]
        yield from super().check_rows(dataset, parsed, notes)

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Count the tokens of each sentence, without the surrounding sentences."""
        return TokenCounts.from_texts([rows["text"]], tokenizer, with_offsets=True)

    def check_tokens(self, split: str, rows: Rows, tokenizer: Any) -> Iterator[Finding]:
        tokens = encode_words(rows["tokens"], rows["text"], tokenizer)
        yield from find_words_without_tokens(split, rows, tokens.first_token, tokens.word_offsets)
        if "iob2" not in rows.columns:
            return
        lost = find_lost_entities(rows, tokens.first_token)
        if len(lost.first):
            sentences = np.unique(find_sentence_indices(lost.first, lost.offsets))
            yield Finding(
                "error" if split == "train" and lost.are_too_many else "warning", "lost-entities",
                f"{split}: {lost.describe_entities()}",
                LOST_ENTITIES_FIX, len(lost.first), locate_rows(lost.rows, sentences),
            )  # fmt: skip
        if len(lost.words):
            sentences = np.unique(find_sentence_indices(lost.words, lost.offsets))
            yield Finding(
                "warning", "letters-without-tokens", f"{split}: {lost.describe_words()}",
                "choose a model whose tokenizer knows these characters with --model", len(lost.words),
                locate_rows(lost.rows, sentences),
            )  # fmt: skip


def find_illegal_tags(split: str, rows: Rows, scheme: Scheme) -> Iterator[Finding]:
    """Report a scheme other than that of the training tags, and tags that are illegal in their scheme."""
    split_scheme = detect_scheme(rows["tags"], scheme)
    if split_scheme != scheme:
        violations, offsets = find_violations(rows["tags"], scheme)
        indices = np.sort(np.concatenate([np.zeros(0, int), *violations.values()]))
        yield Finding(
            "warning", "schemes", f"the {split} tags are {split_scheme}, the training tags {scheme}",
            "both are converted to IOB2; write them in one scheme so that none is misread",
            len(indices), _locate_words(rows, indices, offsets),
        )  # fmt: skip
    violations, offsets = find_violations(rows["tags"], split_scheme)
    for kind, indices in violations.items():
        message = f"{len(indices):,} {split} tags {VIOLATION_MESSAGES[kind]} (scheme {split_scheme.name})"
        locations = _locate_words(rows, indices, offsets)
        yield Finding("warning", kind, message, CONLLEVAL_FIX, len(indices), locations)


def _locate_words(rows: Rows, indices: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Return the locations of the first few words; `offsets` holds the first word of each row, [rows + 1]."""
    word_indices = np.asarray(indices[:MAX_LOCATIONS])
    sentence_indices = find_sentence_indices(word_indices, offsets)
    return [
        rows.format_location(int(sentence), int(word - offsets[sentence]))
        for sentence, word in zip(sentence_indices, word_indices, strict=True)
    ]


def count_entities_by_type(rows: Rows) -> Counter[str]:
    """Return the number of entities of each type in parsed rows."""
    return Counter(tag[2:] for tags in rows["iob2"] for tag in tags if tag[0] == "B")


def find_words_without_tokens(
    split: str, rows: Rows, first_token: np.ndarray, offsets: np.ndarray
) -> Iterator[Finding]:
    """Find words without any token, except white space, which has none.

    Args:
        first_token: Index of the first token of each word, [words]; -1 for words without tokens.
        offsets: Index of the first word of each row, [rows + 1].
    """
    missing = np.flatnonzero(first_token < 0)
    words = compress(chain.from_iterable(rows["tokens"]), (first_token < 0).tolist())
    missing = missing[[not word.isspace() for word in words]]
    if len(missing):
        sentences = np.unique(find_sentence_indices(missing, offsets))
        yield Finding(
            "note", "untokenized",
            f"{format_fraction(len(missing), len(first_token))} {split} words have no token (such as control "
            "characters)",
            "they are tagged by their neighbors; remove them if they are noise", len(missing),
            locate_rows(rows, sentences),
        )  # fmt: skip
