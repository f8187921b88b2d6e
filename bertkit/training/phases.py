"""The order of batches in a run with phases: a pure function of seed and step."""

from collections.abc import Iterator
from itertools import accumulate, islice, pairwise

import numpy as np

from bertkit.data.corpus.features import PHASE_EPOCH_OFFSET, PhasedFeatures
from bertkit.errors import UserError
from bertkit.training.batch_samplers import LengthGroupedBatchSampler


class PhasedBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler that takes the batches of each optimizer step from the phase of that step.

    Each phase arranges every epoch independently of the others. If a phase ends within an epoch, the
    steps before the end come from its arrangement. The steps after it come from that of the next phase.

    Args:
        features: Examples of the phases.
        batch_size: Examples per batch.
        batches_per_step: Gradient accumulation steps.
        seed: Seed of the order.
        steps: Optimizer steps of the whole run.
        rank_and_world_size: Rank of this process and number of processes.

    Raises:
        UserError: A phase gets no step.
    """

    def __init__(
        self, features: PhasedFeatures, batch_size: int, batches_per_step: int, seed: int, steps: int,
        rank_and_world_size: tuple[int, int] = (0, 1),
    ) -> None:  # fmt: skip
        super().__init__(features, batch_size, batches_per_step, seed, rank_and_world_size)
        self.phases = features.phases
        self.samplers = [
            LengthGroupedBatchSampler(part, batch_size, batches_per_step, seed, rank_and_world_size)
            for part in features.phase_features
        ]
        ends = accumulate(phase.fraction for phase in self.phases[:-1])
        self.phase_ends = [*(round(end * steps) for end in ends), steps]
        for phase, (start, stop) in zip(self.phases, self._clip_phases(0, steps), strict=True):
            if start == stop and steps:
                raise UserError(
                    f"--phases: {phase} gets none of the {steps:,} steps; pass a higher --max-steps or "
                    "--epochs"
                )

    def _clip_phases(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the first step and the end of each phase within a range of steps."""
        return list(pairwise(np.clip([0, *self.phase_ends], start, stop).tolist()))

    def __iter__(self) -> Iterator[list[int]]:
        first_step = self.epoch * self.steps_per_epoch
        batches_per_step = self.effective_batch_size // self.batch_size // self.world_size
        phase_steps = self._clip_phases(first_step, first_step + self.steps_per_epoch)
        for phase, (start, stop) in enumerate(phase_steps):
            if start < stop:
                batches = self._sampler_for(phase, self.epoch)
                first = (start - first_step) * batches_per_step
                yield from islice(batches, first, (stop - first_step) * batches_per_step)

    def _sampler_for(self, phase: int, epoch: int) -> LengthGroupedBatchSampler:
        sampler = self.samplers[phase]
        sampler.set_epoch(phase * PHASE_EPOCH_OFFSET + epoch)
        return sampler

    def get_longest_batch(self) -> list[int]:
        """Return the longest examples of the longest phase."""
        lengths = [phase.length for phase in self.phases]
        return self._sampler_for(lengths.index(max(lengths)), 0).get_longest_batch()

    def count_tokens(self, begin: int, stop: int) -> float:
        """Estimate the number of tokens in a range of steps."""
        samplers = zip(self.samplers, self._clip_phases(begin, stop), strict=True)
        return sum(sampler.count_tokens(*steps) for sampler, steps in samplers)

    def list_phase_changes(self) -> dict[int, str]:
        """Return a message for each step after which the length of the examples changes."""
        changes = zip(self.phase_ends[:-1], self.phases[1:], strict=True)
        return {step: f"step {step:,}: examples of {phase.length} tokens" for step, phase in changes}
