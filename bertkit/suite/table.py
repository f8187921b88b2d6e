"""The paper's table with ours beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.suite.glue import GLUE, Figure
from bertkit.suite.shown import Shown, percent
from bertkit.suite.submission import FOLDER

HEADINGS = (
    "task", "score", "ours (dev)", "majority (dev)", "ours (test)", "BERT-BASE (test)", "BERT-LARGE (test)",
)  # fmt: skip
SOURCE = "In percent. BERT-BASE and BERT-LARGE: Devlin et al. 2018, table 1, on the test sets."


@dataclass(frozen=True)
class Line:
    """A row of the table, as texts."""

    title: str
    metric: str
    ours: str
    majority: str
    test: str
    base: str
    large: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        return self.title, self.metric, self.ours, self.majority, self.test, self.base, self.large


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
                found.append(_line(title, figure, scores))
    values = [ours for ours, _, _ in counted if ours is not None]
    if len(values) == len(counted):
        base, large = (sum(figures) / len(counted) for figures in list(zip(*counted, strict=True))[1:])
        average = percent(sum(values) / len(values))
        found.append(Line("average", "without WNLI", average, "", "", _plain(base), _plain(large)))
    return found


def _line(title: str, figure: Figure, scores: Mapping[str, Any]) -> Line:
    def share(split: str) -> str:
        found, spread = scores.get(split, {}), scores.get(f"{split}_std", {})
        return percent(found.get(figure.metric), spread.get(figure.metric))

    main = figure.split == "validation"  # the majority and the labelled test sets are of this one
    majority = percent(scores["majority"].get(figure.metric)) if main else ""
    test = share("test") if main else ""
    return Line(
        title, figure.metric, share(figure.split), majority, test, _plain(figure.base), _plain(figure.large)
    )


def _plain(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def table(metrics: Mapping[str, Any], folder: Path) -> Shown:
    """What is shown of a suite."""
    files = metrics["submission"]
    return Shown(
        f"GLUE · {metrics['model']}",
        HEADINGS,
        [line.cells for line in lines(metrics)],
        SOURCE,
        [f"{name}: `{about['best_run']}`, {seeds(about)}" for name, about in metrics["tasks"].items()],
        texts=2,
        heading=f"GLUE with `{metrics['model']}`",
        notes=[f"for the leaderboard: {folder}/{FOLDER}: {', '.join(files)}"] if files else [],
    )


def seeds(about: Mapping[str, Any]) -> str:
    """How a task's figures came about."""
    rate = f"learning rate {about['learning_rate']:g}, "
    several = len(about["seeds"]) > 1
    return (
        f"{rate}mean and standard deviation of {len(about['seeds'])} seeds" if several else f"{rate}one seed"
    )
