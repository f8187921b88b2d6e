"""`bertkit glue`: run each GLUE task with several learning rates and seeds."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.errors import UserError, format_list
from bertkit.modeling import loading
from bertkit.recipes import read_recipe_task
from bertkit.reports.result_table import ResultTable
from bertkit.setting import fill_unset
from bertkit.suites.base import Suite, find_data, select_names
from bertkit.suites.config import GlueConfig
from bertkit.suites.glue_results import SUBMISSION_ARCHIVE, SUBMISSION_DIR, build_glue_table, write_submission
from bertkit.suites.glue_tasks import GLUE_TASKS, PAPER_LEARNING_RATES, GlueTask
from bertkit.utils.reporting import Reporter


@dataclass(frozen=True)
class Trial:
    """A finished run of a task with one learning rate and one seed."""

    learning_rate: float
    seed: int
    output_dir: Path
    metrics: dict[str, Any]

    def get_selection_score(self, task: GlueTask) -> float:
        """Return the validation score by which the best run of the task is selected."""
        reported = task.scores[0]
        return self.metrics[reported.split][reported.metric]


def select_tasks(names: list[str] | None) -> list[GlueTask]:
    """Return the tasks with these names, in the paper's order. Raises `UserError` for an unknown name."""
    selected = select_names("--tasks", names, [task.name for task in GLUE_TASKS], "GLUE task")
    return [task for task in GLUE_TASKS if task.name in selected]


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
    """Runs for the selected GLUE tasks, in the directories `TASK/seed0` or `TASK/lr5e-05-seed0`."""

    name = "glue"
    suite_settings = frozenset({"tasks", "learning_rates", "seeds", "seed"})
    output_names = [SUBMISSION_DIR, SUBMISSION_ARCHIVE, *(task.name for task in GLUE_TASKS)]

    def __init__(self, config: GlueConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self.tasks, self.learning_rates = select_tasks(config.tasks), parse_learning_rates(config)
        self.run_dirs = [task.name for task in self.tasks]
        self.config = fill_unset(self.config, {"model": loading.choose_default_model()})

    def resolve_inputs(self) -> list[str]:
        """Find the model and the data of every task. Raises `UserError` if data is missing."""
        self.model_source = loading.find_model(str(self.config.model))
        datasets = [(task.name, read_recipe_task(task.recipe)) for task in self.tasks]
        sources = find_data(datasets, self.config.data_dir, self.config.encoding)
        self.data_sources = sources.found
        if sources.missing:
            fix = f"; run the others with --tasks {','.join(sources.found)}" if sources.found else ""
            raise UserError(f"no data for {format_list(sources.missing)}{fix} ({sources.reason})")
        return [self.model_source.name]

    def plan_runs(self) -> list[dict[str, Any]]:
        """Return a run of each task for each learning rate, and for each further seed at the best rate."""
        rates_and_seeds = [(rate, self.config.seed) for rate in self.learning_rates]
        rates_and_seeds += [(None, self.config.seed + offset) for offset in range(1, self.config.seeds)]
        return [
            {
                "folder": f"{task.name}/{self._name_run(rate, seed)}",
                "recipe": task.recipe,
                "data": self.data_sources[task.name],
            }
            for task in self.tasks
            for rate, seed in rates_and_seeds
        ]

    def execute_runs(self, folder: Path) -> dict[str, list[Trial]]:
        """Execute all runs, and return those of each task at its best learning rate."""
        return {task.name: self._run_task(task, folder) for task in self.tasks}

    def _run_task(self, task: GlueTask, folder: Path) -> list[Trial]:
        """Search the learning rate with the first seed, then run the other seeds at the best rate."""
        first_seed = self.config.seed
        trials = [self._run_trial(task, folder, rate, first_seed) for rate in self.learning_rates]
        best = max(trials, key=lambda trial: trial.get_selection_score(task))
        if len(trials) > 1:
            self.reporter.info(f"{task.name}: the best learning rate is {best.learning_rate:g}")
        other_seeds = range(first_seed + 1, first_seed + self.config.seeds)
        return [best, *(self._run_trial(task, folder, best.learning_rate, seed) for seed in other_seeds)]

    def _run_trial(self, task: GlueTask, folder: Path, rate: float | None, seed: int) -> Trial:
        output_dir = folder / task.name / self._name_run(rate, seed)
        self.reporter.info(f"{task.name}: {output_dir}")
        settings: dict[str, Any] = {"seed": seed, "split_seed": self.config.seed}
        if rate is not None:
            settings["learning_rate"] = rate
        run = self.train(read_recipe_task(task.recipe), task.recipe, settings, output_dir)
        learning_rate = run_directory.read_settings(output_dir)["learning_rate"]
        return Trial(learning_rate, seed, output_dir, run.metrics)

    def _name_run(self, rate: float | None, seed: int) -> str:
        """Return `seed0`, or `lr5e-05-seed0` with --learning-rates; a rate of None means the best one."""
        if self.config.learning_rates is None:
            return f"seed{seed}"
        return f"lr{'BEST' if rate is None else format(rate, 'g')}-seed{seed}"

    def compute_metrics(self, folder: Path, results: dict[str, list[Trial]]) -> dict[str, Any]:
        """Return the scores of each task, and write the leaderboard files with the best runs."""
        best = {
            task.name: max(results[task.name], key=lambda trial: trial.get_selection_score(task))
            for task in self.tasks
        }
        if self.config.max_eval_samples:
            files = []
            self.reporter.info("no leaderboard files were written: --max-eval-samples leaves out test rows")
        else:
            files = write_submission(folder, [(task, best[task.name].output_dir) for task in self.tasks])
        return {
            "task": "glue",
            "model": self.model_source.name,
            "tasks": {
                task.name: _summarize(task, results[task.name], best[task.name], folder)
                for task in self.tasks
            },
            "submission": files,
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """Return a table of our scores and the paper's scores."""
        return build_glue_table(metrics, folder)


def _summarize(task: GlueTask, trials: list[Trial], best: Trial, folder: Path) -> dict[str, Any]:
    """Return the entry of a task in `metrics.json`.

    `SPLIT_std` has the sample standard deviations over the seeds.
    """
    summary: dict[str, Any] = {}
    for split in dict.fromkeys([*(reported.split for reported in task.scores), "test"]):
        scores = [trial.metrics[split] for trial in trials if trial.metrics.get(split)]
        if scores:
            summary[split] = {name: statistics.fmean(s[name] for s in scores) for name in scores[0]}
        if len(scores) > 1:
            summary[f"{split}_std"] = {name: statistics.stdev(s[name] for s in scores) for name in scores[0]}
    return {
        **summary,
        "majority": best.metrics["baselines"]["majority"],
        "rows": {split: best.metrics["data"].get(split) for split in ("train", "validation")},
        "learning_rate": best.learning_rate,
        "seeds": [trial.seed for trial in trials],
        "best_run": str(best.output_dir.relative_to(folder)),
        "seconds": sum(trial.metrics["training"]["seconds"] for trial in trials),
    }
