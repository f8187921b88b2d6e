"""The results of GLUE: the table with the paper's scores, and the files of the leaderboard."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bertkit.data.registry import load_dataset_specs
from bertkit.errors import format_count
from bertkit.suites.base import ResultTable, format_percent, format_score
from bertkit.suites.glue_tasks import GLUE_TASKS, GlueTask, ReportedScore
from bertkit.utils.files import write_text

HEADINGS = (
    "task", "score", "ours (dev)", "majority (dev)", "ours (test)", "BERT-BASE (test)", "BERT-LARGE (test)",
)  # fmt: skip
CAPTION = "In percent. BERT-BASE and BERT-LARGE: Devlin et al. 2018, table 1, on the test sets."
SUBMISSION_DIR, SUBMISSION_ARCHIVE = "submission", "submission.zip"


# ---- the table


@dataclass(frozen=True)
class ScoreRow:
    """The cells of one row of the table, in the order of `HEADINGS`."""

    title: str
    metric: str
    validation: str
    majority: str
    test: str
    bert_base: str
    bert_large: str


def build_glue_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """Return the table for the metrics of a finished suite."""
    files = metrics["submission"]
    return ResultTable(
        title=f"GLUE · {metrics['model']}",
        headings=HEADINGS,
        rows=[astuple(row) for row in build_score_rows(metrics)],
        caption=CAPTION,
        run_notes=[
            f"{name}: `{summary['best_run']}`, {_describe_seeds(summary)}"
            for name, summary in metrics["tasks"].items()
        ],
        text_columns=2,
        page_title=f"GLUE with `{metrics['model']}`",
        notes=[f"leaderboard files: {folder}/{SUBMISSION_DIR}: {', '.join(files)}"] if files else [],
    )


def build_score_rows(metrics: Mapping[str, Any]) -> list[ScoreRow]:
    """Return a row for each score of each task that was run.

    The average follows if every score that the paper averages is available.
    """
    rows: list[ScoreRow] = []
    averaged: list[tuple[float | None, float, float]] = []  # ours, BERT-BASE, BERT-LARGE
    for task in GLUE_TASKS:
        scores = metrics["tasks"].get(task.name, {})
        for title, reported in zip(task.titles, task.scores, strict=True):
            ours = scores.get(reported.split, {}).get(reported.metric)
            if reported.bert_base is not None and reported.bert_large is not None:
                averaged.append((ours, reported.bert_base, reported.bert_large))
            if ours is not None:
                rows.append(_build_row(title, reported, scores))
    values = [ours for ours, _, _ in averaged if ours is not None]
    if len(values) < len(averaged):
        return rows
    count = len(averaged)
    bert_base = sum(base for _, base, _ in averaged) / count
    bert_large = sum(large for _, _, large in averaged) / count
    average = format_percent(sum(values) / count)
    cells = ("average", "without WNLI", average, "", "", format_score(bert_base), format_score(bert_large))
    return [*rows, ScoreRow(*cells)]


def _build_row(title: str, reported: ReportedScore, scores: Mapping[str, Any]) -> ScoreRow:
    metric = reported.metric

    def format_split(split: str) -> str:
        means, stds = scores.get(split, {}), scores.get(f"{split}_std", {})
        return format_percent(means.get(metric), stds.get(metric))

    # The majority baseline and labeled test sets belong to the first validation split alone.
    is_main_split = reported.split == "validation"
    return ScoreRow(
        title=title,
        metric=metric,
        validation=format_split(reported.split),
        majority=format_percent(scores["majority"].get(metric)) if is_main_split else "",
        test=format_split("test") if is_main_split else "",
        bert_base=format_score(reported.bert_base),
        bert_large=format_score(reported.bert_large),
    )


def _describe_seeds(summary: Mapping[str, Any]) -> str:
    rate, seeds = f"learning rate {summary['learning_rate']:g}", len(summary["seeds"])
    scores = "mean and standard deviation of " if seeds > 1 else ""
    return f"{rate}, {scores}{format_count(seeds, 'seed')}"


# ---- the leaderboard


def write_submission(folder: Path, runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
    """Write `submission/FILE.tsv` for each test set that was predicted, and the archive once all exist.

    Args:
        folder: The directory of the suite.
        runs: Each task with its best run directory.

    Returns:
        The names of the files, in the leaderboard's order.
    """
    names = []
    for task, run_dir in runs:
        for split, name in task.submission_files.items():
            predictions = run_dir / f"predictions-{split}.jsonl"
            if predictions.exists():
                (folder / SUBMISSION_DIR).mkdir(exist_ok=True)
                records = [json.loads(line) for line in predictions.read_text("utf-8").splitlines()]
                write_text(folder / SUBMISSION_DIR / name, format_submission(task, records))
                names.append(name)
    if set(names) == {name for task in GLUE_TASKS for name in task.submission_files.values()}:
        with zipfile.ZipFile(folder / SUBMISSION_ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                archive.write(folder / SUBMISSION_DIR / name, name)
    return names


def format_submission(task: GlueTask, records: list[dict[str, Any]]) -> str:
    """Return one leaderboard file: tab-separated `index` and `prediction`.

    The index is the test file's own. For files without one, it is the row number, from 0.
    """
    lines = ["index\tprediction"]
    for record in records:
        index = record.get("index", record["id"])
        lines.append(f"{index}\t{format_label(task, record['predicted'])}")
    return "\n".join(lines) + "\n"


def format_label(task: GlueTask, predicted: Any) -> str:
    """Return a label as the leaderboard writes it; scores are clipped to 0 to 5."""
    if task.label_format == "score":
        return f"{min(5.0, max(0.0, predicted)):.3f}"
    if task.label_format == "number":
        return str(load_dataset_specs()[task.name].labels.index(predicted))
    return str(predicted)
