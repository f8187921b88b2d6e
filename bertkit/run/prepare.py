"""The scores of the baselines of a run."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertkit.data.sources import LoadedDataset
from bertkit.data.table import UNLABELED_ROWS, Rows, Splits, fingerprint_splits
from bertkit.errors import UserError, format_count
from bertkit.models import heads, loading
from bertkit.models.encoder import FrozenEncoder
from bertkit.models.layers import LAYER_LISTS, choose_layers, keep_layers, select_layers_of_config
from bertkit.models.loading import ModelSource
from bertkit.run.distill import Distillation, add_unlabeled_features, prepare_distillation
from bertkit.run.load_data import LoadedData, load_data, split_parsed_rows
from bertkit.run.probe import Probe, load_probe
from bertkit.run.results import MetricModules, bind_modules, set_best_metric
from bertkit.settings.run_settings import FineTuningConfig, RunConfig
from bertkit.settings.setting import select_unset
from bertkit.stats.metric_modules import MetricModule
from bertkit.stats.scores import Scores
from bertkit.tasks.base import Task
from bertkit.tasks.text.predictions import score_linear_probe
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

if TYPE_CHECKING:
    from bertkit.data.features import Features


def score_baselines(task: Task, train: Rows, rows: Rows, tokenizer: Any) -> dict[str, Scores]:
    """Return the scores of all baselines by name.

    Args:
        task: The task. `task.config` holds the resolved settings of the run.
        train: The training rows of the run, which the baselines are fitted on.
        rows: The rows that they are scored on.
        tokenizer: The tokenizer of the model.
    """
    return task.score_baselines(train, rows) | score_encoder_baselines(task, train, rows, tokenizer)


def score_encoder_baselines(task: Any, train: Rows, rows: Rows, tokenizer: Any) -> dict[str, Scores]:
    """Return the scores of the baselines that read the vectors of the encoder before training.

    The model that training started from is loaded again, so it may be missing. A finished training must not
    fail because of this, so the baselines are then left out.
    """
    from bertkit.training.failures import report_out_of_memory

    # Vectors of tokens that were added for the task are untrained.
    if not task.definition.classifies_texts or task.state.new_tokens:
        return {}
    encoder = FrozenEncoder(task.config.model, tokenizer.pad_token_id)
    try:
        encoder.require_embeddings(tokenizer)
        with report_out_of_memory("out of memory"):
            return score_linear_probe(task, encoder, tokenizer, train, rows)
    except UserError as error:
        report_warning(f"no baselines of the encoder before training: {error}")
        return {}


FLAG = "--num-layers"


def get_num_layers(config: RunConfig) -> int | None:
    """Return the number of layers to select, or None for all; `num_layers` of pre-training differs."""
    return config.num_layers if isinstance(config, FineTuningConfig) else None


def select_layers(model_config: Any, config: RunConfig, model: str) -> None:
    """Change the config of a model to that with the selected layers.

    Args:
        model_config: The config of the model.
        config: The settings of the run.
        model: Name of the model, for the error.

    Raises:
        UserError: The model does not have more layers.
    """
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
            f"{FLAG}: {model_config.model_type} has no separate encoder layers; leave out {FLAG}"
        ) from error


def name_model(source: ModelSource, config: RunConfig) -> ModelSource:
    """Return the origin of a model with a name that shows the number of selected layers."""
    count = get_num_layers(config)
    if count is None:
        return source
    return dataclasses.replace(source, name=f"{source.name}-{format_count(count, 'layer').replace(' ', '-')}")


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


UNK_WARNING_FRACTION, UNK_ERROR_FRACTION = 0.05, 0.30  # of all tokens of the training texts


@dataclass(frozen=True)
class RunOptions:
    """What a command that trains several runs determines for each of them, in addition to the settings.

    Attributes:
        has_report: Whether the run has a report, a model card, baselines and intervals.
        score_baselines: Returns the scores of the baselines on the validation split, and reports progress; by
            default, those of the task are computed.
        callbacks: Further callbacks of the trainer.
        logits_file: Name of the file in the run directory that receives the logits of the test split.
    """

    has_report: bool = True
    score_baselines: Callable[[], dict[str, Scores]] | None = None
    callbacks: Sequence[Any] = ()
    logits_file: str | None = None


@dataclass
class PreparedRun:
    """Everything that a run determines before it loads weights.

    Attributes:
        task: The task. `task.config` holds the resolved settings.
        dataset: The parsed dataset, before validation rows are held out and rows are sampled.
        splits: Rows by split, after validation rows are held out and rows are sampled.
        model_source: Origin of the model.
        model_config: The transformers config of the model.
        tokenizer: The tokenizer of the model.
        precision: Training precision: "fp32", "bf16" or "fp16".
        is_precision_requested: Whether the user chose it with --bf16 or --fp16.
        is_model_requested: Whether the user chose the model.
        requested_max_length: Value of `--max-length`, or None if it is not set.
        trained_length: Length up to which the positions of the model were trained; None for a new model.
        features: Features by split.
        metric_modules: The modules of `--metric`.
        distillation: What the model learns from a teacher; None without a teacher.
        probe: The dataset of `--probe`; None without it.
        options: What the command determines for this run; the defaults are those of a single run.
    """

    task: Task
    dataset: LoadedDataset
    splits: Splits
    model_source: ModelSource
    model_config: Any
    tokenizer: Any
    precision: str
    is_precision_requested: bool
    is_model_requested: bool
    requested_max_length: int | None
    trained_length: int | None
    features: dict[str, "Features"] = field(default_factory=dict)
    metric_modules: MetricModules = field(default_factory=MetricModules)
    distillation: Distillation | None = None
    probe: Probe | None = None
    options: RunOptions = field(default_factory=RunOptions)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprints of the rows by split, and of unlabeled rows; see `fingerprint_splits`."""
        unlabeled = self.distillation.unlabeled if self.distillation else None
        return fingerprint_splits({**self.splits, **({UNLABELED_ROWS: unlabeled} if unlabeled else {})})

    def score_baselines(self) -> dict[str, Scores]:
        """Return the scores of the baselines on the validation split; empty for a run without report."""
        if not self.options.has_report:
            return {}
        if self.options.score_baselines is not None:
            return self.options.score_baselines()
        train, rows = self.splits["train"], self.splits["validation"]
        return score_baselines(self.task, train, rows, self.tokenizer)

    @property
    def config(self) -> Any:
        """The settings of the task, as far as they are resolved."""
        return self.task.config


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

    Raises:
        UserError: The data, the model or a setting is not usable.
    """
    check_precision(config)
    if config.deterministic:
        choose_deterministic_workspace()
    probe = load_probe(config)
    if data is None:
        data = load_data(task_name, config)
        data = dataclasses.replace(data, splits=split_parsed_rows(data.task, data.dataset))
    task, dataset, splits = data.task, data.dataset, data.splits
    precision, precision_reason = "fp32", "the encoder is not trained"
    if task.training_method.trains_encoder:
        precision, precision_reason = choose_precision(config)
    task.resolve(**select_unset(task.config, {"bf16": precision == "bf16"}))
    source = task.resolve_model(config.model is not None)
    checkpoint_config = loading.load_config(source)
    checkpoint_has_head = _has_any_head(checkpoint_config)
    model_config = task.configure_model(checkpoint_config, source)
    select_layers(model_config, task.config, source.name)
    tokenizer = _load_tokenizer(task, source, model_config)
    prepared = PreparedRun(
        task=task,
        dataset=dataset,
        splits=splits,
        model_source=source,
        model_config=model_config,
        tokenizer=tokenizer,
        precision=precision,
        is_precision_requested=bool(config.bf16 or config.fp16),
        is_model_requested=config.model is not None,
        requested_max_length=data.requested.max_length,
        trained_length=None if source.is_new else loading.get_trained_length(model_config, tokenizer),
        probe=probe,
    )
    report_info(f"data: {dataset.name} from {dataset.source}; {task.describe()}")
    head = _describe_head(task, checkpoint_has_head)
    _report_model(prepared, [head, f"{precision} ({precision_reason})"])
    _fill_model_settings(prepared)
    if loaded_modules is not None and isinstance(config, FineTuningConfig):
        prepared.metric_modules, names = bind_modules(loaded_modules, task, splits["validation"])
        set_best_metric(task, names)
    prepared.features = _featurize(prepared)
    _report_features(prepared)
    prepared.distillation = prepare_distillation(prepared)
    prepared.features["train"] = add_unlabeled_features(prepared.features["train"], prepared)
    _fill_hyperparameters(prepared)
    prepared.model_source = name_model(source, task.config)
    return prepared


def _load_tokenizer(task: Task, source: ModelSource, model_config: Any) -> Any:
    """Load the tokenizer, add the new tokens of the task to it, and report tokens that the model lacks."""
    tokenizer = loading.load_tokenizer(source)
    loading.require_token_types(source, model_config, tokenizer)
    num_missing = loading.count_missing_embeddings(model_config, tokenizer)
    if not task.training_method.trains_encoder:
        loading.require_embeddings(source, model_config, tokenizer)
    if num_missing:
        report_info(
            f"{source.name}: its tokenizer has {loading.count_token_ids(tokenizer):,} token ids, but its "
            f"weights only {model_config.vocab_size:,} embeddings; training adds the missing ones"
        )
    num_new = loading.add_tokens(tokenizer, task.state.new_tokens)
    _require_trained_embeddings(task.config, num_missing + num_new)
    return tokenizer


def _report_model(prepared: PreparedRun, details: list[str]) -> None:
    """Report the model with `details` and the device, and a warning if the device computes wrong results."""
    details = [*details, describe_tf32(prepared.config) or "", f"on {devices.describe_device()}"]
    report_info(f"model: {prepared.model_source.name}; {', '.join(filter(None, details))}")
    if warning := devices.describe_errors():
        report_warning(warning)


def _has_any_head(model_config: Any) -> bool:
    """Return whether the checkpoint has a head for any task, according to its config."""
    return heads.has_head(
        model_config,
        heads.SEQUENCE_HEAD,
        heads.CHOICE_HEAD,
        heads.TOKEN_HEAD,
        heads.QUESTION_HEAD,
        heads.TAGGER_HEAD,
        heads.VECTOR_HEAD,
    )


def _describe_head(task: Task, checkpoint_has_head: bool) -> str:
    """Return the description of the head for the console.

    Args:
        task: The task.
        checkpoint_has_head: Whether the checkpoint has a head for any task, which a new head replaces.
    """
    if task.state.head_note is not None:
        return task.state.head_note
    if not task.state.has_new_head:
        return "its own head"
    return "re-initialized head" if checkpoint_has_head else ""


# ---- features and hyperparameters


def _fill_model_settings(prepared: PreparedRun) -> None:
    """Fill in the maximum length and the model name, and report lengths that the model was not trained for.

    Raises:
        UserError: The maximum length exceeds the number of positions of the model, or the token budget.
    """
    task, source = prepared.task, prepared.model_source
    default_length = task.config.max_length or task.definition.default_max_length
    max_length = resolve_max_length(
        task, source, prepared.model_config, prepared.requested_max_length, prepared.trained_length
    )
    task.resolve(max_length=max_length)
    if prepared.requested_max_length is None and max_length < default_length:
        report_info(f"--max-length {max_length}: {source.name} has no trained positions beyond this length")
    if problem := describe_untrained_positions(task, source.name, prepared.trained_length):
        report_warning("; ".join(problem))
    _check_token_budget(prepared)
    if not source.is_new:
        task.resolve(**select_unset(task.config, {"model": source.name}))


def describe_untrained_positions(
    task: Task, model_name: str, trained_length: int | None
) -> tuple[str, str] | None:
    """Return the problem and the fix if sequences exceed the trained positions of the model, else None.

    Args:
        task: The task, whose maximum length is set.
        model_name: Name of the model.
        trained_length: Length up to which the positions of the model were trained, or None.
    """
    max_length = task.config.max_training_length()
    if trained_length is None or max_length <= trained_length:
        return None
    return (
        f"--max-length {max_length}: {model_name} was trained on at most {trained_length} tokens, so later "
        "positions are untrained",
        f"use at most {trained_length}, or pre-train on longer sequences first",
    )


def _featurize(prepared: PreparedRun) -> dict[str, "Features"]:
    """Tokenize every split, and return the features by split."""
    return {
        split: prepared.task.featurize(rows, prepared.tokenizer, training=split == "train")
        for split, rows in prepared.splits.items()
    }


def resolve_max_length(
    task: Task, source: ModelSource, model_config: Any, requested: int | None, trained_length: int | None
) -> int:
    """Return the maximum sequence length in tokens.

    Args:
        task: The task. Its maximum length is used if `requested` is None, up to the positions of the model
            that were trained.
        source: Origin of the model.
        model_config: The transformers config of the model.
        requested: Value of `--max-length`, or None if it is not set.
        trained_length: Length up to which the positions of the model were trained, or None.

    Raises:
        UserError: `requested` exceeds the number of positions of the model.
    """
    max_positions = loading.get_max_positions(model_config)
    if requested is not None and max_positions is not None and requested > max_positions:
        fix = f"use at most {max_positions}"
        if task.config.long_texts is not None:
            fix += ", or --long-texts windows to read longer texts"
        raise UserError(f"--max-length {requested}: {source.name} has only {max_positions} positions; {fix}")
    if requested is not None:
        return requested
    default: int = task.config.max_length or task.definition.default_max_length
    return min(default, max_positions or default, trained_length or default)


def _check_token_budget(prepared: PreparedRun) -> None:
    """Check that a batch of `--tokens-per-batch` can hold the longest training sequence."""
    max_length, token_budget = prepared.config.max_training_length(), prepared.config.tokens_per_batch
    if token_budget is not None and token_budget < max_length:
        origin = "" if prepared.requested_max_length else " (the default)"
        raise UserError(
            f"--tokens-per-batch {token_budget}: is smaller than --max-length {max_length}{origin}; increase "
            "it, or reduce --max-length"
        )


def _require_trained_embeddings(config: RunConfig, num_new_tokens: int) -> None:
    """Refuse settings that freeze the embeddings, if the tokenizer has new tokens."""
    settings = {name: getattr(config, name, None) for name in ("lora", "freeze")}
    for name, value in settings.items():
        if value and num_new_tokens:
            tokens = format_count(num_new_tokens, "new token")
            raise UserError(
                f"--{name} {value}: freezes the embeddings, but those of {tokens} must be trained; omit it, "
                "or start from a run with these tokens"
            )


def _report_features(prepared: PreparedRun) -> None:
    """Report [UNK] tokens, long texts and other issues of the training features, and warnings of all splits.

    Raises:
        UserError: Too many tokens are [UNK], and the user did not choose the model.
    """
    train, task = prepared.features["train"], prepared.task
    problem = f"{prepared.model_source.name}: {train.unk_fraction:.0%} of the tokens of these texts are [UNK]"
    if train.unk_fraction > UNK_ERROR_FRACTION and not prepared.is_model_requested:
        raise UserError(f"{problem}; choose a model for their language with --model")
    if train.unk_fraction > UNK_WARNING_FRACTION:
        report_warning(problem)
    if not task.definition.resamples_examples:
        report_info(_describe_lengths(prepared))
    for note in train.describe_issues(prepared.splits["train"]):
        report_info(note)
    for split, features in prepared.features.items():
        for warning in features.warnings:
            report_warning(warning if split == "train" else f"{split} split: {warning}")


def _fill_hyperparameters(prepared: PreparedRun) -> None:
    """Fill in epochs, batch sizes and learning rate, if they are not set.

    Hyperparameters of the task take precedence over those suggested for the size of the data and the model.
    """
    task, token_budget = prepared.task, prepared.config.tokens_per_batch
    suggestions, reason = suggest_hyperparameters(
        len(prepared.splits["train"]),
        prepared.model_config,
        task.definition.unit,
        task.config.lora is not None,
    )
    suggestions |= task.default_hyperparameters
    if not task.training_method.trains_encoder:
        eval_batch_size = 2 * int(suggestions["batch_size"])
        task.resolve(**select_unset(task.config, {"eval_batch_size": eval_batch_size}))
        return
    if token_budget is not None:
        del suggestions["batch_size"]
    chosen = select_unset(task.config, suggestions)
    task.resolve(**chosen)
    train_batch_size = task.config.batch_size or token_budget // task.config.max_training_length()
    task.resolve(**select_unset(task.config, {"eval_batch_size": 2 * train_batch_size}))
    if task.config.max_steps is not None or task.config.time_limit is not None:
        chosen.pop("epochs", None)  # has no effect
    if chosen:
        values = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
        report_info(f"chosen {reason}: {values}")
    _merge_batches(prepared)


def _merge_batches(prepared: PreparedRun) -> None:
    """Replace accumulation steps by larger batches on a GPU, and report it."""
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


def count_parameters(model_config: Any) -> int:
    """Return the number of parameters of the encoder, without allocating weights."""
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(model_config).parameters())


def _describe_lengths(prepared: PreparedRun) -> str:
    """Return how many training texts are longer than the maximum length, and what happens to them."""
    train, uses_windows = prepared.features["train"], prepared.task.uses_windows
    longest, limit = f"longest: {train.max_untruncated_length:,} tokens", prepared.config.max_length
    fraction = train.windowed_fraction if uses_windows else train.num_truncated / len(train)
    if not fraction:
        return f"no training text is longer than {limit} tokens ({longest})"
    treatment = "split into windows" if uses_windows else "truncated"
    return (
        f"{fraction:.1%} of the training texts are longer than {limit} tokens and are {treatment} ({longest})"
    )
