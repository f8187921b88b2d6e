"""`bertkit glue`: run each GLUE task with several learning rates and seeds."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bertkit import run_directory
from bertkit.errors import UserError, format_list
from bertkit.models import loading
from bertkit.report.tables import ResultTable
from bertkit.settings.recipes import read_recipe_task
from bertkit.settings.setting import fill_unset
from bertkit.stats.significance import MIN_SCORES, average_values, compute_t_interval
from bertkit.suites.base import RunMetrics, Suite, SuiteRun, find_data, select_names
from bertkit.suites.config import GlueConfig
from bertkit.suites.glue_results import SUBMISSION_ARCHIVE, SUBMISSION_DIR, build_glue_table, write_submission
from bertkit.suites.glue_tasks import GLUE_TASKS, PAPER_LEARNING_RATES, GlueTask
from bertkit.utils.reporting import report_info


def select_tasks(names: list[str] | None, tasks: Sequence[GlueTask], noun: str) -> list[GlueTask]:
    """Return the tasks with these names, in the paper's order. Raises `UserError` for an unknown name."""
    selected = select_names("--tasks", names, [task.name for task in tasks], noun)
    return [task for task in tasks if task.name in selected]


def parse_learning_rates(config: GlueConfig) -> list[float | None]:
    """Return the learning rates to try; None means the default of the run.

    Raises:
        UserError: `--learning-rates` cannot be parsed, or `--learning-rate` is set too.
    """
    if config.learning_rates is None:
        return [config.learning_rate]
    if config.learning_rate is not None:
        raise UserError("--learning-rate and --learning-rates: cannot be combined; pass one of them")
    if config.learning_rates == "paper":
        return list(PAPER_LEARNING_RATES)
    try:
        rates = [float(value) for value in config.learning_rates.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise UserError(
            f"--learning-rates {config.learning_rates}: cannot parse; pass 'paper', or numbers between 0 and "
            "1 separated by commas"
        )
    return list(dict.fromkeys(rates))


class GlueSuite(Suite):
    """Runs for the selected GLUE tasks, in the directories `TASK/seed0` or `TASK/lr5e-05-seed0`.

    Attributes:
        noun: A task in error messages.
        all_tasks: The tasks in the order of the table.
    """

    name = "glue"
    noun: ClassVar[str] = "GLUE task"
    all_tasks: ClassVar[Sequence[GlueTask]] = GLUE_TASKS
    suite_settings = frozenset({"tasks", "learning_rates", "seeds", "seed"})
    output_names = [SUBMISSION_DIR, SUBMISSION_ARCHIVE, *(task.name for task in GLUE_TASKS)]

    def __init__(self, config: GlueConfig) -> None:
        super().__init__(fill_unset(config, {"model": loading.choose_default_model()}))
        self.tasks = select_tasks(config.tasks, self.all_tasks, self.noun)
        self.learning_rates = parse_learning_rates(config)
        seeds = {"seed": self.config.seed, "split_seed": self.config.seed}
        self.run_groups = {
            task.name: self.make_run_group(read_recipe_task(task.recipe), task.recipe, seeds)
            for task in self.tasks
        }

    def resolve_inputs(self) -> list[str]:
        """Find the model and the data of every task. Raises `UserError` if data is missing."""
        self.model_source = loading.find_model(str(self.config.model))
        datasets = [(task.dataset, read_recipe_task(task.recipe)) for task in self.tasks]
        self.data_sources, errors = find_data(datasets, self.config.data_dir, self.config.encoding)
        if errors:
            others = ",".join(task.name for task in self.tasks if task.dataset in self.data_sources)
            fix = f"; run the others with --tasks {others}" if others else ""
            raise UserError(f"no data for {format_list(errors)}{fix} ({next(iter(errors.values()))})")
        return [self.model_source.name]

    def _plan_run(self, task: GlueTask, folder: Path, rate: float | None, seed: int) -> SuiteRun:
        return SuiteRun(
            folder=folder / task.name / self._name_run(rate, seed), run_group=self.run_groups[task.name],
            settings={} if rate is None else {"learning_rate": rate}, seed=seed, recipe=task.recipe,
            data=self.data_sources[task.dataset], metric=task.run_metric,
        )  # fmt: skip

    def _plan_search(self, task: GlueTask, folder: Path) -> list[SuiteRun]:
        """Return a run with the first seed for each learning rate."""
        return [self._plan_run(task, folder, rate, self.config.seed) for rate in self.learning_rates]

    def _plan_other_seeds(self, task: GlueTask, folder: Path, rate: float | None) -> list[SuiteRun]:
        """Return a run for each seed but the first one."""
        seeds = range(self.config.seed + 1, self.config.seed + self.config.seeds)
        return [self._plan_run(task, folder, rate, seed) for seed in seeds]

    def plan_runs(self, folder: Path) -> list[SuiteRun]:
        """Return a run of each task for each learning rate, and for each further seed at the best rate."""
        return [
            run
            for task in self.tasks
            for run in [*self._plan_search(task, folder), *self._plan_other_seeds(task, folder, None)]
        ]

    def execute_runs(self, folder: Path) -> RunMetrics:
        """Search the learning rate of each task with the first seed, then run the other seeds at it."""
        searches = [self._plan_search(task, folder) for task in self.tasks]
        results = self.train_runs([run for runs in searches for run in runs])
        others: list[SuiteRun] = []
        for task, runs in zip(self.tasks, searches, strict=True):
            if best := find_best(task, runs, results):
                rate = best.settings.get("learning_rate")
                others += self._plan_other_seeds(task, folder, rate)
                if len(runs) > 1:
                    report_info(f"{task.name}: the best learning rate is {rate:g}")
        return results | self.train_runs(others)

    def _name_run(self, rate: float | None, seed: int) -> str:
        """Return `seed0`, or `lr5e-05-seed0` with --learning-rates; a rate of None means the best one."""
        if self.config.learning_rates is None:
            return f"seed{seed}"
        return f"lr{'BEST' if rate is None else format(rate, 'g')}-seed{seed}"

    def compute_metrics(self, folder: Path, results: RunMetrics) -> dict[str, Any]:
        """Return the scores of each task, and write the leaderboard files with the best runs."""
        tasks = {}
        best_runs = []
        for task in self.tasks:
            if first := find_best(task, self._plan_search(task, folder), results):
                others = self._plan_other_seeds(task, folder, first.settings.get("learning_rate"))
                runs = [run for run in [first, *others] if run.folder in results]
                best = find_best(task, runs, results) or first
                best_runs.append((task, best.folder))
                tasks[task.name] = _summarize(task, runs, best, results) | {
                    "best_run": best.folder.relative_to(folder).as_posix()
                }
        files = self.write_files(folder, best_runs)
        return {"task": self.name, "model": self.model_source.name, "tasks": tasks, "submission": files}

    def write_files(self, folder: Path, best_runs: Sequence[tuple[GlueTask, Path]]) -> list[str]:
        """Write the leaderboard files with the best run of each task, and return their names.

        A leaderboard needs predictions for all test rows, so `--max-eval-samples` leaves the files out.
        """
        if self.config.max_eval_samples:
            report_info("no leaderboard files were written: --max-eval-samples leaves out test rows")
            return []
        return write_submission(folder, best_runs)

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return a table of our scores and the paper's scores."""
        return build_glue_table(metrics, folder)


def find_best(task: GlueTask, runs: Sequence[SuiteRun], results: RunMetrics) -> SuiteRun | None:
    """Return the finished run with the best validation score, or None if no run is finished."""
    finished = [run for run in runs if run.folder in results]
    split, metric = task.scores[0].split, task.scores[0].metric
    return max(finished, key=lambda run: results[run.folder][split][metric], default=None)


def _summarize(
    task: GlueTask, runs: Sequence[SuiteRun], best: SuiteRun, results: RunMetrics
) -> dict[str, Any]:
    """Return the entry of a task in `metrics.json`.

    `SPLIT_std` has the sample standard deviations over the seeds, and `SPLIT_interval` Student's 95 %
    intervals of the means.
    """
    summary: dict[str, Any] = {}
    metrics = [results[run.folder] for run in runs]
    for split in dict.fromkeys([*(reported.split for reported in task.scores), "test"]):
        scores = [run_metrics[split] for run_metrics in metrics if run_metrics.get(split)]
        values = {name: [s[name] for s in scores] for name in (scores[0] if scores else ())}
        if scores:
            summary[split] = average_values(scores)
        if len(scores) > 1:
            summary[f"{split}_std"] = {name: statistics.stdev(values[name]) for name in values}
        if len(scores) >= MIN_SCORES:
            summary[f"{split}_interval"] = {name: compute_t_interval(values[name]) for name in values}
    best_metrics = results[best.folder]
    return {
        **summary,
        "majority": best_metrics["baselines"].get("majority", {}),
        "baselines": best_metrics["baselines"],
        "rows": {split: best_metrics["data"].get(split) for split in ("train", "validation")},
        "learning_rate": run_directory.read_settings(best.folder)["learning_rate"],
        "seeds": [run.seed for run in runs],
        "seconds": sum(run_metrics["training"]["seconds"] for run_metrics in metrics),
    }
