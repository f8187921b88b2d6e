"""From settings to rows, features and a model's config: all that can be known without weights."""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import run_directory
from bertkit.config import RunConfig, fill_unset, get_settings, serialize_settings
from bertkit.data.loading import LoadedDataset, resolve_data_dir
from bertkit.data.rows import Splits, describe_changes, fingerprint_splits
from bertkit.data.split import make_splits, sample_rows
from bertkit.errors import UserError, format_count
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.recipes import Recipe, apply_overrides, read_recipe
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.training import precision
from bertkit.training.advice import suggest_hyperparameters
from bertkit.training.arguments import parse_set_flag
from bertkit.training.trackers import check_tracker
from bertkit.utils import distributed, locks
from bertkit.utils.reporting import Reporter
from bertkit.validation import validate_settings

if TYPE_CHECKING:
    from bertkit.data.features import Features

UNK_WARNING_RATE, UNK_ERROR_RATE = 0.05, 0.30  # shares of unknown pieces: warned of, refused
SAMPLING_STRATEGY_PREFIX = "train_sampling_strategy="
PATH_SETTINGS = ("output_dir", "validation", "test")


@dataclass
class PreparedRun:
    """All that is known before weights are loaded."""

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
        """Of each split, see `bertkit.data.rows`."""
        return fingerprint_splits(self.splits)

    @property
    def config(self) -> Any:
        """The settings as resolved so far."""
        return self.task.config


# ---- settings


def resolve_settings(
    name: str, kind: type[RunConfig], given: Mapping[str, Any], recipe: str | None, reporter: Reporter
) -> tuple[RunConfig, dict[str, str] | None]:
    """The settings as the user means them, and with --resume the fingerprints of the run's data.

    Args:
        name: the command, `kind` its settings.
    """
    values = validate_settings(kind, given, f"{name.replace('-', '_')}()")
    if recipe is not None:
        read = read_recipe(recipe, name, kind)
        values = apply_overrides(read.settings, values, kind)
        _tell_processes(read, reporter)
    _check_processes(values)
    values |= {
        key: str(Path(values[key]).expanduser())
        for key in PATH_SETTINGS
        if "://" not in (values.get(key) or "://")
    }
    if values.get("output_dir"):
        run_directory.check_output_directory(Path(values["output_dir"]))
        locks.require_unlocked(Path(values["output_dir"]))
    if values.get("resume"):
        return _resumed(name, kind, values)
    config = kind(**values)
    parse_set_flag(config)
    check_tracker(config.report_to)
    if config.validation and config.validation_fraction is not None:
        raise UserError(
            "--validation-fraction: nothing is set aside beside --validation; leave one of them out"
        )
    _check_budget(config)
    if config.output_dir is not None:
        # The folder, once made, would be taken for the data.
        if (data := config.resolve_data_name()) and Path(config.output_dir) == Path(data):
            raise UserError(f"--output-dir {config.output_dir}: is what --data says; name another directory")
        run_directory.check_run_directory(Path(config.output_dir), config.overwrite)
    return config, None


def _check_budget(config: RunConfig) -> None:
    """Refuse what does not go with batches by a budget."""
    if config.tokens_per_batch is None:
        return
    if config.batch_size is not None:
        raise UserError(
            "--tokens-per-batch: decides how many examples a batch has, as --batch-size does; leave one of "
            "them out"
        )
    if "train_sampling_strategy" in parse_set_flag(config):
        raise UserError(
            "--set train_sampling_strategy: --tokens-per-batch has an order of its own; leave one out"
        )


def _tell_processes(recipe: Recipe, reporter: Reporter) -> None:
    """Of a run of several processes, its batch size is that of one of them."""
    before = recipe.provenance.get("processes", 1)
    if recipe.provenance and before != distributed.get_launched_world_size():  # one that a run has written
        each = f"its run had {format_count(before, 'process', 'processes')}, each with its batch"
        reporter.warn(f"{recipe.path}: {each}; --nproc {before} repeats it")


def _check_processes(values: Mapping[str, Any]) -> None:
    """Refuse what would wait for ever, or would not be what it seems."""
    if distributed.is_rank_unset():
        raise UserError("WORLD_SIZE is set and RANK is not; start processes with --nproc, or torchrun")
    several, orders = (
        distributed.get_launched_world_size() > 1,
        [one for one in values.get("set") or () if one.startswith(SAMPLING_STRATEGY_PREFIX)],
    )
    if (values.get("nproc") or 1) > 1 and not distributed.is_launched_by_bertkit():
        why = "they are started already" if several else "a flag of the command line alone"
        raise UserError(f"--nproc {values['nproc']}: {why}; leave it out")
    if orders and several:
        raise UserError(
            f"--set {orders[0]}: of several processes only bertkit's own order is right; leave it out"
        )


