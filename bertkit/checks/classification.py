"""Checks of labels: those of texts and pairs, and those of multiple choice."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bertkit.checks.base import Finding, Level, TaskChecks, find_unvalidated, format_fraction, locate_rows
from bertkit.data.labels import has_labels, is_missing_label, normalize_label, parse_number
from bertkit.data.rows import Rows
from bertkit.data.token_counts import TokenCounts
from bertkit.errors import format_count, format_list
from bertkit.tasks.label_types import MultiLabel, Regression, SingleLabel

if TYPE_CHECKING:
    from bertkit.data.loading import LoadedDataset

MAJORITY_FRACTION = 0.9  # above this fraction of one class, accuracy says little
MIN_EXAMPLES = 10  # classes with fewer training rows are reported


class SequenceChecks(TaskChecks):
    """The checks of `classify` and `nli`."""

    @property
    def conflict_severity(self) -> tuple[Level, str]:
        """Annotators may give different numbers, so conflicts are a note for regression."""
        if isinstance(self.task.label_type, Regression):
            return "note", "the model learns a number between them; choose one if the other is a mistake"
        return super().conflict_severity

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        """Return the labels."""
        column, parse_label = self.task.config.label_column, self.task.label_type.parse_label
        return [parse_label(value) for value in rows[column]] if has_labels(rows, column) else None

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Count labels, for multi-label rows each label by itself; numbers are not counted."""
        gold = self.extract_gold(rows)
        if gold is None or isinstance(self.task.label_type, Regression):
            return {}
        if isinstance(self.task.label_type, MultiLabel):
            gold = [label for labels in gold for label in labels or ()]  # type: ignore[attr-defined]
        return {str(label): count for label, count in Counter(gold).most_common()}

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Check the frequencies of classes."""
        return check_balance(counts)

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Find similar and placeholder labels, identical pairs, empty label sets, and outliers."""
        yield from super().check_rows(dataset, parsed, notes)
        task, label_type = self.task, self.task.label_type
        yield from find_similar_labels(task.labels)
        texts, column = task.inputs.text_columns, task.config.label_column
        for split, rows in parsed.splits.items():
            if len(texts) > 1:
                yield from find_identical_pairs(split, rows, texts)
            if isinstance(label_type, SingleLabel) and column in rows.columns:
                yield from find_placeholder_labels(split, rows, column, task.labels)
            if isinstance(label_type, MultiLabel):
                yield from find_empty_label_sets(split, rows, self.extract_gold(rows) or [])
        if isinstance(label_type, Regression):
            targets = {split: task.encode_labels(rows) for split, rows in parsed.splits.items()}
            numbers = {split: values for split, values in targets.items() if values is not None}
            yield from find_out_of_range(numbers, parsed.splits)


class ChoiceChecks(TaskChecks):
    """The checks of `swag`."""

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        """Return the contexts, and each row's endings as one text."""
        contexts = [rows[column] for column in self.task.inputs.context_columns]
        return [*contexts, [" ".join(endings) for endings in self.task.parse_endings(rows)]]

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        """Return the right endings; their indices depend on the order of the endings."""
        targets = self.task.encode_labels(rows)
        if targets is None:
            return None
        all_endings = self.task.parse_endings(rows)
        return [endings[index] for endings, index in zip(all_endings, targets, strict=True)]

    def count_labels(self, rows: Rows) -> dict[str, int]:
        """Count the positions of the right endings, numbered as in the labels."""
        targets = self.task.encode_labels(rows)
        counts = Counter([] if targets is None else (targets + self.task.first_label).tolist())
        return {f"ending {position}": count for position, count in counts.most_common()}

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator[Finding]:
        """Check the numbers of endings, and find equal endings."""
        yield from super().check_rows(dataset, parsed, notes)
        for split, rows in parsed.splits.items():
            endings = self.task.parse_endings(rows)
            yield from check_ending_counts(split, rows, endings)
            yield from find_duplicate_endings(split, rows, endings, self.extract_gold(rows))

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        """Count the tokens of the context with its longest ending."""
        contexts = rows[self.task.config.context_column]
        return TokenCounts.from_choices(contexts, self.task.parse_full_endings(rows), tokenizer)


