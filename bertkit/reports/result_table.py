"""The table of the results of several runs, as text for the console and the README."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ResultTable:
    """The table of several runs, with its caption and notes.

    Attributes:
        title: The title of the printed table.
        headings: The column headings.
        rows: The cells of each row.
        caption: Explanation of the scores and their sources.
        run_notes: One line about the runs of each row or task.
        text_columns: Number of columns at the left that contain text instead of numbers.
        page_title: The title of the Markdown page; if empty, `title` is used.
        notes: Lines below the printed table.
        failures: Reason of each failed run by name.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    run_notes: Sequence[str]
    text_columns: int = 1
    page_title: str = ""
    notes: Sequence[str] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def describe_failures(self) -> list[str]:
        """Return one line for each failed run."""
        return [f"{name} failed: {reason}" for name, reason in self.failures.items()]

    def to_markdown(self, heading: str = "") -> str:
        """Return the title, the table, its caption and the notes on runs, if any, as Markdown.

        Args:
            heading: Line that replaces the title.
        """
        heading = heading or f"# {self.page_title or self.title}"
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in [*self.run_notes, *self.describe_failures()])
        page = f"{heading}\n\n{table}\n\n{self.caption}\n"
        return f"{page}\n## Runs\n\n{runs}\n" if runs else page


def format_score(percent: float | None, digits: int = 1) -> str:
    """Format a score that is already in percent (`84.6`); None becomes an empty string."""
    return "" if percent is None else f"{percent:.{digits}f}"


def format_percent(value: float | None, std: float | None = None) -> str:
    """Format a fraction in percent (`84.6` or `84.6 ± 0.3`); None becomes an empty string."""
    if value is None:
        return ""
    return format_score(100 * value) + ("" if std is None else f" ± {format_score(100 * std)}")
