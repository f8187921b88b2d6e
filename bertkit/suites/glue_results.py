"""The results of GLUE: the table with our scores and the paper's, and the leaderboard files."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bertkit.data.sources import load_dataset_specs
from bertkit.errors import format_count
from bertkit.report.tables import ResultTable, format_percent, format_score
from bertkit.suites.glue_tasks import GLUE_TASKS, GlueTask, ReportedScore
from bertkit.utils.files import write_text

HEADINGS = (
    "task", "score", "ours (dev)", "baseline (dev)", "ours (test)", "BERT-BASE (test)", "BERT-LARGE (test)",
)  # fmt: skip
CAPTION = "Scores in percent. BERT-BASE and BERT-LARGE: Devlin et al. 2018, table 1, on the test sets."
SUBMISSION_DIR, SUBMISSION_ARCHIVE = "submission", "submission.zip"


# ---- the table


@dataclass(frozen=True)
class ScoreRow:
    """The cells of one row of the table, in the order of `HEADINGS`."""

    title: str
    metric: str
    validation: str
    baseline: str
    test: str
    bert_base: str
    bert_large: str


def build_glue_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """Build the table from the metrics of a finished suite."""
    files, finished = metrics["submission"], _select_finished(metrics)
    return ResultTable(
        title=f"GLUE · {metrics['model']}",
        headings=HEADINGS,
        rows=[astuple(row) for row in build_score_rows(metrics)],
        caption=CAPTION,
        run_notes=[describe_run(task, metrics["tasks"][task.name]) for task in finished],
        failures=metrics.get("failed", {}),
        text_columns=2,
        page_title=f"GLUE with `{metrics['model']}`",
        notes=[
            *describe_best_baselines(metrics, finished),
            *([f"leaderboard files: {folder}/{SUBMISSION_DIR}: {', '.join(files)}"] if files else []),
        ],
    )


def _select_finished(metrics: Mapping[str, Any]) -> list[GlueTask]:
    return [task for task in GLUE_TASKS if task.name in metrics["tasks"]]


def find_best_baseline(summary: Mapping[str, Any], reported: ReportedScore) -> tuple[str, float] | None:
    """Return the name and the score of the best baseline on the main validation split.

    The result is None if the baselines do not have the reported score.
    """
    metric = reported.metric if reported.baseline_metric is None else reported.baseline_metric
    baselines = summary.get("baselines", {"majority": summary["majority"]})  # of an earlier version
    scores = {name: values[metric] for name, values in baselines.items() if metric in values}
    return max(scores.items(), key=lambda item: item[1], default=None)


def format_best_baseline(summary: Mapping[str, Any], reported: ReportedScore) -> str:
    """Return the score of the best baseline in percent, or an empty text."""
    best = find_best_baseline(summary, reported)
    return format_percent(best[1]) if best else ""


def name_best_baseline(summary: Mapping[str, Any], task: GlueTask) -> str:
    """Return the name of the best baseline by the score that selects the best run, or an empty text."""
    best = find_best_baseline(summary, task.scores[0])
    return best[0] if best else ""


def describe_run(task: GlueTask, summary: Mapping[str, Any]) -> str:
    """Return the best run of a task, its learning rate, seeds and numbers of rows, and the best baseline."""
    name = name_best_baseline(summary, task)
    note = f", best baseline: {name}" if name else ""
    rows = " and ".join(f"{summary['rows'][split]:,} {split}" for split in ("train", "validation"))
    return f"{task.name}: `{summary['best_run']}`, {describe_seeds(task, summary)}, {rows} rows{note}"


def describe_best_baselines(metrics: Mapping[str, Any], tasks: Sequence[GlueTask]) -> list[str]:
    """Return one line with the best baseline of each task, or no line if no task has one."""
    names = {task.name: name_best_baseline(metrics["tasks"][task.name], task) for task in tasks}
    named = ", ".join(f"{task} {name}" for task, name in names.items() if name)
    return [f"best baselines: {named}"] if named else []


def build_score_rows(metrics: Mapping[str, Any]) -> list[ScoreRow]:
    """Return one row for each score of the tasks that were run.

    A row with the average follows if we have all scores that the paper averages.
    """
    rows: list[ScoreRow] = []
    averaged: list[tuple[float | None, float, float]] = []  # scores of ours, BERT-BASE and BERT-LARGE
    for task in GLUE_TASKS:
        scores = metrics["tasks"].get(task.name, {})
        for title, reported in zip(task.titles, task.scores, strict=True):
            ours = scores.get(reported.split, {}).get(reported.metric)
            if reported.published is not None and reported.published_large is not None:
                averaged.append((ours, reported.published, reported.published_large))
            if ours is not None:
                rows.append(_build_row(title, reported, scores))
            elif any(folder.startswith(f"{task.name}/") for folder in metrics.get("failed", {})):
                rows.append(_build_failed_row(title, reported))
    our_scores = [ours for ours, _, _ in averaged if ours is not None]
    if len(our_scores) < len(averaged):
        return rows
    count = len(averaged)
    bert_base = sum(base for _, base, _ in averaged) / count
    bert_large = sum(large for _, _, large in averaged) / count
    average = format_percent(sum(our_scores) / count)
    cells = ("average", "without WNLI", average, "", "", format_score(bert_base), format_score(bert_large))
    return [*rows, ScoreRow(*cells)]


def _build_row(title: str, reported: ReportedScore, scores: Mapping[str, Any]) -> ScoreRow:
    metric = reported.metric

    def format_split(split: str) -> str:
        means, stds = scores.get(split, {}), scores.get(f"{split}_std", {})
        return format_percent(means.get(metric), stds.get(metric))

    # Only the main validation split has baselines and a corresponding labeled test set.
    is_main_split = reported.split == "validation"
    return ScoreRow(
        title=title,
        metric=metric,
        validation=format_split(reported.split),
        baseline=format_best_baseline(scores, reported) if is_main_split else "",
        test=format_split("test") if is_main_split else "",
        bert_base=format_score(reported.published),
        bert_large=format_score(reported.published_large),
    )


def _build_failed_row(title: str, reported: ReportedScore) -> ScoreRow:
    bert_base, bert_large = format_score(reported.published), format_score(reported.published_large)
    return ScoreRow(title, reported.metric, "failed", "", "", bert_base, bert_large)


def describe_seeds(task: GlueTask, summary: Mapping[str, Any]) -> str:
    """Return the learning rate, the number of seeds and the interval of the mean score of a task."""
    rate, seeds = f"learning rate {summary['learning_rate']:g}", len(summary["seeds"])
    statistics = "mean and standard deviation over " if seeds > 1 else ""
    split, metric = task.scores[0].split, task.scores[0].metric
    interval = summary.get(f"{split}_interval", {}).get(metric)
    bounds = " to ".join(map(format_percent, interval)) if interval else ""
    note = f", 95 % interval of the mean {metric} {bounds}" if bounds else ""
    return f"{rate}, {statistics}{format_count(seeds, 'seed')}{note}"


# ---- the leaderboard


def write_submission(folder: Path, runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
    """Write a leaderboard file for each predicted test set; zip the files if all tasks have theirs.

    Args:
        folder: The directory of the suite.
        runs: Each task and the directory of its best run.

    Returns:
        The names of the files, in the order of the tasks.
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
    """Return the content of a leaderboard file: `index` and `prediction`, separated by tabs.

    The index comes from the test file. If the test file has none, rows are counted from 0.
    """
    lines = ["index\tprediction"]
    for record in records:
        index = record.get("index", record["id"])
        lines.append(f"{index}\t{format_label(task, record['predicted'])}")
    return "\n".join(lines) + "\n"


def format_label(task: GlueTask, predicted: Any) -> str:
    """Return a label in the format of the leaderboard; scores are clipped to the range from 0 to 5."""
    if task.label_format == "score":
        return f"{min(5.0, max(0.0, predicted)):.3f}"
    if task.label_format == "number":
        return str(load_dataset_specs()[task.name].labels.index(predicted))
    return str(predicted)
