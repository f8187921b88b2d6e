"""The runs of `glue`: which, where, at which learning rates and seeds."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.config import fill_unset
from bertkit.data.loading import load_dataset
from bertkit.errors import UserError, format_list
from bertkit.modeling import loading
from bertkit.pipeline.run import Run
from bertkit.recipes import read_recipe_task
from bertkit.suites.base import Suite, run_suite, select_names
from bertkit.suites.config import GlueConfig
from bertkit.suites.glue_table import build_glue_table
from bertkit.suites.glue_tasks import GLUE_TASKS, PAPER_LEARNING_RATES, GlueTask
from bertkit.suites.result_table import ResultTable
from bertkit.suites.submission import SUBMISSION_ARCHIVE, SUBMISSION_DIR, write_submission
from bertkit.utils.reporting import Reporter


@dataclass(frozen=True)
class Trial:
    """One finished run of a task."""

    learning_rate: float
    seed: int
    output_dir: Path
    metrics: dict[str, Any]

    def get_selection_score(self, task: GlueTask) -> float:
        """What runs of a task are chosen by."""
        figure = task.scores[0]
        return self.metrics[figure.split][figure.metric]


def run_glue(settings: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None) -> Run:
    """Run the chosen tasks, or what is left of them; see `bertkit glue --help` and `run_suite`."""
    return run_suite(GlueSuite, settings, recipe, reporter)


def select_tasks(names: list[str] | None) -> list[GlueTask]:
    """The tasks of those names, in the paper's order. Raises `UserError` for one that is none."""
    wanted = select_names("--tasks", names, [task.name for task in GLUE_TASKS], "GLUE task")
    return [task for task in GLUE_TASKS if task.name in wanted]


def parse_learning_rates(config: GlueConfig) -> list[float | None]:
    """The learning rates to try; None leaves it to the run. Raises `UserError` for what is no rate."""
    if config.learning_rates is None:
        return [config.learning_rate]
    if config.learning_rate is not None:
        raise UserError("--learning-rate and --learning-rates: give one of the two")
    if config.learning_rates == "paper":
        return list(PAPER_LEARNING_RATES)
    try:
        found = [float(part) for part in config.learning_rates.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < 1 for rate in found):
        raise UserError(
            f"--learning-rates {config.learning_rates}: neither 'paper' nor rates parted by commas"
        )
    return list(dict.fromkeys(found))


