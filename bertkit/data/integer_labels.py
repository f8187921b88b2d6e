"""Decide whether integer labels are classes or numbers."""

from collections.abc import Mapping

MAX_CERTAIN_CLASSES = 20  # up to this number of different integers, they are classes, such as ratings
MIN_ROWS_PER_CLASS = 2
SCALE_MAXIMUM = 100  # integers that end here are usually percentages or scores


def are_integers_classes(counts: Mapping[int, int]) -> tuple[bool, str]:
    """Return whether integer labels are classes, and the reason.

    More than `MAX_CERTAIN_CLASSES` different integers are classes only if they look like class ids: they are
    consecutive, start at 0 or 1, do not end at `SCALE_MAXIMUM`, and each of them occurs in several rows.
    Years, ages and counts usually lack one of these properties: they start elsewhere, have gaps, or have rare
    large values.

    Args:
        counts: Number of rows by label.
    """
    low, high, count = min(counts), max(counts), len(counts)
    if count <= MAX_CERTAIN_CLASSES:
        return True, f"{count} different integers"
    if low not in (0, 1):
        return False, f"{count} different integers that start at {low}, not at 0 or 1"
    if count < high - low + 1:
        return False, f"{count} different integers with gaps between {low} and {high}"
    if min(counts.values()) < MIN_ROWS_PER_CLASS:
        return False, f"integers from {low} to {high}, some of which occur in a single row"
    if high == SCALE_MAXIMUM:
        return False, f"integers from {low} to {high}, the end of a usual scale"
    return True, f"consecutive integers from {low} to {high}, each in several rows"
