"""The runs of a suite: which, where, gone on with where they were stopped."""

import shlex
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit import rundir
from bertkit.config import fill, saved_settings
from bertkit.data.sources import data_directory, find
from bertkit.errors import Stopped, UserError, listed, nearest
from bertkit.files import write_text
from bertkit.modeling import loading
from bertkit.prepare import settings
from bertkit.recipes import read_task
from bertkit.reporter import Reporter
from bertkit.run import Run, train
from bertkit.suite.config import GlueConfig
from bertkit.suite.glue import GLUE, PAPER_RATES, GlueTask
from bertkit.suite.submission import write_submission
from bertkit.suite.table import table
from bertkit.training import precision

OWN = ("tasks", "learning_rates", "seeds", "seed", "output_dir", "resume")  # not handed on to the runs


@dataclass(frozen=True)
class Trial:
    """One finished run of a task."""

    learning_rate: float
    seed: int
    folder: Path
    metrics: dict[str, Any]

    def score(self, task: GlueTask) -> float:
        """What runs of a task are chosen by."""
        figure = task.figures[0]
        return self.metrics[figure.split][figure.metric]


def run_glue(given: Mapping[str, Any], recipe: str | None = None, reporter: Reporter | None = None) -> Run:
    """Run the chosen tasks, or what is left of them; see `bertkit glue --help`.

    Raises:
        UserError: anything the user can mend; data and model of all tasks are looked for before any run.
        Stopped: Ctrl-C or SIGTERM; what is finished stays, and `--resume` goes on.
    """
    reporter = reporter or Reporter()
    config, _ = settings("glue", GlueConfig, given, recipe)
    assert isinstance(config, GlueConfig)
    finished = rundir.read_metrics(Path(config.output_dir or "")) if config.resume else None
    if finished:
        reporter.say("all runs are finished; these are their scores")
        return Run(Path(config.output_dir or ""), finished)
    suite = Suite(config, reporter)
    suite.require_all()
    return suite.run()


def chosen_tasks(names: list[str] | None) -> list[GlueTask]:
    """The tasks of those names, in the paper's order. Raises `UserError` for one that is none."""
    known = {task.name: task for task in GLUE}
    wanted = [part.strip().lower() for name in names or known for part in name.split(",") if part.strip()]
    wanted = [name.replace("-", "").replace("_", "") for name in wanted]
    for name in wanted:
        if name not in known:
            raise UserError(f"--tasks {name}: no GLUE task{nearest(name, known)} ({listed(known)})")
    if not wanted:
        raise UserError(f"--tasks: names none of {listed(known)}")
    return [task for task in GLUE if task.name in wanted]


def rates(config: GlueConfig) -> list[float | None]:
    """The learning rates to try; None leaves it to the run. Raises `UserError` for what is no rate."""
    if config.learning_rates is None:
        return [config.learning_rate]
    if config.learning_rate is not None:
        raise UserError("--learning-rate and --learning-rates: give one of the two")
    if config.learning_rates == "paper":
        return list(PAPER_RATES)
    try:
        found = [float(part) for part in config.learning_rates.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < rate < 1 for rate in found):
        raise UserError(
            f"--learning-rates {config.learning_rates}: neither 'paper' nor rates parted by commas"
        )
    return list(dict.fromkeys(found))


