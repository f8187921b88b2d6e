"""The logits of a split in a file, so that a study can combine those of several runs."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bertkit.errors import UserError
from bertkit.utils.files import PARTIAL, replace_path

LOGITS_KEY = "logits"
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def write_logits(path: Path, logits: np.ndarray, fitted_params: Mapping[str, float]) -> None:
    """Write logits and the fitted parameters of their run, atomically.

    Args:
        path: The file.
        logits: The logits, as `bertkit.tasks.evaluation.Outputs` has them.
        fitted_params: `Task.fitted_params`.
    """
    partial = path.with_name(f".{path.name}-{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            np.savez(file, **{LOGITS_KEY: logits, **fitted_params})  # type: ignore[arg-type]
        replace_path(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror}); free disk space") from error


def read_logits(path: Path) -> tuple[np.ndarray, dict[str, float]]:
    """Return the logits and the fitted parameters that `write_logits` wrote.

    Raises:
        UserError: The file is missing or damaged.
    """
    try:
        # numpy does not close a damaged file that it opened itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            params = {name: float(arrays[name]) for name in arrays.files if name != LOGITS_KEY}
            return arrays[LOGITS_KEY], params
    except READ_ERRORS as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: cannot be read ({reason}); delete its directory to train it again"
        ) from error
