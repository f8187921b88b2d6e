"""The order of batches: like lengths together, a pure function of (seed, epoch).

An epoch is laid out over effective batches (batch x accumulation x ranks) and only then cut, so the
same rows meet in each optimizer step however the effective batch is divided.
"""

from collections.abc import Iterator

import numpy as np

from bertkit.data.features import Features

POOL = 50  # effective batches sorted by length together: enough to be alike, few enough to stay random


class LengthBatches:
    """Batch sampler of a rank: yields lists of example indices, of all ranks each example once an epoch.

    Args:
        features: their `sizes_in` an epoch tell which are alike, their `keys` what is yielded.
        batch_size: examples a batch.
        accumulation: batches an optimizer step, those of all ranks.
        seed: fixes the order together with the epoch.
        share: the number of this rank, and how many there are.
    """

    drop_last = False

    def __init__(
        self, features: Features, batch_size: int, accumulation: int = 1, seed: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        self.features = features
        self.batch_size = batch_size
        self.effective = batch_size * accumulation
        self.seed = seed
        self.rank, self.ranks = share
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.features), self.effective)
        per_step = self.effective // self.batch_size // self.ranks
        return whole * per_step - (-rest // self.batch_size // self.ranks)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.effective_batches():
            for batch in self.dealt(self.cut(step)):
                yield self.features.keys(self.epoch, batch).tolist()

    def dealt(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """Those of a step that are this rank's; all ranks have as many, or one would wait for the others.

        The largest are halved for it: of a single example one half is empty.
        """
        while len(batches) % self.ranks:
            largest = max(range(len(batches)), key=lambda number: len(batches[number]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        return batches[self.rank :: self.ranks]

    def cut(self, step: np.ndarray) -> list[np.ndarray]:
        """The batches of an optimizer step: as many as are accumulated, of a short one fewer."""
        return np.split(step, range(self.batch_size, len(step), self.batch_size))

    def effective_batches(self) -> list[np.ndarray]:
        """The rows of each optimizer step of this epoch; a short one comes last."""
        rng = np.random.default_rng([self.seed, self.epoch])
        sizes = self.features.sizes_in(self.epoch)
        order = rng.permutation(len(sizes))
        whole = len(order) - len(order) % self.effective
        full: list[np.ndarray] = []
        for start in range(0, whole, self.effective * POOL):
            part = order[start : min(whole, start + self.effective * POOL)]
            part = part[np.argsort(sizes[part], kind="stable")]
            full.extend(np.split(part, len(part) // self.effective))
        short = [order[whole:]] if whole < len(order) else []
        return [full[i] for i in rng.permutation(len(full))] + short

    @property
    def steps(self) -> int:
        """Optimizer steps an epoch, a short last one included."""
        return -(-len(self.features) // self.effective)

    def longest(self) -> list[int]:
        """The batch that costs the most memory: the longest examples of the epoch together."""
        order = np.argsort(-self.features.sizes_in(self.epoch), kind="stable")[: self.batch_size]
        return self.features.keys(self.epoch, order).tolist()

    def pieces(self, begin: int, stop: int) -> float:
        """How many pieces the examples of these steps of the run have, by the mean of an epoch."""
        return float(self.features.lengths.sum()) * (stop - begin) / self.steps

    def switches(self) -> dict[int, str]:
        """After which steps the examples become others, and what the user is told then."""
        return {}
