"""Hold out validation rows and sample rows: stratified, by seed, and without overlap between splits."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, format_count

DEFAULT_FRACTION = 0.1
GroupKeys = Sequence[Hashable]


@dataclass(frozen=True)
class SplitKeys:
    """Keys that decide how the `n` examples of a split are held out; each is [n].

    Attributes:
        identity: what makes two examples equal. A training row that is also an evaluation row is removed.
        group: examples with the same group stay in the same split.
        stratum: label, or another key, whose fractions should be equal in both splits.
        group_unit: what a group is called in notes, if it is larger than a row.
        unit: what a row is called in notes.
    """

    identity: GroupKeys
    group: GroupKeys
    stratum: GroupKeys
    group_unit: str = ""
    unit: str = "row"


def split_stratified(
    groups: GroupKeys, strata: GroupKeys, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into a training part and a held-out part.

    Rows of a group stay together, in the stratum of the group's first row. The sizes held out of the strata
    are rounded so that they add up to the whole fraction. Each stratum keeps at least one training group.

    Args:
        groups: [n] group of each row.
        strata: [n] stratum of each row.
        fraction: fraction of the groups to hold out.
        seed: seed of the random choice.

    Returns:
        Indices of the training rows and of the held-out rows, each in the order of the rows.
    """
    rng = np.random.default_rng(seed)
    rows_by_group: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        rows_by_group[group].append(index)
    groups_by_stratum: dict[Hashable, list[list[int]]] = defaultdict(list)
    for indices in rows_by_group.values():
        groups_by_stratum[strata[indices[0]]].append(indices)
    strata_groups = list(groups_by_stratum.values())
    sizes = _allocate_held_out([len(members) for members in strata_groups], fraction, seed)
    is_held_out = np.zeros(len(groups), bool)
    for members, size in zip(strata_groups, sizes, strict=True):
        for group_index in rng.permutation(len(members))[:size]:
            is_held_out[members[group_index]] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _allocate_held_out(sizes: Sequence[int], fraction: float, seed: int) -> np.ndarray:
    """Return the groups to hold out of each stratum.

    The largest remainders are rounded up; the seed decides between equal remainders.
    """
    exact = fraction * np.array(sizes, float)
    limits = np.maximum(0, np.array(sizes) - 1)
    counts = np.minimum(np.floor(exact + 1e-9).astype(int), limits)
    missing = min(round(exact.sum()), int(limits.sum())) - counts.sum()
    order = np.lexsort((np.random.default_rng([seed, 1]).random(len(sizes)), counts - exact))
    can_grow = [stratum for stratum in order if counts[stratum] < limits[stratum]]
    counts[can_grow[: max(0, missing)]] += 1
    return counts


def find_non_overlapping(train: GroupKeys, others: Sequence[GroupKeys]) -> np.ndarray:
    """Return the indices of the training rows that occur in none of the other splits."""
    evaluated = {key for keys in others for key in keys}
    return np.array([index for index, key in enumerate(train) if key not in evaluated], dtype=np.int64)


def sample_rows(rows: Rows, size: int | None, seed: int) -> Rows:
    """Sample `size` rows in the order of the file; return all of them if there are fewer or size is None."""
    if size is None or size >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:size]))


def make_splits(
    splits: Splits, get_keys: Callable[[Rows], SplitKeys], fraction: float | None, seed: int
) -> tuple[Splits, list[str]]:
    """Return training and validation splits without a common example, and notes on what was done.

    Args:
        splits: the splits of the dataset; at least "train".
        get_keys: returns the keys of some rows.
        fraction: fraction of the training rows to hold out if there is no validation split; None for 10%.
        seed: seed of the random choice.

    Raises:
        UserError: too few rows to hold any out, or no training row is left.
    """
    notes: list[str] = []
    splits = dict(splits)
    splits["train"] = _remove_evaluated_rows(splits, get_keys, notes)
    if "validation" not in splits:
        rows, keys = splits["train"], get_keys(splits["train"])
        fraction = DEFAULT_FRACTION if fraction is None else fraction
        splits["train"], splits["validation"] = _hold_out(rows, keys, fraction, seed)
        notes.append(_describe_held_out(keys, len(splits["validation"]), len(rows), fraction, seed))
    elif fraction is not None:
        notes.append("--validation-fraction has no effect: the dataset has a validation split")
    return splits, notes


def _remove_evaluated_rows(splits: Splits, get_keys: Callable[[Rows], SplitKeys], notes: list[str]) -> Rows:
    """Return the training rows that are in no other split."""
    train, keys = splits["train"], get_keys(splits["train"])
    others = [get_keys(rows).identity for name, rows in splits.items() if name != "train"]
    remaining = find_non_overlapping(keys.identity, others)
    if not len(remaining):
        raise UserError(
            f"{train.files[0]}: every training text is also evaluated on; pass other --validation rows"
        )
    if len(remaining) == len(train):
        return train
    removed = format_count(len(train) - len(remaining), f"training {keys.unit}")
    notes.append(f"{removed} left out: also in an evaluation split")
    return train.select(remaining)


def _hold_out(train: Rows, keys: SplitKeys, fraction: float, seed: int) -> tuple[Rows, Rows]:
    if fraction == 0:
        raise UserError(
            "--validation-fraction 0: holds out no rows; pass a larger fraction, or --validation FILE"
        )
    remaining, held_out = split_stratified(keys.group, keys.stratum, fraction, seed)
    if len(held_out) and len(remaining):
        return train.select(remaining), train.select(held_out)
    num_groups, unit = len(set(keys.group)), keys.group_unit or "row"
    if num_groups == 1:
        raise UserError(
            f"{train.files[0]}: there is only one {unit}, so none can be held out for validation; "
            "add rows, or pass --validation FILE"
        )
    count = num_groups if keys.group_unit else len(train)
    raise UserError(
        f"{train.files[0]}: {count} {unit}s are too few to hold out {fraction:.0%} for validation; "
        "pass --validation FILE or a larger --validation-fraction"
    )


def _describe_held_out(keys: SplitKeys, size: int, total: int, fraction: float, seed: int) -> str:
    detail = f"{size / total:.0%}, whole {keys.group_unit}s" if keys.group_unit else f"{fraction:.0%}"
    return f"{format_count(size, keys.unit)} ({detail}) held out for validation (seed {seed})"
