"""The tables of a study for the console and its README."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import format_count
from bertkit.report.tables import ResultTable
from bertkit.studies.space import format_settings, format_value

MAX_TRIALS = 12  # rows of the table of trials on the console


def format_number(value: float | None) -> str:
    """Format a score with four digits; None becomes an empty string."""
    return "" if value is None else f"{value:.4f}"


def format_interval(interval: list[float] | None) -> str:
    """Format an interval as `0.412 to 0.461`; None becomes an empty string."""
    return "" if interval is None else " to ".join(f"{bound:.3f}" for bound in interval)


def format_p(p: float) -> str:
    """Format a p-value as `p = 0.012` or `p < 0.001`."""
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def build_study_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
    """Return the table of the best settings and the defaults, with notes on the search and the test.

    Args:
        metrics: Content of `study.json`.
        folder: Directory of the study.
    """
    metric, search = metrics["metric"], metrics["search"]
    name_parts = [f"study {metrics['command']}", metrics["data"]["name"], metrics["model"]]
    headings = ["settings", "runs", "mean ± std", "95 % (runs)", "held-out", "95 % (rows)"]
    names = {"best": "best settings" if search else "all runs", "defaults": "defaults"}
    rows = [
        [names[name], *_format_settings_row(metrics["settings"][name], metric)]
        for name in names
        if name in metrics["settings"]
    ]
    return ResultTable(
        title=" · ".join(name_parts), headings=headings, rows=rows,
        caption=f"Score: {metric}. {_describe_rows(metrics)} {_describe_baselines(metrics)}",
        run_notes=[_describe_run(run, metric) for run in metrics["settings"]["best"]["runs"]],
        notes=[*describe_results(metrics), f"predict with all models: bertkit predict {folder}/ensemble"],
    )  # fmt: skip


def _format_settings_row(summary: Mapping[str, Any], metric: str) -> list[str]:
    std = "" if summary["std"] is None else f" ± {format_number(summary['std'])}"
    held_out = summary["held_out"]
    return [
        f"{len(summary['runs'])}",
        format_number(summary["mean"].get(metric)) + std,
        format_interval(summary["interval"]),
        format_number(held_out["scores"].get(metric)),
        format_interval(held_out["intervals"].get(metric)),
    ]


def _describe_rows(metrics: Mapping[str, Any]) -> str:
    rows = format_count(metrics["settings"]["best"]["held_out"]["rows"], "row")
    if not metrics["folds"]:
        return f"Held-out: {rows} of the test split, which were not used to select settings or checkpoints."
    if metrics["search"]:
        return f"Held-out: {rows} of all folds except fold 0, on which the trials were scored."
    return f"Held-out: {rows}, each predicted by runs that were not trained on it."


def _describe_baselines(metrics: Mapping[str, Any]) -> str:
    scores = {name: scores.get(metrics["metric"]) for name, scores in metrics["baselines"].items()}
    listed = ", ".join(
        f"{name} {format_number(score)}" for name, score in scores.items() if score is not None
    )
    rows = f" on fold {metrics['folds'] - 1}" if metrics["folds"] else ""
    return f"Baselines{rows}: {listed}."


def _describe_run(run: Mapping[str, Any], metric: str) -> str:
    return f"`{run['folder']}`: {metric} {format_number(run['score'])}"


def describe_results(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines about the best settings, the search, the paired test, and the ensemble."""
    search = metrics["search"]
    if search is None:
        return [describe_gain(metrics)]
    settings = format_settings(search["best_settings"]) or "the defaults"
    saved = 1 - search["steps"] / max(1, search["steps_without_pruning"])
    counts = f"{search['complete']} complete, {search['pruned']} pruned, {search['failed']} failed"
    return [
        f"best settings: {settings} (trial {search['best_trial']})",
        f"search: {format_count(search['trials'], 'trial')} ({counts}), "
        f"pruning saved {saved:.0%} of the steps",
        f"score in the search {format_number(search['best_score'])}, optimism of the search "
        f"{format_number(search['optimism'])}",
        describe_comparison(metrics),
        describe_gain(metrics),
    ]


def describe_gain(metrics: Mapping[str, Any]) -> str:
    """Return one line on the gain and the cost of the ensemble."""
    ensemble, metric = metrics["ensemble"], metrics["metric"]
    name = f"ensemble of {format_count(ensemble['members'], 'model')}"
    if ensemble["reason"]:
        return f"{name}: the gain is not measured, because {ensemble['reason']}"
    return (
        f"{name}: {metric} {ensemble['score']:.4f} on {ensemble['rows']:,} rows of the {ensemble['split']} "
        f"split; a single model {ensemble['mean_member_score']:.4f} (mean), gain {ensemble['gain']:+.4f}; "
        f"{ensemble['seconds_per_1000_rows']:.2f} seconds for 1,000 rows, a single model "
        f"{ensemble['mean_member_seconds_per_1000_rows']:.2f}"
    )


def describe_comparison(metrics: Mapping[str, Any]) -> str:
    """Return one line with the result of the paired test."""
    result = metrics["comparison"]
    if result is None:
        reason = "are the defaults" if not metrics["search"]["best_settings"] else "have no paired test"
        return f"best settings against the defaults: the best settings {reason}"
    verdict = "a difference is shown" if result["is_different"] else "no difference shown"
    return (
        f"best settings against the defaults: {result['difference']:+.4f} {metrics['metric']} "
        f"({format_interval(result['interval'])}), {format_p(result['p'])} ({result['test']}): {verdict}"
    )


def build_trial_table(metrics: Mapping[str, Any]) -> ResultTable:
    """Return the table of the trials in order."""
    search = metrics["search"]
    names = list(search["space"])
    rows = [
        [
            str(trial["trial"]), *_format_trial_settings(trial, names, search), format_number(trial["score"]),
            trial["state"] + (f": {trial['reason']}" if trial["reason"] else ""), f"{trial['seconds']:.0f}",
        ]
        for trial in search["table"]
    ]  # fmt: skip
    return ResultTable(
        title="Trials", headings=["trial", *names, metrics["metric"], "state", "seconds"], rows=rows,
        caption="Trial 0 has the default settings.", run_notes=[],
    )  # fmt: skip


def _format_trial_settings(
    trial: Mapping[str, Any], names: list[str], search: Mapping[str, Any]
) -> list[str]:
    values = trial["settings"] or search["default_settings"]
    return [format_value(values[name]) for name in names]
