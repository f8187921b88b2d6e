"""Pre-training examples, which are sampled again from the corpus in every epoch."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bertkit.data.corpus.pairs import EpochPlan, resize_plan
from bertkit.data.corpus.store import Corpus
from bertkit.data.features import Features
from bertkit.data.rows import Rows
from bertkit.data.tokenization import SequenceTemplate
from bertkit.errors import UserError

PHASE_EPOCH_OFFSET = 2**32  # the epochs of phase p are numbered from p * PHASE_EPOCH_OFFSET, for unique keys
MIN_LENGTH = 8  # minimum sequence length of a phase, in tokens

ReduceLogits = Callable[[Any, dict[str, torch.Tensor], int], torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusFeatures(Features):
    """Examples that consist of spans of a corpus; each epoch has the same number `n` of examples.

    The key of an example is `epoch * n + index`. The key determines the example in every worker, rank and
    resumed run.

    Attributes:
        corpus: The tokenized text.
        build_plan: Returns the plan of an epoch.
        template: Special tokens around one or two texts.
        seed: Seed for the choice of examples that are dropped or repeated to obtain `n` examples.
        reduce_example_logits: Implements `reduce_logits`.
        pair_notes: Notes on the sentence pairs, for the console.
        plan_cache: The plan of the most recent epoch, by epoch.
    """

    corpus: Corpus
    build_plan: Callable[[int], EpochPlan]
    template: SequenceTemplate
    seed: int
    reduce_example_logits: ReduceLogits
    pair_notes: list[str] = field(default_factory=list)
    plan_cache: dict[int, EpochPlan] = field(default_factory=dict)

    @classmethod
    def from_corpus(
        cls, corpus: Corpus, build_plan: Callable[[int], EpochPlan], template: SequenceTemplate, seed: int,
        reduce_example_logits: ReduceLogits,
    ) -> "CorpusFeatures":  # fmt: skip
        """Return features with as many examples in each epoch as in the first."""
        plan = build_plan(0)
        unk_fraction = corpus.counts.get("unknown", 0) / max(1, len(corpus.token_ids))
        max_length = int((plan.a_length + plan.b_length).max(initial=0)) + template.num_special_tokens
        return cls(
            sequence_offsets=np.arange(len(plan) + 1), labels=plan.labels, max_untruncated_length=max_length,
            unk_fraction=unk_fraction, corpus=corpus, build_plan=build_plan, template=template, seed=seed,
            reduce_example_logits=reduce_example_logits, plan_cache={0: plan},
        )  # fmt: skip

    def describe_issues(self, rows: Rows) -> list[str]:
        """Return the notes on the pairs."""
        return self.pair_notes

    def get_plan(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch, which has `n` examples."""
        if epoch not in self.plan_cache:
            self.plan_cache.clear()
            rng = np.random.default_rng([self.seed, epoch, 1])
            self.plan_cache[epoch] = resize_plan(self.build_plan(epoch), len(self), rng)
        return self.plan_cache[epoch]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of the example with this key, both [length]."""
        return self.template.fill(self._get_texts(number, self.corpus.token_ids))

    def _get_texts(self, number: int, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of the tokens [tokens] of the one or two texts of an example."""
        epoch, index = divmod(number, len(self))
        plan = self.get_plan(epoch)
        texts = [values[plan.a_start[index] :][: plan.a_length[index]]]
        if plan.b_length[index]:
            texts.append(values[plan.b_start[index] :][: plan.b_length[index]])
        return texts

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] number of tokens of each example of the first epoch."""
        return self.length_keys_for_epoch(0)

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        """Return [n] the number of tokens of each example of this epoch."""
        plan = self.get_plan(epoch)
        return plan.a_length + plan.b_length + self.template.num_special_tokens

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """Return the keys `epoch * n + index`."""
        return epoch * len(self) + examples

    def __getitem__(self, index: int) -> dict[str, Any]:
        input_ids, token_type_ids = self.get_sequence(index)
        epoch, index_in_epoch = divmod(index, len(self))
        label = self.get_plan(epoch).labels[index_in_epoch]
        item = {
            "input_ids": [input_ids], "token_type_ids": [token_type_ids], "key": index,
            "next_sentence_label": label,
        }  # fmt: skip
        if self.corpus.is_continuation is not None:
            item["is_continuation"] = self.template.mark(self._get_texts(index, self.corpus.is_continuation))
        return item

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the sums of each example, `[batch, columns]`; the objective defines the columns.

        They are `[batch, 6]` for MLM and NSP, see `reduce_pretraining_logits`, and `[batch, 9]` for rtd, see
        `reduce_replaced_token_logits`.
        """
        return self.reduce_example_logits(logits, batch, len(examples))


# ---- phases


@dataclass(frozen=True)
class Phase:
    """A phase of pre-training with one sequence length (Devlin et al. 2018, A.2).

    Attributes:
        length: Maximum sequence length in tokens.
        fraction: Fraction of the optimizer steps.
    """

    length: int
    fraction: float

    def __str__(self) -> str:
        return f"{self.length}:{self.fraction:g}"


