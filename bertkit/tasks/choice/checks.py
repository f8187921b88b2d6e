"""The data checks of `swag`."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import Rows
from bertkit.data.tokens import TokenCounts
from bertkit.errors import format_count
from bertkit.tasks.checks import Finding, TaskChecks, locate_rows, report_rows
from bertkit.tasks.choice.task import AMBIGUOUS_LABEL, AMBIGUOUS_LABEL_FIX, find_ambiguous_labels


class ChoiceChecks(TaskChecks):
    """The checks of `swag`."""

    def extract_texts(self, rows: Rows) -> list[Sequence[str]]:
        contexts = [rows[column] for column in self.task.input_schema.context_columns]
        return [*contexts, [" ".join(endings) for endings in self.task.parse_endings(rows)]]

    def extract_gold(self, rows: Rows) -> list[Hashable] | None:
        targets = self.task.encode_labels(rows)
        if targets is None:
            return None
        all_endings = self.task.parse_endings(rows)
        return [endings[index] for endings, index in zip(all_endings, targets, strict=True)]

    def count_labels(self, rows: Rows) -> dict[str, int]:
        targets = self.task.encode_labels(rows)
        counts = Counter([] if targets is None else (targets + self.task.state.first_label).tolist())
        return {f"ending {position}": count for position, count in counts.most_common()}

    def check_rows(
        self, dataset: LoadedDataset, parsed: LoadedDataset, notes: Sequence[str]
    ) -> Iterator[Finding]:
        # The finding on ambiguous labels replaces the note on them.
        yield from super().check_rows(
            dataset, parsed, [note for note in notes if AMBIGUOUS_LABEL not in note]
        )
        for split, rows in parsed.splits.items():
            endings = self.task.parse_endings(rows)
            if self.task.config.label_column in rows.columns:
                labels = rows[self.task.config.label_column]
                ambiguous = find_ambiguous_labels(labels, endings, self.task.state.first_label)
                yield from report_rows(
                    "warning", "ambiguous-label", rows, ambiguous,
                    f"{split} rows have an ambiguous label: {AMBIGUOUS_LABEL}", AMBIGUOUS_LABEL_FIX,
                )  # fmt: skip
            yield from check_ending_counts(split, rows, endings)
            yield from find_duplicate_endings(split, rows, endings, self.extract_gold(rows))

    def count_tokens(self, rows: Rows, tokenizer: Any) -> TokenCounts:
        contexts = rows[self.task.config.context_column]
        return TokenCounts.from_choices(contexts, self.task.parse_full_endings(rows), tokenizer)


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
    """Find rows that repeat their correct ending, which `gold` has, and rows that repeat only a wrong one."""
    duplicates = [
        index for index, row_endings in enumerate(endings) if len(set(row_endings)) < len(row_endings)
    ]
    ambiguous = []
    if gold is not None:
        ambiguous = [index for index in duplicates if endings[index].count(gold[index]) > 1]
    yield from report_rows(
        "warning", "right-twice", rows, ambiguous,
        f"{split} rows have their correct ending among the wrong ones too",
        "remove one of the two; a model cannot distinguish them",
    )  # fmt: skip
    yield from report_rows(
        "note", "wrong-twice", rows, sorted(set(duplicates) - set(ambiguous)),
        f"{split} rows have a wrong ending twice", "remove one of the two",
    )  # fmt: skip
