"""The files that a study writes when all of its runs are finished."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.data.table import Splits
from bertkit.report.tables import render_study_page
from bertkit.run.results import summarize_data
from bertkit.run_directory import RunDir
from bertkit.settings.recipes import serialize_settings
from bertkit.studies.final_runs import RUN_DIRS
from bertkit.studies.gain import measure_gain
from bertkit.studies.held_out import HeldOutPredictions
from bertkit.studies.plan import StudyPlan
from bertkit.studies.results import FinishedRuns, compare, score_held_out, write_ensemble_run
from bertkit.studies.search import TRIALS_DIR, TRIALS_FILE, summarize_trials
from bertkit.studies.space import format_value
from bertkit.studies.splits import TRIAL_FOLD
from bertkit.studies.tables import build_study_table, build_trial_table, describe_results
from bertkit.studies.trials import TrialStore
from bertkit.utils.files import write_jsonl, write_text
from bertkit.utils.text import dump_yaml

STUDY_FILE, PREDICTIONS_FILE, RECIPE_FILE = "study.json", "out_of_fold.jsonl", "recipe.yaml"
OUTPUT_NAMES = [
    STUDY_FILE, PREDICTIONS_FILE, RECIPE_FILE, TRIALS_FILE, TRIALS_DIR, RunDir.ENSEMBLE_DIR, *RUN_DIRS,
    "label_issues*",
]  # fmt: skip


def write_results(
    plan: StudyPlan, folder: Path, store: TrialStore | None, best: FinishedRuns, defaults: FinishedRuns | None
) -> dict[str, Any]:
    """Write all results into the directory of the study, with `metrics.json` last."""
    write_ensemble_run(folder / RunDir.ENSEMBLE_DIR, best)
    metrics = _compute_metrics(plan, folder, store, best, defaults)
    if plan.config.folds:
        predictions = HeldOutPredictions.load(best.runs, plan.splits.rows)
        write_jsonl(folder / PREDICTIONS_FILE, predictions.iter_records())
    _write_recipe(plan, folder, best.runs[0].settings)
    _write_page(folder, metrics)
    table = build_study_table(metrics, folder)
    notes = "".join(f"* {note}\n" for note in table.notes)
    RunDir(folder).write_card(f"{table.to_markdown()}\n## Notes\n\n{notes}")
    write_text(folder / STUDY_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    RunDir(folder).write_metrics(metrics)
    return metrics


def _compute_metrics(
    plan: StudyPlan, folder: Path, store: TrialStore | None, best: FinishedRuns, defaults: FinishedRuns | None
) -> dict[str, Any]:
    """Return the content of `study.json`; the ensemble has been written."""
    settings, comparison = _score_settings(plan, folder, best, defaults)
    held_out_score = settings["best"]["held_out"]["scores"].get(plan.metric)
    return {
        "task": "study",
        "command": plan.task_name,
        "data": summarize_data(plan.prepared.dataset, plan.fingerprints, _select_used_splits(plan)),
        "model": plan.prepared.model_source.name,
        "metric": plan.metric,
        "folds": plan.config.folds,
        "seeds": plan.seeds,
        "predicted_rows": len(plan.splits.rows),
        "settings": settings,
        "search": _summarize_search(plan, store, held_out_score) if store else None,
        "comparison": comparison,
        "baselines": plan.baselines,
        "ensemble": measure_gain(plan, folder / RunDir.ENSEMBLE_DIR),
    }


def _score_settings(
    plan: StudyPlan, folder: Path, best: FinishedRuns, defaults: FinishedRuns | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the scores of the best settings and of the defaults, and their paired test.

    After a search, the scores are without fold 0, on which the trials were scored.
    """
    rows = plan.splits.rows
    unbiased = [run for run in best.runs if not plan.space or run.fold != TRIAL_FOLD]
    predictions = HeldOutPredictions.load(unbiased, rows)
    settings = {"best": _summarize(plan, folder, best, predictions)}
    if defaults is None:
        return settings, None
    default_predictions = HeldOutPredictions.load(defaults.runs, rows)
    settings["defaults"] = _summarize(plan, folder, defaults, default_predictions)
    return settings, compare(default_predictions, predictions, plan.metric, plan.config.seed)


def _select_used_splits(plan: StudyPlan) -> Splits:
    """Return the splits of the dataset, with those training rows that the study uses."""
    used = {"train": plan.splits.rows} if plan.config.folds else plan.splits.final[0].splits
    return {**plan.prepared.dataset.splits, **used}


def _write_page(folder: Path, metrics: dict[str, Any]) -> None:
    tables = {"Scores": build_study_table(metrics, folder)}
    if metrics["search"]:
        tables["Trials"] = build_trial_table(metrics)
    page = render_study_page(metrics, tables, describe_results(metrics))
    RunDir(folder).write_report(page)


def _summarize(
    plan: StudyPlan, folder: Path, finished: FinishedRuns, predictions: HeldOutPredictions
) -> dict[str, Any]:
    """Return the scores of the runs with the same settings, and those of the held-out rows."""
    held_out = score_held_out(predictions, plan.config.seed)
    return {**finished.summarize(folder, plan.metric, predictions.runs), "held_out": held_out}


def _summarize_search(plan: StudyPlan, store: TrialStore, held_out_score: float | None) -> dict[str, Any]:
    """Return the trials, and the score of the best trial with its optimism (Efron and Tibshirani 1993, 17.6).

    The optimism is the score on the rows by which the settings were selected, minus that on other rows.
    """
    trials, best = store.list_ended(), store.find_best()
    assert best.score is not None
    optimism = None if held_out_score is None else store.sign * (best.score - held_out_score)
    return {
        "space": {dimension.name: str(dimension).partition("=")[2] for dimension in plan.space},
        **summarize_trials(trials),
        "default_settings": plan.default_settings,
        "best_trial": best.number,
        "best_settings": best.settings,
        "best_score": best.score,
        "optimism": optimism,
        "table": [trial.to_record() for trial in trials],
    }


def _write_recipe(plan: StudyPlan, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write a recipe with which the task trains with the best settings."""
    config = dataclasses.replace(plan.run_group.data.requested, **settings)
    content = {"task": plan.task_name, "settings": serialize_settings(config)}
    values = ", ".join(f"{name} {format_value(value)}" for name, value in settings.items())
    title = f"# Best settings of the study: {values or 'the defaults'}\n"
    write_text(folder / RECIPE_FILE, title + dump_yaml(content))
