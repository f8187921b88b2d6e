"""Files of an ensemble: the list of its members, which are finished runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from bertkit.errors import MAX_REPR_LENGTH, UserError
from bertkit.utils.files import write_text
from bertkit.utils.paths import make_relative
from bertkit.utils.serialization import validate

ENSEMBLE_DIR, ENSEMBLE_FILE = "ensemble", "ensemble.json"


class _Ensemble(TypedDict):
    """Content of `ensemble.json`; the paths are relative to the file."""

    members: list[str]


def find_ensemble(folder: Path) -> Path | None:
    """Return the directory of an ensemble: `folder`, or its subdirectory `ensemble`; None if it is a run."""
    candidates = (folder, folder / ENSEMBLE_DIR)
    return next((path for path in candidates if (path / ENSEMBLE_FILE).is_file()), None)


def write_ensemble(folder: Path, members: Sequence[Path]) -> None:
    """Write the list of the members.

    Args:
        folder: Directory of the ensemble.
        members: The finished runs, which have the same task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [make_relative(member, folder) for member in members]
    write_text(folder / ENSEMBLE_FILE, json.dumps({"members": paths}, indent=2) + "\n")


def read_members(folder: Path) -> list[Path]:
    """Return the runs of an ensemble.

    Raises:
        UserError: The list is damaged or empty, or a member does not exist.
    """
    path = folder / ENSEMBLE_FILE
    fix = "run the study again"
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path}: cannot parse it as JSON ({error}); {fix}") from error
    ensemble: _Ensemble = validate(content, _Ensemble, path, fix)
    if not ensemble["members"]:
        raise UserError(f"{path}: has no members; {fix}")
    for member in ensemble["members"]:
        if not os.path.isdir(folder / member):  # noqa: PTH112 (`Path.is_dir` fails for a name that is too long)
            raise UserError(
                f"{path}: member {member[:MAX_REPR_LENGTH]} does not exist; restore its directory, or {fix}"
            )
        if find_ensemble(folder / member):
            raise UserError(f"{path}: member {member} is an ensemble itself; {fix}")
    return [folder / member for member in ensemble["members"]]


def refuse_ensemble(folder: Path) -> None:
    """Raise a `UserError` if the directory is an ensemble or a study with an ensemble."""
    if ensemble := find_ensemble(folder):
        member = os.path.normpath(read_members(ensemble)[0])
        raise UserError(
            f"{folder}: is an ensemble, which this command cannot use; pass one of its members, such as "
            f"{member}"
        )
