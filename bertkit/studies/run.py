"""`bertkit study TASK`: run a study from its settings to its files."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bertkit import run_directory
from bertkit.data.tokens import share_tokens
from bertkit.errors import UserError, format_list
from bertkit.run.settings import resolve_settings
from bertkit.run.train import Run, require_unchanged_data
from bertkit.run_directory import ENSEMBLE_DIR
from bertkit.settings.recipes import STUDY_PREFIX
from bertkit.settings.run_settings import MAX_SEED
from bertkit.studies.config import list_study_tasks, make_study_config
from bertkit.studies.files import OUTPUT_NAMES, write_results
from bertkit.studies.final_runs import FinalRun
from bertkit.studies.plan import StudyPlan
from bertkit.studies.planned_runs import Outcome, train_runs
from bertkit.studies.results import FinishedRuns
from bertkit.studies.runs_directory import RunsDirectory, join_if_resumed, name_resuming_command
from bertkit.studies.search import TRIALS_DIR, Search
from bertkit.studies.space import Dimension, check_space, parse_space
from bertkit.studies.tables import format_number
from bertkit.studies.trials import TrialStore, require_optuna
from bertkit.tasks import task_definition
from bertkit.utils import distributed, locks
from bertkit.utils.reporting import report_info, silence_libraries


def run_study(
    task_name: str,
    settings: Mapping[str, Any],
    recipe: str | None = None,
) -> Run:
    """Run a study, resume it, or return the metrics of a finished study.

    Args:
        task_name: Name of the task.
        settings: Settings of the user, which take precedence over those of the recipe.
        recipe: Name or path of a recipe, for the task or for a study of the task.

    Raises:
        UserError: The study cannot succeed. Settings, data and model are checked before anything is trained.
        RunInterrupted: Ctrl-C or SIGTERM interrupted the study, which can be resumed.
    """
    started = time.monotonic()
    if task_name not in list_study_tasks():
        raise UserError(
            f"study {task_name}: is not a fine-tuning task; use {format_list(list_study_tasks())}"
        )
    config_class = make_study_config(task_name)
    resolve = partial(resolve_settings, STUDY_PREFIX + task_name, config_class, settings, recipe)
    config, fingerprints = resolve()
    folder = Path(config.output_dir) if config.output_dir else None
    if config.resume and folder and (metrics := run_directory.read_metrics(folder)):
        report_info("the study is already finished; showing its scores")
        return Run(folder, metrics)
    space = _check_settings(task_name, config)
    with (
        silence_libraries(), distributed.use_process_group(), share_tokens(),
        name_resuming_command(STUDY_PREFIX + task_name, folder or Path(), lambda: config.resume),
        join_if_resumed(config, folder or Path()),
    ):  # fmt: skip
        if config.resume:
            config, fingerprints = resolve(is_locked=True)
            space = _check_settings(task_name, config)
        plan = StudyPlan.create(task_name, config, space)
        if fingerprints:
            require_unchanged_data(folder, fingerprints, plan.fingerprints)
        if config.dry_run:
            return Run(None, plan.describe_runs())
        return _run_in_directory(plan, folder, started)


def _check_settings(task_name: str, config: Any) -> list[Dimension]:
    """Check the settings of a study, and return the search space of the user."""
    if not (config.folds or config.trials or config.seeds > 1):
        raise UserError("study: nothing to compare; pass --folds, --seeds or --trials")
    if config.seed + config.seeds - 1 > MAX_SEED:
        raise UserError(f"--seeds {config.seeds}: the last seed is above {MAX_SEED}; pass a lower --seed")
    if config.search and not config.trials:
        raise UserError("--search: has no effect without --trials; pass the number of trials")
    if config.trials:
        require_optuna()
    space = parse_space(config.search, task_definition(task_name).config)
    check_space(space, config)
    return space


# ---- the directory


def _run_in_directory(plan: StudyPlan, folder: Path | None, started: float) -> Run:
    """Create the directory of a study, or resume the study in it."""
    name_parts = ("study", plan.task_name, plan.prepared.dataset.name, plan.prepared.model_source.name)
    folder = folder or run_directory.create_default_directory(*name_parts)
    directory = RunsDirectory(folder, STUDY_PREFIX + plan.task_name, OUTPUT_NAMES)
    with directory.open(plan.config, plan.fingerprints):
        return _run(plan, folder, started)


# ---- the runs


def _run(plan: StudyPlan, folder: Path, started: float) -> Run:
    """Search, train the final runs, and write the results."""
    store = _search(plan, folder, started) if plan.space else None
    best_settings = store.find_best().settings if store else {}
    best = _train(plan, plan.plan_final_runs(folder, best_settings), "best settings" if store else "")
    defaults = _train(plan, plan.plan_default_runs(folder), "defaults") if best_settings else None
    with ExitStack() as stack:
        if not locks.try_lock(stack, folder / ENSEMBLE_DIR):
            report_info("waiting for another process, which writes the results")
            stack.enter_context(locks.wait_for_lock(folder / ENSEMBLE_DIR))
        metrics = run_directory.read_metrics(folder)  # another process may have written them
        if metrics is None:
            metrics = write_results(plan, folder, store, best, defaults)
    return Run(folder, metrics)


def _search(plan: StudyPlan, folder: Path, started: float) -> TrialStore:
    limit, sign = plan.config.time_limit, plan.prepared.task.state.best_metric[1]
    (folder / TRIALS_DIR).mkdir(exist_ok=True)
    store = TrialStore(folder / TRIALS_DIR, plan.space, plan.default_settings, plan.config.seed, sign)
    Search(
        folder, store, plan.run_group, plan.splits.search, plan.metric, plan.config.trials,
        None if limit is None else started + 60 * limit,
    ).run()  # fmt: skip
    return store


def _train(plan: StudyPlan, runs: list[FinalRun], name: str) -> FinishedRuns:
    """Train final runs, with a line for each of them."""

    def report(run: FinalRun, outcome: Outcome) -> None:
        prefix = f"{name}, " if name else ""
        if outcome.reason:
            raise UserError(f"{prefix}{run.title}: {outcome.reason}")
        score = format_number(outcome.metrics["test"].get(plan.metric))
        report_info(f"{prefix}{run.title}: {plan.metric} {score}")

    outcomes = train_runs(runs, lambda _: None, report)
    return FinishedRuns(runs, {folder: outcome.metrics for folder, outcome in outcomes.items()})
