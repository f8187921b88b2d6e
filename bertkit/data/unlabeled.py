"""Rows without a gold label: the judges were not of one mind (SNLI's `-`), or the label is kept back (-1)."""

from typing import Any

from bertkit.data.labels import normalize_label
from bertkit.data.rows import Splits


def drop_unlabeled_rows(splits: Splits, column: str) -> tuple[Splits, list[str]]:
    """The splits without such rows, and a note for each split that lost some.

    A split in which no row has a label is unlabelled and stays whole. Null is no label either; a blank
    is a gap in the file, left in to be refused as one.
    """
    found, notes = dict(splits), []
    signs = _signs(splits["train"][column])
    for name, rows in splits.items():
        if column not in rows.columns:
            continue
        kept = [
            index
            for index, value in enumerate(rows[column])
            if value is not None and normalize_label(value) not in signs
        ]
        if not kept:
            found[name] = rows.with_column(column, [None] * len(rows))
        elif len(kept) < len(rows):
            found[name] = rows.select(kept)
            notes.append(f"{len(rows) - len(kept):,} {name} rows left out: no gold label")
    return found, notes


def _signs(values: list[Any]) -> set[str]:
    """`-`, and -1 but where the labels are -1, 0 and 1."""
    others = {normalize_label(value) for value in values} - {"-", "-1", None}
    return {"-"} if others <= {"0", "1"} else {"-", "-1"}
