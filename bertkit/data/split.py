"""Setting rows aside: stratified, by seed, and never the same text on both sides."""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from bertkit.data.rows import Rows, Splits
from bertkit.errors import UserError

Texts = Sequence[Hashable]


def set_aside(texts: Texts, strata: Texts, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row indices of the kept part and of the part set aside, each in the order of the rows.

    Rows with the same text go together. The strata's shares are rounded so that they add up to the
    whole share, and each stratum keeps at least one text.

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


def without_overlap(train: Texts, others: Sequence[Texts]) -> np.ndarray:
    """Indices of the training rows whose text stands in none of the other splits."""
    seen = {text for texts in others for text in texts}
    return np.array([index for index, text in enumerate(train) if text not in seen], dtype=np.int64)


def draw(rows: Rows, size: int | None, seed: int) -> Rows:
    """`size` rows drawn by seed, in the order of the file; all of them where there are fewer."""
    if size is None or size >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:size]))


def arrange(
    splits: Splits, columns: list[str], strata: list[Hashable], fraction: float | None, seed: int
) -> tuple[Splits, list[str]]:
    """A training and a validation split with no text in common, and notes on what was done.

    Args:
        columns: the text columns.
        strata: [len(splits["train"])] what the share set aside is stratified by.

    Raises:
        UserError: too few rows to set any aside.
    """
    notes: list[str] = []
    splits = dict(splits)
    train = splits["train"]
    others = [rows.texts(columns) for name, rows in splits.items() if name != "train"]
    kept = without_overlap(train.texts(columns), others)
    if not len(kept):
        raise UserError(
            f"{train.files[0]}: every training text is also evaluated on; give other --validation rows"
        )
    if len(kept) < len(train):
        notes.append(f"{len(train) - len(kept):,} training rows left out: their text is also evaluated on")
        strata, train = [strata[i] for i in kept], train.select(kept)
    if "validation" not in splits:
        share = 0.1 if fraction is None else fraction
        stay, aside = set_aside(train.texts(columns), strata, share, seed)
        if not len(aside) or not len(stay):
            raise UserError(
                f"{train.files[0]}: {len(train)} rows are too few to set {share:.0%} aside for validation; "
                "give --validation FILE or a larger --validation-fraction"
            )
        notes.append(f"no validation file: {len(aside):,} rows ({share:.0%}) set aside by seed {seed}")
        splits["validation"], train = train.select(aside), train.select(stay)
    return {**splits, "train": train}, notes
