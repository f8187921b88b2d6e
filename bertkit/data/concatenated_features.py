"""Labeled and unlabeled examples as one dataset."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bertkit.data.features import UNLABELED, UNLABELED_NUMBER, Features
from bertkit.utils.ragged import compute_offsets


@dataclass(frozen=True, kw_only=True)
class ConcatenatedFeatures(Features):
    """The examples of several datasets, one after another, for training.

    Attributes:
        parts: The datasets.
    """

    parts: Sequence[Features]

    @classmethod
    def from_parts(cls, parts: Sequence[Features]) -> "ConcatenatedFeatures":
        """Concatenate datasets; the statistics are those of the first one."""
        counts = np.concatenate([np.diff(part.sequence_offsets) for part in parts])
        first = parts[0]
        return cls(
            parts=parts, sequence_offsets=compute_offsets(counts), labels=None,
            num_truncated=first.num_truncated, max_untruncated_length=first.max_untruncated_length,
            unk_fraction=first.unk_fraction, warnings=first.warnings,
        )  # fmt: skip

    @cached_property
    def _first_examples(self) -> np.ndarray:
        return compute_offsets(np.array([len(part) for part in self.parts]))

    @cached_property
    def _first_sequences(self) -> np.ndarray:
        return compute_offsets(np.array([len(part.sequence_lengths) for part in self.parts]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = int(np.searchsorted(self._first_examples, index, side="right")) - 1
        return self.parts[part][index - int(self._first_examples[part])]

    def get_sequence(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `input_ids` and `token_type_ids` of one sequence, both [length]."""
        part = int(np.searchsorted(self._first_sequences, number, side="right")) - 1
        return self.parts[part].get_sequence(number - int(self._first_sequences[part]))

    @cached_property
    def sequence_lengths(self) -> np.ndarray:  # type: ignore[override]
        """[sequences] number of tokens of each sequence."""
        return np.concatenate([part.sequence_lengths for part in self.parts])


def add_placeholder_labels(features: Features, labeled: Features) -> Features:
    """Return unlabeled features with labels that mark them as unlabeled.

    Args:
        features: Features of any task.
        labeled: Features of the same task, whose labels have the shape and the type of the placeholders.
    """
    assert labeled.labels is not None
    dtype = labeled.labels.dtype
    value = UNLABELED_NUMBER if np.issubdtype(dtype, np.floating) else UNLABELED
    shape = (int(features.logit_offsets[-1]), *labeled.labels.shape[1:])
    return dataclasses.replace(features, labels=np.full(shape, value, dtype))
