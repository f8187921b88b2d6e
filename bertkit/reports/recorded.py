"""A finished run as its directory tells it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit import rundir
from bertkit.errors import UserError, listed
from bertkit.tasks import TASKS

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
        return [record for name in EXAMPLES for record in self._lines(name)]

    def content(self, name: str) -> dict[str, Any]:
        """A JSON file of the run; empty where it has none of the name."""
        path = self.folder / name
        return _parsed(path.read_text("utf-8"), path) if path.exists() else {}

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return
        with path.open(encoding="utf-8", newline="\n") as file:  # a text may hold U+2028
            for number, line in enumerate(file, 1):
                yield _parsed(line, f"{path}:{number}")


def read(folder: Path) -> Recorded:
    """A finished run.

    Raises:
        UserError: the directory holds none, or several.
    """
    metrics = rundir.read_metrics(folder) if folder.is_dir() else None
    if metrics is None:
        raise UserError(f"{folder}: not a finished run (no {rundir.METRICS} in it)")
    if metrics["task"] not in TASKS:
        runs = sorted(str(path.parent) for path in folder.glob(f"*/**/{rundir.METRICS}"))
        raise UserError(f"{folder}: holds several runs; name some of them: {listed(runs)}")
    return Recorded(folder, metrics)


def _parsed(text: str, where: object) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); the run must be made again") from error
