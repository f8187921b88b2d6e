"""The rows that `calibrate` fits on, and their folds for cross-fitting."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data_objects import DataObject
from bertkit.errors import UserError, format_count
from bertkit.infer.configs import CalibrateConfig
from bertkit.recipes import list_passed_data
from bertkit.utils.reporting import Reporter

if TYPE_CHECKING:
    import numpy as np

    from bertkit.data.loading import LoadedDataset
    from bertkit.data.rows import Rows
    from bertkit.infer.predictor import Predictor
    from bertkit.tasks.base import Task

NUM_FOLDS = 5
MIN_ROWS = 10


@dataclass(frozen=True)
class CalibrationRows:
    """Labeled rows to calibrate on.

    Attributes:
        dataset: The dataset.
        rows: The rows.
        is_validation_split: Whether these are the validation rows of the run.
    """

    dataset: "LoadedDataset"
    rows: "Rows"
    is_validation_split: bool


def load_rows(config: CalibrateConfig, predictor: "Predictor", reporter: Reporter) -> CalibrationRows:
    """Load the validation rows of the run, or the rows of `--data`."""
    from bertkit.infer.evaluate import load_new_rows
    from bertkit.pipeline.finished_run import reload_run_data

    run = Path(config.run)
    passed = config.data if isinstance(config.data, DataObject) else None
    if config.data is None or (passed and list_passed_data(predictor.task.config)):
        try:
            dataset, splits = reload_run_data(run, passed, "calibrate")
            return CalibrationRows(dataset, splits["validation"], is_validation_split=True)
        except UserError as error:
            if config.data is None:
                raise UserError(f"{error}; pass --data to calibrate on other rows") from error
        reporter.warn(
            "`data` is not the data of this run, so its rows are used as new rows; the calibration is wrong "
            "if the model was trained on them"
        )
    trained_config = predictor.task.config  # before the columns of new data are mapped
    dataset, splits = load_new_rows(predictor, config, reporter)
    _warn_about_training_rows(run, predictor.task, trained_config, splits["validation"], reporter)
    return CalibrationRows(dataset, splits["validation"], is_validation_split=False)


def _warn_about_training_rows(
    run: Path, task: "Task", trained_config: Any, rows: "Rows", reporter: Reporter
) -> None:
    """Warn about rows that the model was trained on: it is more confident about them than about new rows."""
    from bertkit.data.columns import add_renamed_columns
    from bertkit.infer.evaluate import count_overlap
    from bertkit.pipeline.finished_run import reload_run_data

    try:
        _, splits = reload_run_data(run)
    except UserError:  # the training rows are not available any more
        return
    train = add_renamed_columns(splits["train"], trained_config, task.config)
    if overlap := count_overlap(task, train, rows):
        reporter.warn(
            f"{overlap:,} of {format_count(len(rows), 'row')} are also training rows, about which the model "
            "is too confident: the temperature does not fit new rows"
        )


def assign_folds(task: "Task", rows: "Rows", source: str) -> "np.ndarray":
    """Return [rows] the fold of each row; equal rows and rows of one group are in one fold.

    Raises:
        UserError: There are too few rows.
    """
    import numpy as np

    from bertkit.data.split import assign_folds, join_groups

    keys = task.split_keys(rows)
    groups = join_groups(keys)
    count = len(np.unique(groups))
    if count < MIN_ROWS:
        unit = keys.group_unit or f"different {keys.unit}"
        raise UserError(
            f"{source}: {format_count(count, unit)} to calibrate on, and at least {MIN_ROWS} are needed; "
            "pass more labeled rows with --data"
        )
    return assign_folds(groups, keys.stratum, NUM_FOLDS, task.config.seed)
