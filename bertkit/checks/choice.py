"""What can be wrong with the endings of multiple choice, beyond what training refuses."""

from collections import Counter
from collections.abc import Iterator, Sequence

from bertkit.checks.findings import Finding, format_fraction, locate_rows
from bertkit.data.rows import Rows


def check_ending_counts(split: str, rows: Rows, endings: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """How many endings rows have, and those that have another number than most."""
    counts = Counter(map(len, endings)).most_common()
    usual, most = counts[0]
    told = (
        f"each has {usual}"
        if most == len(rows)
        else ", ".join(f"{size} in {count:,}" for size, count in counts)
    )
    unlike = [index for index, some in enumerate(endings) if len(some) != usual]
    yield Finding(
        "note", "endings", f"endings of {split} rows: {told}",
        "rows may have unlike numbers; look whether some lost one" if unlike else "",
        len(unlike), locate_rows(rows, unlike),
    )  # fmt: skip


def find_duplicate_endings(
    split: str, rows: Rows, endings: Sequence[Sequence[str]], gold: Sequence[str] | None
) -> Iterator[Finding]:
    """Rows with an ending twice, and those of which one is right and the other counts as wrong.

    Args:
        right: [n] the right ending of each row.
    """
    twice = [index for index, some in enumerate(endings) if len(set(some)) < len(some)]
    unfair = [index for index in twice if gold and list(endings[index]).count(gold[index]) > 1]
    if unfair:
        yield Finding(
            "warning", "right-twice",
            f"{format_fraction(len(unfair), len(rows))} {split} rows have their right ending among the wrong ones too",
            "leave one of the two out: a model cannot tell them apart", len(unfair), locate_rows(rows, unfair),
        )  # fmt: skip
    if rest := sorted(set(twice) - set(unfair)):
        yield Finding(
            "note", "wrong-twice", f"{format_fraction(len(rest), len(rows))} {split} rows have a wrong ending twice",
            "leave one of the two out", len(rest), locate_rows(rows, rest),
        )  # fmt: skip
