"""Phases of pre-training: most steps at a short length, the rest at a long one (Devlin et al. 2018, A.2)."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bertkit.data.corpus.features import CorpusFeatures
from bertkit.data.corpus.pairs import EpochPlan
from bertkit.data.features import Features
from bertkit.data.rows import Rows
from bertkit.errors import UserError
from bertkit.modeling.loading import get_max_positions

PHASE_EPOCH_OFFSET = (
    2**32
)  # epochs: those of the next phase are numbered from there on, so no two have a key in common
MIN_LENGTH = 8


@dataclass(frozen=True)
class Phase:
    """A length in pieces, and its share of the optimizer steps."""

    length: int
    fraction: float

    def __str__(self) -> str:
        return f"{self.length}:{self.fraction:g}"

    def validate_length(self, model_config: Any, name: str) -> None:
        """Refuse a length that the model called `name` does not take."""
        limit = get_max_positions(model_config)
        if limit is not None and self.length > limit:
            raise UserError(f"--phases {self}: {name} has {limit} positions")


def apply_phases(config: Any) -> Any:
    """The settings with the length of the last phase, for what is trained is used at that.

    Raises:
        UserError: they are no phases, or other settings do not go with them.
    """
    last = parse_phases(config.phases)[-1].length
    if config.max_length not in (None, last):  # equal in the settings of a saved run
        raise UserError(f"--max-length {config.max_length}: --phases names the lengths; leave one out")
    if any(pair.startswith("train_sampling_strategy=") for pair in config.set):
        raise UserError("--set train_sampling_strategy: --phases has an order of its own; leave one out")
    return dataclasses.replace(config, max_length=last)


def parse_phases(text: str) -> list[Phase]:
    """The phases of `128:0.9,512:0.1`.

    Raises:
        UserError: a part is no LENGTH:SHARE, a length is too short, or the shares are not all of the steps.
    """
    phases = [_phase(part, text) for part in text.split(",")]
    total = math.fsum(phase.fraction for phase in phases)
    if abs(total - 1) > 1e-6:
        raise UserError(f"--phases {text}: the shares sum to {total:g}; they must sum to 1")
    return phases


def _phase(part: str, text: str) -> Phase:
    length, _, share = part.partition(":")
    try:
        phase = Phase(int(length), float(share))
    except ValueError:
        phase = Phase(0, 0.0)
    if not 0 < phase.fraction <= 1:
        raise UserError(
            f"--phases {text}: {part.strip()!r} is no LENGTH:SHARE, such as 512:0.1; in a recipe put quotes "
            "around them"
        )
    if phase.length < MIN_LENGTH:
        raise UserError(f"--phases {text}: length {phase.length} is too short; at least {MIN_LENGTH}")
    return phase


@dataclass(frozen=True, kw_only=True, eq=False)
class PhasedFeatures(Features):
    """Training examples of a run in phases, in each phase as many an epoch.

    An epoch is a pass over the text at the length of the first phase. In a later one it is as many examples,
    of as many passes at its length as that takes.

    Attributes:
        phases: in their order.
        parts: the examples of each.
    """

    phases: list[Phase]
    phase_features: list[CorpusFeatures]

    @classmethod
    def from_phases(cls, phases: list[Phase], phase_features: list[CorpusFeatures]) -> "PhasedFeatures":
        """From one pass over the text at the length of each phase."""
        first, *later = phase_features
        return cls(
            sequence_offsets=first.sequence_offsets, labels=first.labels, unk_fraction=first.unk_fraction,
            max_untruncated_length=max(part.max_untruncated_length for part in phase_features), phases=phases,
            phase_features=[first, *(_of_passes(part, len(first)) for part in later)],
        )  # fmt: skip

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The example with this key, and its `phase`."""
        phase = self._phase(index)
        return self.phase_features[phase][index] | {"phase": phase}

    def _phase(self, key: int) -> int:
        return key // (PHASE_EPOCH_OFFSET * len(self))

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """`input_ids` and `token_type_ids` of the example with this key."""
        return self.phase_features[self._phase(number)].get_sequence(number)

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] of the first epoch of the first phase."""
        return self.phase_features[0].sequence_lengths

    def batch_size_for(self, tokens: int) -> int:
        """As many as of the longest phase, since an effective batch has as many examples in all."""
        return tokens // max(phase.length for phase in self.phases)

    def describe_issues(self, rows: Rows) -> list[str]:
        """What lengths there are, where there are several, and of the examples of the first."""
        shares = ", ".join(f"{phase.fraction:.0%} of {phase.length} pieces" for phase in self.phases)
        last = self.phases[-1].length
        if any(after.length <= before.length for before, after in pairwise(self.phases)):
            shares += " (usually each phase is longer than the one before it)"
        lengths = [f"steps: {shares}; validation and test are scored at {last}, previews are of the first"]
        return [*(lengths if len(self.phases) > 1 else []), *self.phase_features[0].describe_issues(rows)]


def _of_passes(part: CorpusFeatures, n: int) -> CorpusFeatures:
    """With `n` examples an epoch, of as many passes over the text as that takes."""
    draw = partial(_passes, part.build_plan, -(-n // len(part)))
    return dataclasses.replace(
        part, sequence_offsets=np.arange(n + 1), labels=None, build_plan=draw, plan_cache={}
    )


def _passes(draw: Callable[[int], EpochPlan], count: int, epoch: int) -> EpochPlan:
    plans = [draw(epoch * count + number) for number in range(count)]
    return EpochPlan(*(
        np.concatenate([getattr(plan, field.name) for plan in plans]) for field in dataclasses.fields(EpochPlan)
    ))  # fmt: skip


@dataclass(frozen=True)
class PhasedCollator:
    """Collator: that of the phase the examples are of, for a batch is never of two."""

    phase_collators: Sequence[Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]
    eval_collator: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]  # where there are no phases

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """The batch of these examples."""
        collate = self.phase_collators[items[0]["phase"]] if "phase" in items[0] else self.eval_collator
        return collate(items)