def parse_phases(text: str) -> list[Phase]:
    """Parse phases such as `128:0.9,512:0.1`.

    Raises:
        UserError: A part is not LENGTH:FRACTION, a length is too short, or the fractions do not sum to 1.
    """
    phases = [_parse_phase(part, text) for part in text.split(",")]
    total = math.fsum(phase.fraction for phase in phases)
    if abs(total - 1) > 1e-6:
        raise UserError(f"--phases {text}: the fractions sum to {total:g}; change them so that they sum to 1")
    return phases


def _parse_phase(part: str, text: str) -> Phase:
    length, _, fraction = part.partition(":")
    try:
        phase = Phase(int(length), float(fraction))
    except ValueError:
        phase = Phase(0, 0.0)  # gives the error below
    if not 0 < phase.fraction <= 1:
        raise UserError(
            f"--phases {text}: cannot parse {part.strip()!r}; write LENGTH:FRACTION, such as 512:0.1 "
            "(quote the value in a recipe)"
        )
    if phase.length < MIN_LENGTH:
        raise UserError(
            f"--phases {text}: length {phase.length} is too short; use a length of at least {MIN_LENGTH}"
        )
    return phase


@dataclass(frozen=True, kw_only=True, eq=False)
class PhasedFeatures(Features):
    """Training examples of a run in phases; all epochs of all phases have the same number of examples.

    In the first phase, an epoch is one pass over the text. In a later phase, longer sequences give fewer
    examples per pass, so an epoch takes several passes.

    Attributes:
        phases: The phases in order.
        phase_features: The examples of each phase.
    """

    phases: list[Phase]
    phase_features: list[CorpusFeatures]

    @classmethod
    def from_phases(cls, phases: list[Phase], phase_features: list[CorpusFeatures]) -> "PhasedFeatures":
        """Combine the features of the phases, in each of which an epoch is still one pass over the text."""
        first, *later = phase_features
        return cls(
            sequence_offsets=first.sequence_offsets, labels=first.labels, unk_fraction=first.unk_fraction,
            max_untruncated_length=max(features.max_untruncated_length for features in phase_features),
            phases=phases,
            phase_features=[first, *(_extend_epoch(features, len(first)) for features in later)],
        )  # fmt: skip

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the example with this key, with its `phase`."""
        phase = self._phase_of(index)
        return self.phase_features[phase][index] | {"phase": phase}

    def _phase_of(self, key: int) -> int:
        return key // (PHASE_EPOCH_OFFSET * len(self))

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of the example with this key, both [length]."""
        return self.phase_features[self._phase_of(number)].get_sequence(number)

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] number of tokens of each example of the first epoch of the first phase."""
        return self.phase_features[0].sequence_lengths

    def batch_size_for(self, tokens: int) -> int:
        """Return the batch size of the phase with the longest sequences, which all phases use."""
        return tokens // max(phase.length for phase in self.phases)

    def describe_issues(self, rows: Rows) -> list[str]:
        """Return the notes on the pairs of the first phase; several phases are described before them."""
        notes = self.phase_features[0].describe_issues(rows)
        return [self._describe_phases(), *notes] if len(self.phases) > 1 else list(notes)

    def _describe_phases(self) -> str:
        steps = ", ".join(f"{phase.fraction:.0%} at {phase.length} tokens" for phase in self.phases)
        if any(following.length <= phase.length for phase, following in pairwise(self.phases)):
            steps += " (usually each phase is longer than the previous one)"
        last = self.phases[-1].length
        return f"steps: {steps}; validation and test use {last} tokens, previews the first phase"


def _extend_epoch(features: CorpusFeatures, n: int) -> CorpusFeatures:
    """Return features with `n` examples per epoch, which may take several passes over the text."""
    num_passes = -(-n // len(features))  # rounded up
    build_plan = partial(_plan_passes, features.build_plan, num_passes)
    return dataclasses.replace(
        features, sequence_offsets=np.arange(n + 1), labels=None, build_plan=build_plan, plan_cache={}
    )


def _plan_passes(build_plan: Callable[[int], EpochPlan], num_passes: int, epoch: int) -> EpochPlan:
    """Return the concatenated plans of all passes of an epoch."""
    plans = [build_plan(epoch * num_passes + index) for index in range(num_passes)]
    names = [field.name for field in dataclasses.fields(EpochPlan)]
    return EpochPlan(*(np.concatenate([getattr(plan, name) for plan in plans]) for name in names))


@dataclass(frozen=True)
class PhasedCollator:
    """Collator with one collator for each phase; all examples of a batch have the same phase.

    Attributes:
        phase_collators: The collator of each phase.
        eval_collator: The collator of evaluation examples, which have no phase.
    """

    phase_collators: Sequence[Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]
    eval_collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of these examples."""
        collate = self.phase_collators[items[0]["phase"]] if "phase" in items[0] else self.eval_collator
        return collate(items)
