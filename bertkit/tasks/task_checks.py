"""What a task says of its data where that is looked at and not learned from: `bertkit check`.

A task without any of these methods is checked too; with them it says more.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.checks.findings import Finding, Level
    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.data.token_counts import TokenCounts
    from bertkit.modeling.loading import ModelSource
    from bertkit.utils.reporting import Reporter


class TaskChecks:
    """The part of `Task` that is asked before training alone. Methods stand in the order they are called."""

    config: Any
    text_columns: list[str]

    @property
    def conflict_severity(self) -> "tuple[Level, str]":
        """How bad it is that an example has two answers, and the way out."""
        return "warning", "decide on one label: a model cannot get both right"

    def load_data(self, reporter: "Reporter") -> "LoadedDataset":
        """The rows that `--data` names, as for training."""
        raise NotImplementedError

    def resolve_model(self, is_explicit: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """The model, as for training."""
        raise NotImplementedError

    def load_examples(self, reporter: "Reporter") -> "LoadedDataset":
        """What `find` finds, a row an example; no model is looked for."""
        return self.load_data(reporter)

    def extract_texts(self, rows: "Rows") -> list[Sequence[str]]:
        """Columns of texts, each [n]."""
        return [rows[column] for column in self.text_columns]

    def extract_gold(self, rows: "Rows") -> list[Hashable] | None:
        """[n] the right answer to each row; None where the split, or the task, has none to compare."""
        return None

    def count_labels(self, rows: "Rows") -> dict[str, int]:
        """How often there is each label; empty where nothing is counted."""
        gold = self.extract_gold(rows)
        return dict(Counter(map(str, gold)).most_common()) if gold else {}

    def check_balance(self, counts: "Mapping[str, Mapping[str, int]]") -> Iterator["Finding"]:
        """What is wrong with how often each split has each label; nothing where they are no classes."""
        return iter(())

    def check_rows(
        self, dataset: "LoadedDataset", parsed: "LoadedDataset", notes: Sequence[str]
    ) -> Iterator["Finding"]:
        """What only this task knows to look for.

        Args:
            found: the rows as they were found, those aside that were refused.
            read: the same after `columns` and `readable`.
            notes: what `columns` has to say.
        """
        from bertkit.checks.findings import Finding

        return (Finding("note", "reading", note) for note in notes)

    def resolve_tokenizer(self, is_explicit: bool, reporter: "Reporter") -> "ModelSource | None":
        """The model whose tokenizer reads the texts; None where it would be a new one."""
        return self.resolve_model(is_explicit, reporter, weights=False)

    def count_tokens(self, rows: "Rows", tokenizer: Any) -> "TokenCounts":
        """How many pieces each row has, and how many of them are unknown."""
        from bertkit.data.token_counts import TokenCounts

        return TokenCounts.from_texts(self.extract_texts(rows), tokenizer)

    def check_tokens(self, split: str, rows: "Rows", tokenizer: Any) -> Iterator["Finding"]:
        """What only this task loses at `--max-length`, which the settings have by now."""
        return iter(())
