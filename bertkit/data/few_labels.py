"""Few labeled rows: sample the same number of each class."""

from collections.abc import Sequence

import numpy as np

from bertkit.data.rows import Rows
from bertkit.errors import UserError, format_count


def to_membership(labels: np.ndarray, num_labels: int) -> np.ndarray:
    """Return [n, labels] whether a row has a label.

    Args:
        labels: [n] label ids, or [n, labels] with 0 and 1.
        num_labels: Number of labels.
    """
    return labels.astype(bool) if labels.ndim == 2 else labels[:, None] == np.arange(num_labels)


def sample_per_class(rows: Rows, membership: np.ndarray, names: Sequence[str], shots: int, seed: int) -> Rows:
    """Return random rows of each class in their original order.

    For the same seed, the rows of a smaller number are among those of a larger number.

    Args:
        rows: The rows.
        membership: [n, classes] whether a row is in a class. A row may be in several classes.
        names: Names of the classes, for the error.
        shots: Number of rows per class.
        seed: Seed of the random choice.

    Raises:
        UserError: A class has fewer rows.
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
