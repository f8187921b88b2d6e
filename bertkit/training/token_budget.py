"""Batches by a budget: as many examples as their pieces, padding counted, stay within it."""

import numpy as np

from bertkit.data.features import Features
from bertkit.training.batch_samplers import LengthGroupedBatchSampler


class TokenBudgetBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler: long examples a few at a time, short ones many, no batch over a budget of padded pieces.

    An epoch is sorted by size, the longest first and ties at random, and cut where the budget is spent. Where
    it is cut depends on sizes alone: each epoch has as many batches and steps, of other examples. One example
    that is over the budget by itself, a document of many windows, has a batch of its own.

    Args:
        features: as of `LengthBatches`; their sizes must be the same in every epoch.
        tokens: padded pieces a batch, over all sequences of its examples.
        accumulation: batches an optimizer step, over all ranks.
        seed: fixes the order together with the epoch.
        share: the number of this rank, and how many there are.
    """

    def __init__(
        self, features: Features, tokens_per_batch: int, batches_per_step: int = 1, seed: int = 0,
        rank_and_world_size: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        self.max_sequence_lengths = np.maximum.reduceat(
            features.sequence_lengths, features.sequence_offsets[:-1]
        )
        self.sequence_counts = np.diff(features.sequence_offsets)
        longest = int(self.max_sequence_lengths.max())
        tokens_per_batch = min(
            tokens_per_batch, longest * int(self.sequence_counts.sum())
        )  # all in one batch
        fewest = max(1, tokens_per_batch // longest)
        super().__init__(features, fewest, batches_per_step, seed, rank_and_world_size)
        self.tokens_per_batch, self.batches_per_step = tokens_per_batch, batches_per_step
        self.batch_starts = self._begins(np.argsort(-features.length_keys, kind="stable"))

    def _begins(self, examples: np.ndarray) -> list[int]:
        """Where each batch of some examples begins, the longest of them first."""
        lengths, counts = self.max_sequence_lengths[examples], self.sequence_counts[examples]
        stops = np.cumsum(counts)
        begins, at = [], 0
        while at < len(examples):
            begins.append(at)
            most = stops[at] - counts[at] + self.tokens_per_batch // lengths[at]
            at = max(at + 1, int(np.searchsorted(stops, most, side="right")))
        return begins

    def __len__(self) -> int:
        whole, rest = divmod(len(self.batch_starts), self.batches_per_step)
        return whole * (self.batches_per_step // self.world_size) - (-rest // self.world_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps an epoch, a short last one included."""
        return -(-len(self.batch_starts) // self.batches_per_step)

    def split_into_batches(self, step: np.ndarray) -> list[np.ndarray]:
        """The batches of an optimizer step, cut as those of the whole epoch are."""
        return np.split(step, self._begins(step)[1:])

    def plan_effective_batches(self) -> list[np.ndarray]:
        """The rows of each optimizer step of this epoch, in any order; a short one comes last.

        In the first epoch that with the largest batch comes first, so that memory runs out at once or never.
        """
        rng = np.random.default_rng([self.seed, self.epoch])
        steps = np.split(self._sorted(rng), self.batch_starts[self.batches_per_step :: self.batches_per_step])
        whole = len(self.batch_starts) // self.batches_per_step
        order = rng.permutation(whole).tolist()
        largest = self._largest() // self.batches_per_step
        if self.epoch == 0 and largest in order:
            order.remove(largest)
            order.insert(0, largest)
        return [steps[number] for number in order] + steps[whole:]

    def _sorted(self, rng: np.random.Generator) -> np.ndarray:
        return np.lexsort((rng.random(len(self.features)), -self.features.length_keys))

    def _largest(self) -> int:
        """The number of the batch with the most padded pieces; of several that with the longest examples."""
        in_order = np.argsort(-self.features.length_keys, kind="stable")
        counts = np.add.reduceat(self.sequence_counts[in_order], self.batch_starts)
        return int(np.argmax(counts * self.max_sequence_lengths[in_order][self.batch_starts]))

    def get_longest_batch(self) -> list[int]:
        """The batch that costs the most memory, as in the first epoch."""
        ends = [*self.batch_starts, len(self.features)]
        batch, first = self._largest(), self._sorted(np.random.default_rng([self.seed, 0]))
        return self.features.example_keys_for_epoch(0, first[ends[batch] : ends[batch + 1]]).tolist()