def check_balance(counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
    """Find classes that nearly all or nearly no training rows have, or no validation row.

    Args:
        counts: split -> class -> number of rows.
    """
    train = Counter(counts.get("train", {}))
    if not train:
        return
    [(label, majority)] = train.most_common(1)
    if len(train) > 1 and majority > MAJORITY_FRACTION * train.total():
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
    """Find classes such as "N/A" that mark a missing label, beside classes that are all numbers."""
    placeholders = [label for label in labels if is_missing_label(label)]
    others = set(labels) - set(placeholders)
    if not placeholders or any(parse_number(label) is None for label in others):
        return
    indices = [index for index, value in enumerate(rows[column]) if normalize_label(value) in placeholders]
    yield Finding(
        "warning", "gaps",
        f"{format_fraction(len(indices), len(rows))} {split} rows have "
        f"{format_list(map(repr, placeholders))} where others have a number",
        "fill in the number or remove the rows; otherwise they form a class of their own", len(indices),
        locate_rows(rows, indices),
    )  # fmt: skip


def find_similar_labels(labels: Sequence[str]) -> Iterator[Finding]:
    """Find labels that differ only in case or white space, which were probably meant to be one."""
    spellings: dict[str, list[str]] = {}
    for label in labels:
        spellings.setdefault("".join(label.casefold().split()), []).append(label)
    for similar in spellings.values():
        if len(similar) > 1:
            yield Finding(
                "warning", "spelling",
                f"labels {format_list(map(repr, similar))} differ only in case or white space",
                "write them alike; otherwise they are learned as different classes", len(similar),
            )  # fmt: skip


def find_identical_pairs(split: str, rows: Rows, columns: Sequence[str]) -> Iterator[Finding]:
    """Find pairs of a text with itself."""
    first, second = (rows[column] for column in columns)
    same = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a.strip() == b.strip()]
    if same:
        yield Finding(
            "note", "equal-pair",
            f"{format_fraction(len(same), len(rows))} {split} rows have the same text in {columns[0]!r} and "
            f"{columns[1]!r}",
            "check that these are the columns of the pair", len(same), locate_rows(rows, same),
        )  # fmt: skip


def find_empty_label_sets(split: str, rows: Rows, gold: Sequence[Hashable]) -> Iterator[Finding]:
    """Find rows of a multi-label split without any label."""
    empty = [index for index, labels in enumerate(gold) if labels == ()]
    if empty:
        yield Finding(
            "note", "no-labels",
            f"{format_fraction(len(empty), len(rows))} {split} rows have none of the labels",
            "remove them if their labels are missing by mistake", len(empty), locate_rows(rows, empty),
        )  # fmt: skip


def find_out_of_range(numbers: Mapping[str, np.ndarray], splits: Mapping[str, Rows]) -> Iterator[Finding]:
    """Find numbers of other splits outside of the range of the training rows.

    Args:
        numbers: split -> the numbers, [rows].
        splits: split -> its rows.
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


def check_ending_counts(split: str, rows: Rows, endings: Sequence[Sequence[str]]) -> Iterator[Finding]:
    """Report how many endings rows have, and locate rows with another number than most."""
    sizes = Counter(map(len, endings)).most_common()
    usual, count = sizes[0]
    summary = f"{usual} in every row"
    if count < len(rows):
        summary = ", ".join(f"{size} in {format_count(count, 'row')}" for size, count in sizes)
    unusual = [index for index, row_endings in enumerate(endings) if len(row_endings) != usual]
    yield Finding(
        "note", "endings", f"endings of the {split} split: {summary}",
        "rows may have different numbers; check that none lost an ending" if unusual else "",
        len(unusual), locate_rows(rows, unusual),
    )  # fmt: skip


def find_duplicate_endings(
    split: str, rows: Rows, endings: Sequence[Sequence[str]], gold: Sequence[Hashable] | None
) -> Iterator[Finding]:
    """Find rows with equal endings, and among them those whose right ending also counts as wrong.

    Args:
        split: the name of the split.
        rows: its rows.
        endings: the endings of each row.
        gold: the right ending of each row, if there are labels.
    """
    duplicates = [
        index for index, row_endings in enumerate(endings) if len(set(row_endings)) < len(row_endings)
    ]
    ambiguous = []
    if gold is not None:
        ambiguous = [i for i in duplicates if sum(ending == gold[i] for ending in endings[i]) > 1]
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
