"""A finished run as its directory tells it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import rundir
from bertkit.errors import UserError, listed, short
from bertkit.tasks import TASKS

NEEDED = {"data", "validation", "intervals", "baselines"}  # of metrics.json
EXAMPLES = ("predictions.jsonl", "masked_samples.jsonl")  # what a run may have of its validation split


@dataclass(frozen=True)
class Recorded:
    """A run directory; files are read when they are asked for.

    Attributes:
        metrics: the content of `metrics.json`, which a run that is about to end has not written yet.
    """

    folder: Path
    metrics: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.folder.absolute().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        return rundir.read_settings(self.folder)

    @cached_property
    def made_with(self) -> dict[str, Any]:
        """Command and versions."""
        return rundir.read_made_with(self.folder)

    @cached_property
    def log(self) -> list[dict[str, Any]]:
        """The steps that were logged."""
        return list(self._lines(rundir.LOG))

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The validation split's predictions, or samples of it."""
        return list(self._lines(self.told.name))

    @property
    def told(self) -> Path:
        """The file of its predictions, or of samples; if it has none, where they would be."""
        paths = [self.folder / name for name in EXAMPLES]
        return next((path for path in paths if path.exists()), paths[0])

    def content(self, name: str) -> dict[str, Any]:
        """A JSON file of the run; empty where it has none of the name."""
        path = self.folder / name
        return _parsed(path.read_bytes(), path) if path.exists() else {}

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return
        with path.open("rb") as file:  # by bytes: a text may hold U+2028
            for number, line in enumerate(file, 1):
                yield _parsed(line, f"{path}:{number}")


def read(folder: Path) -> Recorded:
    """A finished run.

    Raises:
        UserError: the directory holds none, or several.
    """
    metrics = rundir.finished(folder)
    if metrics["task"] not in TASKS:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{rundir.METRICS}"))
        raise UserError(f"{folder}: holds several runs; name some of them: {listed(runs)}")
    if missing := sorted(NEEDED - metrics.keys()):
        raise UserError(f"{folder / rundir.METRICS}: is not what a run writes; it has no {listed(missing)}")
    return Recorded(folder, metrics)


def _parsed(text: bytes, where: object) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); the run must be made again") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: {short(found)} is no JSON object; the run must be made again")
    return found
