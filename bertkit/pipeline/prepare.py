"""Preparation of a run: from settings to splits, features and a model config, without loading weights."""

import dataclasses
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import run_directory
from bertkit.config import RunConfig, fill_unset, get_settings
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Splits, describe_changes, fingerprint_splits
from bertkit.data.split import make_splits, sample_rows
from bertkit.errors import UserError
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.pipeline.settings import fill_data_dir
from bertkit.recipes import read_recipe
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.training import defaults
from bertkit.training.defaults import suggest_hyperparameters
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    from bertkit.data.features import Features

UNK_WARNING_RATE, UNK_ERROR_RATE = 0.05, 0.30  # fractions of [UNK] tokens


@dataclass
class PreparedRun:
    """Everything about a run that is known before weights are loaded.

    Attributes:
        task: The task, whose config holds the resolved settings.
        dataset: The dataset as it was loaded.
        splits: Split -> rows, after holding out and sampling.
        model_source: Where the model comes from.
        model_config: Its transformers config.
        tokenizer: Its tokenizer.
        precision: Training precision: "fp32", "bf16" or "fp16".
        is_model_requested: Whether the user chose the model.
        requested_max_length: `--max-length`, None if not set.
        features: Split -> features.
    """

    task: Task
    dataset: LoadedDataset
    splits: Splits
    model_source: ModelSource
    model_config: Any
    tokenizer: Any
    precision: str
    is_model_requested: bool
    requested_max_length: int | None
    features: dict[str, "Features"] = field(default_factory=dict)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Split -> fingerprint of its rows; see `bertkit.data.rows`."""
        return fingerprint_splits(self.splits)

    @property
    def config(self) -> Any:
        """The settings as resolved so far."""
        return self.task.config


def prepare(task_name: str, config: RunConfig, reporter: Reporter) -> PreparedRun:
    """Load, split and tokenize the data, resolve the model, and fill in the settings that are not set.

    Raises:
        UserError: The data, the model or a setting is not usable.
    """
    task = create_task(task_name, config)
    defaults.check_precision(config)
    dataset = task.load_data(reporter)
    from bertkit.modeling.heads import (
        CHOICE_HEAD,
        QUESTION_HEAD,
        SEQUENCE_HEAD,
        TAGGER_HEAD,
        TOKEN_HEAD,
        has_head,
    )

    dtype, dtype_reason = defaults.choose_precision(config)
    dataset_defaults = {"bf16": dtype == "bf16"} | select_dataset_defaults(dataset, type(task))
    task.config = fill_unset(task.config, dataset_defaults)
    dataset, splits = _parse_and_split(task, dataset, reporter)
    source = task.resolve_model(config.model is not None, reporter)
    model_config = loading.load_config(source)
    had_head = has_head(model_config, SEQUENCE_HEAD, CHOICE_HEAD, TOKEN_HEAD, QUESTION_HEAD, TAGGER_HEAD)
    model_config = task.configure_model(model_config, source)
    prepared = PreparedRun(
        task=task,
        dataset=dataset,
        splits=splits,
        model_source=source,
        model_config=model_config,
        tokenizer=loading.load_tokenizer(source),
        precision=dtype,
        is_model_requested=config.model is not None,
        requested_max_length=config.max_length,
    )
    reporter.info(f"data: {dataset.name} from {dataset.source}; {task.describe()}")
    details = ", ".join(filter(None, [_describe_head(task, had_head), f"{dtype} ({dtype_reason})"]))
    reporter.info(f"model: {source.name}; {details}")
    _featurize(prepared)
    _report_features(prepared, reporter)
    _fill_hyperparameters(prepared, reporter)
    return prepared


def _describe_head(task: Task, had_head: bool) -> str:
    """Return what the console prints about the head; `had_head`: the checkpoint has a head for any task."""
    if task.head_note is not None:
        return task.head_note
    if not task.has_new_head:
        return "its own head"
    return "re-initialized head" if had_head else ""


def create_task(task_name: str, config: RunConfig) -> Task:
    """Return the task with its settings, in which the name of the data and the data directory are filled in.

    Raises:
        UserError: The settings do not name any data.
    """
    config = fill_unset(config, {"data": config.resolve_data_name()})
    if not config.data:
        raise UserError(
            "--data: is required; pass a known dataset (see bertkit data ls), a file, a directory, or sample"
        )
    return task_class(task_name)(fill_data_dir(config))


def select_dataset_defaults(dataset: LoadedDataset, task_type: type[Task]) -> dict[str, Any]:
    """Return those default settings of a dataset that the task has.

    Column names are kept only if the rows have these columns: a copy of a dataset may have another layout.
    """
    row_columns = set(dataset.splits["train"].columns)
    known = get_settings(task_type.spec.config)
    defaults = {}
    for key, value in dataset.defaults.items():
        name = task_type.spec.column_aliases.get(key, key)
        named_columns = {value} if isinstance(value, str) else value
        if name in known and ("_column" not in name or row_columns.issuperset(named_columns)):
            defaults[name] = value
    return defaults


# ---- rows


def _parse_and_split(task: Task, dataset: LoadedDataset, reporter: Reporter) -> tuple[LoadedDataset, Splits]:
    """Parse the rows of a dataset, hold out validation rows, remove duplicates and sample."""
    dataset = task.parse_dataset(dataset)
    dataset = dataclasses.replace(
        dataset, splits={name: task.parse_rows(rows)[0] for name, rows in dataset.splits.items()}
    )
    splits, notes = split_and_sample(task, dataset.splits)
    task.validate_splits(splits)
    for note in [*dataset.notes, *notes]:
        reporter.info(note)
    return dataset, splits


def split_and_sample(task: Task, splits: Splits) -> tuple[Splits, list[str]]:
    """Hold out a validation split if there is none, keep splits disjoint, and sample rows.

    Returns:
        The splits, and notes about what was done.
    """
    config = task.config
    seed = config.seed if config.split_seed is None else config.split_seed
    splits, notes = make_splits(splits, task.split_keys, config.validation_fraction, seed)
    limits = {"train": config.max_train_samples}
    sampled = {
        name: sample_rows(rows, limits.get(name, config.max_eval_samples), seed)
        for name, rows in splits.items()
    }
    return sampled, notes


# ---- features and hyperparameters


def _featurize(prepared: PreparedRun) -> None:
    """Resolve the maximum length, and tokenize every split."""
    task, source = prepared.task, prepared.model_source
    max_length = resolve_max_length(task, source, prepared.model_config, prepared.requested_max_length)
    task.config = dataclasses.replace(task.config, max_length=max_length)
    _check_token_budget(prepared)
    if not source.is_new:
        task.config = fill_unset(task.config, {"model": source.name})
    for name, rows in prepared.splits.items():
        prepared.features[name] = task.featurize(rows, prepared.tokenizer, training=name == "train")


def resolve_max_length(task: Task, source: ModelSource, model_config: Any, requested: int | None) -> int:
    """Return the maximum length in tokens for this model.

    Raises:
        UserError: `requested` exceeds the number of positions of the model.
    """
    limit = loading.get_max_positions(model_config)
    if requested is not None and limit is not None and requested > limit:
        fix = f"use at most {limit}"
        if hasattr(task.config, "long_texts"):
            fix += ", or --long-texts windows to read longer texts"
        raise UserError(f"--max-length {requested}: {source.name} has only {limit} positions; {fix}")
    return min(requested or task.config.max_length or task.spec.default_max_length, limit or sys.maxsize)


def _check_token_budget(prepared: PreparedRun) -> None:
    longest, budget = prepared.task.config.train_max_length(), prepared.config.tokens_per_batch
    if budget is not None and budget < longest:
        origin = "" if prepared.requested_max_length else " (the default)"
        raise UserError(
            f"--tokens-per-batch {budget}: is smaller than --max-length {longest}{origin}; increase it, or "
            "reduce --max-length"
        )


def _report_features(prepared: PreparedRun, reporter: Reporter) -> None:
    """Report [UNK] tokens, long texts and other properties of the training features.

    Raises:
        UserError: The default model does not fit the language of the texts.
    """
    train, task = prepared.features["train"], prepared.task
    unknown = f"{prepared.model_source.name}: {train.unk_fraction:.0%} of the tokens of these texts are [UNK]"
    if train.unk_fraction > UNK_ERROR_RATE and not prepared.is_model_requested:
        raise UserError(f"{unknown}; choose a model for their language with --model")
    if train.unk_fraction > UNK_WARNING_RATE:
        reporter.warn(unknown)
    if not task.spec.dynamic_examples:
        fraction = train.windowed_fraction if task.spec.uses_windows else train.num_truncated / len(train)
        treatment = "split into windows" if task.spec.uses_windows else "truncated"
        reporter.info(
            f"{fraction:.1%} of the training texts are longer than {prepared.config.max_length} tokens and "
            f"are {treatment} (longest: {train.max_untruncated_length:,} tokens)"
        )
    for note in train.describe_issues(prepared.splits["train"]):
        reporter.info(note)


def _fill_hyperparameters(prepared: PreparedRun, reporter: Reporter) -> None:
    """Fill in epochs, batch size and learning rate by the size of the data and of the model."""
    task, budget = prepared.task, prepared.config.tokens_per_batch
    suggestions, reason = suggest_hyperparameters(
        len(prepared.splits["train"]), count_parameters(prepared.model_config), task.spec.unit
    )
    suggestions |= task.spec.default_hyperparameters
    if budget is not None:
        del suggestions["batch_size"]
    chosen = {key: value for key, value in suggestions.items() if getattr(task.config, key) is None}
    task.config = fill_unset(task.config, chosen)
    eval_batch_size = 2 * (task.config.batch_size or budget // task.config.train_max_length())
    task.config = fill_unset(task.config, {"eval_batch_size": eval_batch_size})
    if chosen:
        values = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
        reporter.info(f"chosen {reason}: {values}")


def count_parameters(model_config: Any) -> int:
    """Return the number of parameters of a model, without allocating its weights."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(model_config).parameters())


