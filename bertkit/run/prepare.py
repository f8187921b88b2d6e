"""The preparation of a run: everything that is determined before weights are loaded."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, PreTrainedConfig
from transformers.initialization import no_init_weights

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import UNLABELED_ROWS, Splits, fingerprint_splits
from bertkit.errors import UserError, format_count
from bertkit.methods import choose_methods
from bertkit.methods.base import Method
from bertkit.methods.linear_text import LinearText
from bertkit.models import heads, loading
from bertkit.models.layers import LAYER_LISTS, choose_layers, keep_layers, select_layers_of_config
from bertkit.models.loading import ModelSource
from bertkit.models.losses import Loss
from bertkit.run.load_data import LoadedData, load_data, split_parsed_rows
from bertkit.run.probe import Probe, load_probe
from bertkit.run.results import MetricModules, bind_modules, set_best_metric
from bertkit.run.word_budget import WordBudget, plan_word_budget
from bertkit.settings.declaration import select_unset
from bertkit.settings.run_settings import FineTuningConfig, RunConfig
from bertkit.stats.metric_modules import MetricModule
from bertkit.stats.significance import Scorer
from bertkit.tasks.base import Task, get_weights
from bertkit.tasks.out_of_scope import MIN_ROWS_OUT_OF_SCOPE
from bertkit.training.arguments import (
    check_precision,
    choose_deterministic_workspace,
    choose_precision,
    describe_tf32,
    merge_batches,
    suggest_hyperparameters,
)
from bertkit.utils import devices
from bertkit.utils.reporting import report_info, report_warning

UNK_WARNING_FRACTION, UNK_ERROR_FRACTION = 0.05, 0.30  # of all tokens of the training texts


# ---- the run


@dataclass(frozen=True)
class RunOptions:
    """What a command that trains several runs determines for each of them, in addition to the settings."""

    has_report: bool = True  # a report, a model card, baselines and intervals
    # Returns the baselines on the validation split; by default, those of the task are fitted.
    fit_baselines: Callable[[], dict[str, Scorer]] | None = None
    callbacks: Sequence[Any] = ()  # of the trainer, which are called after those of bertkit
    user_callbacks: Sequence[Any] = ()  # those of the user, which are called before them
    has_logits: bool = False  # whether the logits of the test split are written into the run directory


@dataclass
class PreparedRun:
    """Everything that a run determines before it loads weights."""

    task: Task
    dataset: LoadedDataset  # parsed, before validation rows are held out and rows are sampled
    splits: Splits  # afterwards
    methods: list[Method]  # how the weights learn; empty for fine-tuning
    model_source: ModelSource
    model_config: Any  # the config of transformers
    tokenizer: Any
    precision: str  # of training: "fp32", "bf16" or "fp16"
    is_precision_requested: bool
    is_model_requested: bool
    requested_max_length: int | None  # value of `--max-length`, or None if it is not set
    trained_length: int | None  # up to which the positions of the model were trained; None for a new model
    probe: Probe | None  # None without `--probe`
    features: dict[str, Any] = field(init=False)  # `Features`, or `LabeledRows` of a linear model
    loss: Loss = field(init=False)  # of the predictions, by which the task evaluates the model
    metric_modules: MetricModules = field(default_factory=MetricModules)
    options: RunOptions = field(default_factory=RunOptions)
    budget: WordBudget | None = None  # None without `--word-budget`

    @property
    def config(self) -> Any:
        """The settings of the task, as far as they are resolved."""
        return self.task.config

    @property
    def has_training_steps(self) -> bool:
        return all(method.has_training_steps for method in self.methods)

    def add_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Let the trainer call callbacks of the user; see `check_callbacks`."""
        if callbacks and not self.has_training_steps:
            raise UserError(f"callbacks: {self.methods[0].flag} trains in no steps; omit them")
        self.options = dataclasses.replace(self.options, user_callbacks=callbacks)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the rows by split, and of unlabeled rows; see `fingerprint_splits`."""
        splits = dict(self.splits)
        for method in self.methods:
            if method.unlabeled_rows:
                splits[UNLABELED_ROWS] = method.unlabeled_rows
        return fingerprint_splits(splits)

    @cached_property
    def num_encoder_parameters(self) -> int:
        """Number of parameters of the encoder, which is computed without allocating weights."""
        with torch.device("meta"), no_init_weights():
            encoder = AutoModel.from_config(self.model_config)
        return sum(parameter.numel() for parameter in encoder.parameters())


def prepare(
    task_name: str,
    config: RunConfig,
    loaded_modules: Sequence[MetricModule] | None = None,
    data: LoadedData | None = None,
) -> PreparedRun:
    """Load, split and tokenize the data, resolve the model, and fill in settings that are not set.

    Args:
        task_name: Name of the task.
        config: Settings of the user, without defaults that depend on the data or the model.
        loaded_modules: The modules of `--metric`. None to ignore this setting and the metric for the best
            model, for runs that are not trained.
        data: The data with its splits, or None to load it.
    """
    check_precision(config)
    if config.deterministic:
        choose_deterministic_workspace()
    probe = load_probe(config)
    if data is None:
        data = load_data(task_name, config)
        data = dataclasses.replace(data, splits=split_parsed_rows(data.task, data.dataset))
    task, dataset, splits = data.task, data.dataset, data.splits
    methods = choose_methods(task.config)
    if linear := find_linear_text(methods):
        return _prepare_linear_text(data, methods, linear, config, loaded_modules)
    precision, precision_reason = "fp32", "the encoder is not trained"
    if all(method.has_training_steps for method in methods):
        precision, precision_reason = choose_precision(config)
    task.resolve(**select_unset(task.config, {"bf16": precision == "bf16"}))
    source = task.resolve_model(config.model is not None)
    checkpoint_config = loading.load_config(source)
    checkpoint_has_head = heads.has_head(
        checkpoint_config, heads.SEQUENCE_HEAD, heads.CHOICE_HEAD, heads.TOKEN_HEAD, heads.QUESTION_HEAD,
        heads.TAGGER_HEAD, heads.VECTOR_HEAD,
    )  # fmt: skip
    model_config = task.configure_model(checkpoint_config, source)
    select_layers(model_config, task.config, source.name)
    tokenizer = _load_tokenizer(task, methods, source, model_config)
    prepared = PreparedRun(
        task, dataset, splits, methods, source, model_config, tokenizer, precision,
        is_precision_requested=bool(config.bf16 or config.fp16),
        is_model_requested=config.model is not None,
        requested_max_length=data.requested.max_length,
        trained_length=None if source.is_new else loading.get_trained_length(model_config, tokenizer),
        probe=probe,
    )  # fmt: skip
    report_info(f"data: {dataset.name} from {dataset.source}; {task.describe()}")
    _report_model(prepared, checkpoint_has_head, precision_reason)
    _fill_model_settings(prepared)
    if loaded_modules is not None and isinstance(config, FineTuningConfig):
        prepared.metric_modules, names = bind_modules(loaded_modules, task, splits["validation"])
        set_best_metric(task, names)
    prepared.features = {
        split: task.featurize(rows, tokenizer, training=split == "train") for split, rows in splits.items()
    }
    weights, train = get_weights(task, splits["train"]), prepared.features["train"]
    if weights is not None:
        prepared.features["train"] = dataclasses.replace(train, weights=weights[train.row_index])
    if dataset.out_of_scope and len(splits["validation"]) < MIN_ROWS_OUT_OF_SCOPE:
        found = format_count(len(splits["validation"]), "validation row")
        raise UserError(
            f"--out-of-scope: {found} to fit on, and at least {MIN_ROWS_OUT_OF_SCOPE} are needed; pass more "
            "rows, or a higher --validation-fraction"
        )
    _report_features(prepared)
    prepared.loss = task.make_loss(prepared.features["train"])
    for method in methods:
        method.prepare(prepared)
    _fill_hyperparameters(prepared)
    if (count := get_num_layers(task.config)) is not None:
        name = f"{source.name}-{format_count(count, 'layer').replace(' ', '-')}"
        prepared.model_source = dataclasses.replace(source, name=name)
    return prepared


def find_linear_text(methods: Sequence[Method]) -> LinearText | None:
    """Return the method if the model is linear in texts; such a run has neither tokens nor a trainer."""
    return next((method for method in methods if isinstance(method, LinearText)), None)


def _prepare_linear_text(
    data: LoadedData,
    methods: list[Method],
    method: LinearText,
    config: RunConfig,
    loaded_modules: Sequence[MetricModule] | None,
) -> PreparedRun:
    """Prepare the run of a linear model of texts; its features are the labels of the rows."""
    task: Any = data.task  # with classes or numbers, like every task that has the setting `method`
    source = ModelSource(method.name, Path())
    encoder = ""
    if method.needs_encoder:
        source = task.resolve_model(config.model is not None)
        # before the fit, which reads these files
        loading.require_embeddings(source, loading.load_config(source), loading.load_tokenizer(source))
        task.resolve(**select_unset(task.config, {"model": source.name}))
        encoder, source = f", token vectors of {source.name}", dataclasses.replace(source, name=method.name)
    model_config = task.configure_model(PreTrainedConfig(), source)
    report_info(f"data: {data.dataset.name} from {data.dataset.source}; {task.describe()}")
    report_info(f"model: {method.name}{encoder}; a linear model, which predicts without an encoder")
    prepared = PreparedRun(
        task, data.dataset, data.splits, methods, source, model_config, None, "fp32",
        is_precision_requested=False, is_model_requested=config.model is not None, requested_max_length=None,
        trained_length=None, probe=None,
    )  # fmt: skip
    if loaded_modules is not None and isinstance(config, FineTuningConfig):
        prepared.metric_modules, names = bind_modules(loaded_modules, task, data.splits["validation"])
        set_best_metric(task, names)
    prepared.features = {split: task.encode_rows(rows) for split, rows in data.splits.items()}
    for each in methods:
        each.prepare(prepared)
    return prepared


# ---- the model


def _load_tokenizer(task: Task, methods: Sequence[Method], source: ModelSource, model_config: Any) -> Any:
    """Load the tokenizer, add the new tokens of the task to it, and report tokens that the model lacks."""
    tokenizer = loading.load_tokenizer(source)
    loading.require_token_types(source, model_config, tokenizer)
    num_missing = loading.count_missing_embeddings(model_config, tokenizer)
    if not all(method.has_training_steps for method in methods):
        loading.require_embeddings(source, model_config, tokenizer)
    if num_missing:
        report_info(
            f"{source.name}: its tokenizer has {loading.count_token_ids(tokenizer):,} token ids, but its "
            f"weights only {model_config.vocab_size:,} embeddings; training adds the missing ones"
        )
    num_new = num_missing + loading.add_tokens(tokenizer, task.state.new_tokens)
    freezing = [method.flag for method in methods if method.trains_adapters]
    if task.config.freeze:
        freezing.append(f"--freeze {task.config.freeze}")
    if num_new and freezing:
        raise UserError(
            f"{freezing[0]}: freezes the embeddings, but those of {format_count(num_new, 'new token')} must "
            "be trained; omit it, or start from a run with these tokens"
        )
    return tokenizer


def _report_model(prepared: PreparedRun, checkpoint_has_head: bool, precision_reason: str) -> None:
    """Report the model with its head and the device, and a warning if the device computes wrong results.

    A new head replaces that of a checkpoint for any task.
    """
    head = prepared.task.state.head_note
    if head is None:
        new_head = "re-initialized head" if checkpoint_has_head else ""
        head = new_head if prepared.task.state.has_new_head else "its own head"
    precision = f"{prepared.precision} ({precision_reason})"
    details = [head, precision, describe_tf32(prepared.config) or "", f"on {devices.describe_device()}"]
    report_info(f"model: {prepared.model_source.name}; {', '.join(filter(None, details))}")
    if warning := devices.describe_errors():
        report_warning(warning)


def _fill_model_settings(prepared: PreparedRun) -> None:
    """Fill in the maximum length and the model name, and report positions that are not trained."""
    task, source, requested = prepared.task, prepared.model_source, prepared.requested_max_length
    default_length = task.config.max_length or task.definition.default_max_length
    max_length = resolve_max_length(task, source, prepared.model_config, requested, prepared.trained_length)
    task.resolve(max_length=max_length)
    if requested is None and max_length < default_length:
        report_info(f"--max-length {max_length}: {source.name} has no trained positions beyond this length")
    if problem := describe_untrained_positions(task, source.name, prepared.trained_length):
        report_warning("; ".join(problem))
    longest, token_budget = task.config.max_training_length(), task.config.tokens_per_batch
    if token_budget is not None and token_budget < longest:
        origin = "" if requested else " (the default)"
        raise UserError(
            f"--tokens-per-batch {token_budget}: is smaller than --max-length {longest}{origin}; increase "
            "it, or reduce --max-length"
        )
    if not source.is_new:
        task.resolve(**select_unset(task.config, {"model": source.name}))


def describe_untrained_positions(
    task: Task, model_name: str, trained_length: int | None
) -> tuple[str, str] | None:
    """Return the problem and the fix if sequences exceed the trained positions of the model, else None."""
    max_length = task.config.max_training_length()
    if trained_length is None or max_length <= trained_length:
        return None
    return (
        f"--max-length {max_length}: {model_name} was trained on at most {trained_length} tokens, so later "
        "positions are untrained",
        f"use at most {trained_length}, or pre-train on longer sequences first",
    )


def resolve_max_length(
    task: Task, source: ModelSource, model_config: Any, requested: int | None, trained_length: int | None
) -> int:
    """Return the maximum sequence length in tokens: `requested`, or else the default of the task.

    The default is reduced to the positions that the model has and that were trained (`trained_length`).
    """
    max_positions = loading.get_max_positions(model_config)
    if requested is not None and max_positions is not None and requested > max_positions:
        fix = f"use at most {max_positions}"
        if task.config.long_texts is not None:
            fix += "; with --long-texts windows, longer texts are read, too"
        raise UserError(f"--max-length {requested}: {source.name} has only {max_positions} positions; {fix}")
    if requested is not None:
        return requested
    default: int = task.config.max_length or task.definition.default_max_length
    return min(default, max_positions or default, trained_length or default)


FLAG = "--num-layers"


def get_num_layers(config: RunConfig) -> int | None:
    """Return the number of layers to select, or None for all; `num_layers` of pre-training differs."""
    return config.num_layers if isinstance(config, FineTuningConfig) else None


def select_layers(model_config: Any, config: RunConfig, model: str) -> None:
    """Change the config of a model to that with the selected layers; `model` is its name for the error."""
    count = get_num_layers(config)
    if count is None:
        return
    num_layers = model_config.num_hidden_layers
    if count >= num_layers:
        raise UserError(f"{FLAG} {count}: {model} has {num_layers} layers; pass a smaller number")
    try:
        select_layers_of_config(model_config, choose_layers(num_layers, count))
    except NotImplementedError as error:  # Funnel derives their number from its blocks
        raise UserError(
            f"{FLAG}: {model_config.model_type} has no separate encoder layers; omit {FLAG}"
        ) from error


def build_model(task: Task, model_config: Any, source: ModelSource) -> Any:
    """Build the model of a run; with `num_layers`, remove the other layers of the loaded model."""
    count = get_num_layers(task.config)
    if count is None:
        return task.build_model(model_config, source)
    saved = loading.load_config(source)
    full_config = copy.deepcopy(model_config)
    for name in ("num_hidden_layers", *LAYER_LISTS):
        if hasattr(saved, name):
            setattr(full_config, name, getattr(saved, name))
    model = task.build_model(full_config, source)
    keep_layers(model, choose_layers(saved.num_hidden_layers, count), FLAG)
    return model


# ---- features and hyperparameters


def _report_features(prepared: PreparedRun) -> None:
    """Report [UNK] tokens, long texts and other issues of the training features, and all warnings."""
    train, task = prepared.features["train"], prepared.task
    problem = (
        f"{prepared.model_source.name}: {train.unk_fraction:.0%} of the tokens of these texts are [UNK]; "
        "choose a model for their language with --model"
    )
    if train.unk_fraction > UNK_ERROR_FRACTION and not prepared.is_model_requested:
        raise UserError(problem)
    if train.unk_fraction > UNK_WARNING_FRACTION:
        report_warning(problem)
    if not task.definition.resamples_examples:
        uses_windows, limit = task.uses_windows, prepared.config.max_length
        longest = f"longest: {train.max_untruncated_length:,} tokens"
        if fraction := train.windowed_fraction if uses_windows else train.num_truncated / len(train):
            treatment = "split into windows" if uses_windows else "truncated"
            report_info(
                f"{fraction:.1%} of the training texts are longer than {limit} tokens and are {treatment} "
                f"({longest})"
            )
        else:
            report_info(f"no training text is longer than {limit} tokens ({longest})")
    for note in train.describe_issues(prepared.splits["train"]):
        report_info(note)
    for split, features in prepared.features.items():
        for warning in features.warnings:
            report_warning(warning if split == "train" else f"{split} split: {warning}")


def _fill_hyperparameters(prepared: PreparedRun) -> None:
    """Fill in epochs, batch sizes and learning rate, if they are not set.

    Hyperparameters of the methods take precedence over those of the task, and these over those suggested for
    the size of the data and the model. On a GPU, larger batches replace accumulation steps.
    """
    task, token_budget = prepared.task, prepared.config.tokens_per_batch
    added = sum(len(method.unlabeled_rows or ()) for method in prepared.methods)
    suggestions, reason = suggest_hyperparameters(
        len(prepared.splits["train"]) + added, prepared.model_config, task.definition.unit,
        any(method.trains_adapters for method in prepared.methods), task.state.num_classes,
    )  # fmt: skip
    suggestions |= task.default_hyperparameters
    for method in prepared.methods:
        suggestions |= method.default_hyperparameters
    if not prepared.has_training_steps:
        task.resolve(**select_unset(task.config, {"eval_batch_size": 2 * int(suggestions["batch_size"])}))
        return
    if token_budget is not None:
        del suggestions["batch_size"]
    chosen = select_unset(task.config, suggestions)
    task.resolve(**chosen)
    train_batch_size = task.config.batch_size or token_budget // task.config.max_training_length()
    task.resolve(**select_unset(task.config, {"eval_batch_size": 2 * train_batch_size}))
    limits = (task.config.max_steps, task.config.time_limit, task.config.word_budget)
    if any(limit is not None for limit in limits):
        chosen.pop("epochs", None)  # has no effect
    if chosen:
        values = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
        report_info(f"chosen {reason}: {values}")
    config, num_sequences = prepared.config, np.diff(prepared.features["train"].sequence_offsets).max()
    merged = merge_batches(config, prepared.model_config, int(num_sequences) * config.max_training_length())
    if merged.batch_size != config.batch_size:
        prepared.task.resolve(
            batch_size=merged.batch_size, gradient_accumulation_steps=merged.gradient_accumulation_steps
        )
        report_info(
            f"batch_size {merged.batch_size}, gradient_accumulation_steps "
            f"{merged.gradient_accumulation_steps}: the same effective batch size in larger batches"
        )
    if config.word_budget is not None:
        prepared.budget = plan_word_budget(prepared.config, prepared.features["train"])
        task.resolve(max_steps=prepared.budget.steps)
