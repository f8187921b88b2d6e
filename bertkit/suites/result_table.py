"""The table of a suite, with our scores and the paper's, for the terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ResultTable:
    """A table with its caption and notes.

    Attributes:
        title: the title of the printed table.
        headings: the column headings.
        rows: the cells of each row.
        caption: the metrics and their source.
        run_notes: one line for each row or task about its runs.
        text_columns: how many of the first columns hold text instead of numbers.
        page_title: the Markdown title of the page; empty for `title`.
        notes: lines below the printed table.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    run_notes: Sequence[str]
    text_columns: int = 1
    page_title: str = ""
    notes: Sequence[str] = ()

    def to_markdown(self) -> str:
        """Return the table, its caption and the notes on runs as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in self.run_notes)
        return f"# {self.page_title or self.title}\n\n{table}\n\n{self.caption}\n\n## Runs\n\n{runs}\n"


def format_score(percent: float | None, digits: int = 1) -> str:
    """Return a score that is in percent already (`84.6`), or an empty string for None."""
    return "" if percent is None else f"{percent:.{digits}f}"


def format_percent(value: float | None, std: float | None = None) -> str:
    """Return a fraction in percent (`84.6` or `84.6 ± 0.3`), or an empty string for None."""
    if value is None:
        return ""
    return format_score(100 * value) + ("" if std is None else f" ± {format_score(100 * std)}")
