"""Batch samplers: batches of similar length, with an order that depends only on (seed, epoch).

An epoch is divided into effective batches (batch size x accumulation x ranks) first, and these are then
split. So each optimizer step uses the same rows, however the effective batch is split.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
import torch

from bertkit.data.corpus.features import PHASE_EPOCH_OFFSET, PhasedFeatures
from bertkit.data.features import Features
from bertkit.errors import UserError

POOL_SIZE = 50  # effective batches that are sorted by length together; more would make batches less random
DUMMY_BATCH = "dummy_batch"  # the key that marks a dummy batch


class LengthGroupedBatchSampler:
    """Batch sampler of one rank: yields lists of example keys; all ranks together cover each epoch once.

    Args:
        features: the examples. Their lengths in an epoch decide which ones share a batch.
        batch_size: examples per batch.
        batches_per_step: batches per optimizer step, over all ranks.
        seed: determines the order together with the epoch.
        rank_and_world_size: this rank, and the number of ranks.
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
        """Set the epoch; Trainer calls this before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        full_steps, remaining_rows = divmod(len(self.features), self.effective_batch_size)
        batches_per_step = self.effective_batch_size // self.batch_size // self.world_size
        return full_steps * batches_per_step - (-remaining_rows // self.batch_size // self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.plan_effective_batches():
            for batch in self.split_across_ranks(self.split_into_batches(step)):
                yield self.features.example_keys_for_epoch(self.epoch, batch).tolist()

    def split_across_ranks(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """Return this rank's batches of an optimizer step.

        All ranks need the same number of batches, or one would wait for the others forever. So the largest
        batches are halved. If a batch has a single example, one of its halves is empty.
        """
        while len(batches) % self.world_size:
            largest = max(range(len(batches)), key=lambda number: len(batches[number]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        return batches[self.rank :: self.world_size]

    def split_into_batches(self, step: np.ndarray) -> list[np.ndarray]:
        """Split the rows of an optimizer step into batches; a short step has fewer of them."""
        return np.split(step, range(self.batch_size, len(step), self.batch_size))

    def plan_effective_batches(self) -> list[np.ndarray]:
        """Return the rows of each optimizer step of this epoch; a short step comes last."""
        rng = np.random.default_rng([self.seed, self.epoch])
        lengths = self.features.length_keys_for_epoch(self.epoch)
        order = rng.permutation(len(lengths))
        full_rows = len(order) - len(order) % self.effective_batch_size
        pool_rows = self.effective_batch_size * POOL_SIZE
        full_steps: list[np.ndarray] = []
        for start in range(0, full_rows, pool_rows):
            pool = order[start : min(full_rows, start + pool_rows)]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            full_steps.extend(np.split(pool, len(pool) // self.effective_batch_size))
        short_step = [order[full_rows:]] if full_rows < len(order) else []
        return [full_steps[i] for i in rng.permutation(len(full_steps))] + short_step

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch, including a short last one."""
        return -(-len(self.features) // self.effective_batch_size)

    def get_longest_batch(self) -> list[int]:
        """Return the batch that needs the most memory: the longest examples of the epoch."""
        lengths = self.features.length_keys_for_epoch(self.epoch)
        longest = np.argsort(-lengths, kind="stable")[: self.batch_size]
        return self.features.example_keys_for_epoch(self.epoch, longest).tolist()

    def count_tokens(self, first_step: int, stop_step: int) -> float:
        """Return the expected number of tokens in these steps of the run, from the mean of an epoch."""
        return float(self.features.lengths.sum()) * (stop_step - first_step) / self.steps_per_epoch

    def list_phase_changes(self) -> dict[int, str]:
        """Return step -> message for each step after which the phase changes."""
        return {}


class TokenBudgetBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler with a token budget: few long examples or many short ones per batch, padding included.

    Each epoch is sorted by length, longest first and ties in random order, and split when the budget is
    reached. Where it is split depends on the lengths alone, so each epoch has the same number of batches and
    steps. An example above the budget, such as a document with many windows, gets a batch of its own.

    Args:
        features: the examples. Their lengths must be the same in every epoch.
        tokens_per_batch: tokens per batch including padding, over all sequences of its examples.
        batches_per_step: batches per optimizer step, over all ranks.
        seed: determines the order together with the epoch.
        rank_and_world_size: this rank, and the number of ranks.
    """

    def __init__(
        self, features: Features, tokens_per_batch: int, batches_per_step: int = 1, seed: int = 0,
        rank_and_world_size: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        offsets = features.sequence_offsets
        self.max_sequence_lengths = np.maximum.reduceat(features.sequence_lengths, offsets[:-1])
        self.sequence_counts = np.diff(offsets)
        longest = int(self.max_sequence_lengths.max())
        single_batch = longest * int(self.sequence_counts.sum())  # avoids overflow for huge budgets
        tokens_per_batch = min(tokens_per_batch, single_batch)
        min_batch_size = max(1, tokens_per_batch // longest)
        super().__init__(features, min_batch_size, batches_per_step, seed, rank_and_world_size)
        self.tokens_per_batch, self.batches_per_step = tokens_per_batch, batches_per_step
        self.batch_starts = self._find_batch_starts(np.argsort(-features.length_keys, kind="stable"))

    def _find_batch_starts(self, examples: np.ndarray) -> list[int]:
        """Return the index at which each batch starts, for examples sorted longest first."""
        lengths, counts = self.max_sequence_lengths[examples], self.sequence_counts[examples]
        sequence_stops = np.cumsum(counts)
        starts, start = [], 0
        while start < len(examples):
            starts.append(start)
            first_sequence = sequence_stops[start] - counts[start]
            max_stop = first_sequence + self.tokens_per_batch // lengths[start]
            start = max(start + 1, int(np.searchsorted(sequence_stops, max_stop, side="right")))
        return starts

    def __len__(self) -> int:
        full_steps, remaining_batches = divmod(len(self.batch_starts), self.batches_per_step)
        per_rank = self.batches_per_step // self.world_size
        return full_steps * per_rank - (-remaining_batches // self.world_size)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per epoch, including a short last one."""
        return -(-len(self.batch_starts) // self.batches_per_step)

    def split_into_batches(self, step: np.ndarray) -> list[np.ndarray]:
        """Split the rows of an optimizer step by the token budget, as in the whole epoch."""
        return np.split(step, self._find_batch_starts(step)[1:])

    def plan_effective_batches(self) -> list[np.ndarray]:
        """Return the rows of each optimizer step of this epoch in random order; a short step comes last.

        In epoch 0 the step with the largest batch comes first, so that memory runs out early or never.
        """
        rng = np.random.default_rng([self.seed, self.epoch])
        step_starts = self.batch_starts[self.batches_per_step :: self.batches_per_step]
        steps = np.split(self._sort_by_length(rng), step_starts)
        full_steps = len(self.batch_starts) // self.batches_per_step
        order = rng.permutation(full_steps).tolist()
        largest = self._largest_batch() // self.batches_per_step
        if self.epoch == 0 and largest in order:
            order.remove(largest)
            order.insert(0, largest)
        return [steps[number] for number in order] + steps[full_steps:]

    def _sort_by_length(self, rng: np.random.Generator) -> np.ndarray:
        return np.lexsort((rng.random(len(self.features)), -self.features.length_keys))

    def _largest_batch(self) -> int:
        """Return the index of the batch with the most tokens, the one with the longest examples if tied."""
        order = np.argsort(-self.features.length_keys, kind="stable")
        counts = np.add.reduceat(self.sequence_counts[order], self.batch_starts)
        return int(np.argmax(counts * self.max_sequence_lengths[order][self.batch_starts]))

    def get_longest_batch(self) -> list[int]:
        """Return the batch of epoch 0 that needs the most memory."""
        bounds = [*self.batch_starts, len(self.features)]
        order = self._sort_by_length(np.random.default_rng([self.seed, 0]))
        batch = self._largest_batch()
        return self.features.example_keys_for_epoch(0, order[bounds[batch] : bounds[batch + 1]]).tolist()


class PhasedBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler of a run in phases: each optimizer step uses the batches of its phase.

    Each phase plans each epoch as if it were the only one. If a phase ends within an
    epoch, the earlier steps come from its plan, and the later steps from the plan of the next phase.

    Args:
        features: the examples of all phases.
        batch_size: examples per batch.
        batches_per_step: batches per optimizer step, over all ranks.
        seed: determines the order together with the epoch.
        total_steps: optimizer steps of the whole run.
        rank_and_world_size: this rank, and the number of ranks.

    Raises:
        UserError: a phase would have no steps.
    """

    def __init__(
        self, features: PhasedFeatures, batch_size: int, batches_per_step: int, seed: int, total_steps: int,
        rank_and_world_size: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        super().__init__(features, batch_size, batches_per_step, seed, rank_and_world_size)
        self.phases = features.phases
        self.samplers = [
            LengthGroupedBatchSampler(part, batch_size, batches_per_step, seed, rank_and_world_size)
            for part in features.phase_features
        ]
        end_fractions = accumulate(phase.fraction for phase in self.phases[:-1])
        self.phase_ends = [*(round(end * total_steps) for end in end_fractions), total_steps]
        for phase, (start, stop) in zip(self.phases, self._split_steps(0, total_steps), strict=True):
            if start == stop and total_steps:
                raise UserError(
                    f"--phases: {phase} has none of the {total_steps:,} steps; raise --max-steps or --epochs"
                )

    def _split_steps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return, for each phase, the start and stop of those of these steps that belong to it."""
        return list(pairwise(np.clip([0, *self.phase_ends], start, stop).tolist()))

    def __iter__(self) -> Iterator[list[int]]:
        epoch_start = self.epoch * self.steps_per_epoch
        per_step = self.effective_batch_size // self.batch_size // self.world_size
        steps_of_phases = self._split_steps(epoch_start, epoch_start + self.steps_per_epoch)
        for phase, (start, stop) in enumerate(steps_of_phases):
            if start < stop:
                sampler = self._sampler_at(phase, self.epoch)
                yield from islice(sampler, (start - epoch_start) * per_step, (stop - epoch_start) * per_step)

    def _sampler_at(self, phase: int, epoch: int) -> LengthGroupedBatchSampler:
        sampler = self.samplers[phase]
        sampler.set_epoch(phase * PHASE_EPOCH_OFFSET + epoch)
        return sampler

    def get_longest_batch(self) -> list[int]:
        """Return the longest examples of the phase with the longest examples."""
        lengths = [phase.length for phase in self.phases]
        return self._sampler_at(lengths.index(max(lengths)), 0).get_longest_batch()

    def count_tokens(self, first_step: int, stop_step: int) -> float:
        """Return the expected number of tokens in these steps of the run, phase by phase."""
        steps_of_phases = zip(self.samplers, self._split_steps(first_step, stop_step), strict=True)
        return sum(sampler.count_tokens(*steps) for sampler, steps in steps_of_phases)

    def list_phase_changes(self) -> dict[int, str]:
        """Return step -> message for each step after which examples become longer or shorter."""
        changes = zip(self.phase_ends[:-1], self.phases[1:], strict=True)
        return {step: f"step {step:,}: examples of {phase.length} tokens" for step, phase in changes}


@dataclass(frozen=True)
class DummyBatchCollator:
    """A collator that turns an empty batch into a dummy batch with weight zero.

    A rank without examples in a step runs it, so that all ranks run the same number of batches.
    """

    collator: Callable[..., dict[str, torch.Tensor]]
    features: Features

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of these examples, or a dummy batch with any example."""
        if examples:
            return self.collator(examples)
        (key,) = self.features.example_keys_for_epoch(0, np.zeros(1, int)).tolist()
        return self.collator([self.features[key]]) | {DUMMY_BATCH: torch.tensor(True)}
