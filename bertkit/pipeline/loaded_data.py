"""The data of a run: loaded, parsed, and split, before a model is chosen."""

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

from bertkit.config import RunConfig
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import Splits
from bertkit.errors import UserError
from bertkit.pipeline.label_fixes import apply_label_fixes
from bertkit.pipeline.settings import fill_data_dir
from bertkit.pipeline.splitting import split_and_sample, warn_about_overlap
from bertkit.setting import fill_unset, get_settings, is_column_setting
from bertkit.tasks import task_class
from bertkit.tasks.base import Task
from bertkit.utils.paths import expand_home
from bertkit.utils.reporting import Reporter


@dataclass(frozen=True)
class LoadedData:
    """The data of a run, before a model is chosen.

    Attributes:
        task: The task, with the columns and the labels that `parse_dataset` determined.
        requested: The settings of the user, with `data` and `data_dir`, but without other defaults.
        dataset: The parsed dataset, before validation rows are held out and rows are sampled.
        splits: Rows by split, after validation rows are held out and rows are sampled.
    """

    task: Task
    requested: Any
    dataset: LoadedDataset
    splits: Splits

    def for_run(self, settings: dict[str, Any], splits: Splits) -> "LoadedData":
        """Return the same data with other settings and splits, for one of several runs.

        Args:
            settings: Values that replace those of `requested`. They must not change how rows are parsed.
            splits: Rows by split.
        """
        task = type(self.task)(dataclasses.replace(self.task.config, **settings))
        task.spec = dataclasses.replace(task.spec, best_metric=self.task.spec.best_metric)
        state = {name: value for name, value in vars(self.task).items() if name not in ("config", "spec")}
        vars(task).update(copy.deepcopy(state))
        return LoadedData(task, dataclasses.replace(self.requested, **settings), self.dataset, splits)


def create_task(task_name: str, config: RunConfig) -> Task:
    """Create a task, and fill in the settings `data` and `data_dir`.

    Raises:
        UserError: The settings do not name any data.
    """
    config = fill_unset(config, {"data": config.resolve_data_name()})
    if not config.data:
        raise UserError(
            "--data: is required; pass a known dataset (see bertkit data ls), a file, a directory, or sample"
        )
    return task_class(task_name)(fill_data_dir(config))


def load_data(task_name: str, config: RunConfig, reporter: Reporter) -> LoadedData:
    """Load and parse the data, and fill in the default settings of the dataset.

    Returns:
        The data. Its splits are those of the dataset.

    Raises:
        UserError: The data cannot be loaded or parsed.
    """
    task = create_task(task_name, config)
    requested = task.config
    dataset = task.load_data(reporter)
    task.config = fill_unset(task.config, select_dataset_defaults(dataset, type(task)))
    dataset = parse_all_rows(task, dataset)
    return LoadedData(task, requested, dataset, dataset.splits)


def select_dataset_defaults(dataset: LoadedDataset, task_type: type[Task]) -> dict[str, Any]:
    """Return the default settings of a dataset, without those that the task does not have.

    Settings that name columns are also left out if the rows lack these columns. A user's copy of a known
    dataset may have other columns.
    """
    row_columns = set(dataset.splits["train"].columns)
    task_settings = get_settings(task_type.spec.config)
    selected = {}
    for key, value in dataset.defaults.items():
        name = task_type.spec.column_aliases.get(key, key)
        columns = {value} if isinstance(value, str) else value
        if name in task_settings and (not is_column_setting(name) or row_columns.issuperset(columns)):
            selected[name] = value
    return selected


# ---- rows


def parse_all_rows(task: Task, dataset: LoadedDataset) -> LoadedDataset:
    """Parse the rows of a dataset, and apply `--label-fixes` to the training rows.

    The fixes come before the split, so that no row is held out with a label that was changed.
    """
    dataset = task.parse_dataset(dataset)
    splits = {name: task.parse_rows(rows)[0] for name, rows in dataset.splits.items()}
    dataset = dataclasses.replace(dataset, splits=splits)
    path = getattr(task.config, "label_fixes", None)
    if path is None:
        return dataset
    fixed = apply_label_fixes(task, splits["train"], expand_home(path))
    notes = [*dataset.notes, fixed.describe()]
    if fixed.provenance["dropped"] and task.config.max_train_samples:
        notes.append("the dropped rows change which rows --max-train-samples selects")
    return dataclasses.replace(
        dataset, splits={**splits, "train": fixed.rows}, notes=notes, label_fixes=fixed.provenance
    )


def parse_and_split(task: Task, dataset: LoadedDataset, reporter: Reporter) -> tuple[LoadedDataset, Splits]:
    """Parse, split and sample the rows of a dataset.

    Returns:
        The parsed dataset, and the splits that the run uses.
    """
    dataset = parse_all_rows(task, dataset)
    return dataset, split_parsed_rows(task, dataset, reporter)


def split_parsed_rows(task: Task, dataset: LoadedDataset, reporter: Reporter) -> Splits:
    """Return the splits that a run uses, from the rows of a parsed dataset."""
    splits, notes = split_and_sample(task, dataset.splits)
    task.validate_splits(splits)
    for note in [*dataset.notes, *notes]:
        reporter.info(note)
    if task.config.keep_overlap:
        warn_about_overlap(task, splits, reporter)
    return splits
