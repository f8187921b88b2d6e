"""What can be wrong with rows of any task: blank texts, rows that occur twice, labels out of balance."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from bertkit.data.findings import Finding, places, share
from bertkit.data.rows import Rows
from bertkit.data.tags import OUTSIDE
from bertkit.errors import listed
from bertkit.tasks.base import Task

MANY_TWICE = 0.01  # share of the rows: above it, copies are worth a warning
MAJORITY = 0.9  # share of the most frequent label: above it, accuracy says little
FEW = 10  # rows of a label: fewer teach little


@dataclass(frozen=True)
class Split:
    """A split with what tells its rows apart, and the right answers where there are any; both [n]."""

    name: str
    rows: Rows
    identity: Sequence[Hashable]
    gold: Sequence[Hashable] | None

    @classmethod
    def of(cls, name: str, rows: Rows, task: Task) -> "Split":
        """As the task has it."""
        return cls(name, rows, task.keys(rows).identity, task.gold(rows))


def blank(name: str, rows: Rows, texts: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Rows with a text of nothing but white space, which training takes as they are."""
    none = [index for index, some in enumerate(zip(*texts, strict=True)) if not all(map(str.strip, some))]
    if none:
        yield Finding(
            "warning", "empty", f"{share(len(none), len(rows))} {name} rows have an empty text",
            "take them out, or fill them in: they are learned from and scored as they are", len(none),
            places(rows, none),
        )  # fmt: skip


def repeated(split: Split) -> Iterator[Finding]:
    """Rows that occur more than once, and those of them that are labelled in two ways."""
    first: dict[Hashable, int] = {}
    again = [i for i, key in enumerate(split.identity) if first.setdefault(key, i) != i]
    rows, gold = split.rows, split.gold
    if again:
        yield Finding(
            "warning" if len(again) > MANY_TWICE * len(rows) else "note", "duplicates",
            f"{share(len(again), len(rows))} {split.name} rows are copies of an earlier one",
            "take them out where they are no accident of short texts: they count double", len(again),
            _beside(rows, again, [first[split.identity[i]] for i in again]),
        )  # fmt: skip
    unlike = [i for i in again if gold and gold[i] != gold[first[split.identity[i]]]]
    if gold and unlike:
        before = [first[split.identity[i]] for i in unlike]
        yield Finding(
            "warning", "conflicts",
            f"{share(len(unlike), len(rows))} {split.name} rows are copies with another label",
            "decide on one label: a model cannot get both right", len(unlike),
            _beside(rows, unlike, before, gold),
        )  # fmt: skip


def _beside(
    rows: Rows, second: Sequence[int], first: Sequence[int], gold: Sequence[Hashable] | None = None
) -> list[str]:
    """`train.csv: row 9 as row 3`, of labels also which."""
    found = []
    for place, other, a, b in zip(places(rows, second), places(rows, first), second, first, strict=False):
        if rows.file_of[a] == rows.file_of[b]:
            other = other.removeprefix(f"{rows.files[rows.file_of[b]]}: ")
        found.append(
            f"{place} ({_short(gold[a])}) as {other} ({_short(gold[b])})" if gold else f"{place} as {other}"
        )
    return found


def _short(label: Hashable) -> str:
    if isinstance(label, tuple):  # tags, or several labels
        label = " ".join(str(part) for part in label if part != OUTSIDE) or OUTSIDE
    text = str(label)
    return text if len(text) <= 40 else f"{text[:37]}..."


def overlap(splits: Sequence[Split]) -> Iterator[Finding]:
    """Examples that stand in two splits."""
    for one, other in combinations(splits, 2):
        known = set(one.identity)
        shared = [index for index, key in enumerate(other.identity) if key in known]
        if shared:
            yield Finding(
                "warning", "overlap",
                f"{share(len(shared), len(other.rows))} {other.name} rows also stand in the {one.name} rows",
                "look how the splits were made: scores tell little of what was seen before", len(shared),
                places(other.rows, shared),
            )  # fmt: skip


def balance(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Labels that are nearly all, or nearly none, of the training rows, or that nothing is scored on.

    Args:
        counts: of each split, how often there is each label.
    """
    train = Counter(counts.get("train", {}))
    if not train:
        return
    [(label, most)] = train.most_common(1)
    if len(train) > 1 and most > MAJORITY * train.total():
        yield Finding(
            "warning", "majority", f"{share(most, train.total())} of the training labels are {label!r}",
            "accuracy says little then: look at f1 and at the majority baseline", most,
        )  # fmt: skip
    if rare := [name for name, count in train.items() if count < FEW]:
        yield Finding(
            "warning", "rare", f"labels with fewer than {FEW} training examples: {listed(rare)}",
            "too few to learn: add more of them, join them, or leave them out", len(rare),
        )  # fmt: skip
    scored = counts.get("validation", {})
    if scored and (unseen := [name for name in train if name not in scored]):
        yield Finding(
            "note", "not-validated", f"labels that no validation row has: {listed(unseen)}",
            "nothing will be known of how well they are learned", len(unseen),
        )  # fmt: skip


def written_otherwise(scripts: Mapping[str, Mapping[str, float]]) -> Iterator[Finding]:
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
