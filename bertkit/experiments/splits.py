"""The splits of the runs of a study.

The held-out scores of a study are measured on rows that were not used to select settings, checkpoints or
thresholds.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from bertkit.data.split import DEFAULT_FRACTION, assign_folds, join_groups, remove_overlap, split_stratified
from bertkit.data.table import Rows, Splits
from bertkit.errors import UserError, format_count
from bertkit.run.load_data import LoadedData, sample_training_rows, split_parsed_rows
from bertkit.settings.run_settings import RunConfig
from bertkit.utils.reporting import report_info

OUTER_FRACTION = 0.2  # of the training rows, if there are neither folds nor a labeled test split
SPLITS = ("train", "validation", "test")
TRIAL_FOLD = 0  # the fold on which the trials are scored


@dataclass(frozen=True)
class FinalSplits:
    """The splits of those final runs that have the same rows.

    Attributes:
        fold: The fold that these runs predict; None without folds.
        splits: The splits "train", "validation" and "test".
        rows: [test] indices of the test rows in the rows that all final runs predict.
    """

    fold: int | None
    splits: Splits
    rows: np.ndarray


@dataclass(frozen=True)
class StudySplits:
    """The splits of all runs of a study.

    Attributes:
        search: The splits "train" and "validation" of the trials.
        final: The splits of the final runs.
        rows: The rows that the final runs predict, each once per seed.
    """

    search: Splits
    final: list[FinalSplits]
    rows: Rows


def get_split_seed(config: RunConfig) -> int:
    """Return the seed of all splits of a study."""
    return config.seed if config.split_seed is None else config.split_seed


def split_data(data: LoadedData, num_folds: int | None) -> StudySplits:
    """Return the splits of all runs of a study, and report how the rows were split.

    Args:
        data: The parsed data.
        num_folds: Number of folds; None for a study without folds.
    """
    if num_folds:
        return split_into_folds(data, num_folds)
    if parse_labeled_rows(data, "test") is None:
        data = hold_out_test_rows(data)
        rows = format_count(len(data.dataset.splits["test"]), data.task.definition.unit)
        report_info(f"{rows} of the training data are held out as test split, which has no labels")
    splits = split_parsed_rows(data.task, data.dataset)
    test = splits["test"]
    final = FinalSplits(None, {name: splits[name] for name in SPLITS}, np.arange(len(test)))
    return StudySplits({name: splits[name] for name in ("train", "validation")}, [final], test)


def parse_labeled_rows(data: LoadedData, split: str) -> Rows | None:
    """Return the rows of a split of the dataset if all of them have labels, else None."""
    rows = data.dataset.splits.get(split)
    if rows is None:
        return None
    try:
        labeled, _ = data.task.parse_rows(rows, split, require_labels=True)
    except UserError:
        return None
    return labeled if len(labeled) == len(rows) else None


def split_into_folds(data: LoadedData, num_folds: int) -> StudySplits:
    """Return the splits of a study with folds.

    A final run predicts one fold. The rows that choose its checkpoint are held out of the other folds. A
    trial trains on all folds but one, and is scored on that one.
    """
    rows, notes = data.dataset.splits["train"], list(data.dataset.notes)
    if not data.task.config.keep_overlap:
        rows = remove_overlap(data.dataset.splits, data.task.split_keys, notes)
    rows = sample_training_rows(data.task, rows, get_split_seed(data.task.config))
    keys, seed = data.task.split_keys(rows), get_split_seed(data.task.config)
    groups = join_groups(keys)
    num_groups = len(np.unique(groups))
    count = format_count(num_groups, keys.group_unit or f"different {keys.unit}")
    if num_groups < num_folds:
        raise UserError(f"--folds {num_folds}: the training data has only {count}; use fewer folds")
    fold = assign_folds(groups, keys.stratum, num_folds, seed)
    fraction = data.task.config.validation_fraction or DEFAULT_FRACTION
    final = []
    for number in range(num_folds):
        rest, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        train, validation = split_stratified(groups[rest], keys.stratum[rest], fraction, seed)
        if not (len(train) and len(validation)):
            raise UserError(
                f"--folds {num_folds}: {count} in the training data are too few to hold out rows for "
                "validation; raise --validation-fraction, or add rows"
            )
        indices = {"train": rest[train], "validation": rest[validation], "test": test}
        splits = {name: rows.select(index) for name, index in indices.items()}
        data.task.validate_splits(splits)
        final.append(FinalSplits(number, splits, test))
    search = {
        "train": rows.select(np.flatnonzero(fold != TRIAL_FOLD)),
        "validation": rows.select(np.flatnonzero(fold == TRIAL_FOLD)),
    }
    for note in [*notes, f"{format_count(len(rows), keys.unit)} in {num_folds} folds (seed {seed})"]:
        report_info(note)
    return StudySplits(search, final, rows)


def hold_out_test_rows(data: LoadedData) -> LoadedData:
    """Return the data with a test split from the training rows, for a dataset without labeled test rows."""
    task, rows = data.task, data.dataset.splits["train"]
    keys = task.split_keys(rows)
    seed = get_split_seed(task.config)
    train, test = split_stratified(join_groups(keys), keys.stratum, OUTER_FRACTION, seed)
    if not (len(train) and len(test)):
        raise UserError(
            f"{rows.files[0]}: {format_count(len(rows), keys.unit)} are too few to hold out a test split; "
            "add rows, or pass --test FILE"
        )
    splits = {**data.dataset.splits, "train": rows.select(train), "test": rows.select(test)}
    return dataclasses.replace(data, dataset=dataclasses.replace(data.dataset, splits=splits))
