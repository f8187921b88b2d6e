"""Data checks before training (`bertkit check`), and the classes of task-specific checks."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bertkit.data.columns import has_labels, is_missing_label, normalize_label, parse_number
from bertkit.data.table import Rows, map_values
from bertkit.data.tokens import TokenCounts
from bertkit.errors import format_count, format_list
from bertkit.tasks.choice.rows import AMBIGUOUS_LABEL, AMBIGUOUS_LABEL_FIX, find_ambiguous_labels
from bertkit.tasks.text.labels import MultiLabel, Regression, SingleLabel

if TYPE_CHECKING:
    from bertkit.data.sources import LoadedDataset
    from bertkit.models.loading import ModelSource


CHECKS = {
    "classify": "bertkit.tasks.checks:SequenceChecks",
    "ner": "bertkit.tasks.ner.checks:NerChecks",
    "nli": "bertkit.tasks.checks:SequenceChecks",
    "pretrain-mlm-nsp": "bertkit.tasks.pretrain.checks:CorpusChecks",
    "qa": "bertkit.tasks.qa.checks:QaChecks",
    "swag": "bertkit.tasks.checks:ChoiceChecks",
}


def checks_class(task_name: str) -> "type[TaskChecks]":
    """Return the class with the checks of a task; tasks that are not listed in `CHECKS` use `TaskChecks`."""
    module, _, attribute = CHECKS.get(task_name, "bertkit.tasks.checks:TaskChecks").partition(":")
    return getattr(import_module(module), attribute)


Level = Literal["error", "warning", "note"]
MAX_LOCATIONS = 5  # rows that a finding lists at most
MIN_SHOWN_FRACTION = 0.001  # smaller fractions would be shown as 0.0%


@dataclass(frozen=True)
class Finding:
    """A result of a data check.

    Attributes:
        level: "error" if training refuses the data, "warning" if the scores may suffer, else "note".
        name: Name of this kind of finding, for programs.
        message: One line of text, for people.
        fix: How to fix the problem; empty if there is nothing to fix.
        count: Number of rows, labels, tags or types that the finding is about.
        rows: Locations of the first few rows, such as `train.csv: row 3`.
    """

    level: Level
    name: str
    message: str
    fix: str = ""
    count: int = 0
    rows: list[str] = field(default_factory=list)


def locate_rows(rows: Rows, indices: Sequence[int] | np.ndarray) -> list[str]:
    """Return the locations of the first few indices; for questions, including the question ids."""
    return [rows.describe_location(int(index)) for index in indices[:MAX_LOCATIONS]]


def format_fraction(part: int, whole: int) -> str:
    """Format a count and its percentage, such as `1,234 of 20,000 (6.2%)`."""
    fraction = part / max(1, whole)
    return f"{part:,} of {whole:,}" + (f" ({fraction:.1%})" if fraction >= MIN_SHOWN_FRACTION else "")


class TaskChecks:
    """The data checks of a task. The methods are called roughly in the order of their definitions.

    Attributes:
        task: The task. Its columns are known after `Task.parse_dataset`.
    """

    def __init__(self, task: Any) -> None:
        self.task = task

    def load_examples(self) -> "LoadedDataset":
        """Load the data with one row per example, without loading a model or a tokenizer."""
        return self.task.load_data()

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
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
        """Yield findings about the frequencies of labels.

        Args:
            counts: Number of rows by split and label.
        """
        return iter(())

    def resolve_tokenizer(self, is_model_requested: bool) -> "ModelSource | None":
        """Return the model that provides the tokenizer; None if training would train a new tokenizer."""
        return self.task.resolve_model(is_model_requested, needs_weights=False)

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Count all tokens and the [UNK] tokens of each row."""
        return TokenCounts.from_texts(self.extract_texts(rows), tokenizer)

    def check_tokens(self, split: str, rows: Rows, tokenizer: Any) -> Iterator[Finding]:
        """Yield task-specific findings that depend on the tokenizer or on `--max-length`."""
        return iter(())


