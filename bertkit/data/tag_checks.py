"""What can be wrong with tags of tokens, beyond what training refuses."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from bertkit.data.findings import FIRST, Finding, places, share
from bertkit.data.rows import Rows
from bertkit.data.schemes import Scheme, detect, misfits
from bertkit.data.tags import sentence_numbers
from bertkit.errors import listed

FEW = 10  # entities of a type
LONG = 250  # tokens, more than sentences have
KINDS = {
    "inside-first": "go on with an entity that nothing began, or that has ended",
    "type-changes": "go on with an entity of another type",
    "ill-formed": "are written otherwise than the scheme would",
}
AS_READ = "read by conlleval's rule: an entity begins there; write the tag that begins one, or the right type"


def tag_faults(split: str, rows: Rows, scheme: Scheme) -> Iterator[Finding]:
    """Tags that are illegal in the split's own scheme, by kind.

    Args:
        rows: with `tokens` and `tags`.
        scheme: of the training tags.
    """
    scheme = detect(rows["tags"], scheme)
    found = misfits(rows["tags"], scheme)
    for kind, at in found.of_kinds().items():
        lines = [rows.where(*_place(found.offsets, index)) for index in at[:FIRST]]
        name = f"{len(at):,} {split} tags {KINDS[kind]} (the scheme is {scheme.name})"
        yield Finding("warning", kind, name, AS_READ, len(at), lines)


def _place(offsets: np.ndarray, index: int) -> tuple[int, int]:
    """Sentence and token of a flat index."""
    sentence = int(sentence_numbers(np.array([index]), offsets)[0])
    return sentence, int(index - offsets[sentence])


def other_scheme(split: str, rows: Rows, scheme: Scheme) -> Iterator[Finding]:
    """A split whose tags are written otherwise than those to learn from."""
    own = detect(rows["tags"], scheme)
    if own != scheme:
        others = misfits(rows["tags"], scheme)
        at = others.wrong.nonzero()[0]
        yield Finding(
            "warning", "schemes", f"the {split} tags are {own}, the training tags {scheme}",
            "they are brought to one form; write them alike so that none is misread",
            len(at), [rows.where(*_place(others.offsets, index)) for index in at[:FIRST]],
        )  # fmt: skip


def without_tokens(split: str, found: Rows, read: Rows) -> Iterator[Finding]:
    """Rows of which nothing was left."""
    there = set(zip(read.file_of.tolist(), read.number.tolist(), strict=True))
    numbers = zip(found.file_of.tolist(), found.number.tolist(), strict=True)
    gone = [index for index, number in enumerate(numbers) if number not in there]
    if gone:
        yield Finding(
            "note", "no-tokens",
            f"{share(len(gone), len(found))} {split} rows have no tokens and are left out",
            "", len(gone), places(found, gone),
        )  # fmt: skip


def entities(rows: Rows) -> Counter[str]:
    """How many entities of each type; `rows` have `iob2`."""
    begun = (tag[2:] for tags in rows["iob2"] for tag in tags if tag[0] == "B")
    return Counter(begun)


def once(train: Rows) -> Iterator[Finding]:
    """Types of which there is one entity to learn from."""
    alone = sorted(kind for kind, count in entities(train).items() if count == 1)
    if alone:
        have = {f"B-{kind}" if kind else "B" for kind in alone}
        rows = [index for index, tags in enumerate(train["iob2"]) if have & set(tags)]
        yield Finding(
            "warning", "type-once", f"types with one entity in the training rows: {listed(alone)}",
            "a slip of the pen, or too few to learn: correct it, or add more of them", len(alone),
            places(train, rows),
        )  # fmt: skip


def rare(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Types with few entities to learn from, and types that no validation row has.

    Args:
        counts: of each split, how many entities of each type.
    """
    train, scored = counts["train"], counts.get("validation", {})
    if few := [kind for kind, count in train.items() if 1 < count < FEW]:
        told = f"types with fewer than {FEW} entities in the training rows: {listed(few)}"
        yield Finding("note", "rare", told, "too few to be learned well: add more of them", len(few))
    if scored and (unseen := [kind for kind in train if kind not in scored]):
        told = f"types that no validation row has: {listed(unseen)}"
        way_out = "nothing will be known of how well they are learned"
        yield Finding("note", "not-validated", told, way_out, len(unseen))


def without_pieces(split: str, rows: Rows, carrier: np.ndarray, offsets: np.ndarray) -> Iterator[Finding]:
    """Tokens that the tokenizer leaves nothing of.

    Args:
        carrier: [tokens] -1 where there is no piece.
        offsets: [rows + 1] the first token of each row.
    """
    gone = (carrier < 0).nonzero()[0]
    if len(gone):
        index = np.unique(sentence_numbers(gone, offsets))
        yield Finding(
            "note", "no-pieces",
            f"{share(len(gone), len(carrier))} {split} tokens have no piece (control characters, say)",
            "they are tagged by their neighbours; take them out where they are in the way", len(gone),
            places(rows, index),
        )  # fmt: skip


def too_long(split: str, rows: Rows) -> Iterator[Finding]:
    """Sentences of very many tokens: blank lines may be missing."""
    sizes = np.fromiter(map(len, rows["tokens"]), np.int64, len(rows))
    long = (sizes > LONG).nonzero()[0]
    if len(long):
        yield Finding(
            "warning", "long-sentences",
            f"{share(len(long), len(rows))} {split} sentences have more than {LONG} tokens (the longest "
            f"{sizes.max():,})",
            "look whether blank lines between sentences are missing", len(long), places(rows, long),
        )  # fmt: skip
