"""Data checks before training (`bertkit check`): findings, and the interface of the checks of a task."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows
from bertkit.data.tokens import TokenCounts
from bertkit.errors import format_list
from bertkit.models.loading import ModelSource

Level = Literal["error", "warning", "note"]
MAX_LOCATIONS = 5  # rows that a finding lists at most
MIN_SHOWN_FRACTION = 0.001  # smaller fractions would be shown as 0.0%


@dataclass(frozen=True)
class Finding:
    """A result of a data check."""

    level: Level  # "error" if training refuses the data, "warning" if the scores may suffer, else "note"
    name: str  # of this kind of finding, for programs
    message: str  # one line of text, for people
    fix: str = ""  # empty if there is nothing to fix
    count: int = 0  # of the rows, labels, tags or types that the finding is about
    rows: list[str] = field(default_factory=list)  # locations of the first few, such as `train.csv: row 3`


def locate_rows(rows: Rows, indices: Sequence[int] | np.ndarray) -> list[str]:
    """Return the locations of the first few indices; for questions, including the question ids."""
    return [rows.describe_location(int(index)) for index in indices[:MAX_LOCATIONS]]


def format_fraction(part: int, whole: int) -> str:
    """Format a count and its percentage, such as `1,234 of 20,000 (6.2%)`."""
    fraction = part / max(1, whole)
    return f"{part:,} of {whole:,}" + (f" ({fraction:.1%})" if fraction >= MIN_SHOWN_FRACTION else "")


def report_rows(
    level: Level, name: str, rows: Rows, indices: Sequence[int] | np.ndarray, problem: str, fix: str
) -> Iterator[Finding]:
    """Yield a finding about the rows with these indices if there are any; `problem` follows their number."""
    if len(indices):
        message = f"{format_fraction(len(indices), len(rows))} {problem}"
        yield Finding(level, name, message, fix, len(indices), locate_rows(rows, indices))


class TaskChecks:
    """The data checks of a task. The methods are called roughly in the order of their definitions."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def load_examples(self) -> LoadedDataset:
        """Load the data with one row per example, without loading a model or a tokenizer."""
        return self.task.load_data()

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Yield task-specific findings about the rows.

        Args:
            dataset: The valid rows as they were loaded.
            parsed: The same rows after `Task.parse_dataset`.
            notes: Notes of `Task.parse_dataset`.
        """
        return (Finding("note", "reading", note) for note in notes)

    @property
    def conflict_severity(self) -> tuple[Level, str]:
        """The level and the fix of findings about equal examples with different labels."""
        return "warning", "choose one label: a model cannot predict both"

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        """Return the columns of texts."""
        return [rows[column] for column in self.task.input_schema.text_columns]

    def extract_gold(self, rows: Rows) -> Sequence[Hashable] | None:
        """Return the label of each row; None if the rows or the task have no labels to compare."""
        return None

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Return the number of rows with each label; empty if there are no labels to count."""
        gold = self.extract_gold(rows)
        return dict(Counter(map(str, gold)).most_common()) if gold else {}

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Yield findings about the number of rows by split and label."""
        return iter(())

    def resolve_tokenizer(self, is_model_requested: bool) -> ModelSource | None:
        """Return the model that provides the tokenizer; None if training would train a new tokenizer."""
        return self.task.resolve_model(is_model_requested, needs_weights=False)

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Count all tokens and the [UNK] tokens of each row."""
        return TokenCounts.from_texts(self.extract_texts(rows), tokenizer)

    def check_tokens(self, split: str, rows: Rows, tokenizer: Any) -> Iterator[Finding]:
        """Yield task-specific findings that depend on the tokenizer or on `--max-length`."""
        return iter(())


def find_unvalidated(train: Mapping[str, int], validation: Mapping[str, int], unit: str) -> Iterator[Finding]:
    """Find labels or entity types that are counted in training rows but in no validation row."""
    if validation and (unseen := [name for name in train if name not in validation]):
        yield Finding(
            "note", "not-validated", f"{unit} that no validation row has: {format_list(unseen)}",
            "the scores will not cover them; add such rows to the validation split", len(unseen),
        )  # fmt: skip