class GlueSuite(Suite):
    """The chosen GLUE tasks in one directory: `TASK/seed0` or `TASK/lr5e-05-seed0` is a run each."""

    name = "glue"
    Config = GlueConfig
    suite_settings = frozenset({"tasks", "learning_rates", "seeds", "seed"})
    output_names = [SUBMISSION_DIR, SUBMISSION_ARCHIVE, *(task.name for task in GLUE_TASKS)]

    def __init__(self, config: GlueConfig, reporter: Reporter) -> None:
        super().__init__(config, reporter)
        self.tasks, self.learning_rates = select_tasks(config.tasks), parse_learning_rates(config)
        self.run_dirs = [task.name for task in self.tasks]
        self.config = fill_unset(self.config, {"model": loading.choose_default_model()})

    def resolve_inputs(self) -> list[str]:
        """Data and model of every task must be at hand. Raises `UserError` naming those that are not."""
        self.model_source = loading.find_model(str(self.config.model))
        missing, reason, self.data_sources = [], "", {}
        for task in self.tasks:
            try:
                found = load_dataset(task.name, read_recipe_task(f"glue/{task.name}"), self.config.data_dir)
                self.data_sources[task.name] = found.source
            except UserError as error:
                missing.append(task.name)
                reason = reason or str(error)
        if missing:
            rest = [task.name for task in self.tasks if task.name not in missing]
            way = f"; run the others with --tasks {','.join(rest)}" if rest else ""
            raise UserError(f"no data for {format_list(missing)}{way} ({reason})")
        return [self.model_source.name]

    def plan_runs(self) -> list[dict[str, Any]]:
        """A run for each learning rate of each task, and one for each further seed, at the best of them."""
        tried = [(rate, self.config.seed) for rate in self.learning_rates]
        tried += [(None, self.config.seed + more) for more in range(1, self.config.seeds)]
        return [
            {
                "folder": f"{task.name}/{self._called(rate, seed)}",
                "recipe": f"glue/{task.name}",
                "data": self.data_sources[task.name],
            }
            for task in self.tasks
            for rate, seed in tried
        ]

    def execute_runs(self, folder: Path) -> dict[str, list[Trial]]:
        """The runs of each task at its best learning rate."""
        return {task.name: self._task(task, folder) for task in self.tasks}

    def _task(self, task: GlueTask, folder: Path) -> list[Trial]:
        """The runs of one task at its best learning rate, one for each seed."""
        first = self.config.seed
        tried = [self._trial(task, folder, rate, first) for rate in self.learning_rates]
        best = max(tried, key=lambda trial: trial.get_selection_score(task))
        if len(tried) > 1:
            self.reporter.info(f"{task.name}: the best learning rate is {best.learning_rate:g}")
        seeds = range(first + 1, first + self.config.seeds)
        return [best, *(self._trial(task, folder, best.learning_rate, seed) for seed in seeds)]

    def _trial(self, task: GlueTask, folder: Path, rate: float | None, seed: int) -> Trial:
        place = folder / task.name / self._called(rate, seed)
        self.reporter.info(f"{task.name}: {place}")
        recipe = f"glue/{task.name}"
        own = {"seed": seed, "split_seed": self.config.seed}
        own |= {} if rate is None else {"learning_rate": rate}
        run = self.train(read_recipe_task(recipe), recipe, own, place)
        return Trial(run_directory.read_settings(place)["learning_rate"], seed, place, run.metrics)

    def _called(self, rate: float | None, seed: int) -> str:
        """`seed0`, where rates are searched `lr5e-05-seed0`; None is the best of them."""
        if self.config.learning_rates is None:
            return f"seed{seed}"
        return f"lr{'BEST' if rate is None else format(rate, 'g')}-seed{seed}"

    def compute_metrics(self, folder: Path, results: dict[str, list[Trial]]) -> dict[str, Any]:
        """The scores of each task; the files for the leaderboard are written on the way."""
        best = {
            task.name: max(results[task.name], key=lambda run: run.get_selection_score(task))
            for task in self.tasks
        }
        if self.config.max_eval_samples:
            files = []
            self.reporter.info("no files for the leaderboard: --max-eval-samples leaves out test rows")
        else:
            files = write_submission(folder, [(task, best[task.name].output_dir) for task in self.tasks])
        return {
            "task": "glue",
            "model": self.model_source.name,
            "tasks": {
                task.name: _summary(task, results[task.name], best[task.name], folder) for task in self.tasks
            },
            "submission": files,
        }

    @staticmethod
    def build_table(metrics: Mapping[str, Any], folder: Path) -> ResultTable:
        """The paper's table with ours beside it."""
        return build_glue_table(metrics, folder)


def _summary(task: GlueTask, trials: list[Trial], best: Trial, folder: Path) -> dict[str, Any]:
    """Mean and standard deviation (over the seeds, n - 1) of each score of each scored split."""
    scores: dict[str, Any] = {}
    for split in dict.fromkeys([*(figure.split for figure in task.scores), "test"]):
        found = [trial.metrics[split] for trial in trials if trial.metrics.get(split)]
        if found:
            scores[split] = {name: statistics.fmean(s[name] for s in found) for name in found[0]}
            if len(found) > 1:
                scores[f"{split}_std"] = {name: statistics.stdev(s[name] for s in found) for name in found[0]}
    return {
        **scores,
        "majority": best.metrics["baselines"]["majority"],
        "rows": {split: best.metrics["data"].get(split) for split in ("train", "validation")},
        "learning_rate": best.learning_rate,
        "seeds": [trial.seed for trial in trials],
        "best_run": str(best.output_dir.relative_to(folder)),
        "seconds": sum(trial.metrics["training"]["seconds"] for trial in trials),
    }
