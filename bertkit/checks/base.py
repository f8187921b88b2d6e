"""Findings of data checks, and the interface of the checks that belong to one task."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bertkit.data.qa.answers import describe_location
from bertkit.data.qa.rows import QuestionRows
from bertkit.data.rows import Rows
from bertkit.data.token_counts import TokenCounts
from bertkit.errors import format_list

if TYPE_CHECKING:
    from bertkit.data.loading import LoadedDataset
    from bertkit.modeling.loading import ModelSource
    from bertkit.utils.reporting import Reporter

Level = Literal["error", "warning", "note"]
MAX_LOCATIONS = 5  # rows that a finding lists
MIN_PERCENT = 0.001  # smaller fractions are not shown in percent


@dataclass(frozen=True)
class Finding:
    """A fact about the data that its owner should know.

    Attributes:
        level: "error": training refuses the data; "warning": scores suffer; "note": good to know.
        name: the kind of finding, for programs.
        message: one line, for people.
        fix: what to do about it.
        count: the number of rows, or of what the message counts.
        rows: the first few of them, as `file: row n`.
    """

    level: Level
    name: str
    message: str
    fix: str = ""
    count: int = 0
    rows: list[str] = field(default_factory=list)


def locate_rows(rows: Rows, indices: Sequence[int] | np.ndarray) -> list[str]:
    """Return the locations of the first few of these rows; for questions also their ids."""
    format_location = describe_location if isinstance(rows, QuestionRows) else Rows.format_location
    return [format_location(rows, int(index)) for index in indices[:MAX_LOCATIONS]]


def format_fraction(part: int, whole: int) -> str:
    """Return a count as messages show it: `1,234 of 20,000 (6.2%)`."""
    fraction = part / max(1, whole)
    return f"{part:,} of {whole:,}" + (f" ({fraction:.1%})" if fraction >= MIN_PERCENT else "")


class TaskChecks:
    """The data checks that depend on the task, called roughly in this order.

    Attributes:
        task: the task, whose columns are known once its dataset is parsed.
    """

    def __init__(self, task: Any) -> None:
        self.task = task

    def load_examples(self, reporter: "Reporter") -> "LoadedDataset":
        """Load the data with one row per example, without looking for a model."""
        return self.task.load_data(reporter)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Yield the findings that only this task can make about single rows.

        Args:
            dataset: the rows as they were loaded, without the refused ones.
            parsed: the same rows in the form that the task works on.
            notes: what `Task.parse_dataset` noted.
        """
        return (Finding("note", "reading", note) for note in notes)

    @property
    def conflict_severity(self) -> tuple[Level, str]:
        """The level and the fix of a finding that one example has two labels."""
        return "warning", "choose one label: a model cannot predict both"

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        """Return the columns of texts, each [rows]."""
        return [rows[column] for column in self.task.inputs.text_columns]

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        """Return the label of each row; None if the split or the task has none to compare."""
        return None

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Return how often each label occurs; empty if labels are not counted."""
        gold = self.extract_gold(rows)
        return dict(Counter(map(str, gold)).most_common()) if gold else {}

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Yield findings about the frequencies of labels: split -> label -> count."""
        return iter(())

    def resolve_tokenizer(self, is_explicit: bool, reporter: "Reporter") -> "ModelSource | None":
        """Return the model whose tokenizer reads the texts; None if training would make a new one."""
        return self.task.resolve_model(is_explicit, reporter, weights=False)

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Return the numbers of tokens and of [UNK] tokens in each row."""
        return TokenCounts.from_texts(self.extract_texts(rows), tokenizer)

    def check_tokens(self, split: str, rows: Rows, tokenizer: Any) -> Iterator[Finding]:
        """Yield the findings that only this task can make with the tokenizer and `--max-length`."""
        return iter(())


def find_unvalidated(train: Mapping[str, int], validation: Mapping[str, int], unit: str) -> Iterator[Finding]:
    """Find the labels, or types of entities, that no validation row has."""
    if validation and (unseen := [name for name in train if name not in validation]):
        yield Finding(
            "note", "not-validated", f"{unit} that no validation row has: {format_list(unseen)}",
            "the scores will not cover them; add such rows to the validation split", len(unseen),
        )  # fmt: skip
