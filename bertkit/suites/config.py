"""The settings of suites: those of a run, but for what the suite decides, and their own few."""

from dataclasses import dataclass
from typing import Literal

from bertkit.config import DATA, MODEL, OUTPUT, SINGLE_RUN_SETTINGS, TRAINING, RunConfig, setting
from bertkit.tasks.ner import NerConfig
from bertkit.tasks.pretrain_config import PretrainConfig

DRY_RUN_HELP = "Look for data and model, and tell what the runs would be; write nothing."


@dataclass(frozen=True, kw_only=True)
class GlueConfig(RunConfig):
    """What is said here goes before what the recipes `glue/TASK` say."""

    excluded_settings = SINGLE_RUN_SETTINGS | {
        "data",
        "validation",
        "test",
        "validation_fraction",
        "split_seed",
    }

    tasks: list[str] | None = setting(
        None, "Tasks to run: repeatable, or parted by commas.", DATA, default_text="all nine"
    )
    learning_rates: str | None = setting(
        None,
        "Try each on the validation set and keep the best: paper (5e-5, 4e-5, 3e-5, 2e-5), or rates parted "
        "by commas.",
        TRAINING,
        default_text="one, by data and model size",
        replaces=("learning_rate",),
    )
    seeds: int = setting(
        1, "Runs of each task, with seeds --seed, --seed + 1, ...: mean and standard deviation.", min=1
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)


@dataclass(frozen=True, kw_only=True)
class FeatureBasedConfig(NerConfig):
    """What is said here goes before what the recipes `ner/feature-based/FEATURES` say.

    A default that is not None is theirs too: settings that have their default are not handed on.
    """

    excluded_settings = SINGLE_RUN_SETTINGS | {"head", "freeze", "layer_decay"}

    data: str | None = setting(
        None,
        "A known name, a file, a folder, or a Hub data set (ORG/NAME[:CONFIG]).",
        DATA,
        completion="data",
        default_text="conll2003",
        is_path=True,
    )
    model: str | None = setting(
        None,
        "A known name (minilm), a path, or a Hub model.",
        MODEL,
        flags=("--model", "-m"),
        completion="models",
        default_text="bert-base-cased",
        is_path=True,
    )
    context: Literal["sentence", "document"] = setting(
        "document", "What is read around a sentence: nothing, or its document, as far as it fits.", MODEL
    )
    features: list[str] | None = setting(  # type: ignore[assignment]  # rows, where a run has one
        None, "Rows of the table to run: repeatable, or parted by commas.", MODEL, default_text="all six"
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)


@dataclass(frozen=True, kw_only=True)
class AblationConfig(PretrainConfig):
    """What is said here goes before what the recipes `pretrain/...` of the rows say.

    Of fine-tuning are `tasks`, `task_train_samples` and `task_eval_samples`.
    """

    excluded_settings = (
        PretrainConfig.excluded_settings | SINGLE_RUN_SETTINGS | {"model", "objective", "phases", "preview"}
    )

    data: str | None = setting(
        None,
        "The text: a known name, files, a folder, a pattern, or a Hub data set.",
        DATA,
        completion="data",
        default_text="imdb",
        is_path=True,
    )
    table: Literal["objectives", "sizes"] = setting(
        "objectives", "What the rows differ in: the paper's table 5, or its table 6.", MODEL
    )
    rows: list[str] | None = setting(
        None, "Rows to run: repeatable, or parted by commas.", MODEL, default_text="all of the table"
    )
    tasks: list[str] | None = setting(
        None,
        "Tasks to fine-tune each row on: repeatable, or parted by commas.",
        DATA,
        default_text="those of the table whose data is at hand, else imdb",
    )
    task_train_samples: int | None = setting(
        None, "Fine-tune each task on this many rows, drawn by seed.", DATA, min=1
    )
    task_eval_samples: int | None = setting(
        None, "Validate each task on this many rows, drawn by seed.", DATA, min=1
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)


GLUE_HELP = "Run the GLUE tasks one after the other; the paper's table, and the files of the leaderboard."
FEATURE_BASED_HELP = "Run ner on layers of a frozen encoder, a run for each row of the paper's table."
ABLATION_HELP = (
    "Pre-train in several ways on one text and fine-tune each: the paper's tables of what matters."
)
