"""Batch samplers: batches of examples of similar length, in an order that depends only on seed and epoch.

An effective batch holds the examples of one optimizer step, over all accumulation steps and ranks. The
samplers first divide the epoch into effective batches, and then split each one into batches. If the
effective batch size stays the same, an optimizer step uses the same examples, whatever the batch size.

The index of an example is its position in the features, from 0 to `len(features) - 1`. In each epoch, an
example has a key: `features[key]` returns the example. Keys differ from indices if examples are sampled again
in each epoch.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice, pairwise
from typing import Any

import numpy as np
import torch

from bertkit.data.collators import BATCH_SHAPE, BatchShape
from bertkit.data.corpus.examples import PHASE_EPOCH_OFFSET, PhasedFeatures
from bertkit.data.features import TEACHER_LOGITS, WEIGHTS, Features
from bertkit.data.masking import IGNORE_INDEX, ORIGINAL_IDS
from bertkit.errors import UserError
from bertkit.models.pretraining import MASKED_POSITIONS
from bertkit.utils import distributed

# Number of effective batches whose examples are sorted by length together. A larger pool needs less padding,
# but makes batches less random.
EFFECTIVE_BATCHES_PER_POOL = 50
NUM_PADDED_LENGTHS = 16  # with more lengths, batches have less padding, and more graphs need memory
MASKED_LM_INPUTS = (MASKED_POSITIONS, "masked_lm_labels", "is_masked", "sampling_uniform")
# Values of padding; token ids have that of [PAD]. All others are 0.
PADDING_VALUES = {"labels": IGNORE_INDEX, "masked_lm_labels": IGNORE_INDEX}
TOKEN_IDS = ("input_ids", ORIGINAL_IDS)  # keys of the model inputs that are padded with [PAD]
DUMMY_BATCH = "dummy_batch"  # key of the model inputs that marks a dummy batch


class LengthGroupedBatchSampler:
    """Batch sampler of one rank, which yields lists of example keys.

    The batches of all ranks together contain each example of the epoch once. `batches_per_step` is the number
    of batches per optimizer step, over all accumulation steps and ranks.
    """

    drop_last = False  # like `torch.utils.data.BatchSampler`: a short last batch is kept

    def __init__(self, features: Features, batch_size: int, batches_per_step: int = 1, seed: int = 0) -> None:
        self.features = features
        self.batch_size = batch_size
        self.effective_batch_size = batch_size * batches_per_step
        self.seed = seed
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; Trainer calls this at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        full_steps, remaining_examples = divmod(len(self.features), self.effective_batch_size)
        rank_batches_per_step = self.effective_batch_size // self.batch_size // self.world_size
        remaining_batches = math.ceil(remaining_examples / self.batch_size)
        return full_steps * rank_batches_per_step + math.ceil(remaining_batches / self.world_size)

    def __iter__(self) -> Iterator[list[int]]:
        for effective_batch in self.plan_effective_batches():
            for batch in self._select_rank_batches(self.split_into_batches(effective_batch)):
                yield self.features.example_keys_for_epoch(self.epoch, batch).tolist()

    def _select_rank_batches(self, batches: list[np.ndarray]) -> list[np.ndarray]:
        """Return those batches of an optimizer step that this rank processes.

        All ranks must have the same number of batches; otherwise some ranks would wait forever. To make the
        number of batches divisible by the number of ranks, the largest batch is halved repeatedly. Half of a
        batch with a single example is empty.
        """
        batches = list(batches)
        while len(batches) % self.world_size:
            largest = max(range(len(batches)), key=lambda index: len(batches[index]))
            batches[largest : largest + 1] = np.array_split(batches[largest], 2)
        return batches[self.rank :: self.world_size]

    def split_into_batches(self, effective_batch: np.ndarray) -> list[np.ndarray]:
        """Split the example indices of an effective batch into batches; the last batch may be smaller."""
        return np.split(effective_batch, range(self.batch_size, len(effective_batch), self.batch_size))

    def plan_effective_batches(self) -> list[np.ndarray]:
        """Return the example indices of each effective batch of this epoch.

        The last effective batch may be smaller than the others. It contains random examples of any length.
        """
        rng = np.random.default_rng([self.seed, self.epoch])
        lengths = self.features.length_keys_for_epoch(self.epoch)
        order = rng.permutation(len(lengths))
        num_full = len(order) // self.effective_batch_size
        full_part, remaining = np.split(order, [num_full * self.effective_batch_size])
        pool_size = self.effective_batch_size * EFFECTIVE_BATCHES_PER_POOL
        effective_batches: list[np.ndarray] = []
        for start in range(0, len(full_part), pool_size):
            pool = full_part[start : start + pool_size]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            effective_batches.extend(np.split(pool, len(pool) // self.effective_batch_size))
        shuffled = [effective_batches[index] for index in rng.permutation(num_full)]
        return [*shuffled, remaining] if len(remaining) else shuffled

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps per epoch, including the last one with fewer examples."""
        return math.ceil(len(self.features) / self.effective_batch_size)

    def get_longest_batch(self) -> list[int]:
        """Return the keys of the longest examples of this epoch: no other batch needs more memory."""
        lengths = self.features.length_keys_for_epoch(self.epoch)
        longest = np.argsort(-lengths, kind="stable")[: self.batch_size]
        return self.features.example_keys_for_epoch(self.epoch, longest).tolist()

    def estimate_tokens(self, start_step: int, stop_step: int) -> float:
        """Return the expected number of tokens in a range of steps, from the mean number per step."""
        return float(self.features.lengths.sum()) * (stop_step - start_step) / self.steps_per_epoch

    def count_seen_examples(self, step: int) -> int:
        """Return the number of different examples in the first `step` steps: after an epoch, all."""
        return min(step * self.effective_batch_size, len(self.features))

    def list_phase_changes(self) -> dict[int, str]:
        """Return console messages by the step after which they are printed; without phases there are none."""
        return {}


class TokenBudgetBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler that limits the tokens of a batch, with padding: few long examples or many short ones.

    Examples are sorted by length, longest first. A batch ends before the example that would exceed the
    budget. Examples of equal length are in a random order in each epoch. Only the lengths determine where
    batches end, and they must not change, so every epoch has the same number of batches. An example that
    exceeds the budget alone, such as a document with many windows, is the only example of its batch.
    """

    def __init__(
        self, features: Features, tokens_per_batch: int, batches_per_step: int = 1, seed: int = 0
    ) -> None:
        offsets = features.sequence_offsets
        self.max_sequence_lengths = np.maximum.reduceat(features.sequence_lengths, offsets[:-1])
        self.sequence_counts = np.diff(offsets)
        longest = int(self.max_sequence_lengths.max())
        # Cap the budget: above the size of all examples it changes nothing, and a huge value could overflow.
        tokens_of_all = longest * int(self.sequence_counts.sum())
        self.tokens_per_batch = min(tokens_per_batch, tokens_of_all)
        self.batches_per_step = batches_per_step
        # The base class and accelerate expect a batch size, but batch sizes vary here. This is the size
        # of a full batch of the longest examples.
        min_batch_size = max(1, self.tokens_per_batch // longest)
        super().__init__(features, min_batch_size, batches_per_step, seed)
        self.batch_starts = self._find_batch_starts(np.argsort(-features.length_keys, kind="stable"))

    def _find_batch_starts(self, examples: np.ndarray) -> list[int]:
        """Return the position in `examples` at which each batch starts."""
        lengths, counts = self.max_sequence_lengths[examples], self.sequence_counts[examples]
        sequence_stops = np.cumsum(counts)
        starts, start = [], 0
        while start < len(examples):
            starts.append(start)
            first_sequence = sequence_stops[start] - counts[start]
            # The first example has the longest sequence, to whose length the batch is padded.
            max_stop = first_sequence + self.tokens_per_batch // lengths[start]
            start = max(start + 1, int(np.searchsorted(sequence_stops, max_stop, side="right")))
        return starts

    def __len__(self) -> int:
        full_steps, remaining_batches = divmod(len(self.batch_starts), self.batches_per_step)
        rank_batches_per_step = self.batches_per_step // self.world_size
        return full_steps * rank_batches_per_step + math.ceil(remaining_batches / self.world_size)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self.batch_starts) / self.batches_per_step)

    def split_into_batches(self, effective_batch: np.ndarray) -> list[np.ndarray]:
        return np.split(effective_batch, self._find_batch_starts(effective_batch)[1:])

    def plan_effective_batches(self) -> list[np.ndarray]:
        """Return the example indices of each effective batch of this epoch, in random order.

        An effective batch with fewer batches than the others comes last. In epoch 0, the effective batch with
        the largest batch comes first: if this batch fits into memory, all batches do.
        """
        rng = np.random.default_rng([self.seed, self.epoch])
        boundaries = self.batch_starts[self.batches_per_step :: self.batches_per_step]
        effective_batches = np.split(self._sort_by_length(rng), boundaries)
        num_full = len(self.batch_starts) // self.batches_per_step
        order = rng.permutation(num_full).tolist()
        largest = self._find_largest_batch() // self.batches_per_step
        if self.epoch == 0 and largest in order:
            order.remove(largest)
            order.insert(0, largest)
        return [effective_batches[index] for index in order] + effective_batches[num_full:]

    def count_seen_examples(self, step: int) -> int:
        return sum(map(len, self.plan_effective_batches()[:step]))

    def _sort_by_length(self, rng: np.random.Generator) -> np.ndarray:
        """Return all example indices, longest first, with examples of equal length in random order."""
        return np.lexsort((rng.random(len(self.features)), -self.features.length_keys))

    def _find_largest_batch(self) -> int:
        """Return the index of the batch with the most tokens, or of the first such batch."""
        order = np.argsort(-self.features.length_keys, kind="stable")
        counts = np.add.reduceat(self.sequence_counts[order], self.batch_starts)
        return int(np.argmax(counts * self.max_sequence_lengths[order][self.batch_starts]))

    def get_longest_batch(self) -> list[int]:
        batches = np.split(self._sort_by_length(np.random.default_rng([self.seed, 0])), self.batch_starts[1:])
        return self.features.example_keys_for_epoch(0, batches[self._find_largest_batch()]).tolist()


class PhasedBatchSampler(LengthGroupedBatchSampler):
    """Batch sampler of a run in phases, such as short sequences first and long sequences last.

    Each phase has a sampler, which plans complete epochs. If a phase ends within an epoch, its sampler
    provides the steps before the end. The sampler of the next phase provides the remaining steps.
    """

    def __init__(
        self, features: PhasedFeatures, batch_size: int, batches_per_step: int, seed: int, total_steps: int
    ) -> None:
        super().__init__(features, batch_size, batches_per_step, seed)
        self.phases = features.phases
        self.samplers = [
            LengthGroupedBatchSampler(phase_features, batch_size, batches_per_step, seed)
            for phase_features in features.phase_features
        ]
        cumulative_fractions = accumulate(phase.fraction for phase in self.phases[:-1])
        self.phase_ends = [*(round(fraction * total_steps) for fraction in cumulative_fractions), total_steps]
        for phase, (start, stop) in zip(self.phases, self._split_by_phase(0, total_steps), strict=True):
            if start == stop and total_steps:
                raise UserError(
                    f"--phases: {phase} has none of the {total_steps:,} steps; raise --max-steps, --epochs "
                    "or --time-limit"
                )

    def _split_by_phase(self, start_step: int, stop_step: int) -> list[tuple[int, int]]:
        """Split a range of steps at the ends of the phases.

        Returns:
            Start and stop of the part of each phase; they are equal if no step of the range belongs to it.
        """
        return list(pairwise(np.clip([0, *self.phase_ends], start_step, stop_step).tolist()))

    def __iter__(self) -> Iterator[list[int]]:
        epoch_start = self.epoch * self.steps_per_epoch
        rank_batches_per_step = self.effective_batch_size // self.batch_size // self.world_size
        phase_ranges = self._split_by_phase(epoch_start, epoch_start + self.steps_per_epoch)
        for phase_index, (start, stop) in enumerate(phase_ranges):
            if start < stop:
                first_batch = (start - epoch_start) * rank_batches_per_step
                stop_batch = (stop - epoch_start) * rank_batches_per_step
                yield from islice(self._prepare_sampler(phase_index, self.epoch), first_batch, stop_batch)

    def _prepare_sampler(self, phase_index: int, epoch: int) -> LengthGroupedBatchSampler:
        sampler = self.samplers[phase_index]
        sampler.set_epoch(phase_index * PHASE_EPOCH_OFFSET + epoch)
        return sampler

    def get_longest_batch(self) -> list[int]:
        lengths = [phase.length for phase in self.phases]
        return self._prepare_sampler(lengths.index(max(lengths)), 0).get_longest_batch()

    def estimate_tokens(self, start_step: int, stop_step: int) -> float:
        phase_ranges = self._split_by_phase(start_step, stop_step)
        return sum(
            sampler.estimate_tokens(start, stop)
            for sampler, (start, stop) in zip(self.samplers, phase_ranges, strict=True)
        )

    def list_phase_changes(self) -> dict[int, str]:
        changes = zip(self.phase_ends[:-1], self.phases[1:], strict=True)
        return {step: f"step {step:,}: examples of {phase.length} tokens" for step, phase in changes}


def count_words_by_step(
    features: PhasedFeatures, batch_size: int, batches_per_step: int, seed: int, budget: int
) -> np.ndarray:
    """Return the number of words that a run with a single phase has read after each step, `[steps]`.

    The last step is the first one that reaches the budget. The samplers plan all steps in advance, so the
    numbers are those of the run.
    """
    [phase_features] = features.phase_features
    sampler = LengthGroupedBatchSampler(phase_features, batch_size, batches_per_step, seed)
    words, total = [], 0.0
    for epoch in count():
        sampler.set_epoch(epoch)
        words_of_examples = phase_features.count_words_for_epoch(epoch)
        if not words_of_examples.sum():
            raise UserError(f"--word-budget {budget}: the training text has no words; omit it")
        for examples in sampler.plan_effective_batches():
            total += words_of_examples[examples].sum()
            words.append(total)
            if total >= budget:
                return np.array(words)
    raise AssertionError  # the loop has no end


# ---- batches of examples


@dataclass(frozen=True)
class LengthPadding:
    """Padding of batches to a length from a short list, so that few different shapes occur.

    The list has at most `NUM_PADDED_LENGTHS` lengths, multiples of 8, which matrix products prefer.
    """

    longest: int
    pad_token_id: int

    def __call__(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Pad sequences on the right to the next length of the list, and predictions of words likewise.

        Padded predictions have the label `IGNORE_INDEX`, which the losses leave out.
        """
        seq_len = batch["attention_mask"].shape[1]
        multiple = 8 * math.ceil(self.longest / NUM_PADDED_LENGTHS / 8)
        padded_len = min(math.ceil(seq_len / multiple) * multiple, max(self.longest, seq_len))
        num_missing = padded_len - seq_len
        amounts = dict.fromkeys(("attention_mask", "token_type_ids", *TOKEN_IDS), num_missing)
        if MASKED_POSITIONS in batch and batch[MASKED_POSITIONS].shape[1] >= seq_len - 1:
            amounts |= dict.fromkeys(MASKED_LM_INPUTS, num_missing)  # each token is predicted
        if "position" in batch and TEACHER_LOGITS not in batch:
            # up to the next of at most eight sizes between powers of two
            count = len(batch["position"])
            missing_predictions = -count % max(16, 2 ** (count.bit_length() - 4))
            amounts |= dict.fromkeys(("sequence", "position", "labels", WEIGHTS), missing_predictions)
        values = PADDING_VALUES | dict.fromkeys(TOKEN_IDS, self.pad_token_id)
        return batch | {
            name: torch.nn.functional.pad(batch[name], (0, amount), value=values.get(name, 0))
            for name, amount in amounts.items()
            if name in batch
        }


@dataclass(frozen=True)
class TrainingCollator:
    """Collator that adds the `BatchShape`, and replaces an empty batch by a dummy batch.

    All ranks must run the same number of batches. A rank without examples runs a dummy batch, which
    contributes nothing to the loss.
    """

    collator: Callable[..., dict[str, torch.Tensor]]
    features: Features
    padding: LengthPadding | None = None

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        if examples:
            return self._collate(examples)
        (key,) = self.features.example_keys_for_epoch(0, np.zeros(1, int)).tolist()
        return self._collate([self.features[key]]) | {DUMMY_BATCH: torch.tensor(True)}

    def _collate(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self.collator(examples)
        if self.padding is not None and "input_ids" in batch:
            batch = self.padding(batch)
        return batch | {BATCH_SHAPE: BatchShape.measure(batch)}
