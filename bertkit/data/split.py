"""Hold out validation rows, sample rows, and remove training rows that also occur in other splits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.table import Rows, Splits, number_groups
from bertkit.errors import UserError, format_count

DEFAULT_FRACTION = 0.1


@dataclass(frozen=True)
class SplitKeys:
    """Keys of `n` rows, which control how the rows are distributed among the splits.

    A key is a number, such as a hash (see `Rows.hash_columns`). Rows with equal keys belong together.

    Attributes:
        identity: [n] rows with the same identity are duplicates. A training row is removed if a row of
            another split has the same identity.
        group: [n] rows with the same group stay in the same split.
        stratum: [n] code of the label or a similar property. The same fraction of each stratum is held out.
        group_unit: Singular noun for a group in notes and errors; empty if each row is a group.
        unit: Singular noun for a row in notes and errors.
        classes: The labels or entity types of the rows; empty for tasks without classes.
    """

    identity: np.ndarray
    group: np.ndarray
    stratum: np.ndarray
    group_unit: str = ""
    unit: str = "row"
    classes: frozenset[str] = frozenset()


def join_groups(keys: SplitKeys) -> np.ndarray:
    """Return [n] groups such that rows with the same identity or the same group are in one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    identity, _ = number_groups(keys.identity)
    group, _ = number_groups(keys.group)
    num_identities, num_groups = identity.max(initial=-1) + 1, group.max(initial=-1) + 1
    size = num_identities + num_groups
    edges = coo_array((np.ones(len(identity), bool), (identity, num_identities + group)), (size, size))
    _, component = connected_components(edges, directed=False)
    return component[identity]


def split_stratified(
    groups: np.ndarray, strata: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into training rows and held-out rows.

    All rows of a group stay together, in the stratum of the group's first row. At least one group of each
    stratum remains for training.

    Returns:
        Indices of the training rows and indices of the held-out rows, both ascending.
    """
    rng = np.random.default_rng(seed)
    row_group, first_rows = number_groups(groups)
    group_stratum, first_groups = number_groups(strata[first_rows])
    groups_per_stratum = np.bincount(group_stratum, minlength=len(first_groups))
    # The numbers of held-out groups add up to the rounded fraction of all groups (largest remainder method),
    # as long as each stratum keeps one group. 1e-9 offsets rounding errors: 0.29 * 100 is less than 29.
    exact = fraction * groups_per_stratum
    max_counts = np.maximum(0, groups_per_stratum - 1)
    held_out_counts = np.minimum(np.floor(exact + 1e-9).astype(int), max_counts)
    num_missing = min(round(exact.sum()), int(max_counts.sum())) - held_out_counts.sum()
    # The seed decides between equal remainders, with another stream than `rng`, so the choice of groups is
    # independent of ties.
    tie_breakers = np.random.default_rng([seed, 1]).random(len(exact))
    order = np.lexsort((tie_breakers, held_out_counts - exact))  # the largest remainder first
    can_grow = [stratum for stratum in order if held_out_counts[stratum] < max_counts[stratum]]
    held_out_counts[can_grow[: max(0, num_missing)]] += 1
    groups_by_stratum = np.argsort(group_stratum, kind="stable")
    members_by_stratum = np.split(groups_by_stratum, np.cumsum(groups_per_stratum)[:-1])
    is_held_out = np.zeros(len(first_rows), bool)
    for members, count in zip(members_by_stratum, held_out_counts, strict=True):
        is_held_out[members[rng.permutation(len(members))[:count]]] = True
    return np.flatnonzero(~is_held_out[row_group]), np.flatnonzero(is_held_out[row_group])


def assign_folds(groups: np.ndarray, strata: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return [n] the index of the fold of each row.

    All rows of a group are in one fold. The folds have almost equal numbers of groups, of each stratum too.

    Args:
        strata: [n] stratum of each row; a group is in the stratum of its first row.
    """
    row_group, first_rows = number_groups(groups)
    group_stratum, _ = number_groups(strata[first_rows])
    shuffled = np.random.default_rng(seed).permutation(len(first_rows))
    by_stratum = shuffled[np.argsort(group_stratum[shuffled], kind="stable")]
    fold = np.empty(len(first_rows), int)
    fold[by_stratum] = np.arange(len(first_rows)) % num_folds
    return fold[row_group]


def sample_rows(rows: Rows, size: int | None, seed: int) -> Rows:
    """Return `size` random rows in their original order, or all rows if `size` is None or not smaller."""
    if size is None or size >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:size]))


