"""Hold out validation rows, sample rows, and remove training rows that also occur in other splits."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from bertkit.data.groups_and_times import TIME_FLAG, TimeColumn, hash_groups
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
        group_column: Column of `--group-column`; None without the flag.
        column_group: [n] key of the row's group in this column. It is part of `group`.
        time_column: Column of `--time-column`; None without the flag.
        time: [n] number of the row's time in this column; larger numbers are later.
    """

    identity: np.ndarray
    group: np.ndarray
    stratum: np.ndarray
    group_unit: str = ""
    unit: str = "row"
    classes: frozenset[str] = frozenset()
    group_column: str | None = None
    column_group: np.ndarray | None = None
    time_column: str | None = None
    time: np.ndarray | None = None

    def select(self, index: np.ndarray) -> "SplitKeys":
        """Return the keys of the rows at `index`; `classes` remain those of all rows."""
        arrays = {name: value[index] for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return replace(self, **arrays)

    def add_group_column(self, rows: Rows, column: str) -> "SplitKeys":
        """Return keys that also keep the rows with the same value in a column together."""
        values = hash_groups(rows, column)
        # Equal texts of several authors would join the groups of all of them.
        has_own_groups = not np.array_equal(self.group, self.identity)
        group = join_keys(self.group, values) if has_own_groups else values
        return replace(
            self, group=group, group_unit=f"{column} group", group_column=column, column_group=values
        )

    def add_time_column(self, rows: Rows, column: TimeColumn) -> "SplitKeys":
        """Return keys by which the rows that are held out are the latest ones."""
        return replace(self, time_column=column.name, time=column.read(rows))


def join_keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return [n] groups such that rows with the same first or the same second key are in one group."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    (first, _), (second, _) = number_groups(first), number_groups(second)
    num_first, num_second = first.max(initial=-1) + 1, second.max(initial=-1) + 1
    size = num_first + num_second
    edges = coo_array((np.ones(len(first), bool), (first, num_first + second)), (size, size))
    _, component = connected_components(edges, directed=False)
    return component[first]


def join_groups(keys: SplitKeys) -> np.ndarray:
    """Return [n] groups such that rows with the same identity or the same group are in one group.

    With `--group-column`, they are the groups alone: a text of several groups would join them. Who splits by
    these groups removes equal texts with `find_overlap`.
    """
    return keys.group if keys.group_column else join_keys(keys.identity, keys.group)


# ---- which rows are held out


def hold_out(keys: SplitKeys, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into training rows and held-out rows: the latest ones, whole groups, or random ones.

    Held-out rows are later than all training rows, which may have rows of the same group: see `find_overlap`.

    Returns:
        Indices of the training rows and indices of the held-out rows, both ascending.
    """
    if keys.time is not None:
        order = np.argsort(keys.time, kind="stable")
        boundaries = _find_boundaries(keys.time[order], np.array([len(order) - round(fraction * len(order))]))
        first = boundaries[0] if len(boundaries) else len(order)
        return np.sort(order[:first]), np.sort(order[first:])
    if keys.group_column is not None:
        return split_groups(keys.group, keys.stratum, fraction, seed)
    return split_stratified(keys.group, keys.stratum, fraction, seed)


def make_folds(keys: SplitKeys, num_folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the indices of the rows to train on and of the rows to test on, for each fold.

    Each row is tested once. With times, a fold is tested on later rows than it is trained on, as in
    scikit-learn's `TimeSeriesSplit`, and the earliest rows are only trained on. Raise a `UserError` if there
    are too few groups or times.
    """
    from sklearn.model_selection import TimeSeriesSplit

    if keys.time is None:
        fold = assign_row_folds(keys, num_folds, seed)
        return [(np.flatnonzero(fold != each), np.flatnonzero(fold == each)) for each in range(num_folds)]
    order = np.argsort(keys.time, kind="stable")
    num_times = len(np.unique(keys.time))
    boundaries = np.zeros(0, int)
    if num_times > num_folds:
        blocks = TimeSeriesSplit(num_folds).split(order)
        boundaries = _find_boundaries(keys.time[order], np.array([test[0] for _, test in blocks]))
    if len(boundaries) < num_folds:
        raise UserError(
            f"--folds {num_folds}: the {num_times:,} different values of {keys.time_column!r} ({TIME_FLAG}) "
            f"do not divide the rows into {num_folds + 1} periods; use fewer folds"
        )
    ends = [*boundaries[1:], len(order)]
    return [
        (np.sort(order[:start]), np.sort(order[start:end]))
        for start, end in zip(boundaries, ends, strict=True)
    ]


def _find_boundaries(times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the distinct indices nearest to the wanted ones at which the ascending times change."""
    changes = np.flatnonzero(np.diff(times)) + 1
    if not len(changes):
        return changes
    after = np.minimum(np.searchsorted(changes, wanted), len(changes) - 1)
    before = np.maximum(after - 1, 0)
    is_before = wanted - changes[before] < changes[after] - wanted
    return np.unique(changes[np.where(is_before, before, after)])


def split_groups(
    groups: np.ndarray, strata: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into training rows and held-out rows such that whole groups are held out.

    The held-out rows are some of the folds of `assign_balanced_folds`, so that groups of any size give about
    the fraction, also of each stratum. If possible, each stratum keeps training rows.
    """
    num_groups = len(np.unique(groups))
    if num_groups < 2:
        return np.arange(len(groups)), np.arange(0)
    part = Fraction(fraction).limit_denominator(min(MAX_PARTS, num_groups))
    if part.numerator == 0:
        part = Fraction(1, min(MAX_SMALL_PARTS, num_groups, round(1 / fraction)))
    elif part == 1:
        part = Fraction(num_groups - 1, num_groups)
    fold = assign_balanced_folds(groups, strata, part.denominator, seed)
    order = np.random.default_rng([seed, 1]).permutation(part.denominator)
    num_strata = len(np.unique(strata))
    choices = [np.isin(fold, np.roll(order, shift)[: part.numerator]) for shift in range(len(order))]
    complete = (each for each in choices if len(np.unique(strata[~each])) == num_strata)
    is_held_out = next(complete, choices[0])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


# A held-out fraction with whole groups is a number of parts of at most this many, or one part of more.
MAX_PARTS, MAX_SMALL_PARTS = 20, 100
MAX_UNITS = 2_000  # more groups are assigned to folds in random bundles, the largest ones alone
MAX_STRATA = 50  # the rarest ones beyond that count as one


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


def assign_balanced_folds(groups: np.ndarray, strata: np.ndarray, num_folds: int, seed: int) -> np.ndarray:
    """Return [n] the index of the fold of each row, by scikit-learn's `StratifiedGroupKFold`.

    All rows of a group are in one fold. The folds have similar numbers of rows, also of each stratum, even if
    groups are of different sizes. There must be at least as many groups as folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    rng = np.random.default_rng(seed)
    group, _ = number_groups(groups)
    sizes = np.bincount(group)
    if len(sizes) > MAX_UNITS:
        num_alone = MAX_UNITS // 2
        unit = np.empty(len(sizes), int)
        largest_first = np.lexsort((rng.random(len(sizes)), -sizes))
        unit[largest_first] = np.arange(len(sizes))
        is_bundled = unit >= num_alone
        unit[is_bundled] = num_alone + rng.permutation(is_bundled.sum()) % (MAX_UNITS - num_alone)
        group = unit[group]
    # The class breaks ties by the order of the groups. Its own `shuffle` does not stratify in old versions.
    shuffled_group = rng.permutation(group.max() + 1)[group]
    stratum, _ = number_groups(strata)
    counts = np.bincount(stratum)
    if len(counts) > MAX_STRATA:
        rank = np.empty(len(counts), int)
        rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        stratum = np.minimum(rank, MAX_STRATA - 1)[stratum]
    if np.bincount(stratum).max() < num_folds:  # which the class refuses
        stratum = np.zeros(len(stratum), int)
    fold = np.empty(len(groups), int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about classes with fewer rows than folds
        parts = StratifiedGroupKFold(num_folds).split(np.zeros(len(groups)), stratum, shuffled_group)
        for number, (_, test) in enumerate(parts):
            fold[test] = number
    return fold


def assign_row_folds(keys: SplitKeys, num_folds: int, seed: int) -> np.ndarray:
    """Return [n] the index of the fold of each row; equal rows and rows of a group are in one fold.

    With `--group-column`, equal rows of several groups can be in several folds. Times have no effect.
    """
    groups = join_groups(keys)
    assign = assign_balanced_folds if keys.group_column else assign_folds
    return assign(groups, keys.stratum, num_folds, seed)


# ---- splits


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

    Training rows that also occur in another split are removed, and with `--group-column` or `--time-column`
    those of its groups or of its time. If there is no validation split, some of the training rows are held
    out: the given fraction, by default 10%.
    """
    notes: list[str] = []
    splits = dict(splits)
    if not keep_overlap:
        splits["train"] = remove_overlap(splits, get_keys, notes)
    if "validation" not in splits:
        rows, keys = splits["train"], get_keys(splits["train"])
        fraction = DEFAULT_FRACTION if fraction is None else fraction
        train, held_out = _hold_out(rows, keys, fraction, seed)
        size = len(held_out)
        detail = f"{fraction:.0%}"
        if keys.time_column:
            detail = f"{size / len(rows):.0%}, the latest by {keys.time_column}"
        elif keys.group_unit:
            detail = f"{size / len(rows):.0%}, whole {keys.group_unit}s"
        by_seed = "" if keys.time_column else f" (seed {seed})"
        notes.append(f"{format_count(size, keys.unit)} ({detail}) held out for validation{by_seed}")
        # Equal rows can be in different groups, and rows of a group can be of different times.
        if (keys.group_unit or keys.time_column) and not keep_overlap:
            overlap = find_overlap(keys.select(train), [keys.select(held_out)], of_same_rows=True)
            train = train[_select_allowed(rows, overlap, len(train), keys.unit)]
            notes += describe_overlap(overlap, keys.unit)
        splits["train"], splits["validation"] = rows.select(train), rows.select(held_out)
    elif fraction is not None:
        notes.append("--validation-fraction has no effect: the dataset has a validation split")
    return splits, notes


def find_overlap(
    train: SplitKeys, others: Sequence[SplitKeys], of_same_rows: bool = False
) -> dict[str, np.ndarray]:
    """Return [train] masks of the rows that may not be trained on beside the other rows, by the reason.

    If all keys were selected from those `of_same_rows`, this includes groups of the task. Other keys have a
    common numbering only of texts and of the groups of `--group-column`.
    """
    reasons = {"also in an evaluation split": np.isin(train.identity, _concatenate(others, "identity"))}
    if train.column_group is not None:
        reason = f"of the same {train.group_column} as an evaluation row"
        reasons[reason] = np.isin(train.column_group, _concatenate(others, "column_group"))
    if train.time is not None:
        times = _concatenate(others, "time")
        is_late = train.time >= times.min() if len(times) else np.zeros(len(train.time), bool)
        reasons["not earlier than an evaluation row"] = is_late
        if of_same_rows:  # they were held out by time alone
            reason = f"of the same {train.group_unit or 'group'} as an evaluation row"
            reasons[reason] = np.isin(train.group, _concatenate(others, "group"))
    return {reason: is_affected for reason, is_affected in reasons.items() if is_affected.any()}


def _concatenate(keys: Sequence[SplitKeys], name: str) -> np.ndarray:
    arrays = [array for each in keys if (array := getattr(each, name)) is not None]
    return np.concatenate(arrays) if arrays else np.zeros(0)


def find_split_overlap(splits: Splits, get_keys: Callable[[Rows], SplitKeys]) -> dict[str, np.ndarray]:
    """Return the result of `find_overlap` for the training rows and all other splits."""
    others = [get_keys(rows) for name, rows in splits.items() if name != "train"]
    return find_overlap(get_keys(splits["train"]), others)


def remove_overlap(splits: Splits, get_keys: Callable[[Rows], SplitKeys], notes: list[str]) -> Rows:
    """Return the training rows without those of `find_split_overlap`, and add notes on their numbers."""
    train, unit = splits["train"], get_keys(splits["train"]).unit
    overlap = find_split_overlap(splits, get_keys)
    remaining = _select_allowed(train, overlap, len(train), unit)
    notes += describe_overlap(overlap, unit)
    return train if len(remaining) == len(train) else train.select(remaining)


def _select_allowed(train: Rows, overlap: Mapping[str, np.ndarray], size: int, unit: str) -> np.ndarray:
    """Return the indices of those of `size` rows for which `find_overlap` has no reason."""
    remaining = np.flatnonzero(~np.any([np.zeros(size, bool), *overlap.values()], axis=0))
    if not len(remaining):
        raise UserError(
            f"{train.files[0]}: every training {unit} is {' or '.join(overlap)}; "
            f"pass another --validation FILE, or keep the {unit}s with --keep-overlap"
        )
    return remaining


def describe_overlap(overlap: Mapping[str, np.ndarray], unit: str) -> list[str]:
    """Return a note for each reason of `find_overlap`; a row counts only for the first one."""
    notes = []
    is_counted: np.ndarray | bool = False
    for reason, is_affected in overlap.items():
        count = int((is_affected & ~np.asarray(is_counted)).sum())
        is_counted = is_counted | is_affected
        if count:
            removed = format_count(count, f"training {unit}")
            notes.append(f"{removed} left out: {reason} (--keep-overlap keeps them)")
    return notes


def _hold_out(train: Rows, keys: SplitKeys, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the remaining training rows and of the held-out rows, neither of them empty."""
    if fraction == 0:
        raise UserError(
            "--validation-fraction 0: holds out no rows; pass a larger fraction, or --validation FILE"
        )
    remaining, held_out = hold_out(keys, fraction, seed)
    if len(held_out) and len(remaining):
        return remaining, held_out
    if keys.time is not None:
        raise UserError(
            f"{train.files[0]}: column {keys.time_column!r} ({TIME_FLAG}) has the same time in all "
            f"{len(train):,} rows, so none are later than others; pass --validation FILE, or omit the flag"
        )
    num_groups, group_unit = len(np.unique(keys.group)), keys.group_unit or "row"
    if num_groups == 1:
        problem = f"there is only one {group_unit}"
        if keys.group_column:
            problem = f"{keys.group_column!r} and common texts join all rows to one group"
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
