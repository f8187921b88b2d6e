"""From settings to rows, features and a model's config: all that can be known without weights."""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import locks, ranks, rundir
from bertkit.checked import checked
from bertkit.config import RunConfig, fill, saved_settings, settings_of
from bertkit.data.rows import Splits, changes, fingerprints
from bertkit.data.sources import Found, data_directory
from bertkit.data.split import arrange, draw
from bertkit.errors import UserError, counted
from bertkit.modeling import loading
from bertkit.modeling.loading import ModelSource
from bertkit.recipes import Recipe, behind, read_recipe
from bertkit.reporter import Reporter
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.training import precision
from bertkit.training.advice import advise
from bertkit.training.arguments import parse_set
from bertkit.training.trackers import check_tracker

if TYPE_CHECKING:
    from bertkit.data.features import Features

MANY_UNKNOWN, TOO_MANY_UNKNOWN = 0.05, 0.30  # shares of unknown pieces: warned of, refused
ORDER = "train_sampling_strategy="
PATHS = ("output_dir", "validation", "test")


@dataclass
class Prepared:
    """All that is known before weights are loaded."""

    task: Task
    found: Found
    splits: Splits
    source: ModelSource
    model_config: Any
    tokenizer: Any
    precision: str
    model_given: bool
    max_length_given: int | None
    features: dict[str, "Features"] = field(default_factory=dict)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of each split, see `bertkit.data.rows`."""
        return fingerprints(self.splits)

    @property
    def config(self) -> Any:
        """The settings as resolved so far."""
        return self.task.config


# ---- settings


def settings(
    name: str, kind: type[RunConfig], given: Mapping[str, Any], recipe: str | None, reporter: Reporter
) -> tuple[RunConfig, dict[str, str] | None]:
    """The settings as the user means them, and with --resume the fingerprints of the run's data.

    Args:
        name: the command, `kind` its settings.
    """
    values = checked(kind, given, f"{name.replace('-', '_')}()")
    if recipe is not None:
        read = read_recipe(recipe, name, kind)
        values = behind(read.settings, values, kind)
        _tell_processes(read, reporter)
    _check_processes(values)
    values |= {
        key: str(Path(values[key]).expanduser()) for key in PATHS if "://" not in (values.get(key) or "://")
    }
    if values.get("output_dir"):
        rundir.check_folder(Path(values["output_dir"]))
        locks.require_free(Path(values["output_dir"]))
    if values.get("resume"):
        return _resumed(name, kind, values)
    config = kind(**values)
    parse_set(config)
    check_tracker(config.report_to)
    if config.validation and config.validation_fraction is not None:
        raise UserError(
            "--validation-fraction: nothing is set aside beside --validation; leave one of them out"
        )
    _check_budget(config)
    if config.output_dir is not None:
        # The folder, once made, would be taken for the data.
        if (data := config.named_data()) and Path(config.output_dir) == Path(data):
            raise UserError(f"--output-dir {config.output_dir}: is what --data says; name another directory")
        rundir.check_writable(Path(config.output_dir), config.overwrite)
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
    if "train_sampling_strategy" in parse_set(config):
        raise UserError(
            "--set train_sampling_strategy: --tokens-per-batch has an order of its own; leave one out"
        )


def _tell_processes(recipe: Recipe, reporter: Reporter) -> None:
    """Of a run of several processes, its batch size is that of one of them."""
    before = recipe.made_with.get("processes", 1)
    if recipe.made_with and before != ranks.started():  # one that a run has written
        each = f"its run had {counted(before, 'process', 'processes')}, each with its batch"
        reporter.warn(f"{recipe.path}: {each}; --nproc {before} repeats it")


def _check_processes(values: Mapping[str, Any]) -> None:
    """Refuse what would wait for ever, or would not be what it seems."""
    if ranks.is_left_alone():
        raise UserError("WORLD_SIZE is set and RANK is not; start processes with --nproc, or torchrun")
    several, orders = ranks.started() > 1, [one for one in values.get("set") or () if one.startswith(ORDER)]
    if (values.get("nproc") or 1) > 1 and not ranks.are_ours():
        why = "they are started already" if several else "a flag of the command line alone"
        raise UserError(f"--nproc {values['nproc']}: {why}; leave it out")
    if orders and several:
        raise UserError(
            f"--set {orders[0]}: of several processes only bertkit's own order is right; leave it out"
        )


def _resumed(name: str, kind: type[RunConfig], values: dict[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    folder = values.get("output_dir")
    if folder is None or not (Path(folder) / rundir.SETTINGS).exists():
        found = f"; {folder} holds none" if folder else ""
        raise UserError(f"--resume needs --output-dir with the run to go on with{found}")
    saved = read_recipe(str(Path(folder) / rundir.SETTINGS), name, kind)
    before, processes = kind(**saved.settings), saved.made_with.get("processes", 1)
    if processes != ranks.started() and not (Path(folder) / rundir.METRICS).exists():
        raise UserError(
            f"--resume {folder}: {processes} processes trained it; go on with --nproc {processes}"
        )
    for key, value in values.items():
        if key in ("overwrite", "dry_run") and value:
            raise UserError(f"--resume goes on with a run; leave out --{key.replace('_', '-')}")
        same = saved_settings(kind(**{key: value})) == saved_settings(kind(**{key: getattr(before, key)}))
        if key not in ("resume", "output_dir") and not same:
            raise UserError(
                f"--resume keeps the run's settings: {key} is {getattr(before, key)!r} there, not {value!r}"
            )
    of_the_call = {
        key: values[key]
        for key, (_, about, _) in settings_of(kind).items()
        if key in values and not about.saved
    }
    check_tracker(before.report_to)
    return dataclasses.replace(before, **of_the_call), rundir.read_made_with(Path(folder))["data"]


# ---- data and model, without weights


def prepare(task_name: str, config: RunConfig, reporter: Reporter) -> Prepared:
    """Load, split, check and tokenize the data; find the model; fill in what the user left open."""
    task, given_model = task_of(task_name, config), config.model is not None
    precision.check(config)
    found = task.find(reporter)
    from bertkit.modeling.heads import CHOICE, QUESTION, SEQUENCE, TAGGER, TOKEN, has_head

    chosen, reason = precision.choose(config)
    task.config = fill(task.config, {"bf16": chosen == "bf16"} | defaults_of(found, type(task)))
    found, splits = _arranged(task, found, reporter)
    source = task.source(given_model, reporter)
    model_config = loading.load_config(source)
    had_head = has_head(model_config, SEQUENCE, CHOICE, TOKEN, QUESTION, TAGGER)
    model_config = task.adopt(model_config, source)
    tokenizer = loading.load_tokenizer(source)
    prepared = Prepared(
        task, found, splits, source, model_config, tokenizer, chosen, given_model, config.max_length
    )
    reporter.say(f"data: {found.name} from {found.source}; {task.summary()}")
    about = ", ".join(filter(None, [task.heads(had_head), f"{chosen} ({reason})"]))
    reporter.say(f"model: {source.name}; {about}")
    _resolve(prepared, reporter)
    return prepared


def task_of(task_name: str, config: RunConfig) -> Task:
    """The task with its settings, which say what data and where to look for it."""
    config = fill(config, {"data": config.named_data()})
    if not config.data:
        raise UserError("--data is missing: a known name (bertkit data ls), a file, a folder, or sample")
    directory = data_directory(config.data_dir)
    config = fill(config, {"data_dir": str(directory) if directory else None})
    return task_class(task_name)(config)


def defaults_of(found: Found, kind: type[Task]) -> dict[str, Any]:
    """The set's defaults that the task has; columns only where the rows have them.

    A set may come in a layout of its own, and a task may call a column by another role.
    """
    there = set(found.splits["train"].columns)
    named = {kind.known_as.get(key, key): value for key, value in found.defaults.items()}
    ours = {key: value for key, value in named.items() if key in settings_of(kind.Config)}
    columns = {
        key: {value} if isinstance(value, str) else set(value)
        for key, value in ours.items()
        if "_column" in key
    }
    return {key: value for key, value in ours.items() if columns.get(key, set()) <= there}


def _arranged(task: Task, found: Found, reporter: Reporter) -> tuple[Found, Splits]:
    """The splits to use: labels by name, a share set aside, no text on both sides, rows drawn."""
    found = task.columns(found)
    found = dataclasses.replace(
        found, splits={name: task.readable(rows) for name, rows in found.splits.items()}
    )
    splits, notes = parted(task, found.splits)
    task.check(splits)
    for note in [*found.notes, *notes]:
        reporter.say(note)
    return found, splits


def parted(task: Task, splits: Splits) -> tuple[Splits, list[str]]:
    """A validation split beside the training split, no example in both, rows drawn; and notes."""
    config = task.config
    seed = config.seed if config.split_seed is None else config.split_seed
    splits, notes = arrange(splits, task.keys, config.validation_fraction, seed)
    limits = {"train": config.max_train_samples}
    drawn = {
        name: draw(rows, limits.get(name, config.max_eval_samples), seed) for name, rows in splits.items()
    }
    return drawn, notes


def _resolve(prepared: Prepared, reporter: Reporter) -> None:
    """Fill in what the texts and sizes decide: max_length, features, epochs, batch size, learning rate."""
    task, source = prepared.task, prepared.source
    longest = max_length(task, source, prepared.model_config, prepared.max_length_given)
    task.config = dataclasses.replace(task.config, max_length=longest)
    most, budget = task.longest_trained, task.config.tokens_per_batch
    if budget is not None and budget < most:
        said = "" if prepared.max_length_given else " (its default)"
        raise UserError(
            f"--tokens-per-batch {budget}: less than --max-length {most}{said}; at least as much, or a "
            "smaller --max-length"
        )
    if not source.new:
        task.config = fill(task.config, {"model": source.name})
    for name, rows in prepared.splits.items():
        make = task.prepare_training if name == "train" else task.prepare
        prepared.features[name] = make(rows, prepared.tokenizer)
    _look_at_pieces(prepared, reporter)
    advice, reason = advise(len(prepared.splits["train"]), parameters_of(prepared.model_config), task.unit)
    advice |= task.advice()
    if budget is not None:
        del advice["batch_size"]
    unsaid = {key: value for key, value in advice.items() if getattr(task.config, key) is None}
    task.config = fill(task.config, unsaid)
    task.config = fill(task.config, {"eval_batch_size": 2 * (task.config.batch_size or budget // most)})
    if unsaid:
        words = ", ".join(f"{key} {value:g}" for key, value in unsaid.items())
        reporter.say(f"chosen {reason}: {words}")


def max_length(task: Task, source: ModelSource, model_config: Any, wanted: int | None) -> int:
    """What `--max-length` comes to with this model. Raises `UserError` where it cannot take as much."""
    limit = loading.usable_positions(model_config)
    if wanted is not None and limit is not None and wanted > limit:
        way = "; --long windows reads longer texts" if hasattr(task.config, "long") else ""
        raise UserError(f"--max-length {wanted}: {source.name} has {limit} positions{way}")
    return min(wanted or task.config.max_length or task.default_max_length, limit or sys.maxsize)


def _look_at_pieces(prepared: Prepared, reporter: Reporter) -> None:
    train, config = prepared.features["train"], prepared.config
    if train.unknown > TOO_MANY_UNKNOWN and not prepared.model_given:
        raise UserError(
            f"{prepared.source.name} does not know {train.unknown:.0%} of the pieces of these texts; "
            "name a model of their language with --model"
        )
    if train.unknown > MANY_UNKNOWN:
        reporter.warn(
            f"{prepared.source.name} does not know {train.unknown:.0%} of the pieces of these texts"
        )
    if not prepared.task.drawn_to_fit:
        over = train.windowed if prepared.task.in_windows else train.truncated / len(train)
        how = "read in windows" if prepared.task.in_windows else "cut"
        reporter.say(
            f"{over:.1%} of the training texts are over {config.max_length} pieces and {how} "
            f"(longest {train.longest:,})"
        )
    for note in train.notes(prepared.splits["train"]):
        reporter.say(note)


def parameters_of(model_config: Any) -> int:
    """Parameters of the model, without making its weights."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(model_config).parameters())


def task_of_run(folder: Path) -> Task:
    """The task of a finished run, with the run's settings.

    Raises:
        UserError: the directory holds none, or a suite of several.
    """
    metrics = rundir.finished(folder)
    if metrics["task"] not in TASKS:
        raise UserError(f"{folder}: is several runs; name one of those in it")
    if "training" not in metrics:
        raise UserError(f"{folder}: holds scores and no model; name the run that they are of")
    kind = task_class(metrics["task"])
    saved = read_recipe(str(folder / rundir.SETTINGS), kind.name, kind.Config)
    if not saved.made_with:
        raise UserError(f"{saved.path}: is cut, or not what a run writes; it has no 'made_with'")
    return kind(kind.Config(**saved.settings))


def rows_again(folder: Path) -> tuple[Found, Splits]:
    """The rows of a finished run, read again by its settings and split as they were.

    Raises:
        UserError: they are not to be had any more, or are others now.
    """
    task = task_of_run(folder)
    found, splits = _arranged(task, task.find(Reporter()), Reporter())
    if changed := changes(rundir.read_made_with(folder)["data"], fingerprints(splits)):
        raise UserError(f"{folder}: the data that it was trained on has changed since: {changed}")
    return found, splits
