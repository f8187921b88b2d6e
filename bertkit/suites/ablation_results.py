"""The results of an ablation: scores over the seeds, differences between rows, the tables and the charts."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from bertkit.charts import Chart, plot_intervals
from bertkit.report.tables import ResultTable, format_score
from bertkit.stats.significance import average_values, compare_paired_scores, compute_t_interval
from bertkit.suites.ablation_tables import FALLBACK_TASK, TABLES, DownstreamTask

PRETRAINED_DIR = "pretrained"  # the directory of the pre-training runs
SIGNIFICANCE_LEVEL = 0.05
DIFFERENCE_HEADINGS = ("row", "task", "difference", "95 % interval", "p-value")

Rows = Mapping[str, Mapping[str, Any]]  # entries of `metrics.json` by row and task, or `PRETRAINED_DIR`


def summarize_pretraining(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a pre-training run in the suite's `metrics.json`."""
    scores = {key: metrics[key] for key in ("validation", "intervals", "baselines")}
    return {**scores, "rows": metrics["data"]["train"], "seconds": metrics["training"]["seconds"]}


def summarize_seeds(runs: Mapping[int, Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the entry of the fine-tuning runs of a row and a task in the suite's `metrics.json`.

    Args:
        runs: Content of `metrics.json` of each run, by seed.
        metric: Name of the score in the table.

    Returns:
        `validation` has the mean scores, and `scores` the table's score of each seed. `interval` is Student's
        95 % interval of their mean, or None for fewer than three seeds. A single seed has `intervals` over
        the rows instead.
    """
    first = next(iter(runs.values()))
    scores = {str(seed): run["validation"][metric] for seed, run in runs.items()}
    return {
        "validation": average_values([run["validation"] for run in runs.values()]),
        "scores": scores,
        "interval": compute_t_interval(list(scores.values())),
        "intervals": first["intervals"] if len(runs) == 1 else {},
        "baselines": first["baselines"],
        "rows": first["data"]["train"],
        "seconds": sum(run["training"]["seconds"] for run in runs.values()),
    }


def compare_rows(rows: Mapping[str, dict[str, Any]], tasks: Sequence[str]) -> None:
    """Add `difference` to the entries of each row but the first: the paired difference to the first row.

    Rows are paired by the seed of fine-tuning. An entry without three common seeds gets no difference.
    """
    reference, *others = rows
    for task in tasks:
        first = rows[reference].get(task)
        for summary in (rows[name].get(task) for name in others):
            if first is None or summary is None:
                continue
            seeds = [seed for seed in first["scores"] if seed in summary["scores"]]
            difference = compare_paired_scores(
                [first["scores"][seed] for seed in seeds], [summary["scores"][seed] for seed in seeds]
            )
            if difference is not None:
                summary["difference"] = {"row": reference, **asdict(difference)}


# ---- the tables


def build_ablation_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return a table of our scores, with the paper's scores in parentheses."""
    tasks = _list_tasks(metrics)
    return ResultTable(
        title=f"ablation · {metrics['table']} · {metrics['data']['name']}",
        headings=["row", "perplexity", "nsp accuracy", *(task.title for task in tasks)],
        rows=[*_build_rows(metrics, tasks), _build_baseline_row(metrics, tasks)],
        caption=_build_caption(metrics),
        run_notes=[f"{row}: {_format_minutes(runs)}" for row, runs in metrics["rows"].items() if runs],
        failures=metrics.get("failed", {}),
    )


def build_difference_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return a table of the differences between each row and the first one; it may have no rows."""
    rows = []
    for task in _list_tasks(metrics):
        for name, runs in metrics["rows"].items():
            if difference := runs.get(task.name, {}).get("difference"):
                rows.append([name, task.title, *_format_difference(difference, task.scale)])
    return ResultTable(
        title="Differences",
        headings=DIFFERENCE_HEADINGS,
        rows=rows,
        caption=f"Mean score of the row minus that of {next(iter(metrics['rows']))}, in points. The runs are "
        "paired by the seed of fine-tuning; interval and p-value are those of a paired t-test.",
        run_notes=[],
        text_columns=2,
    )


def _format_difference(difference: Mapping[str, Any], scale: float) -> list[str]:
    bounds = " to ".join(f"{scale * bound:+.1f}" for bound in difference["interval"])
    return [f"{scale * difference['difference']:+.1f}", bounds, f"{difference['p']:.3f}"]


def _list_tasks(metrics: Mapping[str, Any]) -> list[DownstreamTask]:
    """Return the tasks that the variants were fine-tuned on."""
    names = {name for runs in metrics["rows"].values() for name in runs}
    names |= {PurePosixPath(folder).parts[1] for folder in metrics.get("failed", {})}
    return [task for task in [*TABLES[metrics["table"]].tasks, FALLBACK_TASK] if task.name in names]


def _build_rows(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[list[str]]:
    paper_scores = {row.name: row.paper_scores for row in TABLES[metrics["table"]].rows}
    rows = []
    for name, runs in metrics["rows"].items():
        pretrained, row_paper_scores = runs.get(PRETRAINED_DIR), paper_scores[name]
        perplexity = format_score(pretrained["validation"]["perplexity"], 2) if pretrained else "failed"
        nsp_accuracy = pretrained["validation"].get("nsp_accuracy") if pretrained else None
        scores = [
            _add_paper_score(_format_task_score(task, runs.get(task.name)), row_paper_scores.get(task.name))
            for task in tasks
        ]
        perplexity = _add_paper_score(perplexity, row_paper_scores.get("perplexity"), 2)
        rows.append([name, perplexity, format_score(nsp_accuracy, 3), *scores])
    return rows


def _build_baseline_row(metrics: Mapping[str, Any], tasks: list[DownstreamTask]) -> list[str]:
    finished = {name: run for runs in metrics["rows"].values() for name, run in runs.items()}
    scores = [format_score(_get_baseline(task, finished.get(task.name))) for task in tasks]
    return ["baseline", "", "", *scores]


def _get_baseline(task: DownstreamTask, summary: Mapping[str, Any] | None) -> float | None:
    """Return the score of the baseline that the caption of the table names."""
    if summary is None:
        return None
    return float(summary["baselines"][task.baseline][task.metric]) * task.scale


def _format_task_score(task: DownstreamTask, summary: Mapping[str, Any] | None) -> str:
    """Return the mean score with its standard deviation, and `*` for a significant difference."""
    if summary is None:
        return "failed"
    scores = [task.scale * score for score in summary["scores"].values()]
    deviation = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    difference = summary.get("difference")
    mark = "*" if difference and difference["p"] < SIGNIFICANCE_LEVEL else ""
    return f"{statistics.fmean(scores):.1f}{deviation}{mark}"


def _add_paper_score(cell: str, paper_score: float | None, digits: int = 1) -> str:
    return cell if paper_score is None else f"{cell} ({format_score(paper_score, digits)})"


def _format_minutes(runs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {summary['seconds'] / 60:.1f} min" for name, summary in runs.items())


def _build_caption(metrics: Mapping[str, Any]) -> str:
    lines = [
        "Perplexity is that of the predicted tokens: the masked tokens or, for ltr, all tokens but the first "
        "of an example. Task scores are accuracy (SQuAD, WNUT-17: F1) in percent on the validation rows. The "
        "baseline is the majority label (SQuAD: word overlap, WNUT-17: the most frequent tag of each word). "
        f"In parentheses: {TABLES[metrics['table']].source}."
    ]
    if "mlm+sop" in metrics["rows"]:
        lines.append("For mlm+sop, nsp accuracy is the accuracy of sentence order prediction.")
    if len(metrics["seeds"]) > 1:
        lines.append(f"Mean and standard deviation over {len(metrics['seeds'])} seeds of fine-tuning.")
    if any("difference" in summary for runs in metrics["rows"].values() for summary in runs.values()):
        first = next(iter(metrics["rows"]))
        lines.append(f"*: differs from {first} (paired t-test over the seeds, p < {SIGNIFICANCE_LEVEL}).")
    return " ".join(lines)


# ---- the charts


def plot_scores(metrics: Mapping[str, Any]) -> list[Chart]:
    """Plot the score of each row with its 95 % interval, in a chart for each task."""
    return [chart for task in _list_tasks(metrics) if (chart := _plot_task(task, metrics["rows"]))]


def _plot_task(task: DownstreamTask, rows: Rows) -> Chart | None:
    finished = {name: runs[task.name] for name, runs in rows.items() if task.name in runs}
    if not finished:
        return None
    scores = {name: task.scale * summary["validation"][task.metric] for name, summary in finished.items()}
    intervals = {
        name: [task.scale * bound for bound in interval]
        for name, summary in finished.items()
        if (interval := summary["interval"] or summary["intervals"].get(task.metric))
    }
    baseline = _get_baseline(task, next(iter(finished.values())))
    over = "seeds of fine-tuning" if any(run["interval"] for run in finished.values()) else "validation rows"
    note = f"Lines are 95 % intervals over the {over}. " if intervals else ""
    return plot_intervals(
        task.title, scores, intervals, f"{task.metric}, percent", baseline, f"{note}Dashed: baseline."
    )