def find_unvalidated(train: Mapping[str, int], validation: Mapping[str, int], unit: str) -> Iterator[Finding]:
    """Find labels or entity types that occur in training rows but in no validation row.

    Args:
        train: Number of training rows or entities by label.
        validation: Number of validation rows or entities by label; empty if there is no validation split.
        unit: Noun for the labels in the message.
    """
    if validation and (unseen := [name for name in train if name not in validation]):
        yield Finding(
            "note", "not-validated", f"{unit} that no validation row has: {format_list(unseen)}",
            "the scores will not cover them; add such rows to the validation split", len(unseen),
        )  # fmt: skip


MAX_MAJORITY_FRACTION = 0.9  # A larger fraction of one class makes the accuracy hard to interpret.
MIN_EXAMPLES = 10  # classes with fewer training rows are reported


class SequenceChecks(TaskChecks):
    """The checks of `classify` and `nli`."""

    @property
    def conflict_severity(self) -> tuple[Level, str]:
        """A note for regression, since annotators may assign different numbers; else a warning."""
        if isinstance(self.task.label_type, Regression):
            return "note", "the model learns a number between them; choose one if the other is a mistake"
        return super().conflict_severity

    def extract_gold(self, rows: Rows) -> Sequence[Hashable] | None:
        """Return the label of each row."""
        column, parse_label = self.task.config.label_column, self.task.label_type.parse_label
        if not has_labels(rows, column):
            return None
        return map_values(rows[column], lambda labels: list(map(parse_label, labels)))

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Count the rows with each label; empty for regression."""
        gold = self.extract_gold(rows)
        if gold is None or isinstance(self.task.label_type, Regression):
            return {}
        if isinstance(self.task.label_type, MultiLabel):
            counts = Counter(label for labels in gold for label in labels or ())  # type: ignore[attr-defined]
        else:
            counts = Counter(gold)
        return {str(label): count for label, count in counts.most_common()}

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Find very frequent and very rare classes."""
        return check_balance(counts)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Find similar labels, placeholders, identical pairs, empty label sets, and numbers out of range."""
        yield from super().check_rows(dataset, parsed, notes)
        task, label_type = self.task, self.task.label_type
        yield from find_similar_labels(task.labels)
        text_columns, label_column = task.input_schema.text_columns, task.config.label_column
        for split, rows in parsed.splits.items():
            if len(text_columns) > 1:
                yield from find_identical_pairs(split, rows, text_columns)
            if isinstance(label_type, SingleLabel) and label_column in rows.columns:
                yield from find_placeholder_labels(split, rows, label_column, task.labels)
            if isinstance(label_type, MultiLabel):
                yield from find_empty_label_sets(split, rows, self.extract_gold(rows) or [])
        if isinstance(label_type, Regression):
            labels = {split: task.encode_labels(rows) for split, rows in parsed.splits.items()}
            numbers = {split: values for split, values in labels.items() if values is not None}
            yield from find_out_of_range(numbers, parsed.splits)


class ChoiceChecks(TaskChecks):
    """The checks of `swag`."""

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        """Return the context columns, and a column with the endings of each row joined."""
        contexts = [rows[column] for column in self.task.input_schema.context_columns]
        return [*contexts, [" ".join(endings) for endings in self.task.parse_endings(rows)]]

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        """Return the texts of the correct endings, which do not depend on the order of the endings."""
        targets = self.task.encode_labels(rows)
        if targets is None:
            return None
        all_endings = self.task.parse_endings(rows)
        return [endings[index] for endings, index in zip(all_endings, targets, strict=True)]

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Count the rows by the number of the correct ending, counted from 0 or 1 as in the labels."""
        targets = self.task.encode_labels(rows)
        counts = Counter([] if targets is None else (targets + self.task.first_label).tolist())
        return {f"ending {position}": count for position, count in counts.most_common()}

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Check the numbers of endings, and find ambiguous labels and repeated endings."""
        # The finding on ambiguous labels replaces the note on them.
        yield from super().check_rows(
            dataset, parsed, [note for note in notes if AMBIGUOUS_LABEL not in note]
        )
        for split, rows in parsed.splits.items():
            endings = self.task.parse_endings(rows)
            if self.task.config.label_column in rows.columns:
                labels = rows[self.task.config.label_column]
                ambiguous = find_ambiguous_labels(labels, endings, self.task.first_label)
                yield from describe_ambiguous_labels(split, rows, ambiguous)
            yield from check_ending_counts(split, rows, endings)
            yield from find_duplicate_endings(split, rows, endings, self.extract_gold(rows))

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Count the tokens of each context with its longest ending."""
        contexts = rows[self.task.config.context_column]
        return TokenCounts.from_choices(contexts, self.task.parse_full_endings(rows), tokenizer)


