"""The data checks of `classify` and `nli`."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from bertkit.data.labels import has_labels, is_missing_label, normalize_label, parse_number
from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows, map_values
from bertkit.errors import format_list
from bertkit.tasks.checks import Finding, Level, TaskChecks, find_unvalidated, format_fraction, report_rows
from bertkit.tasks.text.label_types import MultiLabel, Regression, SingleLabel

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
        column, parse_label = self.task.config.label_column, self.task.label_type.parse_label
        if not has_labels(rows, column):
            return None
        return map_values(rows[column], lambda labels: list(map(parse_label, labels)))

    def count_labels(self, rows: Rows) -> dict[str, int]:
        gold = self.extract_gold(rows)
        if gold is None or isinstance(self.task.label_type, Regression):
            return {}
        if isinstance(self.task.label_type, MultiLabel):
            counts = Counter(label for labels in gold for label in labels or ())  # type: ignore[attr-defined]
        else:
            counts = Counter(gold)
        return {str(label): count for label, count in counts.most_common()}

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        yield from super().check_rows(dataset, parsed, notes)
        task, label_type = self.task, self.task.label_type
        yield from find_similar_labels(task.labels)
        text_columns, label_column = task.input_schema.text_columns, task.config.label_column
        for split, rows in parsed.splits.items():
            if len(text_columns) > 1:
                first, second = (rows[column] for column in text_columns)
                pairs = enumerate(zip(first, second, strict=True))
                yield from report_rows(
                    "note", "equal-pair", rows, [index for index, (a, b) in pairs if a.strip() == b.strip()],
                    f"{split} rows have the same text in {text_columns[0]!r} and {text_columns[1]!r}",
                    "check that these are the columns of the pair",
                )  # fmt: skip
            if isinstance(label_type, SingleLabel) and label_column in rows.columns:
                yield from find_placeholder_labels(split, rows, label_column, task.labels)
            if isinstance(label_type, MultiLabel):
                gold = enumerate(self.extract_gold(rows) or [])
                yield from report_rows(
                    "note", "no-labels", rows, [index for index, labels in gold if labels == ()],
                    f"{split} rows have none of the labels",
                    "remove them if their labels are missing by mistake",
                )  # fmt: skip
        if isinstance(label_type, Regression):
            labels = {split: task.encode_labels(rows) for split, rows in parsed.splits.items()}
            low, high = labels["train"].min(), labels["train"].max()
            yield Finding("note", "range", f"the training labels range from {low:g} to {high:g}")
            for split, values in labels.items():
                if values is not None:
                    yield from report_rows(
                        "warning", "beyond", parsed.splits[split],
                        np.flatnonzero((values < low) | (values > high)),
                        f"{split} labels are outside {low:g} to {high:g}, the range of the training labels",
                        "models rarely predict numbers outside of it; check that the splits use the same "
                        "scale",
                    )  # fmt: skip

    def check_balance(self, counts: Mapping[str, Mapping[str, int]]) -> Iterator[Finding]:
        """Find a class of nearly all training rows, rare classes, and classes without validation rows."""
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
    yield from report_rows(
        "warning", "gaps", rows, np.flatnonzero(is_placeholder[codes]),
        f"{split} rows have {format_list(map(repr, placeholders))} where others have a number",
        "fill in the number or remove the rows; otherwise they form a class of their own",
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
