"""The settings of experiments: those of a run, and those that only experiments have."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from bertkit.errors import UserError, format_list
from bertkit.settings.declaration import (
    Panel,
    Pooling,
    RaySettings,
    Settings,
    get_settings,
    pooling_setting,
    setting,
)
from bertkit.settings.run_settings import SINGLE_RUN_SETTINGS, FineTuningConfig, RunConfig
from bertkit.settings.validation import DataSource
from bertkit.tasks import list_definitions, task_definition
from bertkit.tasks.ner.config import NerConfig
from bertkit.tasks.pretrain.config import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings(RaySettings):
    """The settings that all experiments have."""

    jobs: int = setting(
        1, "Runs to train at the same time, each with a part of the cores or a GPU of its own.", Panel.SPEED,
        min=1, is_saved=False,
    )  # fmt: skip
    dry_run: bool = setting(
        False, "Find the data and the model, list the planned runs, and write no run.", Panel.RUN_DIRECTORY,
        is_saved=False,
    )  # fmt: skip


# ---- studies

STUDY_HELP = "Train a task over folds, seeds and hyperparameter trials, and compare with the defaults."


@dataclass(frozen=True, kw_only=True)
class StudySettings(ExperimentSettings):
    """The settings that a study has in addition to those of its task."""

    task_name: ClassVar[str]

    folds: int | None = setting(
        None, "Folds of cross-validation; each training row is predicted once per seed.", Panel.RUNS,
        min=2, default_text="the splits of the data",
    )  # fmt: skip
    seeds: int = setting(1, "Runs of each fold, with the seeds --seed, --seed + 1, ...", Panel.RUNS, min=1)
    trials: int = setting(
        0, "Number of hyperparameter trials; the first one has the default settings.", Panel.RUNS, min=0
    )
    search: list[str] = setting(
        (), "Setting to search: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C. Repeatable.",
        Panel.RUNS, default_text="learning rate and epochs, around the defaults",
    )  # fmt: skip
    time_limit: float | None = setting(
        None, "Minutes after which this command begins no further trial.", Panel.RUNS, min=0.0,
        is_saved=False,
    )  # fmt: skip
    against: str | None = setting(
        None,
        "Finished study of the same data and folds. Exit status 0: better, 3: no difference shown, 4: worse.",
        Panel.RUNS, completion="runs", is_path=True, is_saved=False,
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory for the runs and results of the study.", Panel.OUTPUT, is_common=True,
        flags=("--output-dir", "-o"), is_saved=False, default_text="runs/study-TASK-DATA-MODEL",
    )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_config, ("study", self.task_name, vars(self))


# ---- ladders

LADDER_HELP = "Train models of several kinds on the same folds, and recommend the smallest good one."


@dataclass(frozen=True, kw_only=True)
class LadderSettings(ExperimentSettings):
    """The settings that a ladder has in addition to those of its task."""

    task_name: ClassVar[str]
    # The candidates decide these, and scores of modules have no paired test.
    excluded_settings = frozenset({
        "method", "features", "num_layers", "new_head", "metric", "greater_is_better",
    })  # fmt: skip

    models: list[str] = setting(
        (), "Encoders to compare, separated by commas. Repeatable.", Panel.RUNS, is_common=True,
        flags=("--models", "-m"), completion="models", default_text="the default one", replaces=("model",),
    )  # fmt: skip
    model: str | None = setting(
        None, "The only encoder, as in the recipes of the task.", Panel.RUNS, is_path=True, has_flag=False,
    )  # fmt: skip
    folds: int = setting(
        3, "Folds of cross-validation; each candidate predicts each training row once.", Panel.RUNS,
        min=2,
    )  # fmt: skip
    margin: float = setting(
        1.0, "Points by which the recommended model may be below the best one.", Panel.RUNS,
        min=0.0, max=100.0,
    )  # fmt: skip
    time_limit: float | None = setting(
        None, "Minutes; candidates that do not fit are left out.", Panel.RUNS,
        min=0.001, is_saved=False,
    )  # fmt: skip
    keep: bool = setting(
        False, "Train the recommended model as a run of its own, in OUTPUT_DIR/recommended.", Panel.RUNS,
        is_saved=False,
    )  # fmt: skip
    output_dir: str | None = setting(
        None, "Directory for the runs and results of the ladder.", Panel.OUTPUT, is_common=True,
        flags=("--output-dir", "-o"), is_saved=False, default_text="runs/ladder-TASK-DATA",
    )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_config, ("ladder", self.task_name, vars(self))


# ---- commands with a task: `study TASK` and `ladder TASK`

STUDY_SETTINGS = frozenset(get_settings(StudySettings))
TASK_SETTINGS: Mapping[str, type[Settings]] = {"study": StudySettings, "ladder": LadderSettings}
# The classes as `module:name`.
TASK_EXPERIMENTS = {
    "study": "bertkit.experiments.study:Study",
    "ladder": "bertkit.experiments.ladder:Ladder",
}


@cache
def make_task_config(command: str, task_name: str) -> type[RunConfig]:
    """Return a subclass of a task's config with the settings of `study` or `ladder`."""
    config_class, settings_class = task_definition(task_name).config, TASK_SETTINGS[command]
    namespace = {
        "excluded_settings": (
            config_class.excluded_settings | SINGLE_RUN_SETTINGS | settings_class.excluded_settings
        ),
        "task_name": task_name,
        "__doc__": settings_class.__doc__,
        "__module__": __name__,
    }
    return dataclasses.make_dataclass(
        f"{command.capitalize()}{config_class.__name__}", [], bases=(settings_class, config_class),
        frozen=True, kw_only=True, namespace=namespace,
    )  # fmt: skip


