"""What can be wrong with rows of any task: blank texts, rows that occur twice, or in two splits."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bertkit.checks.findings import Finding, Level, format_fraction, locate_rows
from bertkit.data.ner.tags import OUTSIDE
from bertkit.data.rows import Rows
from bertkit.tasks.base import Task

MANY_DUPLICATES = 0.01  # share of the rows: above it, copies are worth a warning


@dataclass(frozen=True)
class CheckedSplit:
    """A split with what tells its rows apart, and the right answers where there are any; both [n].

    Attributes:
        unit: what a row is called.
        at_odds: the level of a finding of two answers to one example, and what to do about it.
    """

    name: str
    rows: Rows
    identity: Sequence[Hashable]
    gold: Sequence[Hashable] | None
    unit: str
    conflict_severity: tuple[Level, str]

    def format_fraction(self, part: Sequence[int]) -> str:
        """`3 of 60 (5.0%) train rows`."""
        return f"{format_fraction(len(part), len(self.rows))} {self.name} {self.unit}s"

    @classmethod
    def from_task(cls, name: str, rows: Rows, task: Task) -> "CheckedSplit":
        """As the task has it."""
        return cls(
            name,
            rows,
            task.split_keys(rows).identity,
            task.extract_gold(rows),
            task.unit,
            task.conflict_severity,
        )


def find_empty_texts(split: CheckedSplit, texts: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Rows with a text of nothing but white space, which training takes as they are."""
    none = [index for index, some in enumerate(zip(*texts, strict=True)) if not all(map(str.strip, some))]
    if none:
        yield Finding(
            "warning", "empty", f"{split.format_fraction(none)} have an empty text",
            "take them out, or fill them in: they are learned from and scored as they are", len(none),
            locate_rows(split.rows, none),
        )  # fmt: skip


def find_duplicates(split: CheckedSplit) -> Iterator[Finding]:
    """Rows that occur more than once, and those of them that are labelled in two ways."""
    first: dict[Hashable, int] = {}
    again = [i for i, key in enumerate(split.identity) if first.setdefault(key, i) != i]
    rows, gold = split.rows, split.gold
    if again:
        yield Finding(
            "warning" if len(again) > MANY_DUPLICATES * len(rows) else "note", "duplicates",
            f"{split.format_fraction(again)} are copies of an earlier one",
            "take them out where they are no accident of short texts: they count double", len(again),
            _beside(rows, again, [first[split.identity[i]] for i in again]),
        )  # fmt: skip
    unlike = [i for i in again if gold and gold[i] != gold[first[split.identity[i]]]]
    if gold and unlike:
        before = [first[split.identity[i]] for i in unlike]
        level, fix = split.conflict_severity
        yield Finding(
            level, "conflicts", f"{split.format_fraction(unlike)} are copies with another label", fix, len(unlike),
            _beside(rows, unlike, before, gold),
        )  # fmt: skip


def _beside(
    rows: Rows, second: Sequence[int], first: Sequence[int], gold: Sequence[Hashable] | None = None
) -> list[str]:
    """`train.csv: row 9 as row 3`, of labels also which."""
    found = []
    for place, other, a, b in zip(
        locate_rows(rows, second), locate_rows(rows, first), second, first, strict=False
    ):
        if rows.file_index[a] == rows.file_index[b]:
            other = other.removeprefix(f"{rows.files[rows.file_index[b]]}: ")
        found.append(
            f"{place} ({_short(gold[a])}) as {other} ({_short(gold[b])})" if gold else f"{place} as {other}"
        )
    return found


def _short(label: Hashable) -> str:
    if isinstance(label, tuple):  # tags, or several labels
        label = " ".join(str(part) for part in label if part != OUTSIDE) or OUTSIDE
    text = f"{label:g}" if isinstance(label, float) else str(label)
    return text if len(text) <= 40 else f"{text[:37]}..."


def find_overlap(splits: Sequence[CheckedSplit]) -> Iterator[Finding]:
    """Examples that stand in two splits."""
    for one, other in combinations(splits, 2):
        known = set(one.identity)
        shared = [index for index, key in enumerate(other.identity) if key in known]
        if shared:
            yield Finding(
                "warning", "overlap",
                f"{other.format_fraction(shared)} also stand in the {one.name} {one.unit}s",
                "look how the splits were made: scores tell little of what was seen before", len(shared),
                locate_rows(other.rows, shared),
            )  # fmt: skip


def find_script_mismatch(scripts: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
    """Splits that are written mostly in another script than the training texts.

    Args:
        scripts: of each split, script -> its share of the letters.
    """
    mostly = {name: next(iter(shares), "") for name, shares in scripts.items()}
    for name, script in mostly.items():
        if script != mostly.get("train", script):
            yield Finding(
                "warning", "script",
                f"the {name} texts are mostly {script}, the training texts {mostly['train']}",
                "look whether the files belong together", 0,
            )  # fmt: skip
