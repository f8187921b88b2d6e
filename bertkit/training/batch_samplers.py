"""The order of batches: like lengths together, a pure function of (seed, epoch).

An epoch is laid out over effective batches (batch x accumulation x ranks) and only then cut, so the
same rows meet in each optimizer step however the effective batch is divided.
"""

from collections.abc import Iterator

import numpy as np

from bertkit.data.features import Features

POOL_SIZE = 50  # effective batches sorted by length together: enough to be alike, few enough to stay random


class LengthGroupedBatchSampler:
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
        self, features: Features, batch_size: int, batches_per_step: int = 1, seed: int = 0,
        rank_and_world_size: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        self.features = features
        self.batch_size = batch_size
        self.effective_batch_size = batch_size * batches_per_step
        self.seed = seed
        self.rank, self.world_size = rank_and_world_size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.features), self.effective_batch_size)
        per_step = self.effective_batch_size // self.batch_size // self.world_size
        return whole * per_step - (-rest // self.batch_size // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.plan_effective_batches():
            for batch in self.split_across_ranks(self.split_into_batches(step)):
                yield self.features.example_keys_for_epoch(self.epoch, batch).tolist()

    def split_across_ranks(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """Those of a step that are this rank's; all ranks have as many, or one would wait for the others.

        The largest are halved for it: of a single example one half is empty.
        """
        while len(batches) % self.world_size:
            largest = max(range(len(batches)), key=lambda number: len(batches[number]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        return batches[self.rank :: self.world_size]

    def split_into_batches(self, step: np.ndarray) -> list[np.ndarray]:
        """The batches of an optimizer step: as many as are accumulated, of a short one fewer."""
        return np.split(step, range(self.batch_size, len(step), self.batch_size))

    def plan_effective_batches(self) -> list[np.ndarray]:
        """The rows of each optimizer step of this epoch; a short one comes last."""
        rng = np.random.default_rng([self.seed, self.epoch])
        sizes = self.features.length_keys_for_epoch(self.epoch)
        order = rng.permutation(len(sizes))
        whole = len(order) - len(order) % self.effective_batch_size
        full: list[np.ndarray] = []
        for start in range(0, whole, self.effective_batch_size * POOL_SIZE):
            part = order[start : min(whole, start + self.effective_batch_size * POOL_SIZE)]
            part = part[np.argsort(sizes[part], kind="stable")]
            full.extend(np.split(part, len(part) // self.effective_batch_size))
        short = [order[whole:]] if whole < len(order) else []
        return [full[i] for i in rng.permutation(len(full))] + short

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps an epoch, a short last one included."""
        return -(-len(self.features) // self.effective_batch_size)

    def get_longest_batch(self) -> list[int]:
        """The batch that costs the most memory: the longest examples of the epoch together."""
        order = np.argsort(-self.features.length_keys_for_epoch(self.epoch), kind="stable")[: self.batch_size]
        return self.features.example_keys_for_epoch(self.epoch, order).tolist()

    def count_tokens(self, begin: int, stop: int) -> float:
        """How many pieces the examples of these steps of the run have, by the mean of an epoch."""
        return float(self.features.lengths.sum()) * (stop - begin) / self.steps_per_epoch

    def list_phase_changes(self) -> dict[int, str]:
        """After which steps the examples become others, and what the user is told then."""
        return {}
