"""`bertkit study TASK`: run a study from its settings to its files."""

import dataclasses
import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.config import RunConfig
from bertkit.data.rows import describe_changes, fingerprint_splits
from bertkit.errors import RunInterrupted, UserError, format_count, format_list
from bertkit.pipeline.metric_modules import load_modules
from bertkit.pipeline.prepare import LoadedData, PreparedRun, load_data
from bertkit.pipeline.results import summarize_data
from bertkit.pipeline.run import Run
from bertkit.pipeline.settings import resolve_settings
from bertkit.recipes import STUDY_PREFIX, serialize_settings
from bertkit.studies.config import list_study_tasks, make_run_config, make_study_config
from bertkit.studies.final_runs import (
    DEFAULTS_DIR,
    FOLDS_DIR,
    RUN_DIRS,
    SEEDS_DIR,
    FinalRun,
    plan_final_runs,
    train_final_runs,
)
from bertkit.studies.held_out import HeldOutPredictions
from bertkit.studies.results import ENSEMBLE_DIR, FinishedRuns, compare, score_held_out, write_ensemble
from bertkit.studies.runner import Runner, RunReporter
from bertkit.studies.search import TRIALS_DIR, TRIALS_FILE, Search, summarize_trials
from bertkit.studies.space import Dimension, format_value, make_default_space, parse_space
from bertkit.studies.splits import (
    SEARCH_FOLD,
    StudySplits,
    hold_out_test_rows,
    split_into_folds,
    split_without_folds,
)
from bertkit.studies.tables import build_study_table, format_number
from bertkit.studies.trials import TrialStore, require_optuna
from bertkit.tasks import task_class
from bertkit.utils import distributed, locks
from bertkit.utils.files import write_jsonl, write_text
from bertkit.utils.output_paths import check_output_directory
from bertkit.utils.reporting import Reporter, silence_libraries, use_reporter
from bertkit.utils.serialization import dump_yaml

STUDY_FILE, PREDICTIONS_FILE, RECIPE_FILE = "study.json", "out_of_fold.jsonl", "recipe.yaml"
OUTPUT_NAMES = [
    STUDY_FILE, PREDICTIONS_FILE, RECIPE_FILE, TRIALS_FILE, TRIALS_DIR, ENSEMBLE_DIR, *RUN_DIRS,
    "label_issues*",
]  # fmt: skip
SPLITS = ("train", "validation", "test")