# ---- finished runs


def load_run_task(folder: Path) -> Task:
    """Return the task of a finished run, with the settings of the run.

    Raises:
        UserError: The directory does not contain a finished run, or contains an evaluation or several runs.
    """
    metrics = run_directory.require_metrics(folder)
    if metrics["task"] not in TASKS:
        raise UserError(f"{folder}: contains several runs; pass one of its subdirectories")
    if "training" not in metrics:
        raise UserError(f"{folder}: contains an evaluation without a model; pass the run that was evaluated")
    task_type = task_class(metrics["task"])
    settings_file = str(folder / run_directory.SETTINGS_FILE)
    recipe = read_recipe(settings_file, task_type.spec.name, task_type.spec.config)
    if not recipe.provenance:
        raise UserError(
            f"{recipe.path}: has no 'provenance', so it is incomplete; restore it, or run the training again"
        )
    return task_type(task_type.spec.config(**recipe.settings))


def reload_run_rows(folder: Path) -> tuple[LoadedDataset, Splits]:
    """Return the dataset and the splits of a finished run, loaded again with its settings.

    Raises:
        UserError: The data cannot be loaded, or has changed since the run.
    """
    task = load_run_task(folder)
    dataset, splits = _parse_and_split(task, task.load_data(Reporter()), Reporter())
    fingerprints = run_directory.read_provenance(folder)["data"]
    if changes := describe_changes(fingerprints, fingerprint_splits(splits)):
        raise UserError(f"{folder}: its training data has changed ({changes}); restore the data")
    return dataset, splits
