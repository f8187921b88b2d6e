"""`bertkit klue`: run the KLUE tasks, and score them with the official metrics."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.report.tables import ResultTable, format_percent, format_score
from bertkit.stats.klue import SCORERS
from bertkit.suites.base import RunMetrics, SuiteRun
from bertkit.suites.glue import GlueSuite
from bertkit.suites.glue_results import describe_best_baselines, describe_run, format_best_baseline
from bertkit.suites.glue_tasks import GlueTask
from bertkit.suites.klue_tasks import KLUE_TASKS
from bertkit.utils.files import write_text

HEADINGS = ("task", "score", "ours (dev)", "baseline (dev)", "KLUE-BERT-base (published)")
CAPTION = (
    "Scores in percent, by the metrics of KLUE. KLUE-BERT-base: Park et al. 2021, from the README of "
    "KLUE-benchmark/KLUE, which does not name the split. A baseline has a score only where "
    "bertkit computes KLUE's metric for it."
)
PREDICTIONS_DIR = "predictions"
ROW_ID_KEYS = ("guid", "id")  # in order of preference


class KlueSuite(GlueSuite):
    """Runs for the selected KLUE tasks, in the directories `TASK/seed0` or `TASK/lr5e-05-seed0`."""

    name = "klue"
    noun = "KLUE task"
    all_tasks = KLUE_TASKS
    output_names = [PREDICTIONS_DIR, *(task.name for task in KLUE_TASKS)]

    def train_runs(self, runs: Sequence[SuiteRun]) -> RunMetrics:
        """Train the unfinished runs, and add the official scores to their metrics."""
        names = {run.folder: run.folder.parent.name for run in runs}
        return {
            folder: {**metrics, "validation": {**metrics["validation"], **_score_run(names[folder], folder)}}
            for folder, metrics in super().train_runs(runs).items()
        }

    def write_files(self, folder: Path, best_runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
        """Write the predictions of the best run of each task, one JSON object with `guid` per row."""
        names = []
        for task, run in best_runs:
            names.append(f"{task.name}.jsonl")
            lines = [
                json.dumps(_build_prediction(record), ensure_ascii=False) for record in _iter_records(run)
            ]
            (folder / PREDICTIONS_DIR).mkdir(exist_ok=True)
            write_text(folder / PREDICTIONS_DIR / names[-1], "".join(f"{line}\n" for line in lines))
        return names

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return a table of our scores and those of KLUE-BERT."""
        finished = [task for task in KLUE_TASKS if task.name in metrics["tasks"]]
        files = metrics["submission"]
        return ResultTable(
            title=f"KLUE · {metrics['model']}",
            headings=HEADINGS,
            rows=[row for task in finished for row in _build_rows(task, metrics["tasks"][task.name])],
            caption=CAPTION,
            run_notes=[describe_run(task, metrics["tasks"][task.name]) for task in finished],
            failures=metrics.get("failed", {}),
            text_columns=2,
            page_title=f"KLUE with `{metrics['model']}`",
            notes=[
                *describe_best_baselines(metrics, finished),
                *([f"predictions: {folder}/{PREDICTIONS_DIR}: {', '.join(files)}"] if files else []),
            ],
        )


def _build_rows(task: GlueTask, scores: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    means, stds = scores["validation"], scores.get("validation_std", {})
    for title, reported in zip(task.titles, task.scores, strict=True):
        ours = format_percent(means[reported.metric], stds.get(reported.metric))
        baseline = format_best_baseline(scores, reported)
        yield title, reported.metric, ours, baseline, format_score(reported.published, digits=2)


def _score_run(task_name: str, folder: Path) -> dict[str, float]:
    """Return the official scores of a finished run."""
    return SCORERS[task_name](list(_iter_records(folder)))


def _iter_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the predictions of the validation split."""
    with (folder / "predictions.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _build_prediction(record: dict[str, Any]) -> dict[str, Any]:
    """Return the identifier of a row, and its prediction."""
    row_id = next(record[key] for key in ROW_ID_KEYS if key in record)
    return {"guid": row_id, "prediction": record.get("predicted", record.get("answer"))}
