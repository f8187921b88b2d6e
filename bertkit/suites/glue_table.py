"""The paper's table with ours beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.suites.glue_tasks import GLUE_TASKS, ReportedScore
from bertkit.suites.result_table import ResultTable, format_percent
from bertkit.suites.submission import SUBMISSION_DIR

HEADINGS = (
    "task", "score", "ours (dev)", "majority (dev)", "ours (test)", "BERT-BASE (test)", "BERT-LARGE (test)",
)  # fmt: skip
CAPTION = "In percent. BERT-BASE and BERT-LARGE: Devlin et al. 2018, table 1, on the test sets."


@dataclass(frozen=True)
class ScoreRow:
    """A row of the table, as texts."""

    title: str
    metric: str
    validation: str
    majority: str
    test: str
    bert_base: str
    bert_large: str

    @property
    def cells(self) -> tuple[str, ...]:
        """In the order of `HEADINGS`."""
        return (
            self.title,
            self.metric,
            self.validation,
            self.majority,
            self.test,
            self.bert_base,
            self.bert_large,
        )


def build_score_rows(metrics: Mapping[str, Any]) -> list[ScoreRow]:
    """A line for each figure of each task run, and the average where all of the paper's are there."""
    found: list[ScoreRow] = []
    counted: list[tuple[float | None, float, float]] = []
    for task in GLUE_TASKS:
        scores = metrics["tasks"].get(task.name, {})
        for title, figure in zip(task.titles, task.scores, strict=True):
            ours = scores.get(figure.split, {}).get(figure.metric)
            if figure.bert_base is not None and figure.bert_large is not None:
                counted.append((ours, figure.bert_base, figure.bert_large))
            if ours is not None:
                found.append(_line(title, figure, scores))
    values = [ours for ours, _, _ in counted if ours is not None]
    if len(values) == len(counted):
        base, large = (sum(figures) / len(counted) for figures in list(zip(*counted, strict=True))[1:])
        average = format_percent(sum(values) / len(values))
        found.append(ScoreRow("average", "without WNLI", average, "", "", _plain(base), _plain(large)))
    return found


def _line(title: str, figure: ReportedScore, scores: Mapping[str, Any]) -> ScoreRow:
    def share(split: str) -> str:
        found, spread = scores.get(split, {}), scores.get(f"{split}_std", {})
        return format_percent(found.get(figure.metric), spread.get(figure.metric))

    main = figure.split == "validation"  # the majority and the labelled test sets are of this one
    majority = format_percent(scores["majority"].get(figure.metric)) if main else ""
    test = share("test") if main else ""
    return ScoreRow(
        title,
        figure.metric,
        share(figure.split),
        majority,
        test,
        _plain(figure.bert_base),
        _plain(figure.bert_large),
    )


def _plain(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def build_glue_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """What is shown of a suite."""
    files = metrics["submission"]
    return ResultTable(
        f"GLUE · {metrics['model']}",
        HEADINGS,
        [line.cells for line in build_score_rows(metrics)],
        CAPTION,
        [
            f"{name}: `{about['best_run']}`, {describe_seeds(about)}"
            for name, about in metrics["tasks"].items()
        ],
        text_columns=2,
        page_title=f"GLUE with `{metrics['model']}`",
        notes=[f"for the leaderboard: {folder}/{SUBMISSION_DIR}: {', '.join(files)}"] if files else [],
    )


def describe_seeds(about: Mapping[str, Any]) -> str:
    """How a task's figures came about."""
    rate = f"learning rate {about['learning_rate']:g}, "
    several = len(about["seeds"]) > 1
    return (
        f"{rate}mean and standard deviation of {len(about['seeds'])} seeds" if several else f"{rate}one seed"
    )