class Suite:
    """The chosen GLUE tasks in one directory: `TASK/seed0` or `TASK/lr5e-05-seed0` is a run each."""

    def __init__(self, config: GlueConfig, reporter: Reporter) -> None:
        precision.choose(config)
        self.tasks, self.rates, self.reporter = chosen_tasks(config.tasks), rates(config), reporter
        directory = data_directory(config.data_dir)
        at_hand = {"model": loading.default_model(), "data_dir": str(directory) if directory else None}
        self.config = fill(config, at_hand)

    def require_all(self) -> None:
        """Data and model of every task must be at hand. Raises `UserError` naming those that are not."""
        self.source = loading.find_model(str(self.config.model))
        missing, reason = [], ""
        for task in self.tasks:
            try:
                find(task.name, read_task(f"glue/{task.name}"), self.config.data_dir)
            except UserError as error:
                missing.append(task.name)
                reason = reason or str(error)
        if missing:
            rest = [task.name for task in self.tasks if task.name not in missing]
            way = f"; run the others with --tasks {','.join(rest)}" if rest else ""
            raise UserError(f"no data for {listed(missing)}{way} ({reason})")

    def run(self) -> Run:
        """All runs that are not finished yet, then the table and the leaderboard's files."""
        folder = self._folder()
        try:
            trials = {task.name: self._task(task, folder) for task in self.tasks}
        except (Stopped, KeyboardInterrupt) as error:
            if not any(folder.glob(f"*/*/{rundir.SETTINGS}")):
                raise
            way_on = f"bertkit glue --resume --output-dir {shlex.quote(str(folder))}"
            raise Stopped(f"stopped; go on with: {way_on}") from error
        finally:
            self._discard_unstarted(folder)
        return self._finish(folder, trials)

    def _folder(self) -> Path:
        if self.config.output_dir is None:
            folder = rundir.reserve_default("glue", self.source.name)
        else:
            folder = Path(self.config.output_dir)
        if not self.config.resume:
            folder.mkdir(parents=True, exist_ok=True)
            rundir.write_settings(folder, "glue", self.config, "")
        return folder

    def _discard_unstarted(self, folder: Path) -> None:
        """Leave nothing of a suite whose first run was refused."""
        if not any(folder.glob(f"*/*/{rundir.SETTINGS}")):
            for task in self.tasks:
                shutil.rmtree(folder / task.name, ignore_errors=True)
            rundir.discard_unstarted(folder)

    def _task(self, task: GlueTask, folder: Path) -> list[Trial]:
        """The runs of one task at its best learning rate, one for each seed."""
        first = self.config.seed
        tried = [self._trial(task, folder, rate, first) for rate in self.rates]
        best = max(tried, key=lambda trial: trial.score(task))
        if len(tried) > 1:
            self.reporter.say(f"{task.name}: the best learning rate is {best.learning_rate:g}")
        seeds = range(first + 1, first + self.config.seeds)
        return [best, *(self._trial(task, folder, best.learning_rate, seed) for seed in seeds)]

    def _trial(self, task: GlueTask, folder: Path, rate: float | None, seed: int) -> Trial:
        name = f"seed{seed}" if self.config.learning_rates is None else f"lr{rate:g}-seed{seed}"
        place = folder / task.name / name
        self.reporter.say(f"{task.name}: {place}")
        recipe = f"glue/{task.name}"
        kind = read_task(recipe)
        if (place / rundir.SETTINGS).exists():
            run = train(kind, {"resume": True, "output_dir": str(place)}, None, self.reporter)
        else:
            run = train(kind, self._settings(kind, rate, seed, place), recipe, self.reporter)
        shutil.rmtree(place / rundir.CHECKPOINTS, ignore_errors=True)  # it is finished
        return Trial(rundir.read_settings(place)["learning_rate"], seed, place, run.metrics)

    def _settings(self, kind: str, rate: float | None, seed: int, place: Path) -> dict[str, Any]:
        shared = {key: value for key, value in saved_settings(self.config).items() if key not in OWN}
        own = {"seed": seed, "split_seed": self.config.seed, "output_dir": str(place)}
        return shared | own | ({} if rate is None else {"learning_rate": rate})

    def _finish(self, folder: Path, trials: dict[str, list[Trial]]) -> Run:
        best = {task.name: max(trials[task.name], key=lambda trial: trial.score(task)) for task in self.tasks}
        if self.config.max_eval_samples:
            files = []
            self.reporter.say("no files for the leaderboard: --max-eval-samples leaves out test rows")
        else:
            files = write_submission(folder, [(task, best[task.name].folder) for task in self.tasks])
        metrics = {
            "task": "glue",
            "model": self.source.name,
            "tasks": {
                task.name: _summary(task, trials[task.name], best[task.name], folder) for task in self.tasks
            },
            "submission": files,
        }
        write_text(folder / "README.md", table(metrics))
        rundir.write_metrics(folder, metrics)
        return Run(folder, metrics)


def _summary(task: GlueTask, trials: list[Trial], best: Trial, folder: Path) -> dict[str, Any]:
    """Mean and standard deviation (over the seeds, n - 1) of each score of each scored split."""
    scores: dict[str, Any] = {}
    for split in dict.fromkeys([*(figure.split for figure in task.figures), "test"]):
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
        "best_run": str(best.folder.relative_to(folder)),
        "seconds": sum(trial.metrics["training"]["seconds"] for trial in trials),
    }
