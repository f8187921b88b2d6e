"""The order of batches of a run in phases: a pure function of (seed, step)."""

from collections.abc import Iterator
from itertools import accumulate, islice, pairwise

import numpy as np

from bertkit.data.corpus.phases import PHASE_EPOCH_OFFSET, PhasedFeatures
from bertkit.errors import UserError
from bertkit.training.batch_samplers import LengthGroupedBatchSampler


class PhasedBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler of a run in phases: of each optimizer step, those of the phase it belongs to.

    Each phase lays out each epoch as if it were alone; of an epoch in which a phase ends, the steps before
    are taken from its layout and those after from that of the next.

    Args:
        features: the examples of the phases.
        steps: of the whole run.

    Raises:
        UserError: a phase gets none of them.
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
        for phase, (begin, stop) in zip(self.phases, self._within(0, steps), strict=True):
            if begin == stop and steps:
                raise UserError(
                    f"--phases: {phase} gets none of the {steps:,} steps; more with --max-steps or --epochs"
                )

    def _within(self, begin: int, stop: int) -> list[tuple[int, int]]:
        """Which of these steps belong to each phase: from, to."""
        return list(pairwise(np.clip([0, *self.phase_ends], begin, stop).tolist()))

    def __iter__(self) -> Iterator[list[int]]:
        before, batches = (
            self.epoch * self.steps_per_epoch,
            self.effective_batch_size // self.batch_size // self.world_size,
        )
        for phase, (begin, stop) in enumerate(self._within(before, before + self.steps_per_epoch)):
            if begin < stop:
                part = self._laid_out(phase, self.epoch)
                yield from islice(part, (begin - before) * batches, (stop - before) * batches)

    def _laid_out(self, phase: int, epoch: int) -> LengthGroupedBatchSampler:
        part = self.samplers[phase]
        part.set_epoch(phase * PHASE_EPOCH_OFFSET + epoch)
        return part

    def get_longest_batch(self) -> list[int]:
        """The longest examples of the longest phase."""
        lengths = [phase.length for phase in self.phases]
        return self._laid_out(lengths.index(max(lengths)), 0).get_longest_batch()

    def count_tokens(self, begin: int, stop: int) -> float:
        """Each phase's own."""
        within = zip(self.samplers, self._within(begin, stop), strict=True)
        return sum(part.count_tokens(*steps) for part, steps in within)

    def list_phase_changes(self) -> dict[int, str]:
        """After which step the examples become longer, or shorter."""
        later = zip(self.phase_ends[:-1], self.phases[1:], strict=True)
        return {step: f"step {step:,}: examples of {phase.length} pieces" for step, phase in later}
