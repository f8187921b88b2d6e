"""Settings and data of a finished run, for the commands that use the run."""

import dataclasses
from pathlib import Path

from bertkit import run_directory
from bertkit.data.loading import LoadedDataset
from bertkit.data.rows import UNLABELED_ROWS, Splits, describe_changes, fingerprint_splits
from bertkit.data_objects import DataObject
from bertkit.errors import UserError
from bertkit.pipeline.ensemble import find_ensemble, read_members, refuse_ensemble
from bertkit.pipeline.loaded_data import parse_all_rows, parse_and_split
from bertkit.pipeline.settings import require_data_objects
from bertkit.recipes import list_passed_data, read_recipe
from bertkit.run_directory import format_python_call
from bertkit.setting import ConfigT
from bertkit.tasks import TASKS, task_class
from bertkit.tasks.base import Task
from bertkit.utils.reporting import Reporter


def load_run_task(folder: Path, accepts_ensemble: bool = False) -> Task:
    """Return the task of a finished run, with the settings of the run.

    Args:
        folder: The run directory.
        accepts_ensemble: Whether the directory may be an ensemble, which has the task of its first member.

    Raises:
        UserError: The directory does not contain exactly one finished training run, or is an ensemble.
    """
    if not accepts_ensemble:
        refuse_ensemble(folder)
    elif ensemble := find_ensemble(folder):
        return load_run_task(read_members(ensemble)[0])
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
            f"{recipe.path}: the key 'provenance' is missing; restore the file, or run the training again"
        )
    return task_type(task_type.spec.config(**recipe.settings))


def pass_data_again(config: ConfigT, data: DataObject) -> ConfigT:
    """Replace the data objects of a finished run, which are not saved, by one object with all splits."""
    return dataclasses.replace(config, **{**dict.fromkeys(list_passed_data(config)), "data": data})


def require_same_data(folder: Path, fingerprints: dict[str, str]) -> None:
    """Raise a `UserError` unless the data has the fingerprints of a finished run."""
    if (folder / run_directory.LOGITS_FILE).exists():
        raise UserError(f"{folder}: is a run of a study, whose splits cannot be loaded again")
    saved = run_directory.read_provenance(folder)["data"]
    saved = {name: fingerprint for name, fingerprint in saved.items() if name != UNLABELED_ROWS}
    if changes := describe_changes(saved, fingerprints):
        raise UserError(f"{folder}: the data of this run has changed ({changes}); restore the data")


def reload_run_data(
    folder: Path, data: DataObject | None = None, function: str = "evaluate"
) -> tuple[LoadedDataset, Splits]:
    """Load the data of a finished run again, with the settings of the run.

    Args:
        folder: The run directory.
        data: The object that the run was trained on; ignored if the run was trained on files.
        function: Python function that accepts the object, for the error message.

    Returns:
        The dataset, and the splits. Those of an ensemble are only the training rows, unless the dataset has a
        validation split: the members were trained on all other rows.

    Raises:
        UserError: The data cannot be loaded, or has changed since the run.
    """
    task = load_run_task(folder, accepts_ensemble=True)
    if data and list_passed_data(task.config):
        task.config = pass_data_again(task.config, data)
    require_data_objects(task.config, format_python_call(function, {"run": str(folder)}, ["data"]))
    silent_reporter = Reporter()  # the base class reports nothing
    dataset = task.load_data(silent_reporter)
    if find_ensemble(folder) and "validation" not in dataset.splits:
        dataset = parse_all_rows(task, dataset)
        return dataset, {"train": dataset.splits["train"]}
    dataset, splits = parse_and_split(task, dataset, silent_reporter)
    if find_ensemble(folder):  # the members have the fingerprints of their own folds
        return dataset, splits
    require_same_data(folder, fingerprint_splits(splits))
    return dataset, splits
