"""Setting rows aside: stratified, by seed, and never the same text on both sides."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError, format_count

GroupKeys = Sequence[Hashable]


@dataclass(frozen=True)
class SplitKeys:
    """What tells the `n` examples of a split apart; each is [n].

    Attributes:
        identity: the example: a training row whose identity is also evaluated on is left out.
        together: examples that stay on one side where a share is set aside.
        stratum: the label (or anything hashable) whose shares should be equal on both sides.
        whole: what they are together, for the notes, where that is more than a row.
        unit: what a row is called in the notes.
    """

    identity: GroupKeys
    group: GroupKeys
    stratum: GroupKeys
    group_unit: str = ""
    unit: str = "row"


def split_stratified(
    texts: GroupKeys, strata: GroupKeys, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Row indices of the kept part and of the part set aside, each in the order of the rows.

    Rows with the same text go together, in the stratum of the first of them. The strata's shares are
    rounded so that they add up to the whole share, and each stratum keeps at least one text.

    Args:
        texts: [n] what tells one example from another.
        strata: [n] the label (or anything hashable) whose shares should be equal on both sides.
    """
    rng = np.random.default_rng(seed)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        groups[text].append(index)
    by_stratum: dict[Hashable, list[list[int]]] = defaultdict(list)
    for indices in groups.values():
        by_stratum[strata[indices[0]]].append(indices)
    strata_of_groups = list(by_stratum.values())
    sizes = _shares([len(members) for members in strata_of_groups], fraction, seed)
    aside: list[int] = []
    for members, size in zip(strata_of_groups, sizes, strict=True):
        aside.extend(index for group in rng.permutation(len(members))[:size] for index in members[group])
    mask = np.zeros(len(texts), bool)
    mask[aside] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def _shares(sizes: Sequence[int], fraction: float, seed: int) -> np.ndarray:
    """How many of each stratum: the largest remainders are rounded up, equal ones by seed."""
    exact = fraction * np.array(sizes, float)
    most = np.maximum(0, np.array(sizes) - 1)
    shares = np.minimum(np.floor(exact + 1e-9).astype(int), most)
    missing = min(round(exact.sum()), int(most.sum())) - shares.sum()
    order = np.lexsort((np.random.default_rng([seed, 1]).random(len(sizes)), shares - exact))
    open_ = [stratum for stratum in order if shares[stratum] < most[stratum]]
    shares[open_[: max(0, missing)]] += 1
    return shares


def find_non_overlapping(train: GroupKeys, others: Sequence[GroupKeys]) -> np.ndarray:
    """Indices of the training rows whose text stands in none of the other splits."""
    seen = {text for texts in others for text in texts}
    return np.array([index for index, text in enumerate(train) if text not in seen], dtype=np.int64)


def sample_rows(rows: Rows, size: int | None, seed: int) -> Rows:
    """`size` rows drawn by seed, in the order of the file; all of them where there are fewer."""
    if size is None or size >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:size]))


def make_splits(
    splits: Splits, get_keys: Callable[[Rows], SplitKeys], fraction: float | None, seed: int
) -> tuple[Splits, list[str]]:
    """A training and a validation split with no example in common, and notes on what was done.

    Raises:
        UserError: too few rows to set any aside.
    """
    notes: list[str] = []
    splits = dict(splits)
    train, keys = splits["train"], get_keys(splits["train"])
    kept = find_non_overlapping(
        keys.identity, [get_keys(rows).identity for name, rows in splits.items() if name != "train"]
    )
    if not len(kept):
        raise UserError(
            f"{train.files[0]}: every training text is also evaluated on; give other --validation rows"
        )
    if len(kept) < len(train):
        out = format_count(len(train) - len(kept), f"training {keys.unit}")
        notes.append(f"{out} left out: evaluated on as well")
        train = train.select(kept)
    if "validation" in splits and fraction is not None:
        notes.append("--validation-fraction is not used: the data has validation rows of its own")
    if "validation" not in splits:
        keys, rows = get_keys(train), len(train)
        train, splits["validation"] = _parted(train, keys, fraction, seed)
        size = len(splits["validation"])
        share = (
            f"{size / rows:.0%}, whole {keys.group_unit}s" if keys.group_unit else f"{_share(fraction):.0%}"
        )
        notes.append(
            f"no validation file: {format_count(size, keys.unit)} ({share}) set aside by seed {seed}"
        )
    return {**splits, "train": train}, notes


def _share(fraction: float | None) -> float:
    return 0.1 if fraction is None else fraction


def _parted(train: Rows, keys: SplitKeys, fraction: float | None, seed: int) -> tuple[Rows, Rows]:
    if fraction == 0:
        raise UserError("--validation-fraction 0 sets nothing aside; give more, or --validation FILE")
    stay, aside = split_stratified(keys.group, keys.stratum, _share(fraction), seed)
    if not len(aside) or not len(stay):
        n, what = len(set(keys.group)), keys.group_unit or "row"
        if n == 1:
            raise UserError(
                f"{train.files[0]}: all there is is one {what}, so none can be set aside for validation; "
                "give more, or --validation FILE"
            )
        raise UserError(
            f"{train.files[0]}: {n if keys.group_unit else len(train)} {what}s are too few to set "
            f"{_share(fraction):.0%} aside for validation; give --validation FILE or a larger "
            "--validation-fraction"
        )
    return train.select(stay), train.select(aside)
