"""What can be wrong with tags of tokens, beyond what training refuses."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from bertkit.checks.findings import MAX_LOCATIONS, Finding, format_fraction, locate_rows
from bertkit.data.ner.schemes import Scheme, detect_scheme, find_violations
from bertkit.data.ner.tags import find_sentence_indices
from bertkit.data.rows import Rows
from bertkit.errors import format_list

MIN_ENTITIES = 10  # entities of a type
MAX_SENTENCE_WORDS = 250  # tokens, more than sentences have
FAULT_MESSAGES = {
    "inside-first": "go on with an entity that nothing began, or that has ended",
    "type-changes": "go on with an entity of another type",
    "ill-formed": "are written otherwise than the scheme would",
}
CONLLEVAL_FIX = (
    "read by conlleval's rule: an entity begins there; write the tag that begins one, or the right type"
)


def find_illegal_tags(split: str, rows: Rows, scheme: Scheme) -> Iterator[Finding]:
    """Tags that are illegal in the split's own scheme, by kind.

    Args:
        rows: with `tokens` and `tags`.
        scheme: of the training tags.
    """
    scheme = detect_scheme(rows["tags"], scheme)
    found = find_violations(rows["tags"], scheme)
    for kind, at in found.group_by_kind().items():
        lines = [rows.format_location(*_place(found.offsets, index)) for index in at[:MAX_LOCATIONS]]
        name = f"{len(at):,} {split} tags {FAULT_MESSAGES[kind]} (the scheme is {scheme.name})"
        yield Finding("warning", kind, name, CONLLEVAL_FIX, len(at), lines)


def _place(offsets: np.ndarray, index: int) -> tuple[int, int]:
    """Sentence and token of a flat index."""
    sentence = int(find_sentence_indices(np.array([index]), offsets)[0])
    return sentence, int(index - offsets[sentence])


def find_scheme_mismatch(split: str, rows: Rows, scheme: Scheme) -> Iterator[Finding]:
    """A split whose tags are written otherwise than those to learn from."""
    own = detect_scheme(rows["tags"], scheme)
    if own != scheme:
        others = find_violations(rows["tags"], scheme)
        at = others.is_violation.nonzero()[0]
        yield Finding(
            "warning", "schemes", f"the {split} tags are {own}, the training tags {scheme}",
            "they are brought to one form; write them alike so that none is misread",
            len(at), [rows.format_location(*_place(others.offsets, index)) for index in at[:MAX_LOCATIONS]],
        )  # fmt: skip


def find_empty_rows(split: str, original: Rows, parsed: Rows) -> Iterator[Finding]:
    """Rows of which nothing was left."""
    there = set(zip(parsed.file_index.tolist(), parsed.row_numbers.tolist(), strict=True))
    numbers = zip(original.file_index.tolist(), original.row_numbers.tolist(), strict=True)
    gone = [index for index, number in enumerate(numbers) if number not in there]
    if gone:
        yield Finding(
            "note", "no-tokens",
            f"{format_fraction(len(gone), len(original))} {split} rows have no tokens and are left out",
            "", len(gone), locate_rows(original, gone),
        )  # fmt: skip


def count_entities(rows: Rows) -> Counter[str]:
    """How many entities of each type; `rows` have `iob2`."""
    begun = (tag[2:] for tags in rows["iob2"] for tag in tags if tag[0] == "B")
    return Counter(begun)


def find_singleton_types(train: Rows) -> Iterator[Finding]:
    """Types of which there is one entity to learn from."""
    alone = sorted(kind for kind, count in count_entities(train).items() if count == 1)
    if alone:
        have = {f"B-{kind}" if kind else "B" for kind in alone}
        rows = [index for index, tags in enumerate(train["iob2"]) if have & set(tags)]
        yield Finding(
            "warning", "type-once", f"types with one entity in the training rows: {format_list(alone)}",
            "a slip of the pen, or too few to learn: correct it, or add more of them", len(alone),
            locate_rows(train, rows),
        )  # fmt: skip


def find_rare_types(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Types with few entities to learn from, and types that no validation row has.

    Args:
        counts: of each split, how many entities of each type.
    """
    train, scored = counts["train"], counts.get("validation", {})
    if few := [kind for kind, count in train.items() if 1 < count < MIN_ENTITIES]:
        told = f"types with fewer than {MIN_ENTITIES} entities in the training rows: {format_list(few)}"
        yield Finding("note", "rare", told, "too few to be learned well: add more of them", len(few))
    if scored and (unseen := [kind for kind in train if kind not in scored]):
        told = f"types that no validation row has: {format_list(unseen)}"
        fix = "nothing will be known of how well they are learned"
        yield Finding("note", "not-validated", told, fix, len(unseen))


def find_words_without_tokens(
    split: str, rows: Rows, first_token: np.ndarray, offsets: np.ndarray
) -> Iterator[Finding]:
    """Tokens that the tokenizer leaves nothing of.

    Args:
        carrier: [tokens] -1 where there is no piece.
        offsets: [rows + 1] the first token of each row.
    """
    gone = (first_token < 0).nonzero()[0]
    if len(gone):
        index = np.unique(find_sentence_indices(gone, offsets))
        yield Finding(
            "note", "no-pieces",
            f"{format_fraction(len(gone), len(first_token))} {split} tokens have no piece (control characters, say)",
            "they are tagged by their neighbours; take them out where they are in the way", len(gone),
            locate_rows(rows, index),
        )  # fmt: skip


def find_long_sentences(split: str, rows: Rows) -> Iterator[Finding]:
    """Sentences of very many tokens: blank lines may be missing."""
    sizes = np.fromiter(map(len, rows["tokens"]), np.int64, len(rows))
    long = (sizes > MAX_SENTENCE_WORDS).nonzero()[0]
    if len(long):
        yield Finding(
            "warning", "long-sentences",
            f"{format_fraction(len(long), len(rows))} {split} sentences have more than {MAX_SENTENCE_WORDS} tokens (the longest "
            f"{sizes.max():,})",
            "look whether blank lines between sentences are missing", len(long), locate_rows(rows, long),
        )  # fmt: skip
