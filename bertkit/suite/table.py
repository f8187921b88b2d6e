"""The paper's table with ours beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertkit.suite.glue import GLUE

HEADINGS = ("task", "score", "ours (dev)", "majority (dev)", "BERT-BASE (test)", "BERT-LARGE (test)")
SOURCE = "In percent. BERT-BASE and BERT-LARGE: Devlin et al. 2018, table 1, on the test sets."


@dataclass(frozen=True)
class Line:
    """A row of the table, as texts."""

    title: str
    metric: str
    ours: str
    majority: str
    base: str
    large: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        return self.title, self.metric, self.ours, self.majority, self.base, self.large


def lines(metrics: Mapping[str, Any]) -> list[Line]:
    """A line for each figure of each task run, and the average where all of the paper's are there."""
    found: list[Line] = []
    counted: list[tuple[float | None, float, float]] = []
    for task in GLUE:
        scores = metrics["tasks"].get(task.name, {})
        for title, figure in zip(task.titles, task.figures, strict=True):
            ours = scores.get(figure.split, {}).get(figure.metric)
            if figure.base is not None and figure.large is not None:
                counted.append((ours, figure.base, figure.large))
            if ours is not None:
                spread = scores.get(f"{figure.split}_std", {}).get(figure.metric)
                majority = scores["majority"].get(figure.metric) if figure.split == "validation" else None
                found.append(
                    Line(
                        title, figure.metric, _percent(ours, spread), _percent(majority),
                        _plain(figure.base), _plain(figure.large),
                    )
                )  # fmt: skip
    values = [ours for ours, _, _ in counted if ours is not None]
    if len(values) == len(counted):
        base, large = (sum(figures) / len(counted) for figures in list(zip(*counted, strict=True))[1:])
        found.append(
            Line(
                "average",
                "without WNLI",
                _percent(sum(values) / len(values)),
                "",
                _plain(base),
                _plain(large),
            )
        )
    return found


def _percent(share: float | None, spread: float | None = None) -> str:
    if share is None:
        return ""
    return f"{100 * share:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def _plain(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.1f}"


def table(metrics: Mapping[str, Any]) -> str:
    """The page of a suite, as Markdown."""
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(line.cells for line in lines(metrics))]
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    runs = "\n".join(
        f"* {name}: `{about['best_run']}`, {seeds(about)}" for name, about in metrics["tasks"].items()
    )
    return f"# GLUE with `{metrics['model']}`\n\n{body}\n\n{SOURCE}\n\n## Runs\n\n{runs}\n"


def seeds(about: Mapping[str, Any]) -> str:
    """How a task's figures came about."""
    rate = "" if about["learning_rate"] is None else f"learning rate {about['learning_rate']:g}, "
    several = len(about["seeds"]) > 1
    return (
        f"{rate}mean and standard deviation of {len(about['seeds'])} seeds" if several else f"{rate}one seed"
    )