def check_balance(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Find a class of nearly all training rows, rare classes, and classes without validation rows.

    Args:
        counts: Number of rows by split and class.
    """
    train = Counter(counts.get("train", {}))
    if not train:
        return
    [(label, majority)] = train.most_common(1)
    if len(train) > 1 and majority > MAX_MAJORITY_FRACTION * train.total():
        yield Finding(
            "warning", "majority",
            f"{format_fraction(majority, train.total())} of the training labels are {label!r}",
            "accuracy says little then; compare f1 and the majority baseline", majority,
        )  # fmt: skip
    if rare := [label for label, count in train.items() if count < MIN_EXAMPLES]:
        yield Finding(
            "warning", "rare",
            f"labels with fewer than {MIN_EXAMPLES} training examples: {format_list(rare)}",
            "too few to learn; add examples, merge the labels, or remove them", len(rare),
        )  # fmt: skip
    yield from find_unvalidated(train, counts.get("validation", {}), "labels")


def find_placeholder_labels(split: str, rows: Rows, column: str, labels: Sequence[str]) -> Iterator[Finding]:
    """Find classes such as "N/A", which mark a missing label, if all other classes are numbers."""
    placeholders = [label for label in labels if is_missing_label(label)]
    others = set(labels) - set(placeholders)
    has_named_class = any(parse_number(label) is None for label in others)
    if not placeholders or has_named_class:
        return
    codes, values = rows.factorize(column)
    is_placeholder = np.array([normalize_label(value) in placeholders for value in values])
    indices = np.flatnonzero(is_placeholder[codes]).tolist()
    yield Finding(
        "warning", "gaps",
        f"{format_fraction(len(indices), len(rows))} {split} rows have "
        f"{format_list(map(repr, placeholders))} where others have a number",
        "fill in the number or remove the rows; otherwise they form a class of their own", len(indices),
        locate_rows(rows, indices),
    )  # fmt: skip


def find_similar_labels(labels: Sequence[str]) -> Iterator[Finding]:
    """Find labels that differ only in case or white space, and so probably mean the same class."""
    spellings: dict[str, list[str]] = {}
    for label in labels:
        spellings.setdefault("".join(label.casefold().split()), []).append(label)
    for similar in spellings.values():
        if len(similar) > 1:
            yield Finding(
                "warning", "spelling",
                f"labels {format_list(map(repr, similar))} differ only in case or white space",
                "write them in the same way; otherwise training treats them as different classes",
                len(similar),
            )  # fmt: skip


def find_identical_pairs(split: str, rows: Rows, columns: Sequence[str]) -> Iterator[Finding]:
    """Find pairs of two equal texts."""
    first, second = (rows[column] for column in columns)
    same = [index for index, (a, b) in enumerate(zip(first, second, strict=True)) if a.strip() == b.strip()]
    if same:
        yield Finding(
            "note", "equal-pair",
            f"{format_fraction(len(same), len(rows))} {split} rows have the same text in {columns[0]!r} and "
            f"{columns[1]!r}",
            "check that these are the columns of the pair", len(same), locate_rows(rows, same),
        )  # fmt: skip


def find_empty_label_sets(split: str, rows: Rows, gold: Sequence[Hashable]) -> Iterator[Finding]:
    """Find rows with an empty label set."""
    empty = [index for index, labels in enumerate(gold) if labels == ()]
    if empty:
        yield Finding(
            "note", "no-labels",
            f"{format_fraction(len(empty), len(rows))} {split} rows have none of the labels",
            "remove them if their labels are missing by mistake", len(empty), locate_rows(rows, empty),
        )  # fmt: skip


def find_out_of_range(numbers: Mapping[str, np.ndarray], splits: Mapping[str, Rows]) -> Iterator[Finding]:
    """Report the range of the training labels, and find labels of other splits outside of this range.

    Args:
        numbers: Labels by split, each [rows].
        splits: Rows by split.
    """
    low, high = numbers["train"].min(), numbers["train"].max()
    yield Finding("note", "range", f"the training labels range from {low:g} to {high:g}")
    for split, values in numbers.items():
        outside = ((values < low) | (values > high)).nonzero()[0]
        if len(outside):
            yield Finding(
                "warning", "beyond",
                f"{format_fraction(len(outside), len(values))} {split} labels are outside {low:g} to "
                f"{high:g}, the range of the training labels",
                "models rarely predict numbers outside of it; check that the splits use the same scale",
                len(outside), locate_rows(splits[split], outside),
            )  # fmt: skip


def describe_ambiguous_labels(split: str, rows: Rows, ambiguous: Sequence[int]) -> Iterator[Finding]:
    """Report the rows with these indices, whose labels can mean two endings."""
    if ambiguous:
        yield Finding(
            "warning", "ambiguous-label",
            f"{format_fraction(len(ambiguous), len(rows))} {split} rows have an ambiguous label: "
            f"{AMBIGUOUS_LABEL}",
            AMBIGUOUS_LABEL_FIX, len(ambiguous), locate_rows(rows, ambiguous),
        )  # fmt: skip


def check_ending_counts(split: str, rows: Rows, endings: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Report the numbers of endings, and locate the rows that do not have the most frequent number."""
    row_counts = Counter(map(len, endings)).most_common()
    usual_size, _ = row_counts[0]
    if len(row_counts) == 1:
        summary = f"{usual_size} in every row"
    else:
        summary = ", ".join(f"{size} in {format_count(count, 'row')}" for size, count in row_counts)
    unusual = [index for index, row_endings in enumerate(endings) if len(row_endings) != usual_size]
    yield Finding(
        "note", "endings", f"endings of the {split} split: {summary}",
        "rows may have different numbers; check that none lost an ending" if unusual else "",
        len(unusual), locate_rows(rows, unusual),
    )  # fmt: skip


def find_duplicate_endings(
    split: str, rows: Rows, endings: Sequence[Sequence[str]], gold: Sequence[Hashable] | None
) -> Iterator[Finding]:
    """Find rows that repeat their correct ending, and rows that repeat only a wrong ending.

    Args:
        split: Name of the split.
        rows: The rows of the split.
        endings: Endings of each row.
        gold: Correct ending of each row; None without labels.
    """
    duplicates = [
        index for index, row_endings in enumerate(endings) if len(set(row_endings)) < len(row_endings)
    ]
    ambiguous = []
    if gold is not None:
        ambiguous = [
            index for index in duplicates if sum(ending == gold[index] for ending in endings[index]) > 1
        ]
    if ambiguous:
        yield Finding(
            "warning", "right-twice",
            f"{format_fraction(len(ambiguous), len(rows))} {split} rows have their right ending among the "
            "wrong ones too",
            "remove one of the two; a model cannot distinguish them", len(ambiguous),
            locate_rows(rows, ambiguous),
        )  # fmt: skip
    if others := sorted(set(duplicates) - set(ambiguous)):
        yield Finding(
            "note", "wrong-twice",
            f"{format_fraction(len(others), len(rows))} {split} rows have a wrong ending twice",
            "remove one of the two", len(others), locate_rows(rows, others),
        )  # fmt: skip
