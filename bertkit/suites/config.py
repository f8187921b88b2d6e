"""The settings of suites: most settings of a single run, and settings that only suites have."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.run_settings import SINGLE_RUN_SETTINGS, RunConfig
from bertkit.settings.setting import DATA, MODEL, OUTPUT, TRAINING, Pooling, pooling_setting, setting
from bertkit.settings.validation import DataSource
from bertkit.tasks.ner.config import NerConfig
from bertkit.tasks.pretrain.config import PretrainConfig

DRY_RUN_HELP = "Find the data and the model, list the planned runs, and write nothing."


@dataclass(frozen=True, kw_only=True)
class GlueConfig(RunConfig):
    """The settings of `bertkit glue`. They override the recipes `glue/TASK`."""

    excluded_settings = SINGLE_RUN_SETTINGS | {
        "data", "validation", "test", "validation_fraction", "split_seed",
    }  # fmt: skip

    tasks: list[str] | None = setting(
        None, "GLUE tasks to run, separated by commas. Repeatable.", DATA, default_text="all nine"
    )
    pooling: Pooling = pooling_setting()
    learning_rates: str | None = setting(
        None,
        "Learning rates to try on each task; the one with the best validation score is kept. Either 'paper' "
        "(5e-5, 4e-5, 3e-5, 2e-5) or values separated by commas.",
        TRAINING,
        default_text="one, by data and model size",
        replaces=("learning_rate",),
    )
    seeds: int = setting(
        1,
        "Runs of each task, with the seeds --seed, --seed + 1, ...; their mean and standard deviation are "
        "reported.",
        min=1,
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)


@dataclass(frozen=True, kw_only=True)
class KlueConfig(GlueConfig):
    """The settings of `bertkit klue`. They override the recipes `klue/TASK`."""

    tasks: list[str] | None = setting(
        None, "KLUE tasks to run, separated by commas. Repeatable.", DATA, default_text="all six"
    )


@dataclass(frozen=True, kw_only=True)
class FeatureBasedConfig(NerConfig):
    """The settings of `bertkit feature-based`. They override the recipes `ner/feature-based/FEATURES`.

    A setting with its default value is not passed to the runs. Every default is therefore None or equal to
    the value in the recipes.
    """

    excluded_settings = SINGLE_RUN_SETTINGS | {
        "head", "freeze", "lora", "layer_decay", "metric", "metric_for_best_model", "greater_is_better",
        "num_layers",
    }  # fmt: skip

    data: DataSource | None = setting(
        None,
        "Dataset: a known name, a file, a directory, or a Hub dataset (ORG/NAME[:CONFIG]).",
        DATA,
        completion="data",
        default_text="conll2003",
        is_path=True,
    )
    model: str | None = setting(
        None,
        "Encoder: a known name (minilm), a local path, or a Hub model.",
        MODEL,
        flags=("--model", "-m"),
        completion="models",
        default_text="bert-base-cased",
        is_path=True,
    )
    context: Literal["sentence", "document"] = setting(
        "document",
        "Context of each sentence: only the sentence, or its document up to --max-length tokens.",
        MODEL,
    )
    features: list[str] | None = setting(  # type: ignore[assignment]  # a single run has one value
        None, "Rows of the table to run, separated by commas. Repeatable.", MODEL, default_text="all six"
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)


@dataclass(frozen=True, kw_only=True)
class AblationConfig(PretrainConfig):
    """The settings of `bertkit ablation`. They override the recipes `pretrain/...`.

    Those of `AblationSuite.suite_settings` apply to the suite. All others apply to pre-training, and
    `MACHINE_SETTINGS` and `max_length` also to fine-tuning.
    """

    excluded_settings = (
        PretrainConfig.excluded_settings
        | SINGLE_RUN_SETTINGS
        | {"model", "objective", "phases", "preview", "generator_size", "probe", "time_limit"}
    )

    data: DataSource | None = setting(
        None,
        "Pre-training text: a known name, files, a directory, a glob pattern, or a Hub dataset.",
        DATA,
        completion="data",
        default_text="imdb",
        is_path=True,
    )
    table: Literal["objectives", "sizes"] = setting(
        "objectives", "Ablation to run: pre-training objectives (table 5) or model sizes (table 6).", MODEL
    )
    rows: list[str] | None = setting(
        None, "Rows of the table to run, separated by commas. Repeatable.", MODEL, default_text="all"
    )
    tasks: list[str] | None = setting(
        None,
        "Tasks to fine-tune each row on, separated by commas. Repeatable.",
        DATA,
        default_text="those of the table whose data is found, or else imdb",
    )
    task_train_samples: int | None = setting(
        None, "Fine-tune on at most this many rows of each task, sampled with --seed.", DATA, min=1
    )
    task_eval_samples: int | None = setting(
        None, "Evaluate on at most this many rows of each task, sampled with --seed.", DATA, min=1
    )
    task_learning_rate: float | None = setting(
        None, "Peak learning rate of fine-tuning.", TRAINING, min=0.0, default_text="by data and model size"
    )
    task_pooling: Pooling | None = setting(
        None,
        "Value of --pooling for the tasks that classify texts. WNUT-17 and SQuAD have no pooling.",
        MODEL,
        default_text="cls",
    )
    seeds: int = setting(
        1,
        "Fine-tuning runs of each row and task, with the seeds --seed, --seed + 1, ...; with 3 or more, "
        "intervals and differences to the first row are reported.",
        min=1,
    )
    dry_run: bool = setting(False, DRY_RUN_HELP, OUTPUT, is_saved=False)
