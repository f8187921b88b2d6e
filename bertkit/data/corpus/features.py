"""Examples of pre-training: drawn anew from a corpus in every epoch, each by its key alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bertkit.data.corpus.pairs import EpochPlan, resize_plan
from bertkit.data.corpus.store import Corpus
from bertkit.data.features import Features
from bertkit.data.tokenization import SequenceTemplate
from bertkit.modeling.losses import IGNORE_INDEX, select_predicted

LOSS_PARTS = ("mlm", "nsp")


@dataclass(frozen=True, kw_only=True, eq=False)
class CorpusFeatures(Features):
    """Stretches of some documents, as many in each epoch.

    The key of an example is `epoch * n + number`: whoever knows it, any worker, rank or resumed run, gets
    the same example.

    Attributes:
        corpus: the text in pieces.
        draw: gives the plan of an epoch.
        template: the special pieces around one text or two.
        seed: of what is drawn where a plan has more examples than the first one's, or fewer.
    """

    corpus: Corpus
    build_plan: Callable[[int], EpochPlan]
    template: SequenceTemplate
    seed: int
    pair_notes: list[str] = field(default_factory=list)  # what the user should know of the examples
    plan_cache: dict[int, EpochPlan] = field(default_factory=dict)  # of the epoch that was asked for last

    @classmethod
    def from_corpus(
        cls, corpus: Corpus, build_plan: Callable[[int], EpochPlan], template: SequenceTemplate, seed: int
    ) -> "CorpusFeatures":
        """As many examples in each epoch as in the first."""
        plan = build_plan(0)
        unknown = corpus.counts.get("unknown", 0) / max(1, len(corpus.token_ids))
        longest = int((plan.a_length + plan.b_length).max(initial=0)) + template.num_special_tokens
        return cls(
            sequence_offsets=np.arange(len(plan) + 1), labels=plan.labels, max_untruncated_length=longest, unk_fraction=unknown,
            corpus=corpus, build_plan=build_plan, template=template, seed=seed, plan_cache={0: plan},
        )  # fmt: skip

    def describe_issues(self, rows: Any) -> list[str]:
        """As they were told."""
        return self.pair_notes

    def get_plan(self, epoch: int) -> EpochPlan:
        """The examples of an epoch."""
        if epoch not in self.plan_cache:
            self.plan_cache.clear()
            rng = np.random.default_rng([self.seed, epoch, 1])
            self.plan_cache[epoch] = resize_plan(self.build_plan(epoch), len(self), rng)
        return self.plan_cache[epoch]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """`input_ids` and `token_type_ids` of the example with this key."""
        epoch, at = divmod(number, len(self))
        plan, pieces = self.get_plan(epoch), self.corpus.token_ids
        texts = [pieces[plan.a_start[at] :][: plan.a_length[at]]]
        if plan.b_length[at]:
            texts.append(pieces[plan.b_start[at] :][: plan.b_length[at]])
        return self.template.fill(texts)

    @property
    def sequence_lengths(self) -> np.ndarray:
        """[n] of the first epoch."""
        return self.length_keys_for_epoch(0)

    def length_keys_for_epoch(self, epoch: int) -> np.ndarray:
        """[n] pieces of each example of this epoch."""
        plan = self.get_plan(epoch)
        return plan.a_length + plan.b_length + self.template.num_special_tokens

    def example_keys_for_epoch(self, epoch: int, examples: np.ndarray) -> np.ndarray:
        """`epoch * n + number`."""
        return epoch * len(self) + examples

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids, kinds = self.get_sequence(index)
        epoch, at = divmod(index, len(self))
        label = self.get_plan(epoch).labels[at]
        return {"input_ids": [ids], "token_type_ids": [kinds], "key": index, "next_sentence_label": label}

    def reduce_logits(
        self, logits: Any, examples: np.ndarray, batch: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """[B, 6] of each of `PARTS` the summed loss, how many are right, and how many there are."""
        parts = select_predicted(logits, batch)
        none = torch.zeros(len(examples), 3, device=batch["input_ids"].device)
        return torch.cat(
            [_summed(*parts[part], len(none)) if part in parts else none for part in LOSS_PARTS], 1
        )


def _summed(logits: torch.Tensor, labels: torch.Tensor, examples: int) -> torch.Tensor:
    """[examples, 3] of decisions that are as many in each example."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
    parts = (loss, logits.argmax(-1) == labels, labels != IGNORE_INDEX)
    return torch.stack([part.float().view(examples, -1).sum(1) for part in parts], 1)
