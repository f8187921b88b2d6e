"""What a suite shows: the paper's table with ours beside it, printed and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
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
    source: str
    runs: Sequence[str]
    texts: int = 1
    heading: str = ""
    notes: Sequence[str] = ()

    def page(self) -> str:
        """The table, its source and the runs, as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        runs = "\n".join(f"* {line}" for line in self.runs)
        return f"# {self.heading or self.title}\n\n{table}\n\n{self.source}\n\n## Runs\n\n{runs}\n"


def percent(share: float | None, spread: float | None = None) -> str:
    """`84.6`, with a standard deviation `84.6 ± 0.3`; of None nothing."""
    if share is None:
        return ""
    return f"{100 * share:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")
