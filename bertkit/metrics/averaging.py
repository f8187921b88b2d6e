"""Averages of the scores and the fitted parameters of several runs."""

from collections.abc import Mapping, Sequence

import numpy as np


def average_values(members: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each value that all members have, by name."""
    names = [name for name in members[0] if all(name in member for member in members)]
    return {name: float(np.mean([member[name] for member in members])) for name in names}