def _resumed(name: str, kind: type[RunConfig], values: dict[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    folder = values.get("output_dir")
    if folder is None or not (Path(folder) / run_directory.SETTINGS_FILE).exists():
        found = f"; {folder} holds none" if folder else ""
        raise UserError(f"--resume needs --output-dir with the run to go on with{found}")
    saved = read_recipe(str(Path(folder) / run_directory.SETTINGS_FILE), name, kind)
    before, processes = kind(**saved.settings), saved.provenance.get("processes", 1)
    if (
        processes != distributed.get_launched_world_size()
        and not (Path(folder) / run_directory.METRICS_FILE).exists()
    ):
        raise UserError(
            f"--resume {folder}: {processes} processes trained it; go on with --nproc {processes}"
        )
    for key, value in values.items():
        if key in ("overwrite", "dry_run") and value:
            raise UserError(f"--resume goes on with a run; leave out --{key.replace('_', '-')}")
        same = serialize_settings(kind(**{key: value})) == serialize_settings(
            kind(**{key: getattr(before, key)})
        )
        if key not in ("resume", "output_dir") and not same:
            raise UserError(
                f"--resume keeps the run's settings: {key} is {getattr(before, key)!r} there, not {value!r}"
            )
    of_the_call = {
        key: values[key]
        for key, (_, about, _) in get_settings(kind).items()
        if key in values and not about.saved
    }
    check_tracker(before.report_to)
    return dataclasses.replace(before, **of_the_call), run_directory.read_provenance(Path(folder))["data"]


# ---- data and model, without weights


def prepare(task_name: str, config: RunConfig, reporter: Reporter) -> PreparedRun:
    """Load, split, check and tokenize the data; find the model; fill in what the user left open."""
    task, given_model = create_task(task_name, config), config.model is not None
    precision.check_precision(config)
    found = task.load_data(reporter)
    from bertkit.modeling.heads import (
        CHOICE_HEAD,
        QUESTION_HEAD,
        SEQUENCE_HEAD,
        TAGGER_HEAD,
        TOKEN_HEAD,
        has_head,
    )

    chosen, reason = precision.choose_precision(config)
    task.config = fill_unset(
        task.config, {"bf16": chosen == "bf16"} | select_dataset_defaults(found, type(task))
    )
    found, splits = _arranged(task, found, reporter)
    source = task.resolve_model(given_model, reporter)
    model_config = loading.load_config(source)
    had_head = has_head(model_config, SEQUENCE_HEAD, CHOICE_HEAD, TOKEN_HEAD, QUESTION_HEAD, TAGGER_HEAD)
    model_config = task.configure_model(model_config, source)
    tokenizer = loading.load_tokenizer(source)
    prepared = PreparedRun(
        task, found, splits, source, model_config, tokenizer, chosen, given_model, config.max_length
    )
    reporter.info(f"data: {found.name} from {found.source}; {task.describe()}")
    about = ", ".join(filter(None, [_describe_head(task, had_head), f"{chosen} ({reason})"]))
    reporter.info(f"model: {source.name}; {about}")
    _resolve(prepared, reporter)
    return prepared


def _describe_head(task: Task, had_head: bool) -> str:
    """Return what the console adds to the model's name; `had_head`: its checkpoint has a head of any task."""
    if task.head_note is not None:
        return task.head_note
    if not task.has_new_head:
        return "its own head"
    return "a new head in place of its own" if had_head else ""


def create_task(task_name: str, config: RunConfig) -> Task:
    """The task with its settings, which say what data and where to look for it."""
    config = fill_unset(config, {"data": config.resolve_data_name()})
    if not config.data:
        raise UserError("--data is missing: a known name (bertkit data ls), a file, a folder, or sample")
    directory = resolve_data_dir(config.data_dir)
    config = fill_unset(config, {"data_dir": str(directory) if directory else None})
    return task_class(task_name)(config)


def select_dataset_defaults(found: LoadedDataset, kind: type[Task]) -> dict[str, Any]:
    """The set's defaults that the task has; columns only where the rows have them.

    A set may come in a layout of its own, and a task may call a column by another role.
    """
    there = set(found.splits["train"].columns)
    named = {kind.spec.column_aliases.get(key, key): value for key, value in found.defaults.items()}
    ours = {key: value for key, value in named.items() if key in get_settings(kind.spec.config)}
    columns = {
        key: {value} if isinstance(value, str) else set(value)
        for key, value in ours.items()
        if "_column" in key
    }
    return {key: value for key, value in ours.items() if columns.get(key, set()) <= there}


def _arranged(task: Task, found: LoadedDataset, reporter: Reporter) -> tuple[LoadedDataset, Splits]:
    """The splits to use: labels by name, a share set aside, no text on both sides, rows drawn."""
    found = task.parse_dataset(found)
    found = dataclasses.replace(
        found, splits={name: task.parse_rows(rows)[0] for name, rows in found.splits.items()}
    )
    splits, notes = split_and_sample(task, found.splits)
    task.validate_splits(splits)
    for note in [*found.notes, *notes]:
        reporter.info(note)
    return found, splits


def split_and_sample(task: Task, splits: Splits) -> tuple[Splits, list[str]]:
    """A validation split beside the training split, no example in both, rows drawn; and notes."""
    config = task.config
    seed = config.seed if config.split_seed is None else config.split_seed
    splits, notes = make_splits(splits, task.split_keys, config.validation_fraction, seed)
    limits = {"train": config.max_train_samples}
    drawn = {
        name: sample_rows(rows, limits.get(name, config.max_eval_samples), seed)
        for name, rows in splits.items()
    }
    return drawn, notes


def _resolve(prepared: PreparedRun, reporter: Reporter) -> None:
    """Fill in what the texts and sizes decide: max_length, features, epochs, batch size, learning rate."""
    task, source = prepared.task, prepared.model_source
    longest = resolve_max_length(task, source, prepared.model_config, prepared.requested_max_length)
    task.config = dataclasses.replace(task.config, max_length=longest)
    most, budget = task.config.train_max_length(), task.config.tokens_per_batch
    if budget is not None and budget < most:
        said = "" if prepared.requested_max_length else " (its default)"
        raise UserError(
            f"--tokens-per-batch {budget}: less than --max-length {most}{said}; at least as much, or a "
            "smaller --max-length"
        )
    if not source.is_new:
        task.config = fill_unset(task.config, {"model": source.name})
    for name, rows in prepared.splits.items():
        prepared.features[name] = task.featurize(rows, prepared.tokenizer, training=name == "train")
    _look_at_pieces(prepared, reporter)
    advice, reason = suggest_hyperparameters(
        len(prepared.splits["train"]), count_parameters(prepared.model_config), task.spec.unit
    )
    advice |= task.spec.default_hyperparameters
    if budget is not None:
        del advice["batch_size"]
    unsaid = {key: value for key, value in advice.items() if getattr(task.config, key) is None}
    task.config = fill_unset(task.config, unsaid)
    task.config = fill_unset(task.config, {"eval_batch_size": 2 * (task.config.batch_size or budget // most)})
    if unsaid:
        words = ", ".join(f"{key} {value:g}" for key, value in unsaid.items())
        reporter.info(f"chosen {reason}: {words}")


def resolve_max_length(task: Task, source: ModelSource, model_config: Any, wanted: int | None) -> int:
    """What `--max-length` comes to with this model. Raises `UserError` where it cannot take as much."""
    limit = loading.get_max_positions(model_config)
    if wanted is not None and limit is not None and wanted > limit:
        way = "; --long-texts windows reads longer texts" if hasattr(task.config, "long_texts") else ""
        raise UserError(f"--max-length {wanted}: {source.name} has {limit} positions{way}")
    return min(wanted or task.config.max_length or task.spec.default_max_length, limit or sys.maxsize)


def _look_at_pieces(prepared: PreparedRun, reporter: Reporter) -> None:
    train, config = prepared.features["train"], prepared.config
    if train.unk_fraction > UNK_ERROR_RATE and not prepared.is_model_requested:
        raise UserError(
            f"{prepared.model_source.name} does not know {train.unk_fraction:.0%} of the pieces of these texts; "
            "name a model of their language with --model"
        )
    if train.unk_fraction > UNK_WARNING_RATE:
        reporter.warn(
            f"{prepared.model_source.name} does not know {train.unk_fraction:.0%} of the pieces of these texts"
        )
    if not prepared.task.spec.dynamic_examples:
        over = train.windowed_fraction if prepared.task.spec.uses_windows else train.num_truncated / len(train)
        how = "read in windows" if prepared.task.spec.uses_windows else "cut"
        reporter.info(
            f"{over:.1%} of the training texts are over {config.max_length} pieces and {how} "
            f"(longest {train.max_untruncated_length:,})"
        )
    for note in train.describe_issues(prepared.splits["train"]):
        reporter.info(note)


def count_parameters(model_config: Any) -> int:
    """Parameters of the model, without making its weights."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(model_config).parameters())


def load_run_task(folder: Path) -> Task:
    """The task of a finished run, with the run's settings.

    Raises:
        UserError: the directory holds none, or a suite of several.
    """
    metrics = run_directory.require_metrics(folder)
    if metrics["task"] not in TASKS:
        raise UserError(f"{folder}: is several runs; name one of those in it")
    if "training" not in metrics:
        raise UserError(f"{folder}: holds scores and no model; name the run that they are of")
    kind = task_class(metrics["task"])
    saved = read_recipe(str(folder / run_directory.SETTINGS_FILE), kind.spec.name, kind.spec.config)
    if not saved.provenance:
        raise UserError(f"{saved.path}: is cut, or not what a run writes; it has no 'provenance'")
    return kind(kind.spec.config(**saved.settings))


def reload_run_rows(folder: Path) -> tuple[LoadedDataset, Splits]:
    """The rows of a finished run, read again by its settings and split as they were.

    Raises:
        UserError: they are not to be had any more, or are others now.
    """
    task = load_run_task(folder)
    found, splits = _arranged(task, task.load_data(Reporter()), Reporter())
    if changed := describe_changes(run_directory.read_provenance(folder)["data"], fingerprint_splits(splits)):
        raise UserError(f"{folder}: the data that it was trained on has changed since: {changed}")
    return found, splits
