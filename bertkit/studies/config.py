"""The settings of `bertkit study TASK`: those of the task, and those of folds, seeds and trials."""

import dataclasses
from functools import cache
from typing import Any

from bertkit.settings.run_settings import SINGLE_RUN_SETTINGS, FineTuningConfig, RunConfig
from bertkit.settings.setting import OUTPUT, get_settings, setting
from bertkit.tasks import TASKS, task_definition

STUDY = "Study"  # heading in `--help`
STUDY_HELP = "Train a task over folds, seeds and hyperparameter trials, and compare with the defaults."
STUDY_SETTINGS: dict[str, tuple[Any, Any]] = {
    "folds": (
        int | None,
        setting(
            None, "Number of folds of cross-validation; each training row is predicted once per seed.", STUDY,
            min=2, default_text="none: the splits of the data",
        ),
    ),
    "seeds": (int, setting(1, "Runs of each fold, with the seeds --seed, --seed + 1, ...", STUDY, min=1)),
    "trials": (
        int,
        setting(0, "Number of hyperparameter trials; the first one has the default settings.", STUDY, min=0),
    ),
    "search": (
        list[str],
        setting(
            (),
            "Setting to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C. Repeatable.",
            STUDY,
            default_text="learning rate and epochs, around the defaults",
        ),
    ),
    "time_limit": (
        float | None,
        setting(
            None, "Minutes after which this command begins no further trial.", STUDY, min=0.0, is_saved=False
        ),
    ),
    "output_dir": (
        str | None,
        setting(
            None, "Directory of the study, which receives its runs and results.", OUTPUT,
            flags=("--output-dir", "-o"), is_saved=False, default_text="runs/study-TASK-DATA-MODEL",
        ),
    ),
    "dry_run": (
        bool,
        setting(False, "Load the data, list the planned runs, and write no run.", OUTPUT, is_saved=False),
    ),
}  # fmt: skip


@cache
def make_study_config(task_name: str) -> type[RunConfig]:
    """Return a subclass of a task's config with the settings of a study."""
    config_class = task_definition(task_name).config
    namespace = {
        "excluded_settings": config_class.excluded_settings | SINGLE_RUN_SETTINGS,
        "__doc__": STUDY_HELP,
        "__module__": __name__,
    }
    fields = [(name, kind, default) for name, (kind, default) in STUDY_SETTINGS.items()]
    return dataclasses.make_dataclass(
        f"Study{config_class.__name__}", fields, bases=(config_class,), frozen=True, kw_only=True,
        namespace=namespace,
    )  # fmt: skip


def list_study_tasks() -> list[str]:
    """Return the tasks that can be studied: those that are fine-tuned."""
    return [name for name in TASKS if issubclass(task_definition(name).config, FineTuningConfig)]


def make_run_config(task_name: str, config: RunConfig) -> RunConfig:
    """Return the settings of the runs of a study: its settings, without those that only studies have."""
    config_class = task_definition(task_name).config
    call_settings = {"output_dir", "overwrite", "resume", "dry_run"}
    names = get_settings(config_class).keys() - STUDY_SETTINGS.keys() - call_settings
    return config_class(**{name: getattr(config, name) for name in names})
