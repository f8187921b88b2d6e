"""What a task says of its data where that is looked at and not learned from: `bertkit check`.

A task without any of these methods is checked too; with them it says more.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.data.findings import Finding, Level
    from bertkit.data.piece_counts import PieceCounts
    from bertkit.data.rows import Rows
    from bertkit.data.sources import Found
    from bertkit.modeling.loading import ModelSource
    from bertkit.reporter import Reporter


class Looks:
    """The part of `Task` that is asked before training alone. Methods stand in the order they are called."""

    config: Any
    text_columns: list[str]

    @property
    def at_odds(self) -> "tuple[Level, str]":
        """How bad it is that an example has two answers, and the way out."""
        return "warning", "decide on one label: a model cannot get both right"

    def find(self, reporter: "Reporter") -> "Found":
        """The rows that `--data` names, as for training."""
        raise NotImplementedError

    def source(self, given: bool, reporter: "Reporter", weights: bool = True) -> "ModelSource":
        """The model, as for training."""
        raise NotImplementedError

    def survey(self, reporter: "Reporter") -> "Found":
        """What `find` finds, a row an example; no model is looked for."""
        return self.find(reporter)

    def texts(self, rows: "Rows") -> list[Sequence[str]]:
        """Columns of texts, each [n]."""
        return [rows[column] for column in self.text_columns]

    def gold(self, rows: "Rows") -> list[Hashable] | None:
        """[n] the right answer to each row; None where the split, or the task, has none to compare."""
        return None

    def balance(self, rows: "Rows") -> dict[str, int]:
        """How often there is each label; empty where nothing is counted."""
        gold = self.gold(rows)
        return dict(Counter(map(str, gold)).most_common()) if gold else {}

    def balance_findings(self, counts: "Mapping[str, Mapping[str, int]]") -> Iterator["Finding"]:
        """What is wrong with how often each split has each label; nothing where they are no classes."""
        return iter(())

    def findings(self, found: "Found", read: "Found", notes: Sequence[str]) -> Iterator["Finding"]:
        """What only this task knows to look for.

        Args:
            found: the rows as they were found, those aside that were refused.
            read: the same after `columns` and `readable`.
            notes: what `columns` has to say.
        """
        from bertkit.data.findings import Finding

        return (Finding("note", "reading", note) for note in notes)

    def tokenizer_source(self, given: bool, reporter: "Reporter") -> "ModelSource | None":
        """The model whose tokenizer reads the texts; None where it would be a new one."""
        return self.source(given, reporter, weights=False)

    def count_pieces(self, rows: "Rows", tokenizer: Any) -> "PieceCounts":
        """How many pieces each row has, and how many of them are unknown."""
        from bertkit.data.piece_counts import PieceCounts

        return PieceCounts.of(self.texts(rows), tokenizer)

    def findings_in_pieces(self, split: str, rows: "Rows", tokenizer: Any) -> Iterator["Finding"]:
        """What only this task loses at `--max-length`, which the settings have by now."""
        return iter(())