def _restore_config(command: str, task_name: str, settings: dict[str, Any]) -> RunConfig:
    # pickle cannot find a class that was made at run time
    return make_task_config(command, task_name)(**settings)


def list_experiment_tasks(command: str) -> list[str]:
    """Return the tasks of `study`, which are those that are fine-tuned, or of `ladder`, with candidates."""
    definitions, _ = list_definitions()
    return [
        name
        for name, task in definitions.items()
        if issubclass(task.config, FineTuningConfig) and (command == "study" or task.config.candidates)
    ]


def make_run_config(task_name: str, config: RunConfig) -> RunConfig:
    """Return the settings of the runs of a study or a ladder, without those that only these have."""
    config_class = task_definition(task_name).config
    own = STUDY_SETTINGS.union(get_settings(LadderSettings)) - {"model"}
    names = get_settings(config_class).keys() - own - {"overwrite", "resume"}
    return config_class(**{name: getattr(config, name) for name in names})


# ---- suites

IN_RECIPES = "that of the recipe"


@dataclass(frozen=True, kw_only=True)
class GlueConfig(ExperimentSettings, RunConfig):
    """The settings of `bertkit glue`. They override the recipes `glue/TASK`."""

    excluded_settings = SINGLE_RUN_SETTINGS | {
        "data", "validation", "test", "validation_fraction", "split_seed",
    }  # fmt: skip
    default_texts = {
        **dict.fromkeys(("max_length", "epochs", "batch_size"), IN_RECIPES), "output_dir": "runs/glue-MODEL",
    }  # fmt: skip

    tasks: list[str] | None = setting(
        None, "GLUE tasks to run, separated by commas. Repeatable.", Panel.ROWS, is_common=True,
        default_text="all nine",
    )  # fmt: skip
    pooling: Pooling = pooling_setting()
    learning_rates: str | None = setting(
        None,
        "Learning rates to try on each task, separated by commas, or paper: 5e-5,4e-5,3e-5,2e-5. The best "
        "one is kept.",
        Panel.TUNING, is_common=True, default_text="one, by data and model size", replaces=("learning_rate",),
    )  # fmt: skip
    seeds: int = setting(
        1,
        "Runs of each task, with the seeds --seed, --seed + 1, ...; the table has their mean.",
        Panel.RUNS, is_common=True, min=1,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class KlueConfig(GlueConfig):
    """The settings of `bertkit klue`. They override the recipes `klue/TASK`."""

    default_texts = GlueConfig.default_texts | {"output_dir": "runs/klue-MODEL"}

    tasks: list[str] | None = setting(
        None, "KLUE tasks to run, separated by commas. Repeatable.", Panel.ROWS, is_common=True,
        default_text="all six",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FeatureBasedConfig(ExperimentSettings, NerConfig):
    """The settings of `bertkit feature-based`. They override the recipes `ner/feature-based/FEATURES`.

    A setting with its default value is not passed to the runs. Every default is therefore None or equal to
    the value in the recipes.
    """

    excluded_settings = SINGLE_RUN_SETTINGS | {
        "head", "freeze", "lora", "layer_decay", "metric", "metric_for_best_model", "greater_is_better",
        "num_layers",
    }  # fmt: skip
    default_texts = {
        **dict.fromkeys(("epochs", "batch_size", "learning_rate"), IN_RECIPES),
        "data": "conll2003", "model": "bert-base-cased", "output_dir": "runs/feature-based-DATA-MODEL",
    }  # fmt: skip

    context: Literal["sentence", "document"] = setting(
        "document",
        "Input of the model: a sentence, or also its document up to --max-length tokens.",
        Panel.LONG_TEXTS,
    )
    features: list[str] | None = setting(  # type: ignore[assignment]  # a single run has one value
        None, "Rows of the table to run, separated by commas. Repeatable.", Panel.RUNS, is_common=True,
        default_text="all six",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AblationConfig(ExperimentSettings, PretrainConfig):
    """The settings of `bertkit ablation`. They override the recipes `pretrain/...`.

    Those of `Ablation.own_settings` apply to the suite. All others apply to pre-training, and
    `MACHINE_SETTINGS` and `max_length` also to fine-tuning.
    """

    excluded_settings = (
        PretrainConfig.excluded_settings
        | SINGLE_RUN_SETTINGS
        | {"model", "objective", "phases", "preview", "generator_size", "probe"}
        | {"time_limit", "word_budget", "save_words"}
    )
    default_texts = {
        **dict.fromkeys(("max_length", "max_steps", "batch_size", "learning_rate"), IN_RECIPES),
        "epochs": "--max-steps of the recipe", "output_dir": "runs/ablation-DATA-TABLE",
    }  # fmt: skip

    data: DataSource | None = setting(
        None, "Pre-training text: a file, a directory, a pattern, a known dataset, or a Hub dataset.",
        Panel.ROWS, is_common=True, completion="data", default_text="imdb", is_path=True,
    )  # fmt: skip
    table: Literal["objectives", "sizes"] = setting(
        "objectives", "Pre-training objectives (table 5 of the paper) or model sizes (table 6).", Panel.RUNS,
        is_common=True,
    )  # fmt: skip
    rows: list[str] | None = setting(
        None, "Rows of the table to run, separated by commas. Repeatable.", Panel.RUNS, default_text="all"
    )
    tasks: list[str] | None = setting(
        None, "Tasks to fine-tune each row on, separated by commas. Repeatable.", Panel.RUNS,
        default_text="those of the table whose data is found, or else imdb",
    )  # fmt: skip
    task_train_samples: int | None = setting(
        None, "Fine-tune on at most N rows of each task, sampled with --seed.", Panel.RUNS, min=1
    )
    task_eval_samples: int | None = setting(
        None, "Evaluate on at most N rows of each task, sampled with --seed.", Panel.RUNS, min=1
    )
    task_learning_rate: float | None = setting(
        None, "Peak learning rate of fine-tuning.", Panel.RUNS, min=0.0, default_text="by data and model size"
    )
    task_pooling: Pooling | None = setting(
        None, "--pooling of the tasks that classify texts: cls or mean.", Panel.RUNS, default_text="cls"
    )  # fmt: skip
    seeds: int = setting(
        1,
        "Runs of each row and task, with the seeds --seed, --seed + 1, ...; 3 or more give intervals.",
        Panel.RUNS, min=1,
    )  # fmt: skip


# ---- commands


@dataclass(frozen=True, kw_only=True)
class SuiteSpec:
    """Settings, help text and class of a suite."""

    config: type[RunConfig]
    help: str
    target: str  # the class as `module:name`, which is imported only when the suite runs


# The only list of suites: experiments that reproduce a table of a paper.
SUITES = {
    "glue": SuiteSpec(
        config=GlueConfig,
        help="Fine-tune on the GLUE tasks, print the paper's table, and write the leaderboard's files.",
        target="bertkit.experiments.suites:Glue",
    ),
    "klue": SuiteSpec(
        config=KlueConfig,
        help="Fine-tune on the KLUE tasks (Korean), and print the official scores beside those of KLUE-BERT.",
        target="bertkit.experiments.suites:Klue",
    ),
    "feature-based": SuiteSpec(
        config=FeatureBasedConfig,
        help="Run ner on different layers of a frozen encoder, one run for each row of the paper's table.",
        target="bertkit.experiments.suites:FeatureBased",
    ),
    "ablation": SuiteSpec(
        config=AblationConfig,
        help="Pre-train variants on the same text, fine-tune each, and print the paper's ablation tables.",
        target="bertkit.experiments.ablation:Ablation",
    ),
}


def find_config(command: str) -> type[RunConfig]:
    """Return the settings of an experiment, given by its command, such as "glue" or "study classify"."""
    if command in SUITES:
        return SUITES[command].config
    name, _, task_name = command.partition(" ")
    tasks = list_experiment_tasks(name)
    if task_name not in tasks:
        kind = "a fine-tuning task" if name == "study" else "a task with candidates"
        raise UserError(f"{command}: is not {kind}; use {format_list(tasks)}")
    return make_task_config(name, task_name)