def make_splits(
    splits: Splits,
    get_keys: Callable[[Rows], SplitKeys],
    fraction: float | None,
    seed: int,
    keep_overlap: bool = False,
) -> tuple[Splits, list[str]]:
    """Return all splits, including a validation split, and notes on removed and held-out rows.

    Training rows that also occur in another split are removed. If there is no validation split, some of the
    training rows are held out: the given fraction, by default 10%.
    """
    notes: list[str] = []
    splits = dict(splits)
    if not keep_overlap:
        splits["train"] = remove_overlap(splits, get_keys, notes)
    if "validation" not in splits:
        rows, keys = splits["train"], get_keys(splits["train"])
        fraction = DEFAULT_FRACTION if fraction is None else fraction
        splits["train"], splits["validation"] = _hold_out(rows, keys, fraction, seed)
        size = len(splits["validation"])
        whole_groups = f"{size / len(rows):.0%}, whole {keys.group_unit}s"
        detail = whole_groups if keys.group_unit else f"{fraction:.0%}"
        notes.append(f"{format_count(size, keys.unit)} ({detail}) held out for validation (seed {seed})")
        if keys.group_unit and not keep_overlap:  # equal rows can be in different groups
            splits["train"] = remove_overlap(splits, get_keys, notes)
    elif fraction is not None:
        notes.append("--validation-fraction has no effect: the dataset has a validation split")
    return splits, notes


def count_overlap(splits: Splits, get_keys: Callable[[Rows], SplitKeys]) -> int:
    """Return the number of training rows that occur in another split."""
    remaining = find_remaining(splits, get_keys, get_keys(splits["train"]))
    return len(splits["train"]) - len(remaining)


def find_remaining(
    splits: Splits, get_keys: Callable[[Rows], SplitKeys], train_keys: SplitKeys
) -> np.ndarray:
    """Return the indices of the rows with the keys `train_keys` that occur in no split but "train"."""
    other_splits = [get_keys(rows).identity for name, rows in splits.items() if name != "train"]
    if not other_splits:
        return np.arange(len(train_keys.identity))
    return np.flatnonzero(~np.isin(train_keys.identity, np.concatenate(other_splits)))


def remove_overlap(splits: Splits, get_keys: Callable[[Rows], SplitKeys], notes: list[str]) -> Rows:
    """Return the training rows that occur in no other split, and add a note on the removed rows."""
    train, keys = splits["train"], get_keys(splits["train"])
    remaining = find_remaining(splits, get_keys, keys)
    if not len(remaining):
        raise UserError(
            f"{train.files[0]}: every training {keys.unit} is also in an evaluation split; "
            f"pass another --validation FILE, or keep the {keys.unit}s with --keep-overlap"
        )
    if len(remaining) == len(train):
        return train
    removed = format_count(len(train) - len(remaining), f"training {keys.unit}")
    notes.append(f"{removed} left out: also in an evaluation split (--keep-overlap keeps them)")
    return train.select(remaining)


def _hold_out(train: Rows, keys: SplitKeys, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Return the remaining training rows and the held-out validation rows, neither of them empty."""
    if fraction == 0:
        raise UserError(
            "--validation-fraction 0: holds out no rows; pass a larger fraction, or --validation FILE"
        )
    remaining, held_out = split_stratified(keys.group, keys.stratum, fraction, seed)
    if len(held_out) and len(remaining):
        return train.select(remaining), train.select(held_out)
    num_groups, group_unit = len(np.unique(keys.group)), keys.group_unit or "row"
    if num_groups == 1:
        problem = f"there is only one {group_unit}"
        if not keys.group_unit and len(train) > 1:
            are_equal = len(np.unique(keys.identity)) == 1
            problem = f"all {len(train):,} rows {'are equal' if are_equal else 'have a common text'}"
        raise UserError(
            f"{train.files[0]}: {problem}, so none can be held out for validation; "
            "add rows, or pass --validation FILE"
        )
    if not keys.group_unit and num_groups < len(train):
        raise UserError(
            f"{train.files[0]}: rows with a common text stay in one split, and the {len(train):,} "
            f"{keys.unit}s form only {num_groups:,} such groups, too few to hold out {fraction:.0%} for "
            "validation; pass --validation FILE"
        )
    count = num_groups if keys.group_unit else len(train)
    raise UserError(
        f"{train.files[0]}: {count} {group_unit}s are too few to hold out {fraction:.0%} for validation; "
        "pass --validation FILE or a larger --validation-fraction"
    )


def to_membership(labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Return [n, labels] whether a row has a label, given [n] label ids or [n, labels] with 0 and 1."""
    return labels.astype(bool) if labels.ndim == 2 else labels[:, None] == np.arange(num_labels)


def sample_per_class(rows: Rows, membership: np.ndarray, names: Sequence[str], shots: int, seed: int) -> Rows:
    """Return random rows of each class in their original order.

    For the same seed, the rows of a smaller number are among those of a larger number.

    Args:
        membership: [n, classes] whether a row is in a class. A row may be in several classes.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    sampled = np.zeros(len(rows), bool)
    for name, is_member in zip(names, membership.T, strict=True):
        members = order[is_member[order]]
        if len(members) < shots:
            raise UserError(
                f"--shots {shots}: class {name!r} has only {format_count(len(members), 'training row')}; "
                "pass a smaller number, or add rows"
            )
        sampled[members[:shots]] = True
    return rows.select(np.flatnonzero(sampled))
