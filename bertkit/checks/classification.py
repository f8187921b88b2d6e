"""What can be wrong with the labels of texts, beyond what training refuses."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from bertkit.checks.findings import Finding, format_fraction, locate_rows
from bertkit.data.labels import is_missing_label, normalize_label, parse_number
from bertkit.data.rows import Rows
from bertkit.errors import format_list

MAJORITY_FRACTION = 0.9  # share of the most frequent class: above it, accuracy says little
MIN_EXAMPLES = 10  # rows of a class: fewer teach little


def check_balance(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Classes that are nearly all, or nearly none, of the training rows, or that nothing is scored on.

    Args:
        counts: of each split, how often there is each class.
    """
    train = Counter(counts.get("train", {}))
    if not train:
        return
    [(label, most)] = train.most_common(1)
    if len(train) > 1 and most > MAJORITY_FRACTION * train.total():
        yield Finding(
            "warning", "majority", f"{format_fraction(most, train.total())} of the training labels are {label!r}",
            "accuracy says little then: look at f1 and at the majority baseline", most,
        )  # fmt: skip
    if rare := [name for name, count in train.items() if count < MIN_EXAMPLES]:
        yield Finding(
            "warning", "rare", f"labels with fewer than {MIN_EXAMPLES} training examples: {format_list(rare)}",
            "too few to learn: add more of them, join them, or leave them out", len(rare),
        )  # fmt: skip
    scored = counts.get("validation", {})
    if scored and (unseen := [name for name in train if name not in scored]):
        yield Finding(
            "note", "not-validated", f"labels that no validation row has: {format_list(unseen)}",
            "nothing will be known of how well they are learned", len(unseen),
        )  # fmt: skip


def find_placeholder_labels(split: str, rows: Rows, column: str, names: Sequence[str]) -> Iterator[Finding]:
    """Classes that say that there is none, beside others that are all numbers.

    Args:
        names: of the classes.
    """
    none = [name for name in names if is_missing_label(name)]
    if none and all(parse_number(name) is not None for name in set(names) - set(none)):
        found = [index for index, value in enumerate(rows[column]) if normalize_label(value) in none]
        yield Finding(
            "warning", "gaps",
            f"{format_fraction(len(found), len(rows))} {split} rows have {format_list(map(repr, none))} where others have a "
            "number",
            "give the number, or leave such rows out: they are learned as a class of their own", len(found),
            locate_rows(rows, found),
        )  # fmt: skip


def find_similar_labels(names: Sequence[str]) -> Iterator[Finding]:
    """Labels that differ in capitals or blanks alone: two classes where one was meant."""
    forms: dict[str, list[str]] = {}
    for name in names:
        forms.setdefault("".join(name.casefold().split()), []).append(name)
    for alike in (some for some in forms.values() if len(some) > 1):
        yield Finding(
            "warning", "spelling", f"labels {format_list(map(repr, alike))} differ in capitals or blanks alone",
            "write them alike, or they are learned as different classes", len(alike),
        )  # fmt: skip


def find_identical_pairs(split: str, rows: Rows, columns: Sequence[str]) -> Iterator[Finding]:
    """Pairs of a text and itself."""
    first, second = (rows[column] for column in columns)
    same = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.strip() == b.strip()]
    if same:
        yield Finding(
            "note", "equal-pair",
            f"{format_fraction(len(same), len(rows))} {split} rows have one text in {columns[0]!r} and {columns[1]!r}",
            "look whether both columns were meant", len(same), locate_rows(rows, same),
        )  # fmt: skip


def find_empty_label_sets(split: str, rows: Rows, gold: Sequence[Hashable]) -> Iterator[Finding]:
    """Rows of a multi-label set without any label."""
    none = [index for index, labels in enumerate(gold) if labels == ()]
    if none:
        yield Finding(
            "note", "no-labels", f"{format_fraction(len(none), len(rows))} {split} rows have none of the labels",
            "right if that is what is meant; else leave them out", len(none), locate_rows(rows, none),
        )  # fmt: skip


def find_out_of_range(numbers: Mapping[str, np.ndarray], splits: Mapping[str, Rows]) -> Iterator[Finding]:
    """Numbers of other splits that lie outside of those to learn from.

    Args:
        numbers: [n] of each split.
    """
    low, high = numbers["train"].min(), numbers["train"].max()
    yield Finding("note", "range", f"the numbers to learn go from {low:g} to {high:g}")
    for split, values in numbers.items():
        outside = ((values < low) | (values > high)).nonzero()[0]
        if len(outside):
            yield Finding(
                "warning", "beyond",
                f"{format_fraction(len(outside), len(values))} {split} numbers lie beyond {low:g} to {high:g}, the "
                "range of the training rows",
                "a model seldom predicts what it has not seen; look whether the scales are the same",
                len(outside), locate_rows(splits[split], outside),
            )  # fmt: skip