def run_study(
    task_name: str,
    settings: Mapping[str, Any],
    recipe: str | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Run a study, resume it, or return the metrics of a finished study.

    Args:
        task_name: Name of the task.
        settings: Settings of the user, which take precedence over those of the recipe.
        recipe: Name or path of a recipe, for the task or for a study of the task.
        reporter: Receives progress. By default, nothing is reported.

    Raises:
        UserError: The study cannot succeed. Settings, data and model are checked before anything is trained.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the study, which can be resumed.
    """
    started = time.monotonic()
    reporter = reporter or Reporter()
    if task_name not in list_study_tasks():
        raise UserError(
            f"study {task_name}: is not a fine-tuning task; use {format_list(list_study_tasks())}"
        )
    config_class = make_study_config(task_name)
    config, fingerprints = resolve_settings(
        STUDY_PREFIX + task_name, config_class, settings, recipe, reporter
    )
    folder = Path(config.output_dir) if config.output_dir else None
    if config.resume and folder and (metrics := run_directory.read_metrics(folder)):
        reporter.info("the study is already finished; showing its scores")
        return Run(folder, metrics)
    space = _check_settings(task_name, config)
    with (
        silence_libraries(), use_reporter(reporter), distributed.use_process_group(),
        _name_resuming_command(task_name, folder, lambda: config.resume),
    ):  # fmt: skip
        plan = StudyPlan.create(task_name, config, space, reporter)
        if fingerprints and (changes := describe_changes(fingerprints, plan.fingerprints)):
            raise UserError(f"--resume {folder}: the data has changed ({changes}); restore it")
        if config.dry_run:
            return Run(None, plan.describe_runs())
        return _run_in_directory(plan, folder, started)


@contextmanager
def _name_resuming_command(
    task_name: str, folder: Path | None, can_resume: Callable[[], bool]
) -> Iterator[None]:
    """If the study in this directory is interrupted in the block, name the command that resumes it."""
    try:
        yield
    except (RunInterrupted, KeyboardInterrupt) as error:
        if folder is None or not can_resume():
            raise
        command = f"bertkit study {task_name} --resume --output-dir {shlex.quote(str(folder))}"
        raise RunInterrupted(f"interrupted; resume with: {command}") from error


def _check_settings(task_name: str, config: Any) -> list[Dimension]:
    """Check the settings of a study, and return the search space of the user."""
    if not (config.folds or config.trials or config.seeds > 1):
        raise UserError("study: nothing to compare; pass --folds, --seeds or --trials")
    if config.search and not config.trials:
        raise UserError("--search: has no effect without --trials; pass the number of trials")
    if config.trials:
        require_optuna()
    return parse_space(config.search, task_class(task_name).spec.config)


# ---- the plan


@dataclass(frozen=True)
class StudyPlan:
    """Everything that a study determines before its first run.

    Attributes:
        task_name: The task.
        config: The settings of the study.
        splits: The splits of all runs.
        probe: A prepared run with the default settings and the splits of a trial.
        space: The search space; empty without trials.
        runner: Trains the runs.
        reporter: Receives messages and progress.
        fingerprints: Fingerprints of the parsed rows by split.
    """

    task_name: str
    config: Any
    splits: StudySplits
    probe: PreparedRun
    space: list[Dimension]
    runner: Runner
    reporter: Reporter
    fingerprints: dict[str, str]

    @classmethod
    def create(
        cls, task_name: str, config: RunConfig, space: list[Dimension], reporter: Reporter
    ) -> "StudyPlan":
        """Load and split the data, prepare a run, and choose the search space."""
        run_config = make_run_config(task_name, config)
        data = load_data(task_name, run_config, reporter)
        fingerprints = fingerprint_splits(data.dataset.splits)
        splits = _split(data, config, reporter)
        modules = load_modules(getattr(config, "metric", ()))
        probe = Runner(data, run_config, modules, reporter).prepare({}, splits.search)
        study_config: Any = config
        if study_config.trials:
            space = space or make_default_space(run_config, probe.config)
            reporter.info(f"search space: {', '.join(map(str, space))}")
        runner = Runner(data, run_config, modules, RunReporter(reporter))
        return cls(task_name, config, splits, probe, space, runner, reporter, fingerprints)

    @property
    def metric(self) -> str:
        """Name of the score that selects settings and checkpoints."""
        return self.probe.task.spec.best_metric[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final runs."""
        return [self.config.seed + offset for offset in range(self.config.seeds)]

    @cached_property
    def default_settings(self) -> dict[str, Any]:
        """The default values of the settings in the search space."""
        return {dimension.name: getattr(self.probe.config, dimension.name) for dimension in self.space}

    @cached_property
    def baselines(self) -> dict[str, Any]:
        """The scores of the baselines, on the test rows of the last fold or on the test split."""
        splits = self.splits.final[-1].splits
        return self.probe.task.score_baselines(splits["train"], splits["test"])

    def plan_final_runs(self, folder: Path, settings: Mapping[str, Any]) -> list[FinalRun]:
        """Return the runs with the best settings."""
        name = FOLDS_DIR if self.config.folds else SEEDS_DIR
        return plan_final_runs(folder / name, settings, self.seeds, self.splits.final)

    def plan_default_runs(self, folder: Path) -> list[FinalRun]:
        """Return the runs with the default settings, for the comparison with the best settings."""
        unbiased = [part for part in self.splits.final if part.fold != SEARCH_FOLD]
        return plan_final_runs(folder / DEFAULTS_DIR, {}, self.seeds, unbiased)

    def describe_runs(self) -> dict[str, Any]:
        """Return the planned runs, for `--dry-run`."""
        folder = Path()
        final = [*self.plan_final_runs(folder, {}), *(self.plan_default_runs(folder) if self.space else [])]
        planned = [(f"{TRIALS_DIR}/{number:03d}", self.splits.search) for number in range(self.config.trials)]
        planned += [(run.folder.as_posix(), run.splits.splits) for run in final]
        runs = [
            {"folder": name, **{split: str(len(splits.get(split, ()))) for split in SPLITS}}
            for name, splits in planned
        ]
        space = [str(dimension) for dimension in self.space]
        return {"task": "study", "model": self.probe.model_source.name, "space": space, "runs": runs}


def _split(data: LoadedData, config: Any, reporter: Reporter) -> StudySplits:
    """Return the splits of all runs."""
    if config.folds:
        splits = split_into_folds(data, config.folds)
    else:
        if not _has_labeled_test_rows(data):
            data = hold_out_test_rows(data)
            rows = format_count(len(data.dataset.splits["test"]), data.task.spec.unit)
            reporter.info(f"{rows} of the training data are held out as test split, which has no labels")
        splits = split_without_folds(data, reporter)
    for note in splits.notes:
        reporter.info(note)
    return splits


def _has_labeled_test_rows(data: LoadedData) -> bool:
    """Return whether the data has a test split in which all rows have labels."""
    test, task = data.dataset.splits.get("test"), data.task
    if test is None:
        return False
    try:
        labeled, _ = task.parse_rows(test, "test", require_labels=True)
    except UserError:
        return False
    return len(labeled) == len(test)


# ---- the directory


def _run_in_directory(plan: StudyPlan, folder: Path | None, started: float) -> Run:
    """Create the directory of a study, or resume the study in it."""
    name_parts = ("study", plan.task_name, plan.probe.dataset.name, plan.probe.model_source.name)
    folder = folder or run_directory.create_default_directory(*name_parts)
    if not plan.config.resume:
        with locks.lock_directory(folder):
            _create_study(plan, folder)
    try:
        with _name_resuming_command(plan.task_name, folder, lambda: _has_runs(folder)):
            return _run(plan, folder, started)
    finally:
        if not plan.config.resume:
            _clean_up(folder)


def _create_study(plan: StudyPlan, folder: Path) -> None:
    """Write the settings of a study; with `--overwrite`, first move the previous study to a backup."""
    check_output_directory(folder, run_directory.RUN, plan.config.overwrite)
    for name in (TRIALS_DIR, *RUN_DIRS):
        for path in (folder / name).glob("*/"):
            locks.require_unlocked(path)
    run_directory.back_up_run(folder, OUTPUT_NAMES)
    run_directory.write_settings(folder, STUDY_PREFIX + plan.task_name, plan.config, plan.fingerprints)


def _has_runs(folder: Path) -> bool:
    """Return whether a run of the study has started."""
    runs = (folder.glob(f"{name}/*/{run_directory.SETTINGS_FILE}") for name in (TRIALS_DIR, *RUN_DIRS))
    return any(any(paths) for paths in runs)


def _clean_up(folder: Path) -> None:
    """Delete the backup of the replaced study, or restore the backup if no run has started."""
    if _has_runs(folder):
        run_directory.delete_backup(folder)
        return
    for name in (TRIALS_DIR, *RUN_DIRS, ENSEMBLE_DIR):
        shutil.rmtree(folder / name, ignore_errors=True)
    run_directory.discard_unstarted_run(folder)


# ---- the runs


def _run(plan: StudyPlan, folder: Path, started: float) -> Run:
    """Search, train the final runs, and write the results."""
    store = _search(plan, folder, started) if plan.space else None
    best_settings = store.find_best().settings if store else {}
    best = _train(plan, plan.plan_final_runs(folder, best_settings), "best settings" if store else "")
    defaults = _train(plan, plan.plan_default_runs(folder), "defaults") if best_settings else None
    with locks.wait_for_lock(folder / ENSEMBLE_DIR):
        metrics = run_directory.read_metrics(folder)  # another process may have written them
        if metrics is None:
            metrics = _write_results(plan, folder, store, best, defaults)
    return Run(folder, metrics)


def _search(plan: StudyPlan, folder: Path, started: float) -> TrialStore:
    limit, sign = plan.config.time_limit, plan.probe.task.spec.best_metric[1]
    (folder / TRIALS_DIR).mkdir(exist_ok=True)
    store = TrialStore(folder / TRIALS_DIR, plan.space, plan.default_settings, plan.config.seed, sign)
    Search(
        folder, store, plan.runner, plan.reporter, plan.splits.search, plan.metric, plan.config.trials,
        None if limit is None else started + 60 * limit,
    ).run()  # fmt: skip
    return store


def _train(plan: StudyPlan, runs: list[FinalRun], name: str) -> FinishedRuns:
    """Train final runs, with a line for each of them."""

    def report(run: FinalRun, metrics: Mapping[str, Any]) -> None:
        prefix = f"{name}, " if name else ""
        score = format_number(metrics["test"].get(plan.metric))
        plan.reporter.info(f"{prefix}{run.title}: {plan.metric} {score}")

    return FinishedRuns(runs, train_final_runs(plan.runner, runs, report))


# ---- the results


def _write_results(
    plan: StudyPlan, folder: Path, store: TrialStore | None, best: FinishedRuns, defaults: FinishedRuns | None
) -> dict[str, Any]:
    """Write all results into the directory of the study, with `metrics.json` last."""
    has_search = store is not None
    unbiased = [run for run in best.runs if not has_search or run.splits.fold != SEARCH_FOLD]
    rows, seed = plan.splits.rows, plan.config.seed
    predictions = HeldOutPredictions.load(plan.runner, unbiased, rows)
    settings = {"best": _summarize(plan, folder, best, predictions)}
    comparison = None
    if defaults is not None:
        default_predictions = HeldOutPredictions.load(plan.runner, defaults.runs, rows)
        settings["defaults"] = _summarize(plan, folder, defaults, default_predictions)
        comparison = compare(default_predictions, predictions, plan.metric, seed)
    held_out_score = settings["best"]["held_out"]["scores"].get(plan.metric)
    metrics = {
        "task": "study",
        "command": plan.task_name,
        "data": summarize_data(plan.probe.dataset, plan.fingerprints, plan.probe.dataset.splits),
        "model": plan.probe.model_source.name,
        "metric": plan.metric,
        "folds": plan.config.folds,
        "seeds": plan.seeds,
        "settings": settings,
        "search": _summarize_search(plan, store, held_out_score) if store else None,
        "comparison": comparison,
        "baselines": plan.baselines,
    }
    if plan.config.folds:
        all_predictions = HeldOutPredictions.load(plan.runner, best.runs, rows)
        write_jsonl(folder / PREDICTIONS_FILE, all_predictions.iter_records())
    write_ensemble(folder / ENSEMBLE_DIR, plan.task_name, best)
    _write_recipe(plan, folder, best.runs[0].settings)
    table = build_study_table(metrics, folder)
    notes = "".join(f"* {note}\n" for note in table.notes)
    write_text(folder / run_directory.CARD_FILE, f"{table.to_markdown()}\n## Notes\n\n{notes}")
    write_text(folder / STUDY_FILE, json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
    run_directory.write_metrics(folder, metrics)
    return metrics


def _summarize(
    plan: StudyPlan, folder: Path, finished: FinishedRuns, predictions: HeldOutPredictions
) -> dict[str, Any]:
    """Return the scores of the runs with the same settings, and those of the held-out rows."""
    held_out = score_held_out(predictions, plan.config.seed)
    return {**finished.summarize(folder, plan.metric, predictions.runs), "held_out": held_out}


def _summarize_search(plan: StudyPlan, store: TrialStore, held_out_score: float | None) -> dict[str, Any]:
    """Return the trials, and the score of the best trial with its optimism (Efron and Tibshirani 1993, 17.6).

    The optimism is how much higher the score is on the rows that chose the settings than on other rows.
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
    config = dataclasses.replace(plan.runner.data.requested, **settings)
    content = {"task": plan.task_name, "settings": serialize_settings(config)}
    values = ", ".join(f"{name} {format_value(value)}" for name, value in settings.items())
    title = f"# Best settings of the study: {values or 'the defaults'}\n"
    write_text(folder / RECIPE_FILE, title + dump_yaml(content))
