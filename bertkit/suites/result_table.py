"""What a suite shows: the paper's table with ours beside it, printed and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ResultTable:
    """A table and what belongs to it.

    Attributes:
        title: what it is of.
        headings: of the columns.
        rows: the cells of each.
        source: what the figures are, and whose.
        runs: a line on how the figures of each row came about.
        texts: how many of the first columns are no numbers.
        heading: of the page, in Markdown; "" is the title.
        notes: said below the table where it is printed.
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
        """The table, its source and the runs, as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in self.run_notes)
        return f"# {self.page_title or self.title}\n\n{table}\n\n{self.caption}\n\n## Runs\n\n{runs}\n"


def format_percent(value: float | None, std: float | None = None) -> str:
    """`84.6`, with a standard deviation `84.6 ± 0.3`; of None nothing."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")
